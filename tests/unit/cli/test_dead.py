"""``zkconsumer dead`` on a ZooKeeper and a broker in memory: what it shows, writes, refuses and returns."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.cli.command_line import CommandLine
from tests.unit.clusters import commit_from_outside
from tests.values import present
from zkconsumer.core.message_pointers import (
    MOST_POINTERS,
    Pointer,
    PointerKind,
    decode_pointers,
    encode_pointers,
    key_mark,
)
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeCluster, ManualClock
from zkconsumer.zookeeper.session import Session

SENT_AT = 1_700_000_000.0
FAILED = int(SENT_AT * 1000)
MARK = key_mark(b"key 3")
DEAD = Pointer(3, PointerKind.DEAD, 16, 0, FAILED, MARK, "TimeoutError: no answer")
BAD = Pointer(5, PointerKind.DEAD, 1, 0, FAILED, "", "ValueError: bad \x1b[2J")
WAITING = Pointer(7, PointerKind.PARKED, 3, FAILED + 60_000, FAILED, key_mark(b"key 7"), "TimeoutError: no answer")


class World(CommandLine):
    """A group ``g`` with pointers, and the command line."""

    def __init__(self, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(capsys)
        self.cluster = cluster
        self.zookeeper = cluster.zookeeper

    def __call__(self, *arguments: str) -> int:
        where = ["--zookeeper", self.cluster.zookeeper_connect, "--timeout", str(int(scaled(10) * 1000))]
        return self.run("dead", *arguments, *where)

    def put(self, *pointers: Pointer, partition: int = 0, group: str = "g") -> None:
        self.zookeeper.put(f"/consumers/{group}/parked/t/{partition}", encode_pointers(pointers))

    def pointers(self, partition: int = 0) -> dict[int, Pointer]:
        node = present(self.zookeeper.node(f"/consumers/g/parked/t/{partition}"))
        return decode_pointers(node.data)

    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True, clock=ManualClock(SENT_AT)) as made:
        made.create_topic("t", 2)
        for partition in range(2):
            made.append("t", partition, [b"value %d \x1b[2J" % n for n in range(9)], [b"key %d" % n for n in range(9)])
        made.append("t", 0, [b"\xff\xfe"], [None])
        yield made


@pytest.fixture
def world(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    world = World(cluster, capsys)
    world.put(DEAD, BAD, WAITING)
    world.put(Pointer(1, PointerKind.DEAD, 2, 0, FAILED, "", "rejected"), partition=1)
    yield world
    world.zookeeper.remove("/consumers")


def test_list_shows_dead_letters_of_all_groups(world: World) -> None:
    world.put(DEAD, group="other")
    assert world("list") == 0
    lines = world.out.splitlines()
    assert lines[0].split()[4:] == ["STATE", "ATTEMPTS", "FIRST-FAILED", "NEXT-TRY", "REASON"]
    assert [line.split()[:6] for line in lines[1:]] == [
        ["g", "t", "0", "3", "dead", "16"],
        ["g", "t", "0", "5", "dead", "1"],
        ["g", "t", "1", "1", "dead", "2"],
        ["other", "t", "0", "3", "dead", "16"],
    ]
    assert "\x1b" not in world.out
    assert "2023-11-14 22:13:20 UTC" in lines[1]


def test_list_selects_and_has_three_formats(world: World) -> None:
    assert world("list", "g", "--topic", "t:0", "--reason", "Timeout", "--parked", "--format", "json") == 0
    assert [(one["offset"], one["state"], one["next_try"]) for one in world.json()] == [
        (3, "dead", None),
        (7, "parked", "2023-11-14 22:14:20 UTC"),
    ]
    assert world("list", "--group", "g", "--topic", "t:1", "--format", "csv") == 0
    assert world.out.splitlines()[1].startswith("g,t,1,1,dead,2,")


def test_unreadable_node_is_told_and_others_are_shown(world: World) -> None:
    world.zookeeper.put("/consumers/g/parked/t/1", b"something else")
    assert world("list") == 1
    assert "t-1: it holds no pointers" in world.err
    assert "TimeoutError" in world.out


@pytest.mark.parametrize(
    "arguments",
    [
        "show g",
        "show g --topic t --offset 3",
        "show g --topic t:0 --offset 3,4",
        "drop g",
        "drop g --all --reason x",
        "drop g --all --undo-file f",
        "drop g --all --dry-run --execute",
        "replay g --offset 3 --execute",
        "replay a/b --all",
        "list --topic :",
        "list --offset x --topic t:0",
        "undo f --dry-run --execute",
        "export g",
    ],
)
def test_wrong_usage_writes_nothing(world: World, arguments: str) -> None:
    before = world.pointers()
    assert world(*arguments.split()) == 2
    assert world.err
    assert world.pointers() == before


def test_show_prints_one_message_without_control_characters(world: World) -> None:
    assert world("show", "g", "--topic", "t:0", "--offset", "3") == 0
    assert "\nkey: key 3\nvalue: value 3 \\x1b[2J" in world.out
    assert "reason: TimeoutError: no answer" in world.out
    assert world("show", "g", "--topic", "t:0", "--offset", "7", "--format", "json") == 0
    assert (world.json()["value"], world.json()["state"]) == ("value 7 \x1b[2J", "parked")


def test_show_says_what_is_missing(world: World) -> None:
    assert world("show", "g", "--topic", "t:0", "--offset", "4") == 1
    assert "no pointer to that message" in world.err
    world.put(Pointer(400, PointerKind.DEAD))
    assert world("show", "g", "--topic", "t:0", "--offset", "400") == 1
    assert "problem: the log ends at offset 10" in world.out


def test_export_writes_a_line_for_each_message(world: World) -> None:
    world.put(DEAD, Pointer(9, PointerKind.DEAD), WAITING)
    assert world("export", "g", "--topic", "t:0", "--to", "out.jsonl") == 0
    first, second = (json.loads(line) for line in Path("out.jsonl").read_text().splitlines())
    assert (first["key"], first["value"], first["headers"]) == ("key 3", "value 3 \x1b[2J", [])
    assert (second["key"], second["value_base64"]) == (None, "//4=")
    assert world("export", "g", "--topic", "t:0", "--to", "out.jsonl") == 1
    assert "File exists" in world.err


def test_export_to_standard_output_goes_on_after_a_gap(world: World) -> None:
    world.put(Pointer(77, PointerKind.DEAD), DEAD)
    assert world("export", "g", "--topic", "t:0", "--to", "-", "--base64") == 1
    lines = [json.loads(line) for line in world.out.splitlines()]
    assert [line.get("problem") or line["value_base64"] for line in lines] == [
        "dmFsdWUgMyAbWzJK",
        "the log ends at offset 10",
    ]
    assert "1 could not be read" in world.err


def test_drop_and_replay_write_only_with_execute(world: World) -> None:
    before = world.pointers()
    for verb in ("drop", "replay"):
        assert world(verb, "g", "--all") == 0
        assert "nothing was written" in world.err
        assert len(world.out.splitlines()) == 4
    assert world.pointers() == before
    assert not list(Path().iterdir())


def test_drop_keeps_a_file_that_undo_puts_back(world: World) -> None:
    assert world("drop", "g", "--all", "--execute") == 0
    assert world.pointers() == {7: WAITING}
    assert world.pointers(1) == {}
    (file,) = (path.name for path in Path().iterdir())
    assert world("undo", file) == 0
    assert world.pointers(1) == {}
    assert world("undo", file, "--execute") == 0
    assert world.pointers() == {3: DEAD, 5: BAD, 7: WAITING}
    assert world.pointers(1)[1].reason == "rejected"


def test_undo_files_name_the_kind_as_those_of_earlier_releases(world: World) -> None:
    assert world("drop", "g", "--topic", "t:0", "--reason", "Timeout", "--execute", "--undo-file", "u") == 0
    assert [one["fate"] for one in json.loads(Path("u").read_text())["pointers"]] == ["dead"]


def test_undo_makes_a_missing_node(world: World) -> None:
    assert world("drop", "g", "--topic", "t:0", "--reason", "Timeout", "--execute", "--undo-file", "u") == 0
    world.zookeeper.remove("/consumers/g/parked")
    assert world("undo", "u", "--execute") == 0
    assert world.pointers() == {3: DEAD}


def test_undo_refuses_another_file(world: World) -> None:
    for text in ("{}", "[", '{"kind": "zkconsumer dead drop", "version": 1}'):
        Path("u").write_text(text)
        assert world("undo", "u", "--execute") == 1
        assert "u: " in world.err


def test_replay_makes_a_message_due_with_all_attempts(world: World) -> None:
    assert world("replay", "g", "--topic", "t:0", "--offset", "3,7", "--execute") == 0
    found = world.pointers()
    due = found[3].due_ms
    assert due > FAILED
    assert found[3] == Pointer(3, PointerKind.PARKED, 0, due, 0, MARK, DEAD.reason)
    assert (found[5], found[7]) == (BAD, WAITING)
    assert world("replay", "g", "--all", "--parked", "--execute") == 0
    assert (world.pointers()[7].attempts, world.pointers()[7].due_ms >= due) == (3, True)


def test_replay_leaves_messages_that_are_gone(world: World) -> None:
    """It told that they were replayed, and set their attempts to 0. A member made dead letters of them again."""
    gone = [
        Pointer(offset, PointerKind.DEAD, 16, 0, FAILED, mark, "no") for offset, mark in ((0, ""), (5, MARK), (70, ""))
    ]
    gone.append(Pointer(8, PointerKind.DEAD, 16, 0, FAILED, "", "no").lost("its topic was made anew", FAILED))
    world.cluster.truncate_before("t", 0, 1)
    world.put(*gone, DEAD)
    before = world.pointers()
    for how in ((), ("--execute",)):
        assert world("replay", "g", "--topic", "t:0", "--all", *how) == 1
        assert "t-0: offset 0 is not replayed: the log begins at offset 1; it can only be dropped" in world.err
        assert "t-0: offset 5 is not replayed: a message of another key has its offset; it can" in world.err
        assert "t-0: offset 70 is not replayed: the log ends at offset 10; it can only be dropped" in world.err
        assert "t-0: offset 8 is not replayed: no longer in the log: its topic was made anew" in world.err
        assert "4 messages are no longer in the log" in world.err
    assert "group g: 1 messages were replayed" in world.err
    after = world.pointers()
    assert after.pop(3).kind is PointerKind.PARKED
    assert after == {place: one for place, one in before.items() if one.offset != 3}


def test_pointers_to_a_topic_made_anew_are_shown_as_lost(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Also after a change of this command, which is younger than the topic; nobody owns the partition."""
    with FakeCluster(zookeeper=True, clock=ManualClock(SENT_AT)) as cluster:
        cluster.create_topic("t")
        cluster.append("t", 0, [b"v"] * 9)
        world, undo = World(cluster, capsys), str(tmp_path / "undo")
        world.put(replace(BAD, offset=4), Pointer(7, attempts=3, due_ms=FAILED, first_ms=FAILED))
        cluster.recreate("t")
        cluster.append("t", 0, [b"w"] * 9)
        assert world("list", "g", "--format", "json") == 0
        assert [(one["offset"], one["state"]) for one in world.json()] == [(4, "dead"), (7, "dead")]
        assert world.json()[1]["reason"] == "no longer in the log: its topic was deleted and made anew"
        assert world("drop", "g", "--topic", "t:0", "--offset", "4", "--execute", "--undo-file", undo) == 0
        assert world("undo", undo, "--execute") == 0
        assert world("replay", "g", "--all", "--execute") == 1
        assert [(one.offset, one.kind, one.lost_ms > 0) for one in world.pointers().values()] == [
            (4, PointerKind.DEAD, True),
            (7, PointerKind.DEAD, True),
        ]


def test_replay_never_parks_more_than_fit(world: World) -> None:
    world.put(DEAD, *(Pointer(offset) for offset in range(1000, 1000 + MOST_POINTERS)))
    assert world("replay", "g", "--topic", "t:0", "--all", "--execute") == 1
    assert "only 0 more messages can be parked" in world.err
    assert world.pointers()[3] == DEAD


def test_write_of_the_owner_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner parks a message between our read and our write: neither change is lost."""
    write = Session.write
    late = Pointer(8, attempts=3, due_ms=9)
    raced: list[str] = []

    def racing(self: Session, path: str, *rest: Any) -> bool:
        if not raced:
            raced.append(path)
            world.put(DEAD, BAD, WAITING, late)
        return write(self, path, *rest)

    monkeypatch.setattr(Session, "write", racing)
    assert world("drop", "g", "--topic", "t:0", "--offset", "3", "--execute") == 0
    assert world.pointers() == {5: BAD, 7: WAITING, 8: late}


def test_owner_that_always_writes_is_told(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "write", lambda *_: False)
    assert world("replay", "g", "--all", "--execute") == 1
    assert "its owner wrote it each time" in world.err


def test_groups_that_have_no_pointers(world: World) -> None:
    world.zookeeper.put("/consumers/empty/ids", b"")
    assert world("list", "empty") == 0
    assert len(world.out.splitlines()) == 1
    assert world("replay", "empty", "--all", "--execute") == 0
    assert "has no such messages" in world.err
    assert world("list", "nobody") == 1
    assert "does not exist" in world.err


def test_groups_of_brokers_keep_no_pointers(world: World) -> None:
    commit_from_outside(world.cluster, {TopicPartition("t", 0): 3}, "theirs")
    for verb in (["list"], ["replay", "--all", "--execute"], ["export", "--to", "-"]):
        assert world(verb[0], "theirs", *verb[1:]) == 1
        assert "theirs: is a group that the brokers coordinate, and they keep no pointers" in world.err
