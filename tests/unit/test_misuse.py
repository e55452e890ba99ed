"""Mistakes of new users: each raises at once, in the calling thread, and the message gives the remedy."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.internals import member_of
from tests.timing import eventually, scaled
from zkconsumer import ConsumerConfig, KafkaStream, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.errors import ConfigException, PartitionNotOwnedError
from zkconsumer.model import partition_of
from zkconsumer.testing import FakeCluster

NOW = 1_795_000_000_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("t", 2)
        made.append("t", 0, [b"x"] * 10)
        yield made


def properties(cluster: FakeCluster, coordination: str) -> dict[str, Any]:
    return {
        "zookeeper.connect": cluster.zookeeper_connect,
        "group.id": f"misuse-{coordination}-{time.monotonic_ns()}",
        "group.coordination": coordination,
        "auto.offset.reset": "smallest",
    }


@pytest.fixture(scope="module", params=["zookeeper", "kafka"])
def reading(cluster: FakeCluster, request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any]]:
    with ZookeeperConsumerConnector(properties(cluster, request.param)) as connector:
        stream = connector.create_message_streams({"t": 1})["t"][0]
        assert stream.get(timeout=scaled(30)).offset == 0
        yield connector, stream


# ---- pairs in place of partitions ----


def test_a_plain_pair_is_a_partition_everywhere(reading: tuple[Any, Any]) -> None:
    """``seek(("t", 0), 1)`` failed inside the group's thread, and was an empty TimeoutError after 6 s."""
    connector, stream = reading
    pair, tp = ("t", 0), TopicPartition("t", 0)
    connector.seek(pair, 1)
    assert stream.get(timeout=scaled(30)).offset == 1
    connector.seek(pair, "earliest")
    assert connector.position(pair) == 0
    connector.pause([pair])
    assert connector.paused() == {tp}
    connector.pause(connector.assignment())
    connector.resume(connector.assignment())
    assert connector.paused() == frozenset()
    connector.commit_offsets({pair: 3})
    assert connector.committed(pair) == 3
    connector.offsets_for_times({pair: 0})
    assert connector.seek_to_timestamp(0, [pair]) == {tp: 0}
    assert type(next(iter(connector.seek_to_timestamp(0, [pair])))) is TopicPartition
    assert pair in connector.lag()


CALLS: dict[str, Callable[[Any, Any], object]] = {
    "seek": lambda c, tp: c.seek(tp, 1),
    "seek to a place": lambda c, tp: c.seek(tp, "earliest"),
    "position": lambda c, tp: c.position(tp),
    "committed": lambda c, tp: c.committed(tp),
    "pause": lambda c, tp: c.pause([tp]),
    "resume": lambda c, tp: c.resume([tp]),
    "seek_to_timestamp": lambda c, tp: c.seek_to_timestamp(NOW, [tp]),
    "offsets_for_times": lambda c, tp: c.offsets_for_times({tp: NOW}),
    "commit_offsets": lambda c, tp: c.commit_offsets({tp: 1}),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", ["t", ("t",), ("t", "0"), ("t", 0.0), ("t", True), (0, "t"), None, ("t", 0, 1)])
def test_what_is_no_partition_raises_at_once(reading: tuple[Any, Any], call: str, wrong: object) -> None:
    began = time.monotonic()
    with pytest.raises(TypeError, match=r"a partition is wanted, as in TopicPartition\('events', 0\)"):
        CALLS[call](reading[0], wrong)
    assert time.monotonic() - began < scaled(1)


@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_ours_is_named(reading: tuple[Any, Any], call: str) -> None:
    if call in ("offsets_for_times", "commit_offsets", "committed"):
        return  # of any partition
    with pytest.raises(PartitionNotOwnedError, match="u-7"):
        CALLS[call](reading[0], ("u", 7))


@pytest.mark.parametrize("call", ["pause", "resume", "seek_to_timestamp"])
def test_a_topic_in_place_of_partitions_is_refused(reading: tuple[Any, Any], call: str) -> None:
    def ask(given: object) -> object:
        method = getattr(reading[0], call)
        return method(NOW, given) if call == "seek_to_timestamp" else method(given)

    with pytest.raises(
        TypeError, match=r"partitions are wanted, not the topic 'events': a list such as \[\('events', 0"
    ):
        ask("events")
    for one in (("t", 0), TopicPartition("t", 0)):
        with pytest.raises(TypeError, match=r"a list of partitions is wanted: write \[TopicPartition\(topic='t'"):
            ask(one)
    with pytest.raises(TypeError, match="a list of partitions is wanted"):
        ask(7)


def test_offsets_and_times_come_in_mappings(reading: tuple[Any, Any]) -> None:
    with pytest.raises(TypeError, match="a mapping from partitions to offsets is wanted, not 5.0"):
        reading[0].commit_offsets(5.0)
    with pytest.raises(TypeError, match="a mapping from partitions to times is wanted"):
        reading[0].offsets_for_times([("t", 0)])


def test_numbers_of_other_libraries_are_numbers() -> None:
    class Number:
        def __index__(self) -> int:
            return 3

    assert partition_of(("t", Number())) == TopicPartition("t", 3)


# ---- times ----


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (NOW // 1000, rf"{NOW // 1000} are seconds since 1970, it seems; a time is in ms: write {NOW // 1000} \* 1000"),
        (NOW / 1000, r"whole number of ms since 1970, not .*; write int\(seconds \* 1000\)"),
        (NOW * 1000, "micro- or nanoseconds"),
        (NOW * 1_000_000, "micro- or nanoseconds"),
        (-1, "whole number of ms"),
        ("now", "whole number of ms"),
    ],
)
def test_a_time_in_another_unit_is_refused(reading: tuple[Any, Any], wrong: Any, words: str) -> None:
    """Seconds are days early in 1970 in ms: everything was read again, and nothing said why."""
    for ask in (reading[0].seek_to_timestamp, lambda time: reading[0].offsets_for_times({("t", 0): time})):
        with pytest.raises(ValueError, match=words):
            ask(wrong)


def test_times_that_tests_use_are_times(reading: tuple[Any, Any]) -> None:
    for time_ in (0, 1, 5000, 10**9 - 1, 10**10, NOW):
        reading[0].offsets_for_times({("t", 0): time_})


# ---- addresses ----


@pytest.mark.parametrize("text", ["zk://host", "zk://user:secret@host:2181/chroot", "host:2181,zookeeper://other:2181"])
def test_zookeeper_connect_is_no_url(text: str) -> None:
    """It said that the port in 'zk:' must be a number."""
    with pytest.raises(ConfigException, match=r"zookeeper.connect: is no URL: leave out '\w+://' and write host1") as e:
        ConsumerConfig(zookeeper_connect=text, group_id="g")
    assert "secret" not in str(e.value)


def test_bootstrap_servers_are_no_urls() -> None:
    with pytest.raises(ConfigException, match=r"leave out 'SASL_SSL://' \(security.protocol names the protocol\)"):
        ConsumerConfig(bootstrap_servers="SASL_SSL://host:9092", group_id="g", group_coordination="kafka")


# ---- one thread a stream ----


@pytest.mark.parametrize("merged", [False, True])
def test_a_second_thread_in_a_stream_is_told(cluster: FakeCluster, merged: bool) -> None:
    """It said "generator already executing"."""
    with ZookeeperConsumerConnector(properties(cluster, "zookeeper")) as connector:
        made = connector.create_message_streams({"empty": 1})["empty"][0]
        stream: Any = connector.messages() if merged else made
        reader = threading.Thread(target=lambda: list(stream), daemon=True)
        reader.start()
        eventually(lambda: member_of(connector).delivery.interrupted(reader.native_id), 10, "a reader that waits")
        for ask in (lambda: list(stream), lambda: next(stream), lambda: stream.get(timeout=0)):
            with pytest.raises(RuntimeError, match="is being read by another thread: a stream is read by one thread"):
                ask()
        connector.shutdown()
        reader.join(scaled(10))


# ---- a loop that was interrupted ----


@pytest.fixture
def interactive() -> Iterator[None]:
    """A notebook's cell was interrupted, and has shown it."""
    sys.last_value = KeyboardInterrupt()
    yield
    del sys.last_value


def interrupted(stream: KafkaStream[Any, Any], at: int) -> None:
    try:
        for message in stream:
            if message.offset == at:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("shown", [False, True])
def test_the_loop_after_an_interrupt_says_what_it_does(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest, merged: bool, shown: bool
) -> None:
    if shown:
        request.getfixturevalue("interactive")
    with ZookeeperConsumerConnector(properties(cluster, "zookeeper")) as connector:
        made = connector.create_message_streams({"t": 1})["t"][0]
        stream: Any = connector.messages() if merged else made
        caplog.set_level(logging.INFO)
        interrupted(stream, 2)
        assert "a new loop begins" not in caplog.text
        assert next(iter(stream)).offset == 3
        (record,) = [r for r in caplog.records if "a new loop begins" in r.getMessage()]
        assert "t-0 at offset 2, which is still in hand, counts as finished" in record.getMessage()
        assert "connector.seek(('t', 0), 2) first" in record.getMessage()
        assert record.levelno == (logging.WARNING if shown else logging.INFO)
        connector.seek(("t", 0), 3)
        assert next(stream).offset == 3
        for _ in range(3):
            stream.get(timeout=scaled(10))
        assert caplog.text.count("a new loop begins") == 1, "who asks for single messages is told nothing"


# ---- what is public ----


def test_completion_shows_the_public_interface_only(cluster: FakeCluster) -> None:
    with ZookeeperConsumerConnector(properties(cluster, "zookeeper")) as connector:
        made = connector.create_message_streams({"t": 1})["t"][0]
        message = made.get(timeout=scaled(30))

        def shown(thing: object) -> set[str]:
            assert "__class__" in dir(thing)
            return {name for name in dir(thing) if not name.startswith("__")}

        fields = "headers key offset partition timestamp timestamp_type topic value"
        assert shown(message) == set(fields.split())
        calls = "batches get name queue skip take to_arrow to_dataframe"
        assert shown(made) == set(calls.split())
        assert shown(connector.messages()) == {"get", "skip", "stop"}
        calls = (
            "add_topics assignment balance beginning_offsets commit_offsets commit_offsets_async committed config "
            "consumer_id create_message_streams create_message_streams_by_filter end_offsets health lag messages "
            "metrics offsets_for_times partitions_for pause paused position read resume run seek seek_to_timestamp "
            "set_consumer_rebalance_listener shutdown state topics unsubscribe"
        )
        assert shown(connector) == set(calls.split())
