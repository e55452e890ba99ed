"""What is finished beyond an offset survives: written with the offset, read by the next claim, void after others."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.offsets.acks import GROUP, TP, Member, Server, ledger_of, read, soon
from zkconsumer.core.finished_note import Attempts, FinishedNote, encode_note
from zkconsumer.core.message_pointers import Fate, Pointer, encode_pointers
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.errors import OffsetCommitError, RegistryUnavailableError
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.fenced_writes import Outcome
from zkconsumer.zookeeper.requests import Transaction

NOTE, POINTERS, OFFSET = paths.ack(GROUP, TP), paths.pointers(GROUP, TP), paths.offset(GROUP, TP)


@pytest.fixture
def server() -> Server:
    return Server()


def test_the_next_owner_does_not_repeat_what_is_noted(server: Server) -> None:
    one = Member(server)
    (position,) = one.claim()
    assert read(position, range(100, 110)) == list(range(100, 110))
    ledger = ledger_of(position)
    ledger.finish([101, 102, 105])
    ledger.failed(100, Attempts(2, 5))
    one.commit()
    assert (server.offset(), server.note()) == (
        100,
        FinishedNote(100, (Finished(100, 106, (100, 103, 104)),), {100: Attempts(2, 5)}),
    )
    one.session.expire()
    (again,) = Member(server).claim()
    assert server.note() is not None, "the claim wrote it again"
    assert read(again, range(100, 110)) == [100, 103, 104, 106, 107, 108, 109]
    assert ledger_of(again).attempts(100) == Attempts(2, 5)


def test_the_last_commit_of_a_release_carries_the_note(server: Server) -> None:
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger_of(position).finish([100, 105])
    one.release(position)
    assert server.offset() == 101
    (again,) = Member(server).claim()
    assert 105 not in read(again, range(101, 110))


def test_an_unchanged_release_keeps_the_note(server: Server) -> None:
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger_of(position).finish([105])
    one.commit()
    writes = server.zookeeper.operations["transaction"]
    one.commit()
    assert server.zookeeper.operations["transaction"] == writes, "nothing is new"
    one.release(position)
    assert server.note() is not None


def test_nothing_beyond_the_base_writes_no_note(server: Server) -> None:
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger_of(position).finish(range(100, 105))
    one.commit()
    assert server.offset() == 105
    assert server.zookeeper.node(NOTE) is None


def test_a_plain_offset_voids_the_note(server: Server) -> None:
    """As after a commit with nothing beyond the base, or by a Scala member."""
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger_of(position).finish([105])
    one.commit()
    ledger_of(position).finish([*range(100, 105), *range(106, 110)])
    one.commit()
    assert server.offset() == 110
    assert server.zookeeper.node(NOTE) is not None
    assert server.note() is None


@pytest.mark.parametrize("how", ["forwards", "rewinds", "same", "recreates", "scala"])
def test_what_others_write_costs_repetition_only(server: Server, how: str) -> None:
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger_of(position).finish([101, 105])
    one.commit()
    one.session.expire()
    start = {"forwards": 104, "rewinds": 90}.get(how, 100)
    if how == "scala":
        member = Member(server, balanced=False)
        member.release(*member.claim())
    elif how == "recreates":
        server.zookeeper.remove(OFFSET)
        server.zookeeper.put(OFFSET, b"100")
    else:
        server.zookeeper.put(OFFSET, str(start).encode())
    (again,) = Member(server).claim()
    assert again.consumed == start
    assert read(again, range(start, 110)) == list(range(start, 110))


@pytest.mark.parametrize("data", [b"", b"12", encode_note(FinishedNote(99, (Finished(99, 200),)))])
def test_a_foreign_note_is_ignored(server: Server, data: bytes) -> None:
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


def test_a_parked_message_is_passed_with_its_pointer(server: Server) -> None:
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger = ledger_of(position)
    ledger.finish([101])
    assert ledger.point_at([Pointer(100, attempts=3, due_ms=7, key="k")])
    assert position.consumed == 100, "not before it is stored"
    one.commit()
    assert (server.offset(), position.consumed) == (102, 102)
    assert server.pointers() == {100: Pointer(100, attempts=3, due_ms=7, key="k")}
    ledger.finish([100])
    one.commit()
    assert server.pointers() == {}
    assert (server.offset(), ledger.dirty) == (102, False)


def test_a_lost_answer_neither_loses_nor_doubles(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger = ledger_of(position)
    ledger.finish([102])
    ledger.point_at([Pointer(100, attempts=3)])
    real = one.session.transact

    def lost(*args: Any) -> Any:
        answer = real(*args)
        if not any(answer):
            raise RegistryUnavailableError("it was done, and the answer is lost")
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(one.session, "transact", lost)
        for _ in range(2):  # the second one finds the nodes moved, by us
            with pytest.raises(RegistryUnavailableError):
                one.commit()
    assert (position.consumed, ledger.dirty) == (100, True)
    assert server.offset() == 101
    ledger.finish([105])
    one.commit()
    assert (server.offset(), position.consumed, ledger.dirty) == (101, 101, False)
    assert server.note() == FinishedNote(101, (Finished(101, 106, (101, 103, 104)),))
    assert list(server.pointers()) == [100]
    assert not one.refused


def test_pointers_that_a_tool_wrote_meanwhile_are_kept(server: Server) -> None:
    one, other = Member(server), Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger = ledger_of(position)
    ledger.point_at([Pointer(100), Pointer(103, Fate.DEAD)])
    one.commit()
    tool = server.pointers()
    tool[103] = Pointer(103, Fate.PARKED)
    assert other.session.write(POINTERS, encode_pointers(tool.values()), soon())
    ledger.point_at([Pointer(101)])
    one.commit()
    assert {o: p.fate for o, p in server.pointers().items()} == {
        100: Fate.PARKED,
        101: Fate.PARKED,
        103: Fate.PARKED,
    }
    assert server.offset() == 102


def test_foreign_bytes_are_not_overwritten(server: Server) -> None:
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger = ledger_of(position)
    one.session.ensure([POINTERS.rpartition("/")[0]], soon())
    server.zookeeper.put(POINTERS, b"mine")
    ledger.point_at([Pointer(100)])
    ledger.finish([105])
    with pytest.raises(OffsetCommitError, match="no list of pointers"):
        one.commit()
    assert "no list of pointers" in one.store.parking_trouble(TP)
    ledger.finish([101])
    one.commit()
    node = server.zookeeper.node(POINTERS)
    assert node is not None
    assert node.data == b"mine"
    assert server.offset() == 100
    assert not one.refused, "the partition is ours all the same"
    assert server.note() == FinishedNote(100, (Finished(100, 106, (100, 102, 103, 104)),))


def test_a_note_that_vanished_is_made_again(server: Server) -> None:
    other = TopicPartition("t", 1)
    server = Server([TP, other])
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


def test_a_note_that_may_not_be_written_is_left_out(server: Server) -> None:
    one = Member(server)
    (position,) = one.claim()
    server.zookeeper.refuse(paths.acks(GROUP), "create")
    server.zookeeper.refuse(NOTE, "create", "write")
    read(position, range(100, 110))
    ledger_of(position).finish([100, 105])
    one.commit()
    assert (server.offset(), server.note()) == (101, None)
    assert not one.refused


def test_a_zombie_writes_no_note_and_no_pointer(server: Server) -> None:
    one = Member(server)
    (position,) = one.claim()
    read(position, range(100, 110))
    ledger_of(position).finish([105])
    one.commit()
    server.zookeeper.remove(paths.owner(GROUP, TP))
    (theirs,) = Member(server).claim()
    read(theirs, range(100, 110))
    noted = server.note()
    ledger_of(position).finish([106])
    ledger_of(position).point_at([Pointer(100)])
    with pytest.raises(OffsetCommitError):
        one.commit()
    assert one.refused == {TP: Outcome.OFFSET_MOVED}
    assert (server.note(), server.pointers()) == (noted, {})
