"""The requests of a fetcher from round to round, in a fetch session, and the moments at which it wakes readers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from tests.timing import scaled
from tests.unit.fetch.one_partition import OnePartition
from tests.unit.kafka.scripted import Asked, Peer, ScriptedBroker, response
from tests.unit.kafka.sets import Batch, Written
from zkconsumer.errors import BrokerAuthenticationError
from zkconsumer.fetch import fetcher as fetcher_module
from zkconsumer.fetch.fetcher import Fetcher
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.broker_schemas import FETCH
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.stream_queue import StreamQueue

SESSION = 7
SMALL = Batch().encode(0)[0]
Answer = tuple[int, bytes] | None
"""The partition with news and its records; None is an empty response."""


class Request(NamedTuple):
    """A fetch request: its longest wait in ms, and (partition, offset, most bytes) of the partitions that it names."""

    wait: int
    named: list[tuple[int, int, int]]


def parsed(asked: Asked) -> Request:
    """Return a fetch request of version 10."""
    said = asked.values
    parts = [part for topic in said["topics"] for part in topic["partitions"]]
    named = [(part["partition"], part["fetch_offset"], part["partition_max_bytes"]) for part in parts]
    return Request(said["max_wait_ms"], named)


def answered(answer: Answer) -> bytes:
    """Return the body of a response of version 10 within the session."""
    topics = [] if answer is None else [("t", [(answer[0], 0, 100, 100, 0, None, answer[1])])]
    return response(FETCH, 10, 0, 0, SESSION, topics)


class Rounds:
    """A fetcher of two partitions, 0 and 1, that is stepped, and the requests that its broker got."""

    def __init__(self, *, max_wait: float = 0.0, min_bytes: int = 1) -> None:
        self.requests: list[Request] = []
        self.it = OnePartition(max_wait=max_wait, min_bytes=min_bytes)
        self.queue = StreamQueue(10, lambda: self.fetcher.partitions.wake())
        self.positions = [PartitionPosition(TopicPartition("t", n), ThreadId("g_c-0"), 0) for n in (0, 1)]
        self.fetcher: Fetcher

    @contextmanager
    def served(self, *answers: Answer, before: Callable[[int], None] = lambda _: None) -> Iterator[Rounds]:
        """A broker with these answers. ``before`` is called with the number of each before it is sent."""

        def script(peer: Peer) -> None:
            peer.versions()
            for number, answer in enumerate(answers):
                asked = peer.request()
                assert (asked.api, asked.version) == (FETCH.key, 10)
                self.requests.append(parsed(asked))
                before(number)
                peer.answer(asked.correlation_id, answered(answer))
            peer.until_closed()

        with ScriptedBroker(script) as broker:
            self.fetcher = self.it.fetcher(broker.endpoint())
            self.fetcher.partitions.add([position.cursor.deliver_to(self.queue) for position in self.positions])
            try:
                yield self
            finally:
                self.fetcher.stop()
                self.queue.close()

    def step(self, times: int) -> None:
        for _ in range(times):
            self.fetcher.step()


def test_a_session_request_names_what_has_moved() -> None:
    rounds = Rounds()
    with rounds.served((0, SMALL), None, None, (1, SMALL), None):
        rounds.step(5)
    named = [request.named for request in rounds.requests]
    assert named == [[(0, 0, 1000), (1, 0, 1000)], [(0, 1, 1000)], [], [], [(1, 1, 1000)]]


def test_a_session_asks_more_for_a_larger_message() -> None:
    large = Batch(records=[Written(value=bytes(2000))]).encode(0)[0]
    rounds = Rounds()
    with rounds.served((1, large[:1000]), (1, large), None):
        rounds.step(3)
    assert [request.named for request in rounds.requests[1:]] == [[(1, 0, len(large))], [(1, 1, 1000)]]


def test_a_position_that_is_read_again_is_noticed_at_once() -> None:
    rounds = Rounds()
    with rounds.served((0, SMALL), None, None):
        rounds.step(2)
        rounds.queue.read_again(rounds.positions[0], 0)
        rounds.step(1)
    assert rounds.requests[2].named == [(0, 0, 1000)]


def test_a_partition_that_is_full_is_asked_for_no_more() -> None:
    """A reader that takes messages in any order sets this without waking the fetcher."""
    rounds = Rounds()

    def fill(number: int) -> None:
        rounds.positions[0].full = number == 0

    with rounds.served((0, SMALL), None, before=fill):
        rounds.step(1)
        assert rounds.positions[0].full
        rounds.step(1)
    assert rounds.requests[1].named == []


def test_readers_are_woken_after_the_next_request_is_sent() -> None:
    woken = threading.Event()
    rounds = Rounds()

    def await_waking(number: int) -> None:
        assert number == 0 or woken.wait(scaled(20)), "the reader waits although its chunk has come"

    with rounds.served((0, SMALL), None, before=await_waking):
        rounds.queue.watch(woken.set)
        rounds.step(1)
        assert len(rounds.queue) == 1
        assert not woken.is_set()
        rounds.step(1)
    assert woken.is_set()


def test_readers_are_woken_if_no_request_follows() -> None:
    woken = threading.Event()
    rounds = Rounds()
    with rounds.served((0, SMALL)):
        rounds.queue.watch(woken.set)
        rounds.step(1)
        for position in rounds.positions:
            position.full = True
        rounds.fetcher.partitions.wake()
        rounds.fetcher.stop()  # so that the step does not wait for room
        rounds.step(1)
    assert woken.is_set()
    assert len(rounds.requests) == 1


@pytest.mark.parametrize(("min_bytes", "waits"), [(1, [100, 300]), (2, [100, 100])])
def test_polls_are_longer_while_nothing_comes(
    monkeypatch: pytest.MonkeyPatch, min_bytes: int, waits: list[int]
) -> None:
    """With more than one byte to wait for, a message may wait for the end of the poll."""
    rounds = Rounds(max_wait=0.1, min_bytes=min_bytes)
    with rounds.served(None, None):
        monkeypatch.setattr(fetcher_module, "QUIET_AFTER", 3600.0)
        rounds.step(1)
        monkeypatch.setattr(fetcher_module, "QUIET_AFTER", -1.0)
        rounds.step(1)
    assert [request.wait for request in rounds.requests] == waits


def test_a_partition_that_left_unnoticed_is_not_asked_for_again() -> None:
    """Otherwise the same messages come again and again, to be dropped."""
    rounds = Rounds()

    def revoke(number: int) -> None:
        rounds.positions[0].revoked = True

    with rounds.served((0, SMALL), (1, SMALL), None, before=revoke):
        rounds.step(3)
        assert len(rounds.queue) == 1, "what came for it is dropped"
    assert [request.named for request in rounds.requests[1:]] == [[], [(1, 1, 1000)]]


def test_a_partition_is_fetched_on_when_its_later_cursor_ends() -> None:
    """Bug: a member that claimed a partition while it borrowed slots of it forgot the cursor that was there before.

    When the later cursor ended, nobody fetched the partition any more.
    """
    rounds = Rounds()
    with rounds.served(None, None):
        later = PartitionPosition(TopicPartition("t", 0), ThreadId("borrowed-0"), 5)
        rounds.fetcher.partitions.add([later.cursor.deliver_to(rounds.queue)])
        rounds.step(1)
        assert len(rounds.fetcher.partitions) == 2
        later.revoked = True
        rounds.fetcher.partitions.wake()
        rounds.step(1)
    assert [request.named for request in rounds.requests] == [[(0, 5, 1000), (1, 0, 1000)], [(0, 0, 1000)]]


class ShortLogin:
    """A login that is due again with each request. ``began`` holds what ``look`` returned as each of them began."""

    def __init__(self, look: Callable[[], bool]) -> None:
        self.began: list[bool] = []
        self._look = look

    def wrap(self, sock: socket.socket, host: str) -> socket.socket:
        return sock

    def authenticate(self, channel: BrokerChannel, deadline: Deadline) -> float | None:
        self.began.append(self._look())
        return 0.0


def test_no_reader_waits_for_a_login() -> None:
    """Bug: the reader of a fetched chunk was woken after the next request, and so after the login before it."""
    woken = threading.Event()
    login = ShortLogin(woken.is_set)
    one = OnePartition(security=login)
    one.queue.watch(woken.set)
    with one.fetching(lambda offset, _: Batch().encode(offset)[0]) as fetcher:
        fetcher.step()
        assert len(one.queue) == 1
        fetcher.step()
    assert login.began[-1], login.began


def test_no_reader_waits_while_a_login_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader gets the messages from before the refusal while the fetcher pauses."""
    woken = threading.Event()
    one = OnePartition()
    one.queue.watch(woken.set)
    with one.fetching(lambda offset, _: Batch().encode(offset)[0]) as fetcher:
        fetcher.step()
        monkeypatch.setattr(fetcher, "step", lambda: (_ for _ in ()).throw(BrokerAuthenticationError("refused")))
        fetcher.thread.start()
        assert woken.wait(scaled(10))
        fetcher.stop()
        assert fetcher.join(Deadline(scaled(10)))
