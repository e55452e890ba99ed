"""Owned partitions: how each starts, goes on elsewhere and ends, and who is told of it in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.member.recorders import MINE, T0, T1, Recorder, owning
from zkconsumer.errors import OffsetConflictError
from zkconsumer.member.events import SeekRequested
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.withdrawable_request import Request
from zkconsumer.zookeeper.ownership_transactions import KnownOffset

ERROR = OffsetConflictError(T0, 5, 9)


@pytest.mark.parametrize(
    ("asks", "offset", "start", "log"),
    [
        (False, 5, 5, [("track", 0), ("fetch", 0)]),
        (False, None, None, [("track", 0), ("fetch", 0)]),
        (False, -1, None, [("track", 0), ("fetch", 0)]),
        (True, 5, None, [("track", 0), ("find", 0)]),
    ],
)
def test_a_claimed_partition_starts_where_the_stores_say(
    asks: bool, offset: int | None, start: int | None, log: list[Any]
) -> None:
    """A negative offset is none; if another store must be asked, its answer comes first."""
    recorder = Recorder(asks=asks)
    owned = OwnedPartitions(recorder, recorder, recorder, lambda _: None)
    owned.add({T0: (MINE, KnownOffset(offset, 1))})
    owned.starts.start([T0])
    assert owned.positions[T0].consumed == start
    assert recorder.log == log


def seek(owned: OwnedPartitions) -> None:
    assert owned.seek(T0, 2)


def stop(owned: OwnedPartitions) -> None:
    owned.stop_at(owned.positions[T0], KnownOffset(9, 4), ERROR)


def begin_anew(owned: OwnedPartitions) -> None:
    owned.begin_anew({owned.positions[T0]: KnownOffset(9, 4)})


def begin_other_log(owned: OwnedPartitions) -> None:
    owned.begin_other_log(owned.positions[T0], KnownOffset(9, 4), 0)


@pytest.mark.parametrize(
    ("move", "place", "log"),
    [
        (seek, (2, 5), [("replace", 0), ("succeed", 0), ("fetch", 0)]),
        (stop, (None, 9), [("replace", 0), ("forget", 0), ("track", 0), ("fail", 0)]),
        (begin_anew, (9, 9), [("replace", 0), ("forget", 0), ("track", 0), ("level", 0), ("fetch", 0)]),
        (begin_other_log, (0, 0), [("replace", 0), ("other log", 0), ("level", 0), ("fetch", 0)]),
    ],
)
def test_each_move_makes_a_new_position(
    move: Callable[[OwnedPartitions], None], place: tuple[int | None, int], log: list[Any]
) -> None:
    """``place`` has the consumed and the committed offset. The stream hears first, and leaves the old position."""
    recorder = Recorder()
    owned, _ = owning(recorder, T0)
    old = owned.positions[T0]
    move(owned)
    new = owned.positions[T0]
    assert (new is not old, owned.holds(old), old.revoked) == (True, False, True)
    assert (new.consumed, new.stored.committed) == place
    assert recorder.log == log


def test_a_seek_without_a_stored_offset_waits_for_it() -> None:
    """Without a stored offset its commits could not be fenced."""
    recorder = Recorder()
    owned, _ = owning(recorder, T0, offset=None)
    assert owned.seek(T0, 2)
    position = owned.positions[T0]
    assert position.consumed is None
    assert owned.starts.stored({position: 2}, ()) == []
    assert position.consumed == 2
    assert recorder.log == [("replace", 0), ("succeed", 0), ("store", 0, 2), ("fetch", 0), ("wake",)]


def test_a_seek_before_the_start_waits_for_the_start() -> None:
    recorder = Recorder()
    owned, _ = owning(recorder, T0)
    owned.add({T1: (MINE, KnownOffset(5, 1))})
    assert owned.seek(T1, 2)
    assert ("fetch", 1) not in recorder.log
    owned.starts.start([T1])
    assert recorder.log[-1] == ("fetch", 1)


@pytest.mark.parametrize("why", ["not ours", "revoked"])
def test_a_seek_of_a_strange_partition_moves_nothing(why: str) -> None:
    recorder = Recorder()
    owned, _ = owning(recorder, T0)
    if why == "revoked":
        owned.revoke([owned.positions[T0]])
    recorder.log.clear()
    assert not owned.seek(T0 if why == "revoked" else T1, 2)
    assert recorder.log == []


def test_a_seek_is_told_the_partitions_that_are_not_ours() -> None:
    owned, _ = owning(Recorder(), T0)
    strange = PartitionPosition(T1, MINE, 5)
    request = SeekRequested({owned.positions[T0]: 1, strange: 1}, Request(Deadline(None)))
    owned.answer_seek(request)
    assert request.done.result(0) == {strange}


def test_an_error_of_a_seek_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    owned, _ = owning(recorder, T0)
    request = SeekRequested({owned.positions[T0]: 1}, Request(Deadline(None)))
    monkeypatch.setattr(recorder, "replace", Mock(side_effect=KeyError("its stream is gone")))
    owned.answer_seek(request)
    with pytest.raises(KeyError):
        request.done.result(0)


def test_answers_for_an_earlier_position_change_nothing() -> None:
    recorder = Recorder(asks=True)
    owned, _ = owning(recorder, T0)
    old = owned.positions[T0]
    owned.begin_anew({old: KnownOffset(None, None)})
    recorder.log.clear()
    owned.starts.found({old: 3})
    owned.starts.resolved({old: 3})
    assert owned.starts.stored({old: 3}, [old]) == []
    assert old.consumed is None
    assert recorder.log == [("wake",)]


def test_a_refused_start_is_doubtful() -> None:
    """Its offset must be read again: somebody else may have written it."""
    owned, _ = owning(Recorder(), T0, offset=None)
    position = owned.positions[T0]
    assert owned.starts.stored({position: 3}, [position]) == [position]
    assert position.consumed is None
    position.stored.committed = 8
    owned.starts.begin_at_committed([position])
    assert position.consumed == 8
