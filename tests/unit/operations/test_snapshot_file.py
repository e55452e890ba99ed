"""Files of snapshots: what is written is read again, and anything else is an error that names the place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.group_snapshots import NOW, group_snapshot, stat
from tests.values import present
from zkconsumer import cli
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import (
    AckNode,
    BrokerNode,
    BrokersGroup,
    BrokersMember,
    FailingMessage,
    GroupSnapshot,
    KafkaOffset,
    LoanNode,
    LogState,
    MemberNode,
    NoteSummary,
    PointedMessage,
    PointersNode,
    Problem,
)
from zkconsumer.operations.snapshot_file import (
    FileSource,
    SnapshotFileError,
    format_snapshot,
    parse_snapshot,
    read_snapshots,
    write_snapshots,
)
from zkconsumer.zookeeper.node_codecs import decode_registration
from zkconsumer.zookeeper.node_values import ZooKeeperServer

FULL = group_snapshot(
    members={"g_h-1": {"t": 2}},
    owners={"t:0": "g_h-1-0"},
    offsets={"t:0": 5},
    logs={"t:0": (0, 9), "a:b:1": (1, 1)},
    extra={"g_h-1": {"host": "h", "list": [1, {"x": None}], "flag": True}},
    kafka_offsets={
        TopicPartition("t", 0): KafkaOffset(None, problem="UNSTABLE"),
        TopicPartition("t", 1): KafkaOffset(3),
    },
    brokers_group=BrokersGroup(
        "Stable", "range", coordinator=(1, "h", 9092), members=(BrokersMember("m", "c", "/h", None, None, ("t",)),)
    ),
    brokers={1: BrokerNode("h", 9092, None, ("PLAINTEXT",))},
    servers=(ZooKeeperServer("h:1", tick_time=500, statistics={"Mode": "x"}, sessions={-5: ("h:2", 6000)}),),
    other_nodes={"/consumers/g/broadcast": None},
    acls={"/consumers/g": "world:anyone=cdrwa"},
    acks={TopicPartition("t", 0): AckNode(NoteSummary(5, 9, 2, 2, (FailingMessage(5, 1, 7),)), stat())},
    pointers={TopicPartition("t", 0): PointersNode(1, 0, (PointedMessage(3, False, 2, 9, 8, "ü"),), stat(), 9)},
    loans={TopicPartition("t", 0): {ConsumerId("g_h-2"): LoanNode(64, 3, 1, stat(), 2, 128, 5, stat())}},
    problems=(Problem("a \x1b[31m", "ü"),),
)

_NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name_problem(name) is None)
_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


def test_a_full_snapshot_is_read_as_written() -> None:
    line = format_snapshot(FULL)
    assert parse_snapshot(line) == FULL
    assert line.isascii()
    assert line.count("\n") == 1


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.tuples(_NAMES, st.integers(0, 2**31 - 1)), st.tuples(_INT64, _INT64), max_size=4), _NAMES, _INT64
)
def test_any_names_and_numbers_survive(logs: dict[tuple[str, int], tuple[int, int]], group: str, taken: int) -> None:
    made = GroupSnapshot(group, taken, logs={TopicPartition(*tp): LogState(*ends) for tp, ends in logs.items()})
    assert parse_snapshot(format_snapshot(made)) == made


def test_defaults_are_left_out() -> None:
    assert json.loads(format_snapshot(GroupSnapshot("g", 1))) == {
        "format": "zkconsumer group snapshot",
        "version": 1,
        "group": "g",
        "taken": 1,
    }


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(format_snapshot(FULL)), **fields})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is no JSON"),
        ("[" * 100_000, "it is no JSON"),
        ("[]", "it was not written by zkconsumer snapshot"),
        (changed(format="x"), "it was not written by zkconsumer snapshot"),
        (changed(version=2), "it has version '2', this program knows 1"),
        (changed(version=True), "it has version"),
        (changed(group=5), "the snapshot, group should be text, not '5'"),
        (changed(taken="1"), "the snapshot, taken should be a whole number"),
        (changed(taken=True), "the snapshot, taken should be a whole number"),
        (changed(taken=1.5), "the snapshot, taken should be a whole number"),
        (changed(taken=1 << 63), "the snapshot, taken is out of range"),
        (changed(grupp="g"), "the snapshot has the unknown field 'grupp'"),
        (changed(members=[]), "the snapshot, members should be an object"),
        (changed(members={"m": {"stat": None}}), r"members\['m'\] lacks registration"),
        (changed(members={"m": {"registration": {}, "stat": None}}), "registration lacks pattern, subscription"),
        (changed(owners={"t": {}}), "the key 't' should be a partition as topic:number"),
        (changed(owners={"t:99999999999": {}}), "should be a partition"),
        (changed(owners={"t:2147483648": {}}), "should be a partition"),
        (changed(owners={"t:--1": {}}), "should be a partition"),
        (changed(logs={"t/u:0": {}}), "should be a partition"),  # the doctor ended with a traceback
        (changed(taken=float("nan")), "the snapshot, taken should be a whole number"),
        (
            changed(members={"m": {"registration": {"pattern": "", "subscription": {}, "extra": {"x": [1e999]}}}}),
            "is not a number",
        ),
        (changed(pointers={"t:0": {"listed": [{"offset": 1, "dead": 1}]}}), "dead should be true or false"),
        (changed(logs={"t:0": {"replicas": [None]}}), r"replicas\[0\] should be a whole number"),
        (changed(brokers={"x": {}}), "the key 'x' is no number"),
        (changed(brokers_group={"state": "Stable", "coordinator": [1, "h"]}), "should be a list of 3"),
        (changed(problems=[{"what": "\x1b", "why": None}]), r"problems\[0\]\.why should be text"),
        (changed(members={"m": {"registration": {"pattern": "static", "subscription": {"t": None}}}}), "whole number"),
    ],
)
def test_a_line_that_is_no_snapshot(line: str, reason: str) -> None:
    with pytest.raises(SnapshotFileError, match=reason) as refused:
        parse_snapshot(line)
    assert str(refused.value).isprintable()


def test_deep_nesting_is_refused() -> None:
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    node = {"registration": {"pattern": "static", "subscription": {}, "extra": {"x": deep}}, "stat": None}
    with pytest.raises(SnapshotFileError, match="nested too deeply"):
        parse_snapshot(changed(members={"m": node}))


@pytest.mark.parametrize(
    "content",
    [
        '"version":99999999999999999999',
        f'"deep":{"[" * 150}{"]" * 150}',
        '"large":1e999,"small":[-1e999]',
        '"\\ud800":"\\ud800\\u001b[31m"',
    ],
)
def test_any_registration_that_is_read_is_kept(content: str) -> None:
    node = '{"subscription":{"t":1},"pattern":"static",' + content + "}"
    registration = decode_registration(node.encode(), "/consumers/g/ids/m")
    made = GroupSnapshot("g", NOW, members={ConsumerId("m"): MemberNode(registration, None)})
    again = parse_snapshot(format_snapshot(made))
    assert again.members[ConsumerId("m")].registration is not None
    assert format_snapshot(again) == format_snapshot(made)


def test_an_infinite_number_becomes_text() -> None:
    registration = decode_registration(
        b'{"subscription":{"t":1},"pattern":"static","extra":[1e999]}', "/consumers/g/ids/m"
    )
    made = GroupSnapshot("g", NOW, members={ConsumerId("m"): MemberNode(registration, None)})
    (read,) = parse_snapshot(format_snapshot(made)).members.values()
    assert present(read.registration).extra == {"extra": ["inf"]}


def test_negative_partitions_are_kept_as_in_topic_nodes() -> None:
    made = GroupSnapshot("g", NOW, logs={TopicPartition("t", -1): LogState(0, 1)})
    assert parse_snapshot(format_snapshot(made)) == made


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_line_is_an_error_or_a_snapshot(data: st.DataObject) -> None:
    line = format_snapshot(FULL)
    at = data.draw(st.integers(0, len(line) - 1))
    end = data.draw(st.integers(at, min(len(line), at + 20)))
    damaged = line[:at] + data.draw(st.text(max_size=3)) + line[end:]
    try:
        assert isinstance(parse_snapshot(damaged), GroupSnapshot)
    except SnapshotFileError:
        pass


def test_files_are_a_sequence_by_time(tmp_path: Path) -> None:
    first, second = str(tmp_path / "1"), str(tmp_path / "2")
    write_snapshots(first, [GroupSnapshot("g", 30), GroupSnapshot("h", 5)])
    write_snapshots(first, [GroupSnapshot("g", 10)], append=True)
    write_snapshots(second, [GroupSnapshot("g", 20)])
    source = FileSource([first, second])
    assert source.groups() == ["g", "h"]
    assert [one.taken for one in source.history("g")] == [10, 20, 30]
    assert source.snapshot("g").taken == 30
    assert source.snapshot("unknown") == GroupSnapshot("unknown", 30)
    write_snapshots(first, [GroupSnapshot("i", 1)])
    assert [one.group for one in read_snapshots(first)] == ["i"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"\xff\xfe", "is no text"),
        (format_snapshot(FULL).encode() + b"x\n", "line 2: it is no JSON"),
        (format_snapshot(FULL).encode()[:-20], "line 1: it is no JSON"),
    ],
)
def test_an_unusable_file_names_itself(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(ConfigException, match=f"file.*{reason}"):
        FileSource([str(file)])


def test_a_missing_file_names_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigException, match="missing.*cannot be read"):
        FileSource([str(tmp_path / "missing")])
    with pytest.raises(ConfigException, match="missing.*cannot be written"):
        write_snapshots(str(tmp_path / "missing" / "x"), [FULL])


def test_the_command_copies_and_anonymizes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given_file, made = str(tmp_path / "given"), str(tmp_path / "made")
    write_snapshots(given_file, [FULL, group_snapshot(taken=NOW + 1, members={"g_h-1": {"t": 1}})])
    assert cli.main(["snapshot", "g", "--from", given_file, "--anonymize", "--output", made]) == 0
    found = read_snapshots(made)
    assert len({one.group for one in found}) == 1
    assert found[0].group != "g"
    assert cli.main(["snapshot", "g", "--from", given_file]) == 0
    assert [parse_snapshot(line).taken for line in capsys.readouterr().out.splitlines()] == [NOW, NOW + 1]


def test_problems_reach_the_terminal_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "file")
    problems = (Problem("a \x1b[31m", "\u202eb\nc"),)
    write_snapshots(file, [group_snapshot(members={"g_h-1": {"t": 1}}, problems=problems)])
    assert cli.main(["snapshot", "g", "--from", file]) == 0
    assert capsys.readouterr().err == "zkconsumer snapshot: a \\x1b[31m: \\u202eb\\nc\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["g", "--from", "F", "--append"], 2, "--append goes with --output FILE"),
        (["g", "--from", "F", "--zookeeper", "h:1"], 1, "--from.*goes without --zookeeper"),
        (["gg", "--from", "F"], 1, "Consumer group 'gg' does not exist"),
        (["g"], 1, "--zookeeper.*is missing"),
        (["g", "--zookeeper", "a:1@b"], 1, "zookeeper.connect"),
        (["g", "--zookeeper", "h:1", "--command-config", "/no/such"], 1, "/no/such"),
    ],
)
def test_wrong_options_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    file = str(tmp_path / "file")
    write_snapshots(file, [FULL])
    assert cli.main(["snapshot", *(file if one == "F" else one for one in arguments)]) == code

    assert re.search(said, capsys.readouterr().err)
