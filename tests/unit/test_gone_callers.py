"""Requests whose caller has gone: nothing acts for a call that a time limit or an exception has ended.

What happened: ``commit_offsets()`` raised at its timeout, and the commit was sent later all the same. By then the
application had the next message in hand. That message counted as finished, and a crash lost it. ``unsubscribe()`` had
the same flaw. A ``seek()`` returned while a commit of the position before was under way, which then undid it.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any

import pytest

from tests.internals import member_of
from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from tests.values import present
from zkconsumer import (
    AsyncZookeeperConsumerConnector,
    MessageAndMetadata,
    OffsetStore,
    Retry,
    TopicPartition,
    ZookeeperConsumerConnector,
)
from zkconsumer.errors import ConnectorClosedException, OffsetCommitError, RegistryUnavailableError
from zkconsumer.member.events import SeekRequested, SubscriptionChanged
from zkconsumer.testing import FakeCluster

TP = TopicPartition("events", 0)
OTHER = TopicPartition("others", 0)
WITHIN = 20.0
SOON = 0.05


class Gone(Exception):
    """Raised by a signal handler, or by another early end of a call."""


cluster = cluster_with({TP.topic: [[b"v"] * 10], OTHER.topic: [[b"v"] * 10]})


class Application:
    """A connector without automatic commits, and its stream."""

    def __init__(self, cluster: FakeCluster, **options: Any) -> None:
        self.cluster = cluster
        properties = {
            "zookeeper.connect": cluster.zookeeper_connect,
            "group.id": "g",
            "auto.offset.reset": "smallest",
            "auto.commit.enable": False,
        }
        store = options.pop("offset_store", None)
        self.connector = ZookeeperConsumerConnector(properties | options, offset_store=store)
        self.stream = self.connector.create_message_streams({TP.topic: 1})[TP.topic][0]
        self.member = member_of(self.connector)

    def take(self) -> MessageAndMetadata[Any, Any]:
        return self.stream.get(timeout=scaled(WITHIN))

    @property
    def committed(self) -> int:
        return int(present(self.cluster.zookeeper.node("/consumers/g/offsets/events/0")).data)

    def await_committer(self) -> None:
        """Wait until the committer has dealt with all requests."""
        self.member.committer.submit(lambda: None).result(scaled(WITHIN))


@pytest.fixture
def application(cluster: FakeCluster) -> Iterator[Application]:
    made = Application(cluster)
    try:
        yield made
    finally:
        made.connector.shutdown()


@contextmanager
def busy_committer(application: Application) -> Iterator[None]:
    """The committer's thread is busy with another request inside of the block."""
    go_on = threading.Event()
    application.member.committer.submit(lambda: go_on.wait(scaled(WITHIN)))
    try:
        yield
    finally:
        go_on.set()
        application.await_committer()


@contextmanager
def busy_group_thread(member: Any) -> Iterator[None]:
    """The group thread is busy with another event inside of the block."""
    go_on, began = threading.Event(), threading.Event()
    conflicts = member.engine.coordinator.conflicts
    before = conflicts.handle

    def handle(event: Any) -> Any:
        if event != "busy":
            return before(event)
        began.set()
        go_on.wait(scaled(WITHIN))
        return None

    conflicts.handle = handle
    member.events.put("busy")
    assert began.wait(scaled(WITHIN))
    try:
        yield
    finally:
        go_on.set()


def left_by_time(call: Callable[[float], object]) -> None:
    with pytest.raises((OffsetCommitError, RegistryUnavailableError, TimeoutError)):
        call(SOON)


def left_by_signal(call: Callable[[float], object]) -> None:
    """A signal handler raises while the call waits."""

    def leave(*_: object) -> None:
        raise Gone

    before = signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, SOON)
    try:
        with pytest.raises(Gone):
            call(scaled(WITHIN))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


WAYS = pytest.mark.parametrize("left", [left_by_time, left_by_signal])
Left = Callable[[Callable[[float], object]], None]

# ---- commits


def test_the_error_says_that_nothing_was_sent(application: Application) -> None:
    application.take()
    with busy_committer(application), pytest.raises(OffsetCommitError, match="was not sent in time, and will not be"):
        application.connector.commit_offsets(timeout=SOON)


class SlowStore(OffsetStore):
    """A user's store whose commits wait until they are let go."""

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.began, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        return {tp: offset for tp, offset in self.offsets.items() if tp in partitions}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> None:
        self.began.set()
        assert self.go_on.wait(scaled(WITHIN))
        self.offsets.update(offsets)

    def close(self) -> None:
        self.go_on.set()


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def stored(cluster: FakeCluster, store: SlowStore) -> Iterator[Application]:
    made = Application(cluster, offset_store=store)
    made.take()
    store.began.clear()
    store.go_on.clear()
    try:
        yield made
    finally:
        store.go_on.set()
        made.connector.shutdown()


@WAYS
def test_a_commit_under_way_counts_no_later_message(stored: Application, store: SlowStore, left: Left) -> None:
    left(lambda seconds: stored.connector.commit_offsets(timeout=seconds))
    assert store.began.is_set()
    stored.take()
    stored.take()
    store.go_on.set()
    stored.await_committer()
    assert store.offsets == {TP: 1}


def test_given_offsets_never_undo_a_later_commit(application: Application) -> None:
    """The commit of offset 1 waits behind another one, which counts what is finished until then."""
    application.take()
    with busy_committer(application):
        first = application.connector.commit_offsets_async()
        second = application.connector.commit_offsets_async({TP: 1})
        for _ in range(4):
            application.take()
    first.result(scaled(WITHIN))
    second.result(scaled(WITHIN))
    assert application.committed == 4


# ---- seeks


def test_a_seek_waits_for_a_commit_under_way(stored: Application, store: SlowStore) -> None:
    """It returned before, and the commit then undid it: the next owner went on after the sought place."""
    stored.take()
    stored.connector.commit_offsets_async()
    assert store.began.wait(scaled(WITHIN))
    with pytest.raises(TimeoutError, match="did not move"):
        stored.connector.seek(TP, 0, timeout=SOON)
    assert stored.connector.position(TP) == 2
    store.go_on.set()
    stored.connector.seek(TP, 0)
    assert store.offsets == {TP: 2}, "it landed before the seek took effect"
    assert stored.take().offset == 0
    stored.connector.commit_offsets()
    assert store.offsets == {TP: 1}, "the seek in vain puts off no commit after it"


class Unanswered(SlowStore):
    """A store whose commits land, and whose answers may be lost."""

    loses = False
    error: BaseException | None = None

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        if self.error is not None:
            raise self.error
        return super().fetch(partitions, timeout)

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> None:
        super().commit(offsets, timeout)
        if self.loses:
            raise OSError("the answer was lost")


@pytest.mark.parametrize("error", [OSError("no answer"), asyncio.CancelledError()], ids=["away", "cancelled"])
def test_a_commit_whose_outcome_is_unknown_forbids_a_seek(cluster: FakeCluster, error: BaseException) -> None:
    """No error of the store ends the committer."""
    store = Unanswered()
    application = Application(cluster, offset_store=store)
    application.take()
    store.loses, store.error = True, error
    with pytest.raises(OffsetCommitError):
        application.connector.commit_offsets(timeout=SOON)
    with pytest.raises(OffsetCommitError, match="did not move"):
        application.connector.seek(TP, 5)
    assert application.member.committer.thread.is_alive()
    assert application.take().offset == 1
    store.loses, store.error = False, None
    application.connector.seek(TP, 5)
    assert application.take().offset == 5
    application.connector.shutdown()


def test_a_seek_in_vain_leaves_another_one_protected(stored: Application, store: SlowStore) -> None:
    """The end of the second seek allowed a commit, which landed after the first one."""
    store.go_on.set()
    with busy_group_thread(stored.member):
        first = threading.Thread(target=stored.connector.seek, args=(TP, 0, scaled(WITHIN)))
        first.start()
        eventually(lambda: not stored.member.events.empty(), WITHIN, "the first seek")
        with pytest.raises(TimeoutError, match="did not move"):
            stored.connector.seek(TP, 1, timeout=SOON)
        with pytest.raises(OffsetCommitError, match="a seek is under way"):
            stored.connector.commit_offsets()
    first.join(scaled(WITHIN))
    assert stored.take().offset == 0
    assert not store.offsets.get(TP)


# ---- seeks that waited, and subscriptions


REQUESTS: dict[str, Callable[[ZookeeperConsumerConnector, float], object]] = {
    "seek": lambda connector, seconds: connector.seek(TP, 5, timeout=seconds),
    "unsubscribe": lambda connector, seconds: connector.unsubscribe(TP.topic, timeout=seconds),
}


@WAYS
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_that_waited_changes_nothing(application: Application, left: Left, request_: str) -> None:
    """It was done later. To leave a topic waited for no message, and committed the one that was in hand by then."""
    application.take()
    with busy_group_thread(application.member):
        left(lambda seconds: REQUESTS[request_](application.connector, seconds))
        application.take()
    application.connector.add_topics({OTHER.topic: 1})  # the group thread has seen all before this
    assert {tp.topic for tp in application.connector.assignment()} == {TP.topic, OTHER.topic}
    assert application.committed == 0
    assert application.take().offset == 2


def test_the_error_says_that_the_subscription_stays(application: Application) -> None:
    with busy_group_thread(application.member), pytest.raises(RegistryUnavailableError, match="stays as it was"):
        application.connector.unsubscribe(TP.topic, timeout=SOON)


def test_a_change_under_way_goes_on_and_counts_no_later_message(cluster: FakeCluster) -> None:
    """The message in hand at the call is finished. The group thread waits for the next one, which is not."""
    application = Application(cluster, **{"auto.commit.enable": True, "auto.commit.interval.ms": 3_600_000})
    application.take()
    with cluster.zookeeper.at_once(), pytest.raises(RegistryUnavailableError, match="has begun"):
        application.connector.unsubscribe(TP.topic, timeout=scaled(0.5))
    eventually(lambda: not application.connector.assignment(), WITHIN, "the topic to be left")
    eventually(lambda: application.committed == 1, WITHIN, "the message in hand at the call to be committed")
    with pytest.raises(ValueError, match="not subscribed"):
        application.connector.unsubscribe(TP.topic)
    application.connector.shutdown()


def test_a_topic_that_may_still_stay_cannot_be_added(application: Application) -> None:
    """The topic's former streams would stay beside the new streams if the leaving call were withdrawn."""
    with busy_group_thread(application.member):
        leaving = threading.Thread(target=application.connector.unsubscribe, args=(TP.topic, scaled(WITHIN)))
        leaving.start()
        eventually(lambda: not application.member.events.empty(), WITHIN, "the request")
        with pytest.raises(ValueError, match="being left by another call"):
            application.connector.add_topics({TP.topic: 1})
    leaving.join(scaled(WITHIN))
    assert not application.connector.assignment()


@pytest.mark.parametrize("end", ["commit", "shutdown"])
def test_a_topic_that_is_left_and_added_keeps_its_reader(cluster: FakeCluster, end: str) -> None:
    """The new stream replaced the one being left: a commit did not count the message that its reader had in hand."""
    application = Application(cluster, **{"rebalance.drain.timeout.ms": int(scaled(WITHIN) * 1000)})
    connector = application.connector
    application.take()

    def leave_and_add() -> None:
        for call in (connector.unsubscribe, lambda topic, seconds: connector.add_topics({topic: 1}, timeout=seconds)):
            with pytest.raises(RegistryUnavailableError):
                call(TP.topic, scaled(0.3))

    other = threading.Thread(target=leave_and_add)
    other.start()
    other.join(scaled(WITHIN))
    if end == "commit":
        connector.commit_offsets()
        assert application.committed == 1
    else:
        began = monotonic()
        connector.shutdown(timeout=scaled(WITHIN))
        assert monotonic() - began < scaled(WITHIN) / 2
    with pytest.raises(ConnectorClosedException):
        application.take()
    connector.shutdown()


def test_a_topic_whose_addition_waits_can_be_left(application: Application) -> None:
    """The streams of the topic are in no table yet: KeyError."""
    connector = application.connector
    with busy_group_thread(application.member):
        adding = threading.Thread(target=connector.add_topics, args=({OTHER.topic: 1},))
        adding.start()
        eventually(lambda: not application.member.events.empty(), WITHIN, "the request")
        leaving = threading.Thread(target=connector.unsubscribe, args=(OTHER.topic,))
        leaving.start()
    for each in (adding, leaving):
        each.join(scaled(WITHIN))
    assert {tp.topic for tp in connector.assignment()} == {TP.topic}


def test_a_topic_that_is_left_twice_ends_each_stream(application: Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call ended the streams of the first, and a reader of the streams in between waited for ever."""
    connector, made, asked = application.connector, list[Any](), list[object]()
    ask = application.member.ask
    monkeypatch.setattr(application.member, "ask", lambda change: (asked.append(change), ask(change)))
    application.take()

    def add() -> None:
        made.extend(connector.add_topics({TP.topic: 1})[TP.topic])

    def leave_again() -> bool:
        with suppress(ValueError):  # not subscribed yet
            connector.unsubscribe(TP.topic)
            return True
        return False

    leaving = threading.Thread(target=connector.unsubscribe, args=(TP.topic,))
    leaving.start()
    eventually(lambda: application.member.positions()[TP].revoked, WITHIN, "the first call to begin")
    again = [threading.Thread(target=add), threading.Thread(target=eventually, args=(leave_again, WITHIN, "the topic"))]
    for thread in again:
        thread.start()
    eventually(lambda: len(asked) == 3, WITHIN, "all requests")
    with pytest.raises(ConnectorClosedException):
        application.take()
    for thread in (leaving, *again):
        thread.join(scaled(WITHIN))
    with pytest.raises(ConnectorClosedException):
        made[0].get(timeout=scaled(WITHIN))


def test_a_handler_that_leaves_its_topic_in_vain_may_still_fail(cluster: FakeCluster) -> None:
    """The balanced run counted its message as done at once. The message then came no more, whatever the handler did."""
    seen: SimpleQueue[int] = SimpleQueue()
    asked = threading.Event()
    properties = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"}
    with ZookeeperConsumerConnector(properties) as connector:

        def handle(message: Any) -> None:
            seen.put(message.offset)
            if not asked.is_set():
                asked.set()
                with busy_group_thread(member_of(connector)), pytest.raises(RegistryUnavailableError):
                    connector.unsubscribe(TP.topic, timeout=SOON)
                raise ValueError("not done")

        run = threading.Thread(
            target=connector.run, args=(handle, TP.topic), kwargs={"concurrency": 1, "retry": Retry(delays=(0.01,))}
        )
        run.start()
        found = [seen.get(timeout=scaled(WITHIN)) for _ in range(11)]
        assert sorted(found) == sorted([*range(10), 0])
    run.join(scaled(WITHIN))


# ---- asyncio


def test_a_cancelled_task_changes_nothing_later(cluster: FakeCluster) -> None:
    async def work() -> None:
        properties = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"}
        connector = AsyncZookeeperConsumerConnector(properties | {"auto.commit.enable": False})
        async with connector:
            (stream,) = (await connector.create_message_streams({TP.topic: 1}))[TP.topic]
            await stream.getone()
            member = member_of(connector)
            go_on = threading.Event()
            member.committer.submit(lambda: go_on.wait(scaled(WITHIN)))
            for call in (lambda: connector.commit(), lambda: connector.commit({TP: 7}), lambda: connector.seek(TP, 5)):
                task = asyncio.ensure_future(call())
                await asyncio.sleep(SOON)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await stream.getone()
            go_on.set()
            await asyncio.to_thread(member.committer.submit(lambda: None).result, scaled(WITHIN))
            assert await connector.committed(TP) == 0
            assert (await stream.getone()).offset == 2

    asyncio.run(asyncio.wait_for(work(), scaled(3 * WITHIN)))


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
@pytest.mark.parametrize("request_", ["seek", "add_topics", "unsubscribe"])
def test_a_request_after_the_end_is_refused_at_once(cluster: FakeCluster, coordination: str, request_: str) -> None:
    """A shutdown came between the caller's look and its request. Nobody answered: a seek waited 6 s, a change 19 s."""
    connector = Application(cluster, **{"group.coordination": coordination}).connector
    calls: dict[str, Callable[[], object]] = {
        "seek": lambda: connector.seek(TP, 3),
        "add_topics": lambda: connector.add_topics({OTHER.topic: 1}),
        "unsubscribe": lambda: connector.unsubscribe(TP.topic),
    }
    member = member_of(connector)
    eventually(lambda: TP in connector.assignment(), WITHIN, "the partition")
    events = member.events

    class Late:
        def put(self, event: object) -> None:
            if isinstance(event, SeekRequested | SubscriptionChanged):
                with ThreadPoolExecutor(1) as elsewhere:
                    elsewhere.submit(connector.shutdown).result()
            events.put(event)

    member.events = Late()
    began = monotonic()
    with pytest.raises(ConnectorClosedException):
        calls[request_]()
    assert monotonic() - began < 5
