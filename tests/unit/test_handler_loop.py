"""``run`` on a cluster in memory: whatever a handler does or raises, nothing is lost, and nothing is left behind."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.clusters import Join, cluster_with, committed, connectors_with, whole
from zkconsumer import ConsumerTimeoutException, TopicPartition, Whitelist
from zkconsumer.member.connector_state import Phase
from zkconsumer.testing import FakeCluster

PARTITIONS = 3
EACH = 10
cluster = cluster_with({"events": [[b"%d" % number for number in range(EACH)]] * PARTITIONS})
join = connectors_with({"consumer.timeout.ms": int(scaled(10) * 1000), "auto.commit.interval.ms": 60_000})


def workers_left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "-worker-" in thread.name]


RAISED = [
    ZeroDivisionError("of the application"),
    StopIteration("would end a loop"),
    GeneratorExit("would end a generator"),
    ConsumerTimeoutException("of a stream that the handler reads"),
    SystemExit(3),
    KeyboardInterrupt(),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("workers", [1, 3])
def test_an_exception_of_a_handler_is_raised_by_run(
    cluster: FakeCluster, join: Join, error: BaseException, workers: int
) -> None:
    """Its message comes again."""
    taken: list[tuple[int, int]] = []
    fails = [True]

    def handle(message: Any) -> None:
        if message.partition == 1 and message.offset == 4 and fails:
            fails.clear()
            raise error
        taken.append((message.partition, message.offset))

    connector = join()
    with pytest.raises(type(error)) as raised:
        connector.run(handle, "events", workers=workers)
    assert raised.value is error
    assert error.__notes__[-1] == "raised by the handler of events-1 at offset 4; this message is not committed"
    del error.__notes__[:]
    assert connector.state.phase is Phase.CLOSED
    assert workers_left() == []
    assert committed(cluster)[1] == 4
    with pytest.raises(ConsumerTimeoutException):
        join(**{"consumer.timeout.ms": int(scaled(1) * 1000)}).run(handle, "events", workers=workers)
    assert sorted(taken) == [(partition, offset) for partition in range(PARTITIONS) for offset in range(EACH)]


def test_workers_share_the_partitions_and_keep_their_order(cluster: FakeCluster, join: Join) -> None:
    connector, threads, taken = join(**{"consumer.id": "m"}), list[tuple[int, str]](), list[tuple[int, int]]()

    def handle(message: Any) -> None:
        threads.append((message.partition, threading.current_thread().name))
        taken.append((message.partition, message.offset))
        if len(taken) == PARTITIONS * EACH:
            connector.shutdown()

    connector.run(handle, "events", workers=PARTITIONS)
    assert sorted(taken, key=lambda place: place[0]) == whole(*[EACH] * PARTITIONS)
    assert {name for _, name in threads} == {f"g_m-worker-{number}" for number in range(PARTITIONS)}
    assert len(set(threads)) == PARTITIONS
    assert committed(cluster) == [EACH] * PARTITIONS
    assert workers_left() == []


@pytest.mark.parametrize("later", [False, True])
def test_workers_get_topics_of_a_filter_and_later_topics(cluster: FakeCluster, join: Join, later: bool) -> None:
    cluster.create_topic("others", 1)
    cluster.append("others", 0, [b"v"] * EACH)
    connector, taken = join(), Counter[str]()

    def handle(message: Any) -> None:
        if later and (message.topic, message.partition, message.offset) == ("events", 0, 0):
            connector.add_topics({"others": 1})
        taken[message.topic] += 1
        if taken.total() == (PARTITIONS + 1) * EACH:
            connector.shutdown()

    connector.run(handle, "events" if later else Whitelist("events|others"), workers=2)
    assert taken == {"events": PARTITIONS * EACH, "others": EACH}


def test_an_explicit_commit_stays_where_the_handler_fails(cluster: FakeCluster, join: Join) -> None:
    """The last commit of the shutdown wrote the offset before the message that the handler had committed."""
    connector = join()

    def handle(message: Any) -> None:
        connector.commit_offsets()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        connector.run(handle, "events")
    assert sorted(committed(cluster), reverse=True)[0] == 1


def test_a_handler_may_commit_seek_pause_and_shut_down(cluster: FakeCluster, join: Join) -> None:
    connector, taken = join(), list[tuple[int, int]]()
    done: list[int] = []

    def handle(message: Any) -> None:
        taken.append((message.partition, message.offset))
        here = TopicPartition(message.topic, message.partition)
        if taken[-1] == (0, 3):
            connector.commit_offsets()
            done.append(committed(cluster)[0])
        elif taken[-1] == (1, 3):
            connector.seek(here, 8)
        elif taken[-1] == (2, 3):
            connector.pause([here])
            connector.resume([here])
        if len(taken) == 3 * EACH - 4:
            connector.shutdown()

    connector.run(handle, "events", workers=1)
    assert done == [4], "its own message counts"
    assert [offset for partition, offset in taken if partition == 1] == [0, 1, 2, 3, 8, 9]
    assert [offset for partition, offset in taken if partition == 2] == list(range(10))
    assert committed(cluster) == [10, 10, 10]
    assert workers_left() == []


def test_a_run_inside_a_run_is_refused(join: Join) -> None:
    connector = join()
    with pytest.raises(ValueError, match="being run already"):
        connector.run(lambda _: connector.run(print), "events")
    other = join()
    with pytest.raises(ValueError, match="reading the streams"):
        other.run(lambda _: other.messages(), "events")


@pytest.mark.parametrize("refused", [{"batch": 0}, {"dead_letter": 7}])
def test_a_refused_run_leaves_the_connector_as_it_was(join: Join, refused: dict[str, Any]) -> None:
    """Its ``concurrency`` counted: messages() refused streams that were created afterwards."""
    connector = join()
    with pytest.raises((TypeError, ValueError)):
        connector.run(print, "events", concurrency=2, **refused)
    connector.create_message_streams({"events": 1})
    assert connector.messages().get(timeout=scaled(10)).topic == "events"
