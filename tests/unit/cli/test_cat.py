"""``zkconsumer cat`` on a cluster in memory: the begin, the end and the output, alone and as a member."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.timing import scaled
from zkconsumer.cli import main
from zkconsumer.testing import FakeCluster

Cat = Callable[..., str]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("events", 2)
        for number in range(6):
            made.append("events", 0, [b"v%d" % number], [b"k%d" % number])
        made.append("events", 1, [b"one", b"\x1b[2J", b"\xff\xfe"], [None, b"k", b"\xff"])
        yield made


@pytest.fixture
def cat(cluster: FakeCluster, capfdbinary: pytest.CaptureFixture[bytes]) -> Cat:
    def run(*arguments: str, code: int = 0) -> str:
        assert main(["cat", "events", "--zookeeper", cluster.zookeeper_connect, *arguments]) == code
        return capfdbinary.readouterr().out.decode("utf-8", "surrogateescape")

    return run


def test_a_topic_is_printed_whole(cluster: FakeCluster, cat: Cat) -> None:
    printed = cat()

    assert sorted(printed.splitlines()) == sorted([*(f"v{n}" for n in range(6)), "one", "\\x1b[2J", "\\xff\\xfe"])
    assert not any("/consumers/" in path for path in cluster.zookeeper.tree("/"))


def test_brokers_alone_will_do(cluster: FakeCluster, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["cat", "events", "--bootstrap-server", cluster.bootstrap_servers, "--partition", "0"]) == 0
    assert capfdbinary.readouterr().out.split() == [b"v%d" % n for n in range(6)]


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--from", "2", "--until", "4"], [2, 3]),
        (["--from", "-2"], [4, 5]),
        (["--from", "-100", "--max-messages", "1"], [0]),
        (["--from", "latest"], []),
        (["--from", "1970-01-01T00:00:00Z", "--until", "3"], [0, 1, 2]),
        (["--until", "1970-01-02"], []),
    ],
)
def test_it_begins_and_ends_where_it_is_told(cat: Cat, options: list[str], offsets: list[int]) -> None:
    printed = cat("--partition", "0", "--format", "{offset}\\n", *options)

    assert [int(line) for line in printed.split()] == offsets


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ("--partition 1 --max-messages 1 --keys --headers", "\tnull\tone\n"),
        (
            "--partition 0 --max-messages 1 --format {topic}-{partition}@{offset}\\t{key}={value}\\n",
            "events-0@0\tk0=v0\n",
        ),
        ("--partition 1 --format raw", "one\n\x1b[2J\n\udcff\udcfe\n"),
    ],
    ids=["keys and headers before the value", "a pattern", "raw"],
)
def test_a_message_has_its_form(cat: Cat, options: str, printed: str) -> None:
    assert cat(*options.split()) == printed


def test_json_keeps_all_bytes(cat: Cat) -> None:
    lines = [json.loads(line) for line in cat("--partition", "1", "--format", "json").splitlines()]

    assert [line["offset"] for line in lines] == [0, 1, 2]
    assert lines[0]["key"] is None
    assert (lines[1]["value"], lines[2]["value_base64"]) == ("\x1b[2J", "//4=")


def test_a_member_goes_on_at_its_offsets(cluster: FakeCluster, cat: Cat) -> None:
    first = cat("--group", "readers", "--format", "{partition}:{offset}\\n", "--max-messages", "4").split()
    rest = cat("--group", "readers", "--format", "{partition}:{offset}\\n").split()

    assert sorted(first + rest) == sorted([*(f"0:{n}" for n in range(6)), *(f"1:{n}" for n in range(3))])
    tree = cluster.zookeeper.tree("/consumers/readers/offsets/events")
    assert [int(tree[f"/consumers/readers/offsets/events/{n}"]) for n in range(2)] == [6, 3]
    assert cat("--group", "readers") == ""


@pytest.mark.parametrize("options", [["--from", "4"], ["--from", "4", "--until", "5"], ["--group", "g"]])
def test_a_shorter_partition_ends_where_it_ends(cat: Cat, options: list[str]) -> None:
    """An offset that it does not have yet was waited for, or read as one that is deleted: from the beginning."""
    expected = {"--group": [*(f"0:{n}" for n in range(6)), *(f"1:{n}" for n in range(3))]}
    until = ["--until", "100"] if "--until" not in options else []
    found = cat("--format", "{partition}:{offset}\\n", *options, *until).split()

    assert sorted(found) == expected.get(options[0], ["0:4", "0:5"][: 2 if until else 1])


@pytest.mark.parametrize("where", ["full", "closed"])
def test_output_that_cannot_be_written_is_told(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It ended with a traceback. A member commits nothing that was not printed."""
    with Path("/dev/full").open("w") as full, monkeypatch.context() as patched:
        patched.setattr("sys.stdout", full if where == "full" else None)
        assert main(["cat", "events", "--zookeeper", cluster.zookeeper_connect, "--group", "g"]) == 1

    assert "output" in capsys.readouterr().err
    tree = cluster.zookeeper.tree("/consumers/g/offsets/events") if where == "full" else {}
    assert all(int(offset or 0) == 0 for offset in tree.values())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--from", "end"], "earliest or latest"),
        (["--until", "-3"], "no offset from the end"),
        (["--until", "3", "--follow"], "for ever"),
        (["--format", "csv"], "names no field"),
        (["--group", "g", "--from", "5"], "committed offsets"),
        (["--group", "g", "--partition", "0"], "--partition"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    assert main(["cat", "events", "--zookeeper", cluster.zookeeper_connect, *options]) == 2
    assert told in capsys.readouterr().err


def test_what_is_not_there_is_exit_code_1(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--zookeeper", cluster.zookeeper_connect]
    assert main(["cat", "nowhere", *where, "--timeout", str(int(scaled(1) * 1000))]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert main(["cat", "events", "--partition", "7", *where]) == 1
    assert "no partition 7" in capsys.readouterr().err
