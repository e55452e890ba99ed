"""The sizes in fetch requests: no partition starves, and no response exceeds the limit."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timing import scaled
from tests.unit.kafka.sets import WHERE
from zkconsumer import Whitelist, ZookeeperConsumerConnector
from zkconsumer.fetch.broker_fetch import SMALLEST_SHARE, poll_seconds, size_request
from zkconsumer.model import ThreadId
from zkconsumer.ownership.fetch_cursor import FetchCursor
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.testing import FakeCluster

MB = 1_000_000


def fetches(*least: int) -> list[FetchCursor]:
    """Flows whose next messages are known to take so many bytes."""
    made = [PartitionPosition(WHERE, ThreadId("g-0"), 0).cursor.deliver_to(StreamQueue(1, lambda: None)) for _ in least]
    for fetch, size in zip(made, least, strict=True):
        fetch.least = size
    return made


def test_a_broker_that_caps_is_asked_for_everything() -> None:
    some = fetches(0, 5 * MB, 0)
    assert size_request(some, 100, MB, capped=True, most=100) == ([(some[0], MB), (some[1], 5 * MB), (some[2], MB)], 1)


def test_a_broker_that_does_not_cap_is_asked_for_shares() -> None:
    some = fetches(*[0] * 200)
    asked, turns = size_request(some, 10 * MB, MB, capped=False, most=10 * MB)
    assert ([fetch for fetch, _ in asked], turns) == (some, 1)
    assert {size for _, size in asked} == {50_000}
    asked, _ = size_request(some[:2], 10 * MB, MB, capped=False, most=10 * MB)
    assert {size for _, size in asked} == {MB}, "never more than configured"


SIZES = st.lists(st.sampled_from([0, 0, 1000, MB, 20 * MB]), min_size=1, max_size=40)


@given(SIZES, st.integers(1, 30 * MB), st.sampled_from([1, 1000, 30 * MB]), st.sampled_from([1000, MB]))
def test_requests_keep_the_limit_and_partitions_take_turns(
    least: list[int], limit: int, more: int, partition_bytes: int
) -> None:
    """Bug: no partition was asked for less than 16 kB, so a smaller ``fetch.max.bytes`` had no effect."""
    most = min(limit * more, 30 * MB)  # the limit is what is left of it where memory is short
    smallest = min(SMALLEST_SHARE, partition_bytes, most)
    waiting = fetches(*least)
    served: list[FetchCursor] = []
    for _ in range(len(waiting)):
        asked, turns = size_request(waiting, limit, partition_bytes, capped=False, most=most)
        assert asked
        assert [fetch for fetch, _ in asked] == waiting[: len(asked)], "in the order of service"
        assert sum(size for _, size in asked) <= max(limit, asked[0][0].least, smallest)
        assert all(size >= fetch.least and size >= smallest for fetch, size in asked)
        assert (turns == 1) == (len(asked) == len(waiting))
        had = {id(fetch) for fetch, _ in asked}
        served += [fetch for fetch, _ in asked]
        waiting = [fetch for fetch in waiting if id(fetch) not in had] + [fetch for fetch, _ in asked]
    assert {id(fetch) for fetch in served} == {id(fetch) for fetch in waiting}


@pytest.mark.parametrize(
    ("quiet", "max_wait", "turns", "full_for", "wait"),
    [
        (False, 0.1, 1, 0.0, 0.1),
        (False, 0.1, 4, 0.0, 0.025),
        (False, 0.1, 1, 0.0001, 0.002),
        (False, 0.1, 1, 0.04, 0.01),
        (False, 0.1, 1, 100.0, 0.1),
        (False, 0.1, 4, 100.0, 0.025),
        (True, 0.1, 1, 0.0, 0.3),
        (True, 0.05, 1, 0.0, 0.15),
        (True, 0.2, 1, 0.0, 0.3),
        (True, 0.5, 1, 0.0, 0.5),
        (True, 0.1, 4, 0.0, 0.025),
        (True, 0.1, 1, 0.04, 0.01),
    ],
)
def test_a_poll_keeps_nobody_waiting_and_is_longer_if_quiet(
    quiet: bool, max_wait: float, turns: int, full_for: float, wait: float
) -> None:
    assert poll_seconds(max_wait, turns, full_for, quiet=quiet) == pytest.approx(wait)


BATCHES = 40


@pytest.mark.parametrize("topics", [{"events": 4}, {"a": 1, "b": 1, "c": 1, "d": 1}], ids=["one topic", "several"])
def test_a_response_too_small_for_all_starves_no_partition(topics: dict[str, int]) -> None:
    with FakeCluster(zookeeper=True) as cluster:
        for topic, partitions in topics.items():
            cluster.create_topic(topic, partitions)
            for partition in range(partitions):
                for number in range(BATCHES):
                    cluster.append(topic, partition, [b"%d" % number * 1000])
        config = {
            "zookeeper.connect": cluster.zookeeper_connect,
            "group.id": "g",
            "auto.offset.reset": "smallest",
            "consumer.timeout.ms": int(scaled(20) * 1000),
            "fetch.max.bytes": 1500,
        }
        with ZookeeperConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams_by_filter(Whitelist(".*"), 1)
            came = [(m.topic, m.partition) for m in islice(stream, 4 * BATCHES)]
    places = set(came)
    assert len(places) == 4
    ends = {place: len(came) - 1 - came[::-1].index(place) for place in places}
    # whose start is known first has some of its messages before the others are fetched at all
    for at in range(max(map(came.index, places)), len(came) - 12):
        unfinished = {place for place in places if ends[place] >= at + 12}
        assert unfinished <= set(came[at : at + 12]), f"starved: {came[at : at + 12]}"
