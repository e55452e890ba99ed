"""Several streams read as one, in turn: nobody starves, and at most one message is in the reader's hands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Thread, get_native_id
from time import monotonic

import pytest

from tests.timing import eventually, scaled
from tests.unit.kafka.sets import Batch, Written
from tests.unit.streams.bench import Several
from zkconsumer import KafkaStream, MergedStreams
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException, InvalidMessageException
from zkconsumer.streams import merged_streams
from zkconsumer.streams.byte_budget import QueueBudget


def rest(some: Several) -> list[tuple[int, int]]:
    """All that can be had now."""
    got: list[tuple[int, int]] = []
    with suppress(ConsumerTimeoutException):
        got.extend((message.partition, message.offset) for message in some.merged)
    return got


@pytest.fixture
def three() -> Iterator[Several]:
    made = Several(3)
    yield made
    made.close()


@pytest.fixture
def patient() -> Iterator[Several]:
    """Return three streams whose reader waits for ever."""
    made = Several(3, timeout=None)
    yield made
    made.close()


def test_all_is_handed_out_and_each_partition_in_order(three: Several) -> None:
    for number, count in ((0, 3), (2, 4), (0, 2), (1, 1)):
        three.put(number, count)
    got = rest(three)
    assert sorted(got) == [(0, n) for n in range(5)] + [(1, 0)] + [(2, n) for n in range(4)]
    for number in range(3):
        mine = [offset for partition, offset in got if partition == number]
        assert mine == sorted(mine)
    assert three.finished == [5, 1, 4]
    assert three.held == []


def test_the_next_message_of_any_stream_finishes_the_last(three: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_streams, "TURN", 0.0)  # another stream's turn after each message
    for number in range(3):
        three.put(number, 3)
    seen = []
    for message in iter(three.merged.get, None):
        seen.append(message.partition)
        assert three.held == [message.partition], "and no other"
        assert three.finished[message.partition] == message.offset
        assert sum(finished or 0 for finished in three.finished) == len(seen) - 1
        if len(seen) == 9:
            break
    assert seen == [0, 1, 2] * 3
    with pytest.raises(ConsumerTimeoutException):
        three.merged.get(timeout=0)
    assert three.finished == [3, 3, 3]


def test_a_busy_stream_starves_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    some = Several(2)
    asked: list[int] = []
    others_wait = some.merged.others_wait

    def at_each_fourth(served: KafkaStream[bytes, bytes]) -> bool:
        asked.append(1)
        return len(asked) % 4 == 0 and others_wait(served)

    monkeypatch.setattr(merged_streams, "TURN", 0.0)
    monkeypatch.setattr(some.merged, "others_wait", at_each_fourth)
    some.put(0, 1000)
    some.put(1, 10)
    seen = [some.merged.get(timeout=0).partition for _ in range(50)]
    assert seen[:8] == [0] * 4 + [1] * 4, "turns, not single messages"
    assert seen.count(1) == 10
    some.close()


def test_turns_that_end_in_compressed_chunks_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merged_streams, "TURN", 0.0)
    some = Several(2)
    for number in range(2):
        records = b"".join(Batch([Written()] * 5, codec=codec).encode(5 * n)[0] for n, codec in enumerate((1, 0, 4)))
        some.streams[number].queue.deliver(some.positions[number], records, (0, 15), (), 15)
    got = rest(some)
    assert [offset for partition, offset in got if partition == 1] == list(range(15))
    assert [partition for partition, _ in got] == [0, 1] * 15
    some.close()


def test_whoever_waits_is_woken_by_any_stream(patient: Several) -> None:
    got: list[int] = []

    def read() -> None:
        got.extend(message.partition for message in patient.merged)

    reader = Thread(target=read)
    reader.start()
    for count, number in enumerate((2, 0, 1, 1), 1):
        patient.put(number, 1)
        eventually(lambda wanted=count: len(got) == wanted, 5, "the message")  # type: ignore[misc]
    patient.close()
    reader.join(scaled(5))
    assert not reader.is_alive()
    assert got == [2, 0, 1, 1]
    assert repr(patient.merged) == "<MergedStreams of 0>", "it watches no queue any more"


def test_a_second_reader_of_the_same_streams_is_woken_too(three: Several, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: each told the queues once whom to wake, so after ``run()`` the loop over ``messages()`` heard of a
    chunk only when it looked again, twice a second.
    """
    monkeypatch.setattr(merged_streams, "LOOK_AGAIN", scaled(30))
    assert rest(three) == []
    other = MergedStreams(lambda: three.streams, timeout=0)
    with pytest.raises(ConsumerTimeoutException):
        other.get(timeout=0)
    other.stop()
    assert list(other) == []
    for stream in three.streams:
        stream.queue.withdraw_ask()

    def put() -> None:
        eventually(lambda: all(stream.queue.reader_waits for stream in three.streams), 10, "somebody who waits")
        three.put(1, 1)

    putting = Thread(target=put)
    putting.start()
    begin = monotonic()
    assert three.merged.get(timeout=scaled(20)).partition == 1
    putting.join()
    assert monotonic() - begin < scaled(15)


def test_the_budget_is_passed_only_while_the_reader_waits() -> None:
    """Bug: every stream that was found empty counted as one whose reader waits, so each of 200 was served and
    the budget passed by as many messages.
    """
    budget = QueueBudget(160)
    several = Several(9, budget=budget)
    assert rest(several) == []
    queues = [stream.queue for stream in several.streams]
    assert all(queue.reader_waits for queue in queues), "the reader would take whatever comes first"
    several.put(4, 1)
    assert several.merged.get(timeout=0).partition == 4
    assert not any(queue.reader_waits for queue in queues), "it has something to do"
    several.put(5, 2)
    assert several.merged.get(timeout=0).partition == 5
    assert not any(queue.reader_waits for queue in queues), "none was asked while there was something"
    several.close()


def test_a_timeout_is_over_all_streams_and_leaves_it_usable(three: Several) -> None:
    messages = iter(three.merged)
    for offset in range(3):
        with pytest.raises(ConsumerTimeoutException):
            next(messages)
        three.put(1, 1)
        assert next(messages).offset == offset, "the same iterator goes on"


def test_the_last_stream_to_end_ends_the_iteration(three: Several) -> None:
    three.put(0, 1)
    assert three.merged.get(timeout=0).partition == 0
    three.streams[0].queue.close()
    three.put(1, 1)
    assert three.merged.get(timeout=0).partition == 1
    three.close()
    assert list(three.merged) == []
    with pytest.raises(ConnectorClosedException):
        three.merged.get(timeout=0)


def test_streams_that_come_later_are_read_too(three: Several) -> None:
    late = three.streams.pop()
    three.put(0, 1)
    assert [p for p, _ in rest(three)] == [0]
    three.streams.append(late)
    three.put(2, 1)
    assert [p for p, _ in rest(three)] == [2]


def test_what_cannot_be_read_is_raised_and_can_be_skipped(three: Several) -> None:
    broken = bytearray(Batch([Written()] * 2).encode(0)[0])
    broken[-1] ^= 1
    three.streams[1].queue.deliver(three.positions[1], bytes(broken), (0, 2), ())
    three.put(2, 1)
    messages = iter(three.merged)
    seen = []
    for _ in range(4):
        try:
            seen.append(next(messages).partition)
        except InvalidMessageException:
            seen.append(-1)
    assert seen.count(2) == 1, "others go on beside it"
    assert seen.count(-1) == 3, "it comes again until it is given up"
    assert three.merged.skip() == 2
    assert rest(three) == []
    assert three.finished[1] == 2


def test_while_zookeeper_is_away_nothing_comes_and_nothing_spins(
    three: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        three.put(number, 2)
    assert three.merged.get(timeout=0).partition == 0
    three.lease.suspend()
    asked: list[int] = []
    real = KafkaStream.turn
    monkeypatch.setattr(KafkaStream, "turn", lambda self, wait: asked.append(1) or real(self, wait))
    begin = monotonic()
    with pytest.raises(ConsumerTimeoutException):
        three.merged.get(timeout=0.3)
    assert monotonic() - begin >= 0.3
    assert len(asked) < 40
    assert three.held == []
    three.lease.resume(three.lease.epoch)
    assert len(rest(three)) == 5


def test_stopping_ends_it_and_leaves_the_streams_usable(three: Several) -> None:
    three.put(0, 3)
    messages = iter(three.merged)
    assert next(messages).offset == 0
    three.merged.stop()
    assert list(messages) == []
    assert three.finished[0] == 1
    assert three.streams[0].get(timeout=0).offset == 1


def test_a_signal_handler_sees_that_its_thread_is_asking(patient: Several) -> None:
    seen: list[bool] = []
    patient.streams[1].queue.watch = lambda _: seen.append(patient.merged.interrupted(get_native_id()))  # type: ignore[method-assign,assignment]
    patient.put(2, 1)
    assert next(patient.merged).partition == 2
    assert seen == [True]
    assert not patient.merged.interrupted(get_native_id())
