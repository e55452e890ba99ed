"""Single messages, read from the broker that leads their partition, and their times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.timing import scaled
from tests.unit.clusters import cluster_with
from tests.unit.kafka.sets import BATCHES, Batch, MessageSet, Written
from tests.values import present
from zkconsumer.data_plane.fetch_response import PartitionResponse
from zkconsumer.errors import BrokerUnavailableError
from zkconsumer.fetch.broker_fetch import FetchSettings
from zkconsumer.fetch.message_lookup import NO_MESSAGE, NO_TIME, MessageLookup, message_times
from zkconsumer.kafka import BrokerChannel, FetchRequest, batches
from zkconsumer.model import EARLIEST, Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_cluster import FakeCluster

WHERE = TopicPartition("events", 0)
cluster = cluster_with({"events": [[]]}, brokers=2, zookeeper=False)


@pytest.fixture
def lookup(cluster: FakeCluster) -> Iterator[MessageLookup]:
    settings = FetchSettings("test", 0.1, 1, 1 << 20, 1 << 20, EARLIEST, scaled(10), 65536, 0.05, largest_batch=300_000)
    made = MessageLookup(settings, lambda _: [Endpoint(*one) for one in cluster.addresses()])
    yield made
    made.close()


def add(cluster: FakeCluster, count: int) -> None:
    """One batch for each of the messages 0, 1, 2 and so on."""
    for number in range(count):
        cluster.append("events", 0, [b"%d" % number])


def soon() -> Deadline:
    return Deadline(scaled(20))


def test_messages_of_one_partition_are_read(cluster: FakeCluster, lookup: MessageLookup) -> None:
    add(cluster, 20)
    found = lookup.read(WHERE, [17, 3, 4, 3], soon())
    assert {offset: one.record.value for offset, one in found.items()} == {3: b"3", 4: b"4", 17: b"17"}
    assert all(one.offset == one.record.offset and not one.problem for one in found.values())


def test_reading_stops_at_the_limit_of_bytes(cluster: FakeCluster, lookup: MessageLookup) -> None:
    for _ in range(4):
        cluster.append("events", 0, [b"x" * 50_000])
    first = lookup.read(WHERE, range(4), soon(), most_bytes=1)
    assert 0 in first
    assert len(first) < 4


def test_messages_that_are_gone_say_why(cluster: FakeCluster, lookup: MessageLookup) -> None:
    add(cluster, 5)
    cluster.truncate_before("events", 0, 3)
    found = lookup.read(WHERE, [1, 3, 5, 99], soon())
    assert found[3].record.value == b"3"
    assert (found[1].problem, found[1].certain) == ("the log begins at offset 3", True)
    for offset in (5, 99):
        assert (found[offset].problem, found[offset].certain) == ("the log ends at offset 5", False)


def test_corrupt_message_has_a_problem_and_others_come(cluster: FakeCluster, lookup: MessageLookup) -> None:
    add(cluster, 3)
    cluster.corrupt("events", 0, 1)
    found = lookup.read(WHERE, range(3), soon())
    assert (found[0].record.value, found[2].record.value) == (b"0", b"2")
    assert found[1].record is None
    assert "cannot be read" in found[1].problem


def test_large_messages_are_read_and_larger_ones_named(cluster: FakeCluster, lookup: MessageLookup) -> None:
    cluster.append("events", 0, [b"a" * 200_000])
    assert len(lookup.read(WHERE, [0], soon())[0].record.value) == 200_000


def test_a_moved_leader_and_a_lost_connection_are_followed(cluster: FakeCluster, lookup: MessageLookup) -> None:
    add(cluster, 1)
    log = present(cluster.log("events", 0))
    assert lookup.read(WHERE, [0], soon())[0].record.value == b"0"
    cluster.move_leader("events", 0, next(one for one, _, _ in cluster.addresses() if one != log.leader))
    assert lookup.read(WHERE, [0], soon())[0].record.value == b"0"
    cluster.drop_connections()
    assert lookup.read(WHERE, [0], soon())[0].record.value == b"0"


def test_partition_without_leader_ends_at_the_deadline(lookup: MessageLookup) -> None:
    with pytest.raises(BrokerUnavailableError, match="nowhere-0: the message at offset 0 could not be read"):
        lookup.read(TopicPartition("nowhere", 0), [0], Deadline(0.2))


def test_closed_lookup_reads_nothing(cluster: FakeCluster, lookup: MessageLookup) -> None:
    add(cluster, 1)
    lookup.close()
    with pytest.raises(BrokerUnavailableError):
        lookup.read(WHERE, [0], soon())


def test_the_first_message_of_a_range_is_found(cluster: FakeCluster, lookup: MessageLookup) -> None:
    """Nobody can tell whether the application would have had to see deleted ones. A new leader may know less of the log
    for some time.
    """
    add(cluster, 5)
    cluster.truncate_before("events", 0, 2)
    assert lookup.first_between(WHERE, 2, 2, soon()) is None
    first = present(lookup.first_between(WHERE, 2, 5, soon()))
    assert (first.offset, first.record.value) == (2, b"2")
    deleted = present(lookup.first_between(WHERE, 1, 3, soon()))
    assert (deleted.offset, deleted.problem) == (1, "the log begins at offset 2")
    beyond = present(lookup.first_between(WHERE, 5, 7, soon()))
    assert not beyond.certain


MARKER = Batch([Written(key=b"\0\0\0\1", value=b"\0" * 6)], transactional=True, control=True, producer_id=7)

END = 9


class Answering:
    """A channel to a broker that answers each fetch with so many sets, from the one with the fetched offset on."""

    def __init__(self, sets: Sequence[MessageSet], most: int = 1, end: int = END) -> None:
        self._sets, self._most, self._end = sets, most, end
        self.fetched: list[int] = []

    def send_fetch(self, request: FetchRequest, deadline: Deadline) -> int:
        (position,) = request.positions
        self.fetched.append(position.offset)
        return position.offset

    def receive_fetch(self, pending: int, deadline: Deadline) -> Any:
        records = b"".join([one.data for one in self._sets if one.next_offset > pending][: self._most])
        part = PartitionResponse(WHERE.topic, WHERE.partition, 0, self._end, 0, (), records)
        return type("Answer", (), {"partitions": (part,)})()

    def times(self, *offsets: int) -> dict[int, int]:
        """The times at these offsets; none twice."""
        found = list(message_times(cast("BrokerChannel", self), {WHERE: offsets}, soon(), soon()))
        assert len({offset for _, offset, _ in found}) == len(found)
        return {offset: time for _, offset, time in found}


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        pytest.param([Batch([Written(timestamp=7)], magic=1)], 7, id="known"),
        pytest.param([Batch(magic=0)], NO_TIME, id="format 0"),
        pytest.param([Batch([Written(timestamp=-1)])], NO_TIME, id="none given"),
        pytest.param([MARKER, Batch([Written(timestamp=8)])], 8, id="behind a marker"),
        pytest.param([MARKER], None, id="a marker, and more behind the answer"),
        pytest.param([MARKER] * END, NO_MESSAGE, id="markers up to the end"),
        pytest.param([], None, id="nothing"),
    ],
)
def test_a_message_without_a_time_is_told_from_no_message(batches: list[Batch], expected: int | None) -> None:
    assert Answering([MessageSet(batches)]).times(0).get(0) == expected


@given(st.lists(BATCHES, min_size=1, max_size=5), st.integers(1, 3), st.data())
def test_one_fetch_tells_the_times_of_all_its_messages(written: list[Batch], most: int, data: st.DataObject) -> None:
    sets, end = list[MessageSet](), 0
    for batch in written:
        sets.append(MessageSet([batch], end))
        end = sets[-1].next_offset
    records = [
        (record.offset, NO_TIME if record.timestamp is None else record.timestamp)
        for one in sets
        for batch in batches(one.data, check_crc=True, where=WHERE, fetch_offset=one.base)
        for record in batch
    ]
    wanted = data.draw(st.lists(st.integers(0, end - 1), max_size=20))
    broker = Answering(sets, most, end)
    expected = {o: next((time for offset, time in records if offset >= o), NO_MESSAGE) for o in wanted}
    assert broker.times(*wanted) == expected
    assert len(broker.fetched) <= len(sets), "a set is fetched once"
    assert len(set(broker.fetched)) == len(broker.fetched)


def test_times_beyond_a_corrupt_batch_are_known() -> None:
    sets = [MessageSet([Batch([Written(timestamp=t), Written(timestamp=t + 1)])], base=t) for t in (0, 2, 4)]
    spoilt = bytearray(sets[1].data)
    spoilt[16] = 9  # its format
    object.__setattr__(sets[1], "data", bytes(spoilt))
    assert Answering(sets, most=3).times(*range(6)) == {0: 0, 1: 1, 4: 4, 5: 5}


class Broker:
    """A channel to a broker that leads all partitions of ``t``, and notes which ones are asked."""

    def __init__(self, error: int = 0, *, large: bool = False) -> None:
        self._error = error
        self._large = large
        self.asked: list[list[int]] = []

    def send_fetch(self, request: FetchRequest, deadline: Deadline) -> FetchRequest:
        self.asked.append([one.partition for one in request.positions])
        return request

    def receive_fetch(self, pending: FetchRequest, deadline: Deadline) -> Any:
        parts = [
            PartitionResponse("t", one.partition, self._error, END, 0, (), self._records(number, one.offset))
            for number, one in enumerate(pending.positions)
        ]
        return type("Answer", (), {"partitions": parts})()

    def _records(self, number: int, offset: int) -> bytes:
        return b"" if self._error or (self._large and number) else MessageSet([Batch()], offset).data

    def times(self, offsets: dict[int, list[int]], until: Deadline) -> list[tuple[int, int]]:
        """The partitions and offsets whose times come."""
        wanted = {TopicPartition("t", number): places for number, places in offsets.items()}
        found = message_times(cast("BrokerChannel", self), wanted, soon(), until)
        return [(tp.partition, offset) for tp, offset, _ in found]


def test_partitions_are_asked_in_turns() -> None:
    """A caller with little time learns something of each."""
    broker = Broker()
    assert len(broker.times({number: [0, 1] for number in range(60)}, soon())) == 120
    assert broker.asked[:2] == [list(range(50)), [1, *range(50, 60), 0, *range(2, 40)]]


@pytest.mark.parametrize("count", [3, 51, 76])
def test_each_partition_comes_first_in_turn(count: int) -> None:
    """Only the first one gets a batch that is larger than the fetch."""
    found = Broker(large=True).times({number: [0, 1] for number in range(count)}, soon())
    assert found == [(number, offset) for offset in (0, 1) for number in range(count)]


def test_a_wild_offset_does_not_tell_the_other_times() -> None:
    """The checksum of a message of format 1 does not cover its offset."""
    sets = [MessageSet([Batch([Written(timestamp=t)], magic=1)], base=t) for t in range(3)]
    wild = bytearray(sets[1].data)
    wild[:8] = (END + 50).to_bytes(8, "big")
    object.__setattr__(sets[1], "data", bytes(wild))
    assert Answering(sets).times(0, 1, 2) == {0: 0, 2: 2}


def test_a_partition_that_moved_is_asked_once() -> None:
    broker = Broker(error=6)
    assert broker.times({number: list(range(500)) for number in range(4)}, soon()) == []
    assert len(broker.asked) == 1


def test_times_end_with_their_time_limit() -> None:
    """The limit counted only when a time had come, and corrupt messages let a broker fail by its timeout."""
    broker = Broker(error=1)
    assert broker.times({0: list(range(500))}, Deadline(0.0)) == []
    assert broker.asked == []
