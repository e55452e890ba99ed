"""Consumed messages, the time of commits, and the end of reading, on a real cluster.

A message is finished when the reader asks its stream for the next one. So a crash may repeat messages, and loses none.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.in_process import Reader, offsets_of
from tests.cluster.our_member import OurMember
from tests.tiers import only_plain
from tests.timing import eventually, scaled
from zkconsumer import (
    ConnectorClosedException,
    ConsumerTimeoutException,
    KafkaStream,
    OffsetCommitError,
    ZookeeperConsumerConnector,
)
from zkconsumer.devcluster import DevCluster

NewConnector = Callable[..., ZookeeperConsumerConnector]
SECONDS = 15.0


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def only_stream(connector: ZookeeperConsumerConnector, topic: str) -> KafkaStream[Any, Any]:
    (stream,) = connector.create_message_streams({topic: 1})[topic]
    return stream


class Place:
    """A topic of one partition with messages, and a group that reads it."""

    def __init__(self, topic: str, group: str, zookeeper: KazooClient, produce: Callable[..., int]) -> None:
        self.topic, self.group, self.zookeeper, self._produce = topic, group, zookeeper, produce

    def put(self, *values: bytes) -> None:
        self._produce(self.topic, values, partitions=1)

    @property
    def committed(self) -> int | None:
        return offsets_of(self.zookeeper, self.group, self.topic).get(0)

    def store(self, offset: int) -> None:
        self.zookeeper.create(f"/consumers/{self.group}/offsets/{self.topic}/0", str(offset).encode(), makepath=True)


@pytest.fixture
def place(
    new_topic: NewTopic, new_group: Callable[[], str], zookeeper: KazooClient, produce: Callable[..., int]
) -> Place:
    made = Place(new_topic(1), new_group(), zookeeper, produce)
    made.put(*numbers(10))
    return made


@contextmanager
def within(seconds: float) -> Iterator[None]:
    begin = monotonic()
    yield
    assert monotonic() - begin < scaled(seconds)


# ---- what counts ----


def test_a_message_in_hand_is_not_committed_by_the_timer(connector: NewConnector, place: Place) -> None:
    stream = only_stream(connector(place.group, auto_commit_interval_ms=50), place.topic)
    for _ in range(3):
        message = stream.get(SECONDS)
    assert message.offset == 2
    eventually(lambda: place.committed == 2, 5, "a commit up to the message in hand")
    threading.Event().wait(scaled(0.2))
    assert place.committed == 2
    stream.get(SECONDS)
    eventually(lambda: place.committed == 3, 5, "a commit of the message that was finished")


def test_with_consumed_on_return_a_hand_out_counts(connector: NewConnector, place: Place) -> None:
    """With ``consumed.on.return`` a message counts as consumed when it is handed out."""
    member = connector(place.group, consumed_on="return", auto_commit_interval_ms=50)
    stream = only_stream(member, place.topic)
    for _ in range(3):
        stream.get(SECONDS)
    eventually(lambda: place.committed == 3, 5, "a commit beyond the message in hand")
    for _ in range(7):
        stream.get(SECONDS)
    eventually(lambda: place.committed == 10, 5, "a commit beyond the last message")
    with pytest.raises(ConsumerTimeoutException):
        stream.get(0.1)
    member.shutdown()
    assert place.committed == 10


def test_a_commit_by_the_thread_that_holds_a_message_includes_it(connector: NewConnector, place: Place) -> None:
    member = connector(place.group, auto_commit_interval_ms=50)
    stream = only_stream(member, place.topic)
    stream.get(SECONDS)
    assert stream.get(SECONDS).offset == 1
    member.commit_offsets()
    assert place.committed == 2
    threading.Event().wait(scaled(0.2))
    assert place.committed == 2, "the timer does not take it back"
    member.commit_offsets()
    assert place.committed == 2


def test_a_commit_by_another_thread_covers_only_what_is_finished(connector: NewConnector, place: Place) -> None:
    member = connector(place.group, auto_commit_enable="false")
    reader = Reader(only_stream(member, place.topic), hold_at=3)
    reader.wait_for(4)
    member.commit_offsets()
    assert place.committed == 3
    reader.run(member.commit_offsets)
    assert place.committed == 4
    member.commit_offsets()
    assert place.committed == 4, "not taken back either"
    reader.go_on()
    reader.wait_for(10)


def test_each_thread_commits_what_it_holds_itself_and_no_other(
    connector: NewConnector,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    zookeeper: KazooClient,
) -> None:
    topic, group = new_topic(2), new_group()
    produce(topic, numbers(10), partitions=2)
    member = connector(group, auto_commit_enable="false")
    streams = member.create_message_streams({topic: 2})[topic]
    readers = [Reader(stream, hold_at=number) for number, stream in enumerate(streams)]
    for number, reader in enumerate(readers):
        reader.wait_for(number + 1)
    readers[0].run(member.commit_offsets)
    assert offsets_of(zookeeper, group, topic) == {0: 1, 1: 1}
    readers[1].run(member.commit_offsets)
    assert offsets_of(zookeeper, group, topic) == {0: 1, 1: 2}


def test_without_auto_commit_only_explicit_commits_happen(connector: NewConnector, place: Place) -> None:
    """KAFKA-919: a rebalance committed although auto commit was off."""
    member = connector(place.group, auto_commit_enable="false", auto_commit_interval_ms=50)
    stream = only_stream(member, place.topic)
    for _ in range(5):
        stream.get(SECONDS)
    other = connector(place.group, auto_commit_enable="false", consumer_id="-")  # sorts before, so it takes over
    other_stream = only_stream(other, place.topic)
    eventually(lambda: not member.assignment(), 10, "the partition's departure")
    assert other_stream.get(SECONDS).offset == 0
    other.shutdown()
    assert stream.get(SECONDS).offset == 0, "nothing of it was committed"
    stream.get(SECONDS)
    member.commit_offsets()
    stream.get(SECONDS)
    member.shutdown()
    assert place.committed == 2


# ---- the end ----


def test_leaving_with_counts_the_message_in_hand(connector: NewConnector, place: Place) -> None:
    with connector(place.group) as member:
        for message in only_stream(member, place.topic):
            if message.offset == 4:
                break
    assert place.committed == 5
    assert owners_of(place.zookeeper, place.group, place.topic) == {}
    assert place.zookeeper.get_children(f"/consumers/{place.group}/ids") == []


def test_leaving_with_by_an_exception_does_not_count_it(connector: NewConnector, place: Place) -> None:
    def fail_at_4() -> None:
        with connector(place.group) as member:
            for message in only_stream(member, place.topic):
                if message.offset == 4:
                    raise KeyError

    with pytest.raises(KeyError):
        fail_at_4()
    assert place.committed == 4


def test_shutdown_by_the_reader_counts_its_message(connector: NewConnector, place: Place) -> None:
    """A shutdown by the thread that holds a message counts the message and ends the stream."""
    member = connector(place.group)
    stream = only_stream(member, place.topic)
    offsets = []
    for message in stream:
        offsets.append(message.offset)
        if message.offset == 6:
            with within(3):
                member.shutdown()
    assert offsets == list(range(7))
    assert place.committed == 7
    with pytest.raises(ConnectorClosedException):
        stream.get(0)
    with pytest.raises(ConnectorClosedException):
        member.commit_offsets()


@pytest.mark.parametrize("finishes", [True, False], ids=["finishes in time", "does not finish"])
def test_shutdown_by_another_thread_lets_the_reader_finish(
    connector: NewConnector, place: Place, finishes: bool
) -> None:
    """A shutdown by another thread gives the reader a moment to finish its message."""
    member = connector(place.group)
    reader = Reader(only_stream(member, place.topic), hold_at=4)
    reader.wait_for(5)
    raised: list[str] = []

    def end() -> None:
        try:
            member.shutdown(timeout=5.0 if finishes else 2.5)
        except OffsetCommitError as e:
            raised.append(str(e))

    ending = threading.Thread(target=end)
    with within(4):
        ending.start()
        if finishes:
            eventually(lambda: "closed" in str(member.state), 5, "the beginning of the end")
            reader.go_on()
        ending.join(scaled(10))
    assert not ending.is_alive()
    assert place.committed == (5 if finishes else 4)
    if finishes:
        assert raised == []
    else:
        assert f"{place.topic}-0 at 4 (it was still in hand" in raised[0]
    reader.go_on()
    reader.join()
    assert [m.offset for m in reader.got] == list(range(5)), "nothing is handed out after the end"
    assert place.committed == (5 if finishes else 4)


def test_shutdown_wakes_a_reader_that_waits(connector: NewConnector, place: Place) -> None:
    member = connector(place.group)
    reader = Reader(only_stream(member, place.topic))
    reader.wait_for(10)
    with within(2):
        member.shutdown()
        reader.join(2)
    assert place.committed == 10


def test_shutdown_may_be_called_often_and_at_once(connector: NewConnector, place: Place) -> None:
    member = connector(place.group)
    reader = Reader(only_stream(member, place.topic))
    reader.wait_for(10)
    threads = [threading.Thread(target=member.shutdown) for _ in range(4)]
    with within(4):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(scaled(5))
        member.shutdown()
    assert not any(thread.is_alive() for thread in threads)
    assert place.committed == 10
    reader.join()


def test_a_connector_that_never_began_ends_as_well(connector: NewConnector, place: Place) -> None:
    member = connector(place.group)
    with within(1):
        member.shutdown()
        member.shutdown()
    with pytest.raises(ConnectorClosedException):
        member.create_message_streams({place.topic: 1})


@pytest.mark.parametrize("waiting", [True, False], ids=["waiting", "reading"])
def test_a_signal_handler_in_the_reading_thread_may_shut_down(
    connector: NewConnector, place: Place, waiting: bool
) -> None:
    place.put(*numbers(2000))
    member = connector(place.group)
    stream = only_stream(member, place.topic)
    offsets = []
    took = []

    def handler(*_: object) -> None:
        begin = monotonic()
        member.shutdown()
        took.append(monotonic() - begin)

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for message in stream:
            offsets.append(message.offset)
            if len(offsets) == (2010 if waiting else 500):
                signal.setitimer(signal.ITIMER_REAL, 0.2 if waiting else 0.0001)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert offsets == list(range(len(offsets)))
    assert place.committed == len(offsets)
    assert place.zookeeper.get_children(f"/consumers/{place.group}/ids") == []
    assert took[0] < scaled(1)


class Tripwire:
    """A lease that calls a function in the middle of the n-th hand-out, as a signal handler does.

    Each hand-out looks at the lease's end twice: for the clock, and after the message is announced.
    """

    def __init__(self, lease: Any, number: int, call: Callable[[], None]) -> None:
        self._lease, self._left, self._call = lease, 2 * number, call

    @property
    def until(self) -> float:
        self._left -= 1
        if self._left == 0:
            self._call()
        return float(self._lease.until)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)


@only_plain
def test_a_signal_handler_in_a_hand_out_counts_exactly(connector: NewConnector, place: Place) -> None:
    """The message in the interrupted hand-out was committed and never handed out."""
    member = connector(place.group)
    stream = only_stream(member, place.topic)
    eventually(lambda: len(stream.queue), 10, "messages")
    reader = stream.chunk_reader
    reader.lease = Tripwire(reader.lease, 5, member.shutdown)
    with within(2):
        offsets = [message.offset for message in stream]
    # a message in the interrupted hand-out may still arrive, and then it counts
    assert offsets == list(range(len(offsets)))
    assert len(offsets) >= 4
    assert place.committed == len(offsets)
    assert place.zookeeper.get_children(f"/consumers/{place.group}/ids") == [], "the end of the stream is the end"


def test_a_signal_handler_in_the_queue_returns_at_once(connector: NewConnector, place: Place) -> None:
    """The handler waited for threads, which waited for the interrupted code's lock until all deadlines had passed."""
    member = connector(place.group)
    stream = only_stream(member, place.topic)
    assert [stream.get(SECONDS).offset for _ in range(10)] == list(range(10))
    queue, take, took = stream.queue, stream.queue.take, []

    def interrupted(deadline: Any) -> Any:
        with queue._lock:
            begin = monotonic()
            member.shutdown()
            member.shutdown()
            took.append(monotonic() - begin)
            threading.Event().wait(0.3)
        return take(deadline)

    queue.take = interrupted  # type: ignore[method-assign]
    with within(2):
        assert list(stream) == []
    assert took[0] < scaled(0.2)
    assert place.committed == 10
    assert place.zookeeper.get_children(f"/consumers/{place.group}/ids") == []


def test_a_process_ends_cleanly_on_sigterm(our_member: Callable[..., OurMember], place: Place) -> None:
    member = our_member(place.group, {place.topic: 2})
    member.wait_messages(10)
    with within(5):
        totals = member.stop()
    assert totals is not None, member.log_text()
    assert totals.messages == 10
    assert place.committed == 10
    assert place.zookeeper.get_children(f"/consumers/{place.group}/ids") == []


def test_a_crash_loses_nothing(our_member: Callable[..., OurMember], place: Place) -> None:
    place.put(*numbers(990))
    quick = {"zookeeper.session.timeout.ms": 1500, "auto.commit.interval.ms": 20}
    seen: list[int] = []
    for round_ in range(3):
        member = our_member(place.group, {place.topic: 1}, pause_ms=1, properties=quick)
        before = len(seen)
        got = member.wait_messages(200)
        member.kill()
        seen += [m.offset for m in member.messages]
        assert place.committed is not None
        assert place.committed <= max(seen), "what was in hand at the crash is not committed"
        assert round_ == 0 or got[0].offset <= max(seen[:before]) + 1
    last = our_member(place.group, {place.topic: 1}, properties=quick)
    eventually(lambda: {*seen, *(m.offset for m in last.messages)} == set(range(1000)), 20, "every message")


def test_a_commit_before_each_report_loses_at_most_one_report(
    our_member: Callable[..., OurMember], place: Place
) -> None:
    """A commit before each report leaves at most the message in hand unreported."""
    place.put(*numbers(290))
    quick = {"zookeeper.session.timeout.ms": 1500, "auto.commit.enable": "false"}
    first = our_member(place.group, {place.topic: 1}, commit_each=True, pause_ms=1, properties=quick)
    first.wait_messages(100)
    first.kill()
    reported = [m.offset for m in first.messages]
    assert place.committed in (len(reported), len(reported) + 1)
    second = our_member(place.group, {place.topic: 1}, commit_each=True, properties=quick)
    got = second.wait_messages(300 - len(reported) - 1)
    assert got[0].offset == place_after(reported, got[0].offset)


def place_after(reported: list[int], first: int) -> int:
    """Check the next member's start: after the last reported message, or one message later."""
    assert first in (len(reported), len(reported) + 1)
    return first


# ---- timeouts ----


def test_a_timeout_leaves_the_stream_and_its_iterator_usable(connector: NewConnector, place: Place) -> None:
    stream = only_stream(connector(place.group, consumer_timeout_ms=300), place.topic)
    messages = iter(stream)
    assert [next(messages).offset for _ in range(10)] == list(range(10))
    for _ in range(2):
        begin = monotonic()
        with pytest.raises(ConsumerTimeoutException):
            next(messages)
        assert 0.25 < monotonic() - begin < scaled(2)
    place.put(b"more", b"and more")
    assert next(messages).value == b"more"
    assert next(iter(stream)).value == b"and more"
    with pytest.raises(ConsumerTimeoutException):
        list(stream)


def test_get_waits_as_long_as_it_is_told(connector: NewConnector, place: Place) -> None:
    stream = only_stream(connector(place.group, consumer_timeout_ms=100), place.topic)
    assert stream.get(SECONDS).offset == 0
    for _ in range(9):
        stream.get(0)
    for seconds in (0, 0.2):
        begin = monotonic()
        with pytest.raises(ConsumerTimeoutException):
            stream.get(seconds)
        assert seconds <= monotonic() - begin < seconds + scaled(1)
    got: list[object] = []
    waiting = threading.Thread(target=lambda: got.append(stream.get(None).value))
    waiting.start()
    place.put(b"late")
    waiting.join(scaled(10))
    assert got == [b"late"]


def test_the_last_message_counts_although_no_other_comes(connector: NewConnector, place: Place) -> None:
    stream = only_stream(connector(place.group, auto_commit_interval_ms=50), place.topic)
    for _ in range(10):
        stream.get(SECONDS)
    with pytest.raises(ConsumerTimeoutException):
        stream.get(0)  # asked for the next one: the last is finished
    eventually(lambda: place.committed == 10, 5, "a commit of everything")


# ---- where to begin ----


@pytest.mark.parametrize("stored", [None, -1, 10_000])
@pytest.mark.parametrize("reset", ["smallest", "largest"])
def test_the_reset_policy_applies_without_a_valid_offset(
    connector: NewConnector, place: Place, reset: str, stored: int | None
) -> None:
    """An offset beyond the log's end belongs to an older, longer log. All messages are new, so reading starts at the
    beginning whatever the reset policy. The original starts at the end with ``largest``.
    """
    if stored is not None:
        place.store(stored)
    member = connector(place.group, auto_offset_reset=reset)
    reader = Reader(only_stream(member, place.topic))
    start = 0 if reset == "smallest" or stored == 10_000 else 10
    eventually(lambda: place.committed in (start, 10), 10, "the start is stored")
    place.put(b"new")
    got = reader.wait_for(11 - start)
    assert [m.offset for m in got] == list(range(start, 11))
    member.shutdown()
    assert place.committed == 11


@pytest.mark.parametrize(("reset", "start"), [("smallest", 5), ("largest", 10)])
def test_the_reset_policy_applies_to_a_deleted_offset(
    connector: NewConnector, cluster: DevCluster, place: Place, reset: str, start: int
) -> None:
    """The reset policy decides where to begin if the stored offset was deleted from the log."""
    from confluent_kafka import TopicPartition as Position
    from confluent_kafka.admin import AdminClient

    place.store(2)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    for deleted in admin.delete_records([Position(place.topic, 0, 5)]).values():
        assert deleted.result(scaled(10)).low_watermark == 5
    member = connector(place.group, auto_offset_reset=reset, auto_commit_interval_ms=50)
    reader = Reader(only_stream(member, place.topic))
    eventually(lambda: place.committed in (start, 10), 10, "the move to another offset")
    place.put(b"new")
    assert [m.offset for m in reader.wait_for(11 - start)] == list(range(start, 11))


def test_a_group_goes_on_where_it_stopped(connector: NewConnector, place: Place) -> None:
    for expected in (range(4), range(4, 7)):
        with connector(place.group, auto_offset_reset="largest" if expected.start else "smallest") as member:
            stream = only_stream(member, place.topic)
            assert [stream.get(SECONDS).offset for _ in expected] == list(expected)
    assert place.committed == 7


def test_an_offset_that_an_operator_writes_is_adopted(connector: NewConnector, place: Place) -> None:
    """The original goes on from its own position and silently ignores the operator's offset."""
    member = connector(place.group, auto_commit_interval_ms=50)
    reader = Reader(only_stream(member, place.topic))
    reader.wait_for(10)
    eventually(lambda: place.committed == 10, 5, "commits")
    place.zookeeper.set(f"/consumers/{place.group}/offsets/{place.topic}/0", b"3")
    place.put(b"new")
    got = reader.wait_for(19)
    assert [m.offset for m in got] == [*range(11), *range(3, 11)]
    eventually(lambda: place.committed == 11, 5, "commits again")


# ---- what comes ----


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_of_every_compression_can_stop_in_the_middle(
    connector: NewConnector, cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str], codec: str
) -> None:
    """Messages of every compression arrive, and reading can stop in the middle of a batch."""
    from tests.cluster.conftest import produce_to

    topic, group = new_topic(1), new_group()
    values = [b"%d " % n * (n % 50) for n in range(500)]
    produce_to(
        cluster.bootstrap_servers, topic, values, partitions=1, compression_type=codec, linger_ms=50, batch_size=16000
    )
    got: list[object] = []
    for count in (137, 200, 163):
        with connector(group) as member:
            stream = only_stream(member, topic)
            got += [stream.get(SECONDS).value for _ in range(count)]
    assert got == values


def test_large_messages_come_through_a_small_fetch_size(
    connector: NewConnector, cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    from tests.cluster.conftest import produce_to

    topic = new_topic(1, config={"max.message.bytes": "4000000"})
    sizes = [10, 2_500_000, 20, 900_000, 1_100_000, 30]
    values = [bytes([n]) * size for n, size in enumerate(sizes)]
    produce_to(cluster.bootstrap_servers, topic, values, partitions=1, message_max_bytes=4_000_000)
    stream = only_stream(connector(new_group(), fetch_message_max_bytes=1000), topic)
    assert [stream.get(SECONDS).value for _ in values] == values


def test_headers_nulls_and_timestamps_arrive_as_written(
    connector: NewConnector, cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    """Headers, null keys, null values and timestamps arrive as they were written."""
    from confluent_kafka import Producer

    topic = new_topic(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    producer.produce(topic, None, b"key only", timestamp=1_234_567_890_123, headers=[("a", b"1"), ("a", None)])
    producer.produce(topic, b"", None, timestamp=1, headers=[("\u00fc", "x\u00fc".encode())])
    assert producer.flush(scaled(10)) == 0
    first, second = Reader(only_stream(connector(new_group()), topic)).wait_messages(2)
    assert (first.key, first.value, first.timestamp, first.timestamp_type) == (b"key only", None, 1_234_567_890_123, 0)
    assert list(first.headers) == [("a", b"1"), ("a", None)]
    assert (second.key, second.value, second.timestamp) == (None, b"", 1)
    assert list(second.headers) == [("\u00fc", "x\u00fc".encode())]
