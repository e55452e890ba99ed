"""``get(timeout=)`` and ``consumer.timeout.ms`` are the time of one ask, whatever comes that holds no message."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event, Thread
from time import monotonic
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.kafka.sets import Batch, MessageSet, Written
from tests.unit.streams.bench import Bench, position, record_batch
from zkconsumer import MergedStreams
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.chunk_reader import ChunkReader
from zkconsumer.streams.stream_queue import StreamQueue

MARKER = Batch([Written(key=b"\0\0\0\1", value=b"\0" * 6)], control=True, transactional=True, producer_id=1)
PATIENCE = 0.2


class Coming(Bench):
    """A stream for which chunks without a message come in turn."""

    def __init__(self, timeout: float | None = None, *, skip_corrupt: bool = False) -> None:
        super().__init__(timeout=timeout, read_committed=True, skip_corrupt=skip_corrupt, count=self._count)
        self.finished = 0
        self.whenever_one_is_finished: Callable[[], None] = lambda: None
        self.merged = MergedStreams(lambda: [self.stream], timeout=timeout)
        self.where = position()
        self.end = 0

    def _count(self, _topic: str, _messages: int, size: int) -> None:
        self.finished += size > 0
        if size > 0:
            self.whenever_one_is_finished()

    def marker(self) -> None:
        self.queue.deliver(self.where, MessageSet([MARKER], base=self.end).data, (self.end, self.end + 1), (), 0)
        self.end += 1

    def corrupt(self) -> None:
        data = MARKER.encode(self.end)[0]
        self.queue.deliver(self.where, data[:-1] + b"?", (self.end, self.end + 1), (), 0)
        self.end += 1

    def message(self, count: int = 1) -> None:
        self.queue.deliver(self.where, record_batch(self.end, count), (self.end, self.end + count), (), count)
        self.end += count

    def jump(self) -> None:
        self.queue.jump(self.where, self.end)

    def revoked(self) -> None:
        gone = position(7)
        with self.queue._lock:  # otherwise the reader could take the message before it is revoked
            self.queue.deliver(gone, record_batch(0, 1), (0, 1), ())
            gone.revoked = gone.halted = True  # between the fetcher's look and the reader's


WAYS: dict[str, tuple[float | None, Callable[[Coming], Any]]] = {
    "get": (None, lambda coming: coming.stream.get(timeout=PATIENCE)),
    "a loop": (PATIENCE, lambda coming: next(iter(coming.stream))),
    "batches": (PATIENCE, lambda coming: next(coming.stream.batches())),
    "a table for so long": (None, lambda coming: coming.stream.to_arrow(timeout=PATIENCE)),
    "a table of so many": (PATIENCE, lambda coming: coming.stream.to_arrow(max_messages=5)),
    "merged": (None, lambda coming: coming.merged.get(timeout=PATIENCE)),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    if "table" in request.param or request.param == "batches":
        pytest.importorskip("pyarrow")
    return str(request.param)


def asked(coming: Coming, way: str) -> float:
    """Ask in vain; returns the seconds that it took."""
    begin = monotonic()
    if "table" in way:
        assert WAYS[way][1](coming).num_rows == 0
    else:
        with pytest.raises(ConsumerTimeoutException):
            WAYS[way][1](coming)
    return monotonic() - begin


@pytest.mark.parametrize("kind", ["marker", "corrupt", "jump", "revoked"])
def test_a_read_ends_in_time_although_chunks_keep_coming(way: str, kind: str) -> None:
    """Bug: each chunk without a message began the time anew, so markers could keep ``get`` for ever."""
    coming = Coming(WAYS[way][0], skip_corrupt=True)
    stop = Event()

    def feed() -> None:
        end = monotonic() + scaled(10)
        while not stop.wait(PATIENCE / 8) and monotonic() < end:
            getattr(coming, kind)()

    feeding = Thread(target=feed, name="feeding")
    feeding.start()
    try:
        took = asked(coming, way)
    finally:
        stop.set()
        feeding.join()
    assert PATIENCE <= took < scaled(5)


def test_an_ask_ends_although_the_next_chunk_is_always_there(way: str) -> None:
    """A fetcher that is faster than the reader must not keep it either: no wait of the reader ever ends."""
    coming = Coming(WAYS[way][0])
    end = monotonic() + scaled(10)
    coming.whenever_one_is_finished = lambda: coming.marker() if monotonic() < end else None
    coming.marker()
    assert asked(coming, way) < scaled(5)
    assert coming.finished > 1


@pytest.mark.parametrize("merged", [False, True])
def test_without_waiting_all_that_was_fetched_is_looked_into(merged: bool) -> None:
    coming = Coming(skip_corrupt=True)
    for kind in (coming.marker, coming.corrupt, coming.jump, coming.marker, coming.message):
        kind()
    assert (coming.merged if merged else coming.stream).get(timeout=0).offset == 3


def test_the_read_after_a_message_has_its_whole_time(monkeypatch: pytest.MonkeyPatch) -> None:
    coming = Coming()
    ends = recorded(monkeypatch)
    coming.message(3)
    coming.message(2)
    for _ in range(5):
        coming.stream.get(timeout=60)
    assert len(ends) == 2
    assert ends[0] < ends[1]
    coming.marker()
    coming.lease.suspend()
    coming.message(1)
    with pytest.raises(ConsumerTimeoutException):
        coming.stream.get(timeout=0.01)
    assert len(set(ends[2:])) == 1, "a marker, a message and the gate: one ask"
    assert ends[2] < ends[1], "its own time, and not that of the one before"


def test_a_complete_table_waits_briefly_at_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: at the gate only the time of the whole table counted, of which there may be none."""
    pytest.importorskip("pyarrow")
    coming = Coming(0.05)
    coming.message(2)
    made = ChunkReader.may_hand_out
    monkeypatch.setattr(ChunkReader, "may_hand_out", lambda self: coming.lease.suspend() or made(self))
    found: list[int] = []
    reader = Thread(target=lambda: found.append(coming.stream.to_arrow(max_messages=2).num_rows), name="reader")
    reader.start()
    reader.join(scaled(5))
    ended = not reader.is_alive()
    coming.queue.close()
    reader.join()
    assert ended
    assert found == [0]
    assert coming.where.finished(including_held=True) == 0


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The ends of the time that a stream is given for each chunk and at the gate, from now on."""
    ends: list[float] = []
    take, gate = StreamQueue.take, ChunkReader.wait_to_hand_out

    def taken(self: StreamQueue, deadline: Deadline) -> Any:
        ends.append(deadline.at or 0)
        return take(self, deadline)

    def at_gate(self: ChunkReader, where: Any, until: int, deadline: Deadline, wait: Any) -> bool:
        ends.append(deadline.at or 0)
        return gate(self, where, until, deadline, wait)

    monkeypatch.setattr(StreamQueue, "take", taken)
    monkeypatch.setattr(ChunkReader, "wait_to_hand_out", at_gate)
    return ends


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made: list[StreamQueue] = []
    begin = StreamQueue.__init__
    monkeypatch.setattr(StreamQueue, "__init__", lambda self, *a: made.append(self) or begin(self, *a))
    yield
    for queue in made:
        queue.close()
