"""Finished messages beyond an offset: written with the offset, read by the next claim, void after other commits."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from tests.unit.offsets.acks import GROUP, TP, Member, NotesElsewhere, Server, ledger_of, read, soon, start
from tests.values import present
from zkconsumer.core.finished_note import Attempts, FinishedNote, encode_note
from zkconsumer.core.message_pointers import Pointer, PointerKind, encode_pointers
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.errors import OffsetCommitError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.balanced_ledger import BalancedLedger
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.testing.fake_zookeeper import FakeSession, FakeZooKeeper
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_requests import Transaction
from zkconsumer.zookeeper.note_nodes import NOTE_BYTES
from zkconsumer.zookeeper.ownership_transactions import REQUEST_BYTES

NOTE, POINTERS, OFFSET = paths.ack(GROUP, TP), paths.pointers(GROUP, TP), paths.offset(GROUP, TP)


class Fake(Server):
    """The nodes of one group in a fake ZooKeeper."""

    zookeeper: FakeZooKeeper

    def __init__(self, partitions: Sequence[TopicPartition] = (TP,), offset: int | None = 100) -> None:
        super().__init__(FakeZooKeeper(), partitions, offset)


def die(member: Member) -> None:
    assert isinstance(member.session, FakeSession)
    member.session.expire()


@pytest.fixture
def server() -> Fake:
    return Fake()


def reading(server: Server) -> tuple[Member, PartitionPosition, BalancedLedger]:
    """Return a member that has claimed the partition and read the messages 100 to 109, its position and its ledger."""
    one = Member(server)
    (position,) = one.claim()
    assert read(position, range(100, 110)) == list(range(100, 110))
    return one, position, ledger_of(position)


def test_the_next_owner_does_not_repeat_what_is_noted(server: Fake) -> None:
    one, _, ledger = reading(server)
    ledger.finish([101, 102, 105])
    ledger.failed(100, Attempts(2, 5))
    one.commit()
    assert (server.offset(), server.note()) == (
        100,
        FinishedNote(100, (Finished(100, 106, (100, 103, 104)),), {100: Attempts(2, 5)}),
    )
    die(one)
    (again,) = Member(server).claim()
    assert server.note() is not None, "the claim wrote it again"
    assert read(again, range(100, 110)) == [100, 103, 104, 106, 107, 108, 109]
    assert ledger_of(again).attempts(100) == Attempts(2, 5)


@pytest.mark.parametrize("how", ["forwards", "rewinds", "same", "recreates", "scala"])
def test_what_others_write_costs_repetition_only(server: Fake, how: str) -> None:
    one, _, ledger = reading(server)
    ledger.finish([101, 105])
    one.commit()
    die(one)
    begin = {"forwards": 104, "rewinds": 90}.get(how, 100)
    if how == "scala":
        member = Member(server, balanced=False)
        member.release(*member.claim())
    elif how == "recreates":
        server.zookeeper.remove(OFFSET)
        server.zookeeper.put(OFFSET, b"100")
    else:
        server.zookeeper.put(OFFSET, str(begin).encode())
    (again,) = Member(server).claim()
    assert again.consumed == begin
    assert read(again, range(begin, 110)) == list(range(begin, 110))


@pytest.mark.parametrize("data", [b"", b"12", encode_note(FinishedNote(99, (Finished(99, 200),)))])
def test_a_foreign_note_is_ignored(server: Fake, data: bytes) -> None:
    """Even if it was written together with the offset: also one that belongs to another base."""
    session = server.zookeeper.session()
    session.open(soon())
    session.ensure([paths.ack(GROUP, TP).rpartition("/")[0]], soon())

    def both(transaction: Transaction) -> None:
        transaction.write(OFFSET, b"100")
        transaction.create(NOTE, data)

    session.transact(both, soon())
    (position,) = Member(server).claim()
    assert read(position, range(100, 110)) == list(range(100, 110))
    one = ledger_of(position)
    one.finish([105])


def test_a_parked_message_is_passed_with_its_pointer(server: Fake) -> None:
    one, position, ledger = reading(server)
    ledger.finish([101])
    assert ledger.point_at([Pointer(100, attempts=3, due_ms=7, key="k")])
    assert position.consumed == 100, "not before it is stored"
    one.commit()
    assert (server.offset(), position.consumed) == (102, 102)
    assert server.pointers() == {100: Pointer(100, attempts=3, due_ms=7, key="k")}
    ledger.finish([100])
    one.commit()
    assert server.pointers() == {}
    assert (server.offset(), ledger.unnoted) == (102, 0)


def test_pointers_that_a_tool_wrote_meanwhile_are_kept(server: Fake) -> None:
    """The commit tells the ledger, for no later look sees these pointers change."""
    (one, _, ledger), other = reading(server), Member(server)
    ledger.point_at([Pointer(100), Pointer(103, PointerKind.DEAD)])
    one.commit()
    tool = server.pointers()
    tool[103] = Pointer(103, PointerKind.PARKED)
    assert other.session.write(POINTERS, encode_pointers(tool.values()), soon())
    ledger.point_at([Pointer(101)])
    one.commit()
    parked = dict.fromkeys((100, 101, 103), PointerKind.PARKED)
    assert {o: p.kind for o, p in server.pointers().items()} == parked
    assert server.offset() == 102
    one.tracker.look_at_pointers()
    assert {o: p.kind for o, p in ledger.pointers.items()} == parked


def test_foreign_bytes_are_not_overwritten(server: Fake) -> None:
    one, _, ledger = reading(server)
    one.session.ensure([POINTERS.rpartition("/")[0]], soon())
    server.zookeeper.put(POINTERS, b"mine")
    ledger.point_at([Pointer(100)])
    ledger.finish([105])
    with pytest.raises(OffsetCommitError, match="no list of pointers"):
        one.commit()
    assert "no list of pointers" in one.store.tracked[TP].parking_trouble
    ledger.finish([101])
    one.commit()
    node = present(server.zookeeper.node(POINTERS))
    assert node.data == b"mine"
    assert server.offset() == 100
    assert not one.refused, "the partition is ours all the same"
    assert server.note() == FinishedNote(100, (Finished(100, 106, (100, 102, 103, 104)),))


def test_a_note_that_vanished_is_made_again(server: Fake) -> None:
    other = TopicPartition("t", 1)
    server = Fake([TP, other])
    one = Member(server)
    first, second = one.claim(TP, other)
    for position in (first, second):
        read(position, range(100, 110))
        ledger_of(position).finish([105])
    one.commit()
    server.zookeeper.remove(NOTE)
    for position in (first, second):
        ledger_of(position).finish([107])
    one.commit()
    assert server.note() is not None
    assert server.note(other) is not None
    assert not one.refused


def test_a_note_that_may_not_be_written_is_left_out(server: Fake) -> None:
    one = Member(server)
    (position,) = one.claim()
    server.zookeeper.refuse(paths.acks(GROUP), "create")
    server.zookeeper.refuse(NOTE, "create", "write")
    read(position, range(100, 110))
    ledger_of(position).finish([100, 105])
    one.commit()
    assert (server.offset(), server.note()) == (101, None)
    assert not one.refused


# ---- foreign writes of pointers, and changes of their node


def test_a_replay_reaches_the_ledger(server: Fake) -> None:
    one = Member(server)
    (position,) = one.claim()
    ledger = ledger_of(position)
    one.tracker.look_at_pointers()
    assert ledger.pointers == {}
    one.session.ensure([POINTERS.rpartition("/")[0]], soon())
    server.zookeeper.put(POINTERS, encode_pointers([Pointer(50, due_ms=9)]))
    one.tracker.look_at_pointers()
    assert ledger.pointers == {50: Pointer(50, due_ms=9)}
    one.commit()
    ledger.finish([50])
    one.commit()
    assert server.pointers() == {}


def test_a_deleted_node_of_pointers_is_made_again(server: Fake) -> None:
    """Otherwise nobody would know of the messages that the offset has passed."""
    one, _, ledger = reading(server)
    ledger.point_at([Pointer(100)])
    one.commit()
    server.zookeeper.remove(POINTERS)
    one.tracker.look_at_pointers()
    assert ledger.pointers == {100: Pointer(100)}
    one.commit()
    assert server.pointers() == {100: Pointer(100)}
    assert not ledger.unnoted


def test_a_foreign_node_that_is_removed_lets_park_again(server: Fake) -> None:
    one = Member(server)
    one.session.ensure([POINTERS.rpartition("/")[0]], soon())
    server.zookeeper.put(POINTERS, b"mine")
    (position,) = one.claim()
    assert not position.stored.may_park
    assert "no list of pointers" in position.stored.parking_trouble
    read(position, range(100, 110))
    ledger_of(position).point_at([Pointer(100)])
    one.commit()
    assert server.offset() == 100
    server.zookeeper.remove(POINTERS)
    one.tracker.look_at_pointers()
    assert (position.stored.may_park, position.stored.parking_trouble) == (True, "")
    one.commit()
    assert (server.offset(), server.pointers()) == (101, {100: Pointer(100)})


def test_a_seek_keeps_stored_pointers_alone(server: Fake) -> None:
    one, position, ledger = reading(server)
    ledger.point_at([Pointer(100)])
    one.commit()
    ledger.point_at([Pointer(101), Pointer(100, kind=PointerKind.DEAD)])
    assert position.stored.pointers == {100: Pointer(100)}
    sought = PartitionPosition(TP, position.thread, 100, position.stored)
    one.tracker.succeed(position, sought)
    assert (sought.stored.pointers, sought.stored.may_park) == ({100: Pointer(100)}, True)
    sought.ledger = BalancedLedger(sought, 100, pointers=sought.stored.pointers)
    assert read(sought, range(100, 110)) == list(range(101, 110))
    sought.ledger.finish([101])
    one.commit()
    assert (server.offset(), server.pointers()) == (102, {100: Pointer(100)})


@pytest.mark.parametrize("written_since", [False, True])
def test_pointers_to_a_deleted_topic_are_dead_letters(
    server: Fake, caplog: pytest.LogCaptureFixture, written_since: bool
) -> None:
    """They were dropped with one warning. Somebody else may have written the offset since."""
    topic = paths.topic("t")
    server.zookeeper.put("/brokers")
    server.zookeeper.put("/brokers/topics")
    server.zookeeper.put(topic)
    one, _, ledger = reading(server)
    ledger.point_at([Pointer(100, attempts=3), Pointer(101, PointerKind.DEAD, reason="no")])
    ledger.finish([105])
    one.commit()
    die(one)
    server.zookeeper.remove(topic)
    server.zookeeper.put(topic)
    if written_since:
        server.zookeeper.put(OFFSET, b"100")
    other = Member(server)
    other.cache.nodes([topic], soon())
    (again,) = other.claim()
    assert (again.consumed, again.ledger_start.note) == (100 if written_since else 0, None)
    assert dict(again.stored.pointers) == server.pointers()
    first, second = server.pointers().values()
    assert (first.offset, first.kind, first.attempts) == (100, PointerKind.DEAD, 3)
    assert first.reason == "no longer in the log: its topic was deleted and made anew"
    assert (second.offset, second.reason) == (101, f"{first.reason}; it was dead: no")
    assert "2 parked messages and dead letters of it are no longer in the log" in caplog.text
    assert read(again, range(100, 103)) == [100, 101, 102]
    ledger_of(again).point_at([Pointer(101, PointerKind.DEAD)])
    ledger_of(again).finish([100])
    other.commit()
    kept = server.pointers()
    assert kept.pop(101) == Pointer(101, PointerKind.DEAD), "of the new topic"
    assert list(kept.values()) == [first, second], "messages of the new topic end no dead letter of the old one"
    die(other)
    third = Member(server)
    third.cache.nodes([topic], soon())
    third.claim()
    assert server.pointers().keys() == {101, *kept}


# ---- offsets outside ZooKeeper


@pytest.mark.parametrize("dual", [False, True])
def test_a_note_elsewhere_is_read_at_the_start(dual: bool) -> None:
    server, kafka = Fake(offset=100 if dual else None), NotesElsewhere()
    kafka.offsets[TP] = 100
    one = Member(server, store=kafka, dual=dual)
    (position,) = one.claim()
    start(one, position)
    read(position, range(100, 110))
    ledger_of(position).finish([102])
    ledger_of(position).point_at([Pointer(100)])
    one.commit()
    assert (kafka.offsets[TP], kafka.notes[TP].finished) == (101, (Finished(101, 103, (101,)),))
    assert server.pointers() == {100: Pointer(100)}
    assert (server.note() is not None) is dual
    die(one)
    two = Member(server, store=kafka, dual=dual)
    (again,) = two.claim()
    start(two, again)
    assert read(again, range(101, 110)) == [101, *range(103, 110)]
    assert ledger_of(again).pointers == {100: Pointer(100)}


def test_pointers_are_stored_before_an_offset_elsewhere() -> None:
    """If they cannot be stored, the offset is not written, and nothing is passed."""
    server, kafka = Fake(offset=None), NotesElsewhere()
    kafka.offsets[TP] = 100
    one = Member(server, store=kafka)
    (position,) = one.claim()
    start(one, position)
    read(position, range(100, 110))
    ledger_of(position).point_at([Pointer(100)])
    server.zookeeper.remove(paths.owner(GROUP, TP))
    with pytest.raises(OffsetCommitError):
        one.commit()
    assert (kafka.offsets[TP], server.pointers(), position.consumed) == (100, {}, 100)


# ---- many at once


def test_many_partitions_with_large_notes_are_several_requests() -> None:
    partitions = [TopicPartition("t", number) for number in range(18)]
    server = Fake(partitions)
    one = Member(server)
    positions = one.claim(*partitions)
    before = server.zookeeper.operations["transaction"]
    unfinished = sorted(Random(3).sample(range(100, 1 << 50), 7_000))
    note = FinishedNote(100, (Finished(100, 1 << 50, tuple(unfinished)),))
    for position in positions:
        position.ledger = BalancedLedger(position, 100, note)
        position.ledger.touch()
    one.commit()
    assert all(server.note(tp) is not None for tp in partitions)
    node = present(server.zookeeper.node(NOTE))
    assert 30_000 < node.length < NOTE_BYTES
    assert server.zookeeper.operations["transaction"] - before > len(partitions) * node.length // REQUEST_BYTES


def test_a_commit_of_an_earlier_ledger_marks_nothing(server: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader jumps to another offset while a commit is under way."""
    one, position, old = reading(server)
    old.point_at([Pointer(100)])
    old.finish([102])
    real = one.session.transact

    def slow(*args: Any) -> Any:
        answer = real(*args)
        if position.ledger is old and not any(answer):
            position.consumed = 100
            position.ledger = BalancedLedger(position, 100, pointers=position.stored.pointers)
            read(position, range(100, 103))
        return answer

    monkeypatch.setattr(one.session, "transact", slow)
    one.commit()
    new = ledger_of(position)
    assert new is not old
    assert (new.unfinished, new.base, list(new.pointers)) == (3, 100, [100])
    new.finish([101])
    one.commit()
    assert server.offset() == 100, "it is in hand again"
