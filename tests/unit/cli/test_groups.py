"""Tables and texts of ``zkconsumer groups``, compared with recorded output of Kafka's own tool, and wrong usage."""

from __future__ import annotations

import argparse
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.group_snapshots import Snapshots, group_snapshot, stat
from tests.group_snapshots import partition as tp
from zkconsumer.cli import main
from zkconsumer.cli.groups import add_arguments, as_flags, wrong_usage
from zkconsumer.cli.groups.group_tables import assignment_texts
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import RegistryError
from zkconsumer.model import ConsumerId
from zkconsumer.operations.group_snapshot import (
    FORBIDDEN_NODE,
    AckNode,
    BrokerNode,
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    KafkaOffset,
    LoanNode,
    LogState,
    MemberNode,
    NoteSummary,
    OffsetNode,
    OwnerNode,
    PointersNode,
    Problem,
    TopicNode,
)

RECORDED = json.loads((Path(__file__).parent / "recorded" / "kafka_consumer_groups.json").read_text())["runs"]
COORDINATOR = (0, "127.0.0.1", 23691)
ENDS = {f"events:{n}": 10 for n in range(4)} | {"clicks:0": 5, "clicks:1": 5, "quiet:0": 0}


def brokers_group(state: str, members: Sequence[BrokersMember] = (), strategy: str = "") -> BrokersGroup:
    return BrokersGroup(state, strategy, "consumer", COORDINATOR, tuple(members), "Classic")


def member(client: str, rest: str, partitions: str, instance: str | None = None) -> BrokersMember:
    name = f"{instance or client}-{rest}"
    return BrokersMember(name, client, "/127.0.0.1", instance, tuple(tp(text) for text in partitions.split()))


STABLE = GroupSnapshot(
    "stable",
    1,
    bootstrap="127.0.0.1:23691",
    kafka_offsets={tp("events:0"): KafkaOffset(5), tp("events:1"): KafkaOffset(7)},
    brokers_group=brokers_group(
        "Stable",
        [
            member("one", "0d3ee3cb-8ebf-49a0-934c-1b6090e634c6", "clicks:0 clicks:1 events:0 events:1", "inst-1"),
            member("four", "5dbf48db-6b7e-47d2-8129-c244eee6a786", "quiet:0"),
            member("two", "29b9f88c-f68a-48fc-ada0-7419b27b1452", "events:2 events:3"),
            member("three", "f149160f-66a0-428b-be59-6a340d72df34", ""),
        ],
        "range",
    ),
    logs={tp(text): LogState(0, end) for text, end in ENDS.items()},
)
EMPTIED = GroupSnapshot(
    "emptied",
    1,
    bootstrap="127.0.0.1:23691",
    kafka_offsets={tp(f"events:{n}"): KafkaOffset(2 * n) for n in range(4)},
    brokers_group=brokers_group("Empty"),
    logs=STABLE.logs,
)


Printed = tuple[int, str, str]
Run = Callable[..., Printed]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(arguments, snapshot, ...)``: the exit code, and what was printed."""

    def command(arguments: str, *snapshots: GroupSnapshot) -> Printed:
        monkeypatch.setattr("zkconsumer.cli.groups.open_source", lambda _: nullcontext(Snapshots(*snapshots)))
        code = main(["groups", *arguments.split()])
        return (code, *capsys.readouterr())

    return command


# ---- beside Kafka's tool ----


def comparable(lines: Sequence[str]) -> list[str]:
    """Return the lines without topics in assignments, which 3.9 leaves out; rows sorted, as Kafka's have no order."""
    shown = [re.sub(r"[\w.-]+(\([\d,]+\))", r"\1", line.rstrip()) for line in lines]
    heads = [line for line in shown if line.startswith(("GROUP ", "Error")) or not line]
    return heads + sorted(line for line in shown if line not in heads)


@pytest.mark.parametrize("recorded", RECORDED, ids=[one["arguments"] for one in RECORDED])
def test_the_output_is_that_of_kafkas_tool(recorded: Mapping[str, Any], run: Run) -> None:
    code, out, err = run(recorded["arguments"], STABLE, EMPTIED)
    assert comparable(out.splitlines()) == comparable(recorded["out"])
    assert [line for line in err.splitlines() if "Did you mean" not in line] == recorded["err"]
    assert code == recorded["code"]


def test_an_assignment_names_its_topics() -> None:
    found = [tp(text) for text in ("other:0", "t:10", "t:2", "t:0")]
    assert assignment_texts(found) == ["other(0)", "t(0,2,10)"]
    assert assignment_texts([]) == []


def test_verbs_are_the_flags_by_other_words(run: Run) -> None:
    flags = run("--describe --group stable --members", STABLE)
    for words in ("describe stable --members", "describe --members stable", "describe --members --group stable"):
        assert run(words, STABLE) == flags
    assert run("list", STABLE, EMPTIED) == (0, "emptied\nstable\n", "")
    reset = ["offsets", "reset", "--group", "g"]
    assert as_flags(["groups", "--reset-offsets", "--group", "g"]) == reset
    assert as_flags(["groups", "reset-offsets", "--group", "g"]) == reset
    assert as_flags(["offsets", "list"]) == ["offsets", "list"]
    assert as_flags(["groups"]) == ["groups"]


# ---- groups in ZooKeeper ----

SCALA, OURS = "g_host-one-1700000000000-0a1b2c3d", "g_two"
MIXED = group_snapshot(
    members={SCALA: {"t": 1}, OURS: {"t": 1}},
    owners={"t:0": f"{SCALA}-0", "t:1": f"{SCALA}-0", "t:2": f"{OURS}-0"},
    offsets={"t:0": 3, "t:1": 12, "t:2": 1, "gone:0": 7},
    logs={"t:0": (0, 10), "t:1": (0, 10), "t:2": (4, 10)},
    extra={OURS: {"zkconsumer": "1", "host": "two.example"}},
)


def cells(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()[2:]]


def test_a_group_in_zookeeper_fills_the_same_columns(run: Run) -> None:
    code, out, _ = run("describe g", MIXED)
    assert code == 0
    assert cells(out) == [
        ["g", "t", "0", "3", "10", "7", SCALA, "host-one", "-"],
        ["g", "t", "1", "12", "10", "-", SCALA, "host-one", "-"],
        ["g", "t", "2", "1", "10", "6", OURS, "two.example", "-"],
        ["g", "gone", "0", "7", "-", "-", "-", "-", "-"],
    ]


def test_members_in_zookeeper_and_what_is_known_of_them(run: Run) -> None:
    _, out, _ = run("describe g --members", MIXED)
    assert cells(out) == [["g", SCALA, "host-one", "-", "2"], ["g", OURS, "two.example", "-", "1"]]
    rows = json.loads(run("describe g --members --verbose --format json", MIXED)[1])
    assert [(row["kind"], row["assignment"], row["streams"], row["since"]) for row in rows] == [
        ("Scala", ["t(0,1)"], 1, "2023-11-14T22:12:20Z"),
        ("zkconsumer", ["t(2)"], 1, "2023-11-14T22:12:20Z"),
    ]


def test_the_coordinator_of_a_group_says_zookeeper(run: Run) -> None:
    (row,) = json.loads(run("describe g --state --format json", MIXED)[1])
    assert (row["coordinator_id"], row["number_members"]) == ("127.0.0.1:2181  (ZooKeeper)", 2)
    _, out, _ = run("list --state --type", MIXED, STABLE)
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["GROUP", "TYPE"],
        ["g", "ZooKeeper"],
        ["stable", "Classic"],
    ]
    assert run("list --type zookeeper --state stable", MIXED, STABLE)[1].split()[3:] == ["g", "ZooKeeper", "Stable"]


def test_a_partition_that_nobody_owns_is_shown(run: Run) -> None:
    snapshot = group_snapshot(members={OURS: {"t": 1}}, logs={"t:0": (0, 10)})
    _, out, err = run("describe g", snapshot)
    assert cells(out) == [["g", "t", "0", "-", "10", "-", "-", "-", "-"]]
    assert "Consumer group 'g' is" in err


def test_an_empty_group_in_zookeeper_has_kafkas_text(run: Run) -> None:
    brokers = {0: BrokerNode("b", 9092)}
    _, out, err = run("describe g", group_snapshot(offsets={"t:0": 3}, logs={"t:0": (0, 10)}, brokers=brokers))
    assert cells(out) == [["g", "t", "0", "3", "10", "7", "-", "-", "-"]]
    assert err.startswith("\nConsumer group 'g' has no active members.\n")
    assert "Warning: Consumer group 'g': the group has no member, and 7 messages wait.\n" in err


BOTH = group_snapshot(
    members={OURS: {"t": 1}},
    owners={"t:0": f"{OURS}-0"},
    logs={"t:0": (0, 10)},
    kafka_offsets={tp("t:0"): KafkaOffset(4)},
    brokers_group=brokers_group("Empty"),
)


def test_a_group_on_both_sides_is_shown_twice(run: Run) -> None:
    _, out, err = run("describe g", BOTH)
    assert "Group 'g' as ZooKeeper coordinates it:" in out
    assert "Group 'g' as the brokers coordinate it:" in out
    rows = [line.split() for line in out.splitlines() if line.startswith("g ")]
    assert rows == [["g", "t", "0", "4", "10", "6", OURS, "-", "-"], ["g", "t", "0", "4", "10", "6", "-", "-", "-"]]
    assert "no active members" in err
    shown = json.loads(run("describe g --format json", BOTH)[1])
    assert [row["coordination"] for row in shown] == ["ZooKeeper", "brokers"]


def test_verbose_adds_columns_for_zookeeper_only(run: Run) -> None:
    (row,) = json.loads(run("describe g --verbose --format json", BOTH)[1])[:1]
    assert (row["thread_id"], row["owned_since"], row["note"]) == (
        f"{OURS}-0",
        "2023-11-14T22:12:30Z",
        "the offset is in Kafka",
    )
    assert run("describe stable --verbose", STABLE) == run("describe stable", STABLE)


def test_what_balanced_members_left_is_in_verbose(run: Run) -> None:
    (row,) = json.loads(run("describe g --verbose --format json", BOTH)[1])[:1]
    assert "finished_beyond" not in row
    group = group_snapshot(
        offsets={"t:0": 4, "t:1": 4},
        logs={"t:0": (0, 10), "t:1": (0, 10)},
        acks={tp("t:0"): AckNode(NoteSummary(4, 9, 3, 2), stat(1, mzxid=300))},
        pointers={tp("t:0"): PointersNode(2, 1, (), stat())},
        loans={tp("t:0"): {ConsumerId("g_x"): LoanNode(64, 1, 2, stat())}},
    )
    first, second = json.loads(run("describe g --verbose --format json", group)[1])
    told = ("lag", "finished_beyond", "parked", "dead", "slots_lent")
    assert [first[name] for name in told] == [3, 3, 2, 1, 64]
    assert [second[name] for name in told] == [6, 0, 0, 0, 0]
    noted = {tp("t:0"): KafkaOffset(4, note=NoteSummary(4, 9, 3, 2))}
    stored = group_snapshot(logs={"t:0": (0, 10)}, kafka_offsets=noted, group_node=None)
    (row,) = json.loads(run("describe g --verbose --format json", stored)[1])
    assert [row[name] for name in told] == [3, 3, None, None, None]


# ---- what is missing, wrong or hostile ----


def test_the_nearest_names_of_an_unknown_group_are_told(run: Run) -> None:
    code, out, err = run("describe stabel", STABLE, EMPTIED)
    assert (code, out) == (0, "\nError: Consumer group 'stabel' does not exist.\n")
    assert err == "Did you mean 'stable'?\n"


def test_what_could_not_be_read_is_a_warning(run: Run) -> None:
    snapshot = group_snapshot(offsets={"t:0": 3}, problems=(Problem("broker 0", "no answer"),))
    _, out, err = run("describe g", snapshot)
    assert cells(out) == [["g", "t", "0", "3", "-", "-", "-", "-", "-"]]
    assert "Warning: broker 0: no answer\n" in err


@pytest.mark.parametrize(
    ("part", "flag", "shown"),
    [
        ("ids", "--state", "-"),
        ("owners", "--state", "1"),
        ("owners", "--members", "-"),
        ("owners/t", "--members", "-"),
        ("offsets", "--members", "0"),
    ],
)
def test_a_count_of_forbidden_nodes_is_unknown(part: str, flag: str, shown: str, run: Run) -> None:
    hidden = Problem(f"/consumers/g/{part}", FORBIDDEN_NODE)
    made = group_snapshot(members={"g_h-1": {"t": 1}}, logs={"t:0": (0, 1)}, problems=(hidden,))
    code, out, _ = run(f"--describe --group g {flag}", made)
    assert (code, cells(out)[0][-1]) == (0, shown)


def test_a_group_that_no_coordinator_describes_is_told(run: Run) -> None:
    """Brokers of 4.0 keep groups of another protocol, whose members this request does not show."""
    snapshot = GroupSnapshot("new", 1, kafka_offsets={tp("t:0"): KafkaOffset(4)}, brokers_group=BrokersGroup("Dead"))
    _, out, err = run("describe new", snapshot)
    assert cells(out) == [["new", "t", "0", "4", "-", "-", "-", "-", "-"]]
    assert "its members are unknown" in err


def test_a_terminal_that_lacks_a_character_shows_an_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(shown, encoding="ascii"))
    monkeypatch.setattr("zkconsumer.cli.groups.open_source", lambda _: nullcontext(Snapshots(MIXED, named("größe"))))
    assert main(["groups", "list"]) == 0
    assert shown.getvalue() == b"g\ngr\\xf6\\xdfe\n"


def test_an_error_that_quotes_a_node_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = Mock(side_effect=RegistryError("/consumers/g: \x1b[2J\nis wrong"))
    monkeypatch.setattr("zkconsumer.cli.groups.open_source", failing)
    assert main(["groups", "list"]) == 1
    assert capsys.readouterr().err == "zkconsumer: /consumers/g: \\x1b[2J\nis wrong\n"


def named(group: str) -> GroupSnapshot:
    return GroupSnapshot(group, 1)


def test_a_group_is_not_called_unknown_if_nobody_answered(run: Run) -> None:
    snapshot = GroupSnapshot("g", 1, problems=(Problem("/consumers/g", "not permitted"),))
    code, out, err = run("describe g", snapshot)
    assert (code, out) == (1, "")
    assert "Error: Consumer group 'g' was not found, but not everything could be asked." in err


HOSTILE = "g_\x1b[2J\x07\u202e\n-0"


@pytest.mark.parametrize("form", ["table", "csv", "json"])
@pytest.mark.parametrize("what", ["", "--members", "--state", "--verbose", "--members --verbose"])
def test_control_characters_reach_no_terminal(form: str, what: str, run: Run) -> None:
    node = MemberNode(Registration(STATIC, {HOSTILE: 1}, extra={"host": HOSTILE}), None, HOSTILE)
    snapshot = group_snapshot(
        members={}, offsets={}, logs={"t:0": (0, 1)}, owners={"t:0": HOSTILE}, problems=(Problem(HOSTILE, HOSTILE),)
    )
    hostile = GroupSnapshot(
        **{
            **{name: getattr(snapshot, name) for name in GroupSnapshot.__dataclass_fields__},
            "members": {ConsumerId(HOSTILE): node},
            "owners": {tp("t:0"): OwnerNode(HOSTILE, None, HOSTILE)},
            "offsets": {tp("t:0"): OffsetNode(None, None, HOSTILE)},
            "topics": {"t": TopicNode((0,))},
        }
    )
    code, out, err = run(f"describe g --format {form} {what}", hostile)
    assert code == 0
    assert all(line.isprintable() for line in (out + err).split("\n"))


# ---- usage ----


def parsed(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--describe", "Option [describe] takes one of these options: [group], [all-groups]"),
        ("--describe --group g --members --state", "Option [describe] takes at most one of these options"),
        ("--describe --group g --all-groups", "can't be used with option"),
        ("--list --group g", "can't be used with option"),
        ("--list --members", "--members goes with --describe only"),
        ("--list --verbose", "--verbose goes with --describe only"),
        ("--list --state no,stable", "Invalid state list 'no,stable'. Valid states are: PreparingRebalance, "),
        ("--list --type no", "Invalid types list 'no'. Valid types are: "),
        ("--list --execute", "--dry-run and --execute go with what writes"),
        ("--list --topic t", "--topic and --all-topics go with --delete-offsets only"),
        ("--describe g --type classic", "--type goes with --list only"),
        ("--delete", "Option [delete] takes one of these options: [group], [all-groups]"),
        ("--delete g --topic t", "--topic and --all-topics go with --delete-offsets only"),
        ("--delete g --state", "--state goes with --describe and --list only"),
        ("--delete g --from f", "--from reads files, in which nothing can be deleted"),
        ("--delete-offsets g", "Option [delete-offsets] takes one of these options: [topic], [all-topics]"),
        ("--delete-offsets g h --topic t", "--delete-offsets takes one --group"),
        ("--delete-offsets g --topic t:x", "--topic: 't:x': 'x' is no partition"),
        ("--delete-offsets --all-groups --topic t", "--delete-offsets takes one --group"),
    ],
)
def test_wrong_usage_is_told(arguments: str, complaint: str) -> None:
    assert complaint in wrong_usage(parsed(arguments.split()))


def test_an_empty_name_of_a_group_is_refused() -> None:
    """A script with an unset variable must not act on something else."""
    assert wrong_usage(parsed(["--delete", "--group", ""])) == "--group names no group"


@pytest.mark.parametrize("arguments", ["list", "--list --state stable,empty", "describe g h --topic", "--list --type"])
def test_usage_of_kafkas_scripts_is_accepted(arguments: str) -> None:
    words = as_flags(["groups", *arguments.replace(" --topic", "").split()])[1:]
    assert wrong_usage(parsed(words)) == ""


@pytest.mark.parametrize(
    ("arguments", "groups"),
    [
        ("--describe --state g", ["g"]),
        ("--state g --describe", ["g"]),
        ("--describe --state --group g", ["g"]),
        ("--describe --group g --state", ["g"]),
        ("--describe --group g --state h", ["g", "h"]),
        ("--describe --group g --state Stable", ["g"]),
        ("--describe --state Stable", ["Stable"]),
        ("--describe --all-groups --state empty", []),
    ],
)
def test_describe_takes_the_word_behind_state_as_a_group(arguments: str, groups: list[str]) -> None:
    """Bug: the usual command line of Kafka's tool got the answer "does not take a value for [state]"."""
    found = parsed(arguments.split())
    assert wrong_usage(found) == ""
    assert (sorted(found.group), found.state) == (groups, "")
