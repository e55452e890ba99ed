"""``run(until=...)`` on a cluster in memory: what is handled, what is committed, and that the connector lives on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.timing import scaled
from zkconsumer import Whitelist, ZookeeperConsumerConnector
from zkconsumer.balance.retry import Retry
from zkconsumer.testing import FakeCluster

PARTITIONS, EACH = 2, 30
WITHIN = 20.0
Join = Callable[..., ZookeeperConsumerConnector]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("events", PARTITIONS)
        add(made)
        yield made


def add(cluster: FakeCluster, many: int = EACH) -> None:
    for partition in range(PARTITIONS):
        cluster.append("events", partition, [b"v"] * many, [b"%d" % (number % 7) for number in range(many)])


@pytest.fixture
def join(cluster: FakeCluster) -> Iterator[Join]:
    made: list[ZookeeperConsumerConnector] = []

    def make(**properties: Any) -> ZookeeperConsumerConnector:
        base = {
            "zookeeper.connect": cluster.zookeeper_connect,
            "group.id": "g",
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 60_000,
            "consumer.timeout.ms": int(scaled(WITHIN) * 1000),  # no run may hang
        }
        made.append(ZookeeperConsumerConnector(base | properties))
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


def committed(cluster: FakeCluster) -> list[int]:
    tree = cluster.zookeeper.tree("/consumers/g/offsets/events")
    return [int(tree[f"/consumers/g/offsets/events/{partition}"]) for partition in range(PARTITIONS)]


def whole(*ends: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition, end in enumerate(ends) for offset in range(end)]


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_the_log_ends_as_of_now_end_the_run(cluster: FakeCluster, join: Join, order: Any) -> None:
    connector, taken = join(), list[tuple[int, int]]()

    def handle(message: Any) -> None:
        if not taken:
            add(cluster)  # behind the end
        taken.append((message.partition, message.offset))

    connector.run(handle, "events", concurrency=8, order=order, until="end")

    assert sorted(taken) == whole(EACH, EACH)
    assert committed(cluster) == [EACH, EACH]


def test_offsets_end_the_run_in_the_middle_of_a_chunk(cluster: FakeCluster, join: Join) -> None:
    connector, taken = join(), list[tuple[int, int]]()

    connector.run(
        lambda m: taken.append((m.partition, m.offset)),
        "events",
        concurrency=8,
        until={("events", 0): 11, ("events", 1): 0},
    )

    assert sorted(taken) == whole(11, 0)
    assert committed(cluster) == [11, 0]


def test_the_next_run_of_the_connector_goes_on_at_the_end(cluster: FakeCluster, join: Join) -> None:
    connector, taken = join(), list[tuple[int, int]]()

    def handle(message: Any) -> None:
        taken.append((message.partition, message.offset))

    connector.run(handle, "events", concurrency=8, until={("events", 0): 11, ("events", 1): 4})
    connector.run(handle, concurrency=8, until="end")

    assert sorted(taken) == whole(EACH, EACH)
    assert committed(cluster) == [EACH, EACH]


def test_a_time_ends_the_run_at_its_first_message(cluster: FakeCluster, join: Join) -> None:
    connector, taken = join(), list[tuple[int, int]]()
    connector.run(lambda m: taken.append((m.partition, m.offset)), "events", concurrency=2, until=0)

    assert taken == []

    connector.run(lambda m: taken.append((m.partition, m.offset)), concurrency=2, until="end")

    assert sorted(taken) == whole(EACH, EACH)


def test_dead_and_parked_messages_count_as_passed(cluster: FakeCluster, join: Join) -> None:
    """Dead letters and parked messages have pointers, so the run need not wait for their next attempts."""
    connector, taken = join(**{"auto.commit.interval.ms": 50}), list[tuple[int, int]]()

    def handle(message: Any) -> None:
        if message.offset == 3:
            raise ValueError("staged")
        taken.append((message.partition, message.offset))

    connector.run(
        handle,
        "events",
        concurrency=4,
        order="none",
        until="end",
        retry=Retry(attempts=3, delays=(0.0, 600.0), park_after=2),
        failure_limit=None,
    )

    assert sorted(taken) == [place for place in whole(EACH, EACH) if place[1] != 3]
    assert committed(cluster) == [EACH, EACH]


def test_a_member_without_partitions_ends_with_the_group(cluster: FakeCluster, join: Join) -> None:
    cluster.create_topic("single", 1)
    cluster.append("single", 0, [b"v"] * EACH)
    owner, idle = join(**{"consumer.id": "a"}), join(**{"consumer.id": "b"})
    owner.run(lambda _: None, "single", concurrency=2, until={("single", 0): 0})
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            idle.run(lambda _: failures.append(AssertionError("it owns nothing")), "single", concurrency=2, until="end")
        except BaseException as e:
            failures.append(e)

    thread = threading.Thread(target=wait, name="idle")
    thread.start()
    owner.run(lambda _: None, concurrency=2, until="end")
    thread.join(scaled(WITHIN))

    assert not thread.is_alive()
    assert failures == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"until": "end"}, "until needs concurrency"),
        ({"until": "end", "concurrency": 2, "topics": Whitelist("e.*")}, "topics by name"),
        ({"until": "never", "concurrency": 2}, 'until is "end"'),
    ],
)
def test_a_senseless_run_with_until_is_refused(join: Join, arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        join().run(lambda _: None, **{"topics": "events", **arguments})
