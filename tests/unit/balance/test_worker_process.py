"""The main loop of a worker process, run in the process of the test."""

from __future__ import annotations

import pickle
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.unit.balance import handlers
from tests.unit.balance.work_list import TP, new_works
from tests.unit.kafka.record_writer import GZIP
from tests.unit.kafka.sets import Batch, Written
from tests.values import present
from zkconsumer.balance.outcomes import NOT_STARTED, Later, Reject
from zkconsumer.balance.worker_process import (
    LONGEST_TEXT,
    OVER,
    SETTLED,
    ChunkMessages,
    SentChunk,
    SentError,
    SentWork,
    Trip,
    Worker,
    WorkerSetup,
    packed,
    received_error,
    sent_error,
)
from zkconsumer.errors import (
    DecodeError,
    HandlerEndedRunError,
    HandlerFailedError,
    InvalidMessageException,
    WorkerDiedError,
)
from zkconsumer.kafka import record_batch
from zkconsumer.streams.chunk_reader import ReadSettings


class Parent:
    """The other side of one worker: grants steps, and keeps what it is sent."""

    def __init__(self, handler: Any, *, batch: int = 1, steps: int = 1000, decoders: Any = (None, None)) -> None:
        self.steps = steps
        self.until = float("inf")
        self.sent: list[Any] = []
        setup = WorkerSetup(pickle.dumps(handler), pickle.dumps(decoders), batch, ReadSettings())
        self.worker = Worker(setup, self._begin, self._take)

    def _begin(self) -> bool:
        self.steps -= 1
        return self.steps >= 0

    def _take(self, value: object) -> None:
        self.sent.append(pickle.loads(packed(value)[8:]))

    def run(self, values: list[bytes], groups: list[list[SentWork]]) -> dict[int, Any]:
        """The results of each group, by its number."""
        chunk = present(new_works(values)[0].chunk)
        sent = SentChunk(1, *TP, chunk.records, 0, len(values), ())
        self.worker.run(Trip((), (sent,), tuple(map(tuple, groups)), self.until))
        assert self.sent[-1] == (OVER, 0, None)
        assert all(kind == SETTLED for kind, _, _ in self.sent[:-1])
        return {number: value for _, number, value in self.sent[:-1]}


def single(count: int, lanes: dict[int, int] | None = None) -> list[list[SentWork]]:
    """A group for each of the first offsets."""
    return [[SentWork(1, offset, 1, (lanes or {}).get(offset, -1))] for offset in range(count)]


def error_of(results: list[Any]) -> BaseException:
    """The exception of a group of one."""
    (sent,) = results
    assert isinstance(sent, SentError)
    return received_error(sent, "g_c-process-0")


def test_each_result_and_exception_is_told() -> None:
    words = [b"fine", b"later 2.5", b"reject bad", b"odd", b"local text", b"exit", b"pending", b"fine"]
    found = Parent(handlers.by_value).run(words, single(8))

    assert (found[0], found[1], found[2], found[7]) == (None, [Later(2.5)], [Reject("bad")], None)
    odd = error_of(found[3])
    assert isinstance(odd, handlers.OddError)
    assert (str(odd), odd.second) == ("1 and 2", 2)
    assert odd.__notes__[0].startswith("raised in the process g_c-process-0:\nTraceback")
    local = error_of(found[4])
    assert isinstance(local, HandlerFailedError)
    assert str(local).endswith("LocalError: text")
    assert isinstance(error_of(found[5]), SystemExit)
    assert isinstance(error_of(found[6]), TypeError)


def test_the_worker_decodes_the_same_messages(tmp_path: Path) -> None:
    """In any order, also one that was fetched alone; attempts are counted from 1."""
    out = tmp_path / "out"
    values = [b"append %s" % str(out).encode()] * 12
    fields: tuple[Any, ...] = (*TP, 77, b"k", values[0], 1, 0, [])
    works = [SentWork(1, 11, 1, -1), SentWork(1, 2, 3, -1), SentWork(-1, 77, 2, -1, fields), SentWork(1, 3, 1, -1)]
    found = Parent(handlers.by_value).run(values, [[work] for work in works])
    assert set(found.values()) == {None}
    assert out.read_text().splitlines() == ["events-0 11 1", "events-0 2 3", "events-0 77 2", "events-0 3 1"]


def test_a_failing_decoder_fails_its_message_alone() -> None:
    error = error_of(Parent(handlers.reads_key, decoders=(handlers.undecodable, None)).run([b"v"], single(1))[0])
    assert isinstance(error, DecodeError)
    assert (error.offset, error.field, error.__notes__[0]) == (0, "key", "of the handler")


def test_later_ones_of_a_failed_lane_are_not_started() -> None:
    lanes = {0: 0, 1: 1, 2: 0, 3: 1}
    found = Parent(handlers.by_value).run([b"odd", b"fine", b"fine", b"fine"], single(4, lanes))
    assert isinstance(found[0][0], SentError)
    assert [found[1], found[2], found[3]] == [None, [NOT_STARTED], None]


def test_nothing_begins_without_a_step() -> None:
    found = Parent(handlers.by_value, steps=2).run([b"fine"] * 5, single(5))
    assert found == {0: None, 1: None}


def test_nothing_begins_after_the_end_of_the_lease() -> None:
    parent = Parent(handlers.by_value)
    parent.until = monotonic()
    assert parent.run([b"fine"] * 2, single(2)) == {}


def test_a_batch_may_have_an_outcome_for_each() -> None:
    groups = [[SentWork(1, offset, 1, -1) for offset in range(3)]]
    words = [b"fine", b"fine", b"list"]
    (kept, rejected, failed) = Parent(handlers.all_by_value, batch=3).run(words, groups)[0]
    assert (kept, rejected) == (None, Reject("second"))
    assert isinstance(received_error(failed, ""), ValueError)
    found = Parent(handlers.all_by_value, batch=3).run([b"short", *words], [[SentWork(1, 0, 1, -1)]])
    assert "returned 2 outcomes for 1 messages" in str(error_of(found[0]))
    found = Parent(handlers.all_by_value, batch=3).run([b"fine", b"odd", b"fine"], groups)
    assert [isinstance(sent, SentError) for sent in found[0]] == [True] * 3


def test_an_offset_without_a_message_fails() -> None:
    found = Parent(handlers.by_value).run([b"fine"], [[SentWork(1, 9, 1, -1)]])
    assert isinstance(error_of(found[0]), InvalidMessageException)


def test_large_and_compressed_batches_are_read_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of very many records is decoded in parts; compaction left gaps."""
    monkeypatch.setattr(record_batch, "MANY_RECORDS", 1000)
    count = 1010
    batches = [Batch([Written(value=b"%d" % n) for n in range(count)], codec=GZIP), Batch([Written(gap=3)])]
    data, offset = b"", 0
    for batch in batches:
        encoded, offset = batch.encode(offset)
        data += encoded
    messages = ChunkMessages(SentChunk(1, *TP, data, 0, offset, ()), ReadSettings())
    for wanted in (5, count - 1, 300, offset - 1, 6):
        assert messages.record(wanted).offset == wanted
    with pytest.raises(InvalidMessageException, match="no such message"):
        messages.record(count)


class Unprintable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_errors_are_bounded_and_always_arrive() -> None:
    huge = sent_error(ValueError("x" * 10 * LONGEST_TEXT))
    assert len(pickle.dumps(huge)) < 6 * LONGEST_TEXT
    assert isinstance(received_error(huge, ""), HandlerFailedError)
    assert "its text cannot be made" in str(received_error(sent_error(Unprintable()), ""))
    holder = WorkerDiedError("held")
    holder.handle = open  # type: ignore[attr-defined]
    holder.lock = lambda: None  # type: ignore[attr-defined]
    assert type(received_error(sent_error(holder), "")) is WorkerDiedError


def test_a_local_class_that_ends_the_run_keeps_its_kind() -> None:
    """It arrived as SystemExit, which ends a program without a word."""

    class Local(BaseException):
        pass

    class LocalExit(SystemExit):
        pass

    class LocalInterrupt(KeyboardInterrupt):
        pass

    ended = received_error(sent_error(Local("the disk is full")), "")
    assert isinstance(ended, HandlerEndedRunError)
    assert not isinstance(ended, Exception)
    assert (ended.kind, str(ended)) == (f"{__name__}.{Local.__qualname__}", f"{ended.kind}: the disk is full")
    for code in (None, 3, "text"):
        left = received_error(sent_error(LocalExit(code)), "")
        assert isinstance(left, SystemExit)
        assert left.code == code
    assert isinstance(received_error(sent_error(LocalInterrupt()), ""), KeyboardInterrupt)


def test_a_failed_outcome_keeps_its_error() -> None:
    found = Parent(handlers.returns_outcomes, batch=2).run([b"a", b"b"], [[SentWork(1, n, 1, -1) for n in range(2)]])
    assert found[0][0] is None
    assert str(received_error(found[0][1], "")) == "given back"
