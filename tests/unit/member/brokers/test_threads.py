"""The two threads of a coordinated member that send requests to the coordinator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from queue import SimpleQueue
from threading import Event
from time import monotonic
from typing import Any, cast

import pytest

from tests.timing import eventually, scaled
from zkconsumer.errors import BrokerUnavailableError, NotCoordinatorError, RebalanceInProgressError
from zkconsumer.kafka.cluster_metadata import TopicsSeen
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.kafka.group_channel import Membership
from zkconsumer.member.brokers.coordinator_requests import Answered, CoordinatorRequests
from zkconsumer.member.brokers.heartbeats import HeartbeatFailed, Heartbeats, LeaseRenewal
from zkconsumer.model import Endpoint
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.lease import Lease

HERE, THERE = Endpoint(1, "here", 1), Endpoint(2, "there", 1)
WHO = Membership("g", 1, "m")
Failures = SimpleQueue[tuple[Membership, int]]
"""Who was told that a heartbeat failed, and how many had been sent by then."""


class Channel:
    """A connection whose answers the test decides on; every question is noted by the search."""

    def __init__(self, search: Search, endpoint: Endpoint) -> None:
        self.versions = {"JoinGroup": 9}
        self.endpoint = endpoint
        self.closed = Event()
        self._search = search

    def join(self, *_: Any, deadline: Deadline, **__: Any) -> None:
        self._search.asked.append(self.endpoint)
        self.closed.wait(deadline.bounded(scaled(10)))
        raise BrokerUnavailableError("closed")

    def topics(self, *_: Any) -> TopicsSeen:
        return TopicsSeen({})

    def heartbeat(self, _: Membership, deadline: Deadline) -> None:
        self._search.asked.append(self.endpoint)
        self._search.answer(deadline)

    def sync(self, *_: Any, **__: Any) -> bytes:
        return b""


class Search:
    """Connects to anybody."""

    def __init__(self) -> None:
        self.asked: list[Endpoint] = []
        self.answer: Callable[[Deadline], None] = lambda _: None
        self.on_look: Callable[[], object] = lambda: None
        self._open: list[Channel] = []

    def find(self, deadline: Deadline) -> Channel:
        return self.connect(HERE, deadline)

    def connect(self, endpoint: Endpoint, _: Deadline) -> Channel:
        self._open.append(Channel(self, endpoint))
        return self._open[-1]

    def is_open(self, channel: Channel) -> bool:
        self.on_look()
        return channel in self._open

    def interrupt(self) -> None:
        for channel in self._open:
            channel.closed.set()
        self._open = []

    def discard(self, channel: Channel) -> None:
        channel.closed.set()

    close = interrupt


@pytest.fixture
def search() -> Search:
    return Search()


def test_a_question_replaced_before_its_connection_is_not_asked(search: Search) -> None:
    """A join may wait for minutes, and the question that replaced the join would wait behind."""
    answers: SimpleQueue[Answered] = SimpleQueue()
    line = CoordinatorRequests("n", cast(CoordinatorSearch, search), answers.put, timeout=scaled(10))
    line.thread.start()
    nothing: Collection[str] = ()
    line.find(nothing, look=False)
    assert answers.get(timeout=scaled(10)).error is None

    def replace() -> None:
        search.on_look = lambda: None
        line.cancel()

    search.on_look = replace
    line.join(WHO, [], session=1, rebalance=1, limit=scaled(600))
    assert isinstance(answers.get(timeout=scaled(10)).error, BrokerUnavailableError)
    assert not search.asked
    line.close(Deadline(scaled(10)))


@pytest.fixture
def failures() -> Failures:
    return SimpleQueue()


@pytest.fixture
def lease() -> Lease:
    return Lease()


@pytest.fixture
def make(search: Search, failures: Failures, lease: Lease) -> Iterator[Callable[..., Heartbeats]]:
    made: list[Heartbeats] = []

    def make(interval: float, session: float, rebalance: float = 9000) -> Heartbeats:
        searching = cast(CoordinatorSearch, search)

        def tell(event: HeartbeatFailed) -> None:
            failures.put((event.who, len(search.asked)))

        made.append(Heartbeats("n", searching, LeaseRenewal(lease, session, rebalance), tell, interval))
        made[-1].thread.start()
        return made[-1]

    yield make
    for heartbeats in made:
        heartbeats.close(Deadline(scaled(10)))


def test_a_coordinator_found_again_gets_an_early_heartbeat(search: Search, make: Callable[..., Heartbeats]) -> None:
    """A coordinator that was found again hears of us before the interval is over."""
    heartbeats = make(3600, 9000)
    heartbeats.beat(WHO, HERE)
    heartbeats.beat(WHO, THERE)
    eventually(lambda: search.asked == [THERE], 10, "a heartbeat at the new place")


def test_a_silent_coordinator_is_reported_after_half_a_session(
    search: Search, failures: Failures, make: Callable[..., Heartbeats]
) -> None:
    """A silent coordinator is told after half a session and not asked once more before."""

    def be_silent(deadline: Deadline) -> None:
        if len(search.asked) > 1:  # the first one opens the connection that is kept
            Event().wait(deadline.remaining())
            raise BrokerUnavailableError("silent")

    search.answer = be_silent
    make(0.01, 0.4).beat(WHO, HERE)
    assert failures.get(timeout=scaled(10)) == (WHO, 2)


def test_what_a_former_coordinator_says_concerns_nobody(
    search: Search, failures: Failures, make: Callable[..., Heartbeats]
) -> None:
    heartbeats = make(0.01, scaled(60))

    def move(_: Deadline) -> None:
        if search.asked[-1] == HERE:
            heartbeats.beat(WHO, THERE)
            raise NotCoordinatorError(16, "NOT_COORDINATOR", "a heartbeat")

    search.answer = move
    heartbeats.beat(WHO, HERE)
    eventually(lambda: len(search.asked) > 2, 10, "heartbeats at the new place")
    assert search.asked[:2] == [HERE, THERE]
    assert failures.empty()


def rebalance(_: Deadline) -> None:
    raise RebalanceInProgressError(27, "REBALANCE_IN_PROGRESS", "a heartbeat")


def more(search: Search, times: int = 3) -> None:
    """Wait for the answers to some more heartbeats."""
    asked = len(search.asked)
    eventually(lambda: len(search.asked) > asked + times, 10, "more heartbeats")


def test_no_heartbeat_counts_beyond_the_limit_of_our_join(
    search: Search, lease: Lease, make: Callable[..., Heartbeats]
) -> None:
    """While the group rebalances no heartbeat counts beyond the time in which our join must come."""
    heartbeats = make(0.01, 3600, 1000)
    heartbeats.joined(monotonic(), "range")
    heartbeats.synced(monotonic())
    heartbeats.beat(WHO, HERE)
    more(search)
    assert monotonic() < lease.ends_at <= monotonic() + 1000
    search.answer = rebalance
    more(search)
    lease.void()
    more(search)
    ends_at, heard_at = lease.ends_at, heartbeats.renewal.heard_at
    assert monotonic() < ends_at < monotonic() + 1000
    more(search)
    assert lease.ends_at == pytest.approx(ends_at)
    assert heartbeats.renewal.heard_at > heard_at


def test_before_the_sync_a_call_to_rebalance_proves_nothing(
    search: Search, lease: Lease, make: Callable[..., Heartbeats]
) -> None:
    heartbeats = make(0.01, 3600)
    search.answer = rebalance
    heartbeats.joined(monotonic(), "range")
    heartbeats.beat(WHO, HERE)
    more(search)
    assert lease.ends_at == float("-inf")
    assert heartbeats.renewal.heard_at > float("-inf")
    heartbeats.synced(monotonic())
    eventually(lambda: lease.ends_at > monotonic(), 10, "what counts again")


def test_no_heartbeat_counts_beyond_the_limit_of_our_sync(
    search: Search, lease: Lease, make: Callable[..., Heartbeats]
) -> None:
    """Before the share is there no heartbeat counts beyond the time in which our sync must come."""
    heartbeats = make(0.01, 3600, 1000)
    asked_at = monotonic()
    heartbeats.joined(asked_at, "range")
    heartbeats.beat(WHO, HERE)
    more(search)
    assert lease.ends_at == pytest.approx(asked_at + 1000)
    heartbeats.synced(monotonic())
    eventually(lambda: lease.ends_at > asked_at + 1000.1, 10, "what counts again")


def test_a_sync_proves_membership_once_there_are_shares() -> None:
    """Earlier, the coordinator would take an empty SyncGroup for the leader's, and nobody would own anything."""
    renewal = LeaseRenewal(Lease(), 10.0, 60.0)
    asked = []
    for note in (
        lambda: renewal.joined(100.0, "range"),
        lambda: renewal.synced(None),
        lambda: renewal.joined(200.0, "range"),
        lambda: renewal.synced(230.0),
        lambda: renewal.synced(None),
    ):
        note()
        asked.append((renewal.may_ask, renewal.needs_proof(239.0)))
    assert asked == [(False, True), (False, True), (False, True), (True, False), (False, False)]
