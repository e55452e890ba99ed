"""``until=`` of run: what it takes, what the ends are, and when they are reached."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.timing import scaled
from zkconsumer.cluster.offset_lookup import OffsetLookup
from zkconsumer.errors import UnknownTopicError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.model import Endpoint, ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.until import RunEnd, find_ends, requested_end
from zkconsumer.testing import FakeCluster
from zkconsumer.testing.fake_clock import ManualClock

NOW = 1_700_000_000_000
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def position(tp: TopicPartition, consumed: int | None) -> PartitionPosition:
    return PartitionPosition(tp, ThreadId("m-0"), consumed)


@pytest.mark.parametrize(
    ("until", "offsets", "time"),
    [
        ("end", None, -1),
        ({("t", 0): 5, B: 0}, {A: 5, B: 0}, -1),
        (1_600_000_000_000, None, 1_600_000_000_000),
        (datetime(2020, 1, 1, tzinfo=UTC), None, 1_577_836_800_000),
        (datetime(2020, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), None, 1_577_836_800_000),
    ],
)
def test_each_form_of_until_is_understood(until: Any, offsets: Any, time: int) -> None:
    found = requested_end(until, NOW)

    assert (found.offsets, found.time) == (offsets, time)


@pytest.mark.parametrize(
    ("until", "error", "said"),
    [
        ("latest", ValueError, "not 'latest'"),
        (3.5, TypeError, "not 3.5"),
        (True, TypeError, "not True"),
        (NOW + 1, ValueError, "not over yet"),
        (-1, ValueError, "before 1970"),
        (datetime(2020, 1, 1), ValueError, "without a time zone"),  # noqa: DTZ001 (that is the point)
        ({"t": 5}, TypeError, "a partition is a \\(topic, number\\)"),
        ({("t", 0): -1}, ValueError, "from 0 on"),
        ({("t", 0): 1 << 63}, ValueError, "64 bits"),
        ({("t", 0): True}, TypeError, "an offset is a whole number"),
        ({("t", "0"): 1}, TypeError, "the number of a partition"),
    ],
)
def test_a_senseless_until_is_refused(until: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        requested_end(until, NOW)


def test_the_end_is_reached_once_every_base_has_passed_it() -> None:
    end = RunEnd({A: 10, B: 0})

    assert not end.reached({A: position(A, 9), B: position(B, 5)})
    assert not end.reached({A: position(A, None)})
    assert end.reached({A: position(A, 10), B: position(B, 5)})
    assert end.reached({A: position(A, 12)})
    assert not end.reached({})


def test_a_partition_created_later_is_not_handled() -> None:
    later = TopicPartition("t", 7)

    assert RunEnd({A: 10}).limit(later) == 0
    assert RunEnd({A: 10}).reached({later: position(later, 0)})


def test_a_group_has_reached_the_end_by_its_offsets() -> None:
    end = RunEnd({A: 10, B: 0})

    assert end.topics_left({A: 10}) == frozenset()
    assert end.topics_left({A: 9, B: 5}) == {A.topic}
    assert end.topics_left({}) == {A.topic}
    assert end.topics_left({A: -1}) == {A.topic}


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    clock = ManualClock(0.0)
    with FakeCluster(clock=clock) as cluster:
        cluster.create_topic("t", 2)
        for number in range(5):
            cluster.append("t", 0, [b"%d" % number])
            clock.advance(1)
        yield cluster


def channel(endpoint: Endpoint) -> BrokerChannel:
    return BrokerChannel(endpoint, client_id="test", socket_timeout=scaled(10))


@pytest.fixture
def lookup(cluster: FakeCluster) -> Iterator[OffsetLookup]:
    endpoints = [Endpoint(number, host, port) for number, host, port in cluster.addresses()]
    lookup = OffsetLookup(lambda _: endpoints, channel, backoff=0.01)
    yield lookup
    lookup.close()


@pytest.mark.parametrize(
    ("until", "ends"), [("end", {A: 5, B: 0}), (2000, {A: 2, B: 0}), (5000, {A: 5, B: 0}), ({A: 3, B: 9}, {A: 3, B: 9})]
)
def test_the_ends_are_those_of_all_partitions(lookup: OffsetLookup, until: Any, ends: Any) -> None:
    found = find_ends(requested_end(until, NOW), ["t"], lookup, Deadline(scaled(10)))

    assert found.ends == ends


@pytest.mark.parametrize(
    ("until", "said"),
    [({A: 3}, "no offset for t-1"), ({A: 3, B: 1, TopicPartition("u", 0): 1}, "that are not there: u-0")],
)
def test_offsets_must_name_the_partitions_there_are(lookup: OffsetLookup, until: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        find_ends(requested_end(until, NOW), ["t"], lookup, Deadline(scaled(10)))


def test_a_topic_that_is_not_there_has_no_end(lookup: OffsetLookup) -> None:
    with pytest.raises(UnknownTopicError, match="know no topic .gone."):
        find_ends(requested_end("end", NOW), ["t", "gone"], lookup, Deadline(0.1))
