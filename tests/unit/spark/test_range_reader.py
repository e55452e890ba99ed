"""Reading a range from a broker that does what the test says: moved leaders, missing offsets, large messages."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from time import monotonic
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.kafka.column_ways import WAYS, choose, going
from tests.unit.kafka.record_writer import GZIP
from tests.unit.kafka.scripted import Peer, ScriptedBroker, fetched
from tests.unit.kafka.sets import WHERE, Batch, MessageSet, Written
from zkconsumer.errors import (
    BrokerResponseError,
    BrokerUnavailableError,
    ConfigException,
    InvalidMessageException,
    MessageSizeTooLargeException,
    OffsetOutOfRangeError,
)
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.arrow_columns import ColumnBuilder
from zkconsumer.model import Endpoint, OffsetRange, TopicPartition
from zkconsumer.spark import range_reader
from zkconsumer.spark.offset_ranges import LogSpan
from zkconsumer.spark.options import ReadOptions, Selection, parse
from zkconsumer.spark.range_reader import RangeReader
from zkconsumer.spark.schema import arrow_schema, source_schema
from zkconsumer.spark.zookeeper_cluster import ZooKeeperQueryCluster

RANGE = OffsetRange(*WHERE, 0, 4)
TWO = Batch([Written(value=b"a"), Written(value=b"b")])


def options(**given: str) -> ReadOptions:
    base = {"zookeeper.connect": "zk", "group.id": "g", "subscribe": "t", "refresh.leader.backoff.ms": "1"}
    return parse({**base, **given})


class Known(ZooKeeperQueryCluster):
    """The answers of ZooKeeper and the brokers, known beforehand."""

    def __init__(
        self,
        leader: Endpoint | None = None,
        span: LogSpan | None = None,
        existing: tuple[TopicPartition, ...] = (WHERE,),
        written: int = 0,
    ) -> None:
        self.leader, self.span, self.existing, self.written = leader, span, existing, written

    def close(self) -> None:
        pass

    def partitions(self, selection: Selection) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
        return tuple(tp for tp in self.existing if tp in selection.partitions), ()

    def leaders(self, partitions: Any) -> dict[TopicPartition, Endpoint]:
        return {} if self.leader is None else dict.fromkeys(partitions, self.leader)

    def log_spans(self, partitions: Any) -> dict[TopicPartition, LogSpan]:
        assert self.span is not None
        return dict.fromkeys(partitions, self.span)

    def written_ends(self, partitions: Any) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, self.written)


def answers(log: Mapping[int, bytes]) -> Callable[[Peer], None]:
    """A connection that answers each fetch with the bytes of ``log`` at the fetch offset, until the reader closes."""

    def script(peer: Peer) -> None:
        peer.versions()
        for asked in peer.requests():
            position = asked.values["topics"][0]["partitions"][0]["fetch_offset"]
            peer.answer(asked.correlation_id, log[position])

    return script


def read_all(reader: RangeReader, range_: OffsetRange = RANGE) -> list[int]:
    """The offsets that were asked for, in order."""
    try:
        return [asked for _, asked in reader.sets(range_)]
    finally:
        reader.close()


def at(offset: int, *batches: Batch, partition: int = 3) -> bytes:
    return fetched(MessageSet(batches or (TWO,), base=offset).data, partition=partition)


OTHER = WHERE._replace(partition=4)
SMALL = (OffsetRange(*WHERE, 0, 2), OffsetRange(*OTHER, 6, 8))


def requested(peer: Peer) -> tuple[int, int, int]:
    """The correlation id of the next fetch, and the partition and offset that it asks for."""
    asked = peer.request()
    (partition,) = asked.values["topics"][0]["partitions"]
    return asked.correlation_id, partition["partition"], partition["fetch_offset"]


def read_ranges(reader: RangeReader, ranges: tuple[OffsetRange, ...]) -> list[tuple[int, int]]:
    """The partitions and offsets of the sets, in order."""
    try:
        return [
            (part.partition, asked)
            for number, range_ in enumerate(ranges)
            for part, asked in reader.sets(range_, ranges[number + 1 :])
        ]
    finally:
        reader.close()


def test_small_ranges_are_asked_for_together() -> None:
    """A task of many small ranges must not wait for one answer before it asks for the next range."""

    def both_first(peer: Peer) -> None:
        peer.versions()
        first, second = requested(peer), requested(peer)  # waits in vain for the second if an answer is awaited first
        assert (first[1:], second[1:]) == ((3, 0), (4, 6))
        peer.answer(first[0], at(0))
        peer.answer(second[0], at(6, partition=4))
        peer.until_closed()

    with ScriptedBroker(both_first) as broker:
        reader = RangeReader(options(), dict.fromkeys([WHERE, OTHER], broker.endpoint()))
        assert read_ranges(reader, SMALL) == [(3, 0), (4, 6)]


@pytest.mark.parametrize(("end", "size"), [(1006, 1000 * 512), (1_000_000, 1024 * 1024)], ids=["guessed", "limited"])
def test_an_early_answer_is_small_whatever_its_range(end: int, size: int) -> None:
    """Early answers wait in memory, up to 16 of them, also those of the large batch that a restart repeats.

    Bugs: each might have ``fetch.message.max.bytes``. A kilobyte for each offset took a task 20 % more CPU time.
    """
    sizes: dict[int, int] = {}

    def notes_sizes(peer: Peer) -> None:
        peer.versions()
        for answer in (at(0), at(6, partition=4)):
            asked = peer.request()
            (partition,) = asked.values["topics"][0]["partitions"]
            sizes[partition["partition"]] = partition["partition_max_bytes"]
            peer.answer(asked.correlation_id, answer)
        peer.until_closed()

    large = OffsetRange(*OTHER, 6, end)
    with ScriptedBroker(notes_sizes) as broker:
        given = options(**{"fetch.message.max.bytes": str(64 * 1024 * 1024)})
        reader = RangeReader(given, dict.fromkeys([WHERE, OTHER], broker.endpoint()))
        assert [asked for _, asked in reader.sets(SMALL[0], [large])] == [0]
        assert next(reader.sets(large))[1] == 6
        reader.close()
    assert sizes == {3: 64 * 1024, 4: size}


def test_an_answer_lost_with_its_connection_is_asked_again() -> None:
    """The second range's first answer was on the connection that broke while the first range was read."""

    def dies(peer: Peer) -> None:
        peer.versions()
        assert (requested(peer)[1], requested(peer)[1]) == (3, 4)

    def answers_all(peer: Peer) -> None:
        peer.versions()
        first, second = requested(peer), requested(peer)
        peer.answer(first[0], at(0))
        peer.answer(second[0], at(6, partition=4))
        peer.until_closed()

    with ScriptedBroker(dies, answers_all) as broker:
        known = Known(broker.endpoint(), existing=(WHERE, OTHER))
        reader = RangeReader(options(), dict.fromkeys([WHERE, OTHER], broker.endpoint()), lambda: known)
        assert read_ranges(reader, SMALL) == [(3, 0), (4, 6)]


def test_a_range_of_another_broker_is_left_to_its_turn() -> None:
    """A broker that is away must not hold up the ranges before its own."""
    away = Endpoint(8, "127.0.0.1", 1, 5)
    with ScriptedBroker(answers({0: at(0)})) as broker:
        reader = RangeReader(options(), {WHERE: broker.endpoint(), OTHER: away})
        assert [asked for _, asked in reader.sets(SMALL[0], SMALL[1:])] == [0]
        reader.close()


MARKER = Batch([Written(key=b"\0\0\0\1", value=b"\0\0\0\0\0\0")], transactional=True, control=True, producer_id=7)


@pytest.mark.parametrize(
    ("log", "asked"),
    [({0: at(0), 2: at(2, Batch()), 3: at(3, MARKER)}, [0, 2, 3]), ({0: at(0, Batch(trailing=7))}, [0])],
    ids=["a transaction marker", "a gap left by compaction"],
)
def test_a_range_ends_although_no_message_has_its_last_offset(log: Mapping[int, bytes], asked: list[int]) -> None:
    with ScriptedBroker(answers(log)) as broker:
        assert read_all(RangeReader(options(), {WHERE: broker.endpoint()})) == asked


def test_reading_goes_on_at_a_moved_leader() -> None:
    with (
        ScriptedBroker(answers({2: at(2)})) as new,
        ScriptedBroker(answers({0: at(0), 2: fetched(error=codes.NOT_LEADER_OR_FOLLOWER)})) as old,
    ):
        reader = RangeReader(options(), {WHERE: old.endpoint()}, lambda: Known(new.endpoint()))
        assert read_all(reader) == [0, 2]


def test_a_broker_that_goes_away_is_read_on_after_it_comes_back() -> None:
    def dies(peer: Peer) -> None:
        peer.versions()
        peer.answer(peer.request().correlation_id, at(0))
        peer.request()

    with ScriptedBroker(dies, answers({2: at(2)})) as broker:
        reader = RangeReader(options(), {WHERE: broker.endpoint()}, lambda: Known(broker.endpoint()))
        assert read_all(reader) == [0, 2]


def test_a_broker_lost_while_spark_is_busy_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes rows when it has use for them; that time is not the broker's."""

    def dies(peer: Peer) -> None:
        peer.versions()
        peer.answer(peer.request().correlation_id, at(0))
        peer.request()

    busy = [0.0]
    monkeypatch.setattr("zkconsumer.runtime.deadline.monotonic", lambda: monotonic() + sum(busy))
    with ScriptedBroker(dies, answers({2: at(2)})) as broker:
        reader = RangeReader(options(), {WHERE: broker.endpoint()}, lambda: Known(broker.endpoint()))
        read = []
        for _, asked in reader.sets(RANGE):
            read.append(asked)
            busy.append(3600.0)
        reader.close()
    assert read == [0, 2]


def test_a_partition_without_leader_is_given_up_in_time() -> None:
    given = options(**{"socket.timeout.ms": "150", "fetch.wait.max.ms": "10"})
    with pytest.raises(BrokerUnavailableError, match="t-3 has no leader"):
        read_all(RangeReader(given, {}, Known))


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_that_was_deleted_is_lost_data(fails: str) -> None:
    given = options(**{"socket.timeout.ms": "150", "fetch.wait.max.ms": "10", "failOnDataLoss": fails})

    def gone() -> Known:
        return Known(existing=(TopicPartition(WHERE.topic, WHERE.partition + 1),))

    if fails == "false":
        assert read_all(RangeReader(given, {}, gone)) == []
        return
    with pytest.raises(OffsetOutOfRangeError, match="t-3: its topic was deleted, and offset 0 with it; set failOnData"):
        read_all(RangeReader(given, {}, gone))


def test_an_answer_that_waiting_cannot_cure_is_raised_at_once() -> None:
    with (
        ScriptedBroker(answers({0: fetched(error=codes.TOPIC_AUTHORIZATION_FAILED)})) as broker,
        pytest.raises(BrokerResponseError, match="fetching t-3: the broker answered TOPIC_AUTHORIZATION_FAILED"),
    ):
        read_all(RangeReader(options(), {WHERE: broker.endpoint()}))


def test_a_large_message_is_fetched_with_a_larger_fetch() -> None:
    whole = MessageSet([Batch([Written(value=b"x" * 100_000)], trailing=3)]).data
    sizes = []

    def old_broker(peer: Peer) -> None:
        peer.versions()
        for _ in range(2):
            asked = peer.request()
            sizes.append(asked.values["topics"][0]["partitions"][0]["partition_max_bytes"])
            peer.answer(asked.correlation_id, fetched(whole[: sizes[-1]]))
        peer.until_closed()

    with ScriptedBroker(old_broker) as broker:
        assert read_all(RangeReader(options(), {WHERE: broker.endpoint()})) == [0]
    assert sizes == [64 * 1024, len(whole)]


def test_a_message_larger_than_allowed_is_named() -> None:
    whole = MessageSet([Batch([Written(value=b"x" * 100_000)])]).data
    small = options(**{"fetch.max.bytes": "70000", "fetch.message.max.bytes": "70000"})
    with (
        ScriptedBroker(answers({0: fetched(whole[:65536])})) as broker,
        pytest.raises(MessageSizeTooLargeException, match="the message at t-3 offset 0 takes 1000"),
    ):
        read_all(RangeReader(small, {WHERE: broker.endpoint()}))


OUT_OF_RANGE = fetched(error=codes.OFFSET_OUT_OF_RANGE)


def test_messages_that_are_gone_fail_the_query() -> None:
    with (
        ScriptedBroker(answers({0: OUT_OF_RANGE})) as broker,
        pytest.raises(OffsetOutOfRangeError, match=r"t-3: offset 0 is gone, the log begins at 2; set failOnDataLoss="),
    ):
        read_all(RangeReader(options(), {WHERE: broker.endpoint()}, lambda: Known(span=LogSpan(2, 9))))


@pytest.mark.parametrize(
    ("log", "span", "asked"),
    [
        ({0: OUT_OF_RANGE, 2: at(2)}, LogSpan(2, 9), [2]),
        ({0: OUT_OF_RANGE}, LogSpan(7, 9), []),
        ({0: at(0), 2: OUT_OF_RANGE}, LogSpan(0, 2), [0]),
    ],
    ids=["the first are gone", "all are gone", "the log became shorter"],
)
def test_lost_messages_are_passed_over_if_the_query_says_so(
    log: Mapping[int, bytes], span: LogSpan, asked: list[int]
) -> None:
    with ScriptedBroker(answers(log)) as broker:
        reader = RangeReader(options(failOnDataLoss="false"), {WHERE: broker.endpoint()}, lambda: Known(span=span))
        assert read_all(reader) == asked


def test_messages_hidden_from_consumers_are_not_passed_over() -> None:
    """A new leader before Kafka 2.2 tells consumers an older end for a while; what lies beyond it is not lost."""
    given = options(failOnDataLoss="false", **{"socket.timeout.ms": "200", "fetch.wait.max.ms": "10"})
    with ScriptedBroker(answers({0: at(0), 2: OUT_OF_RANGE})) as broker:
        reader = RangeReader(given, {WHERE: broker.endpoint()}, lambda: Known(span=LogSpan(0, 2), written=9))
        with pytest.raises(BrokerUnavailableError, match="t-3: its leader denies offset 2, which is in its log"):
            read_all(reader)


def rows(given: ReadOptions, endpoint: Endpoint, range_: OffsetRange, schema: Any = None) -> list[dict[str, Any]]:
    schema = schema or arrow_schema(source_schema(include_headers=False))
    found = range_reader.read(given, [range_], {WHERE: endpoint}, schema)
    return [row for batch in found for row in batch.to_pylist()]


def test_batches_hold_the_offsets_of_the_range_and_nothing_else() -> None:
    with ScriptedBroker(answers({1: at(0), 2: at(2)})) as broker:
        found = rows(options(), broker.endpoint(), OffsetRange(*WHERE, 1, 3))
    assert [(row["offset"], row["value"], row["topic"], row["partition"]) for row in found] == [
        (1, b"b", "t", 3),
        (2, b"a", "t", 3),
    ]


def _of_ten(magic: int, codec: int) -> bytes:
    """Ten batches of two messages each, in one set."""
    return MessageSet([Batch(TWO.records, magic=magic, codec=codec)] * 10).data


@pytest.mark.parametrize(
    ("magic", "codec", "added"), [(2, 0, 3), (2, GZIP, 3), (1, GZIP, 3), (0, GZIP, 3), (1, 0, 1), (0, 0, 1)]
)
def test_no_batch_beyond_the_range_is_decoded(
    magic: int, codec: int, added: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a set reaches far beyond a short range, and all of its batches were decoded: 1,366 of 1,597 in vain.

    A wrapper of formats 0 and 1 carries its last offset: the one of offsets 4 and 5 belongs to a range up to 5.
    """
    seen: list[int] = []
    add = ColumnBuilder.add_batch

    def counted(builder: ColumnBuilder, batch: Any, end: int | None = None) -> None:
        seen.append(batch.base_offset)
        add(builder, batch, end)

    monkeypatch.setattr(ColumnBuilder, "add_batch", counted)
    with ScriptedBroker(answers({0: fetched(_of_ten(magic, codec))})) as broker:
        found = rows(options(), broker.endpoint(), OffsetRange(*WHERE, 0, 5))
    assert [row["offset"] for row in found] == [0, 1, 2, 3, 4]
    assert len(seen) == added


def test_a_batch_beyond_a_gap_at_the_end_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compaction removed the end of the range, and the next batch begins behind it."""
    seen: list[int] = []
    monkeypatch.setattr(ColumnBuilder, "add_batch", lambda _self, batch, _end: seen.append(batch.base_offset))
    with ScriptedBroker(answers({0: at(0, TWO, Batch(TWO.records, gap=8))})) as broker:
        assert rows(options(), broker.endpoint(), OffsetRange(*WHERE, 0, 5)) == []
    assert seen == [0]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_corrupt_batch_beyond_the_range_fails_no_task(magic: int) -> None:
    """The corrupt batch belongs to another range, whose task names the batch."""
    good = MessageSet([Batch(TWO.records, magic=magic, codec=GZIP)]).data
    bad = bytearray(MessageSet([Batch(TWO.records, magic=magic, codec=GZIP)], base=2).data)
    bad[20 if magic == 2 else 13] ^= 1  # of the checksum
    with ScriptedBroker(answers({0: fetched(good + bytes(bad))})) as broker:
        found = rows(options(), broker.endpoint(), OffsetRange(*WHERE, 0, 2))
    assert [row["offset"] for row in found] == [0, 1]


@pytest.mark.parametrize("way", WAYS)
def test_a_range_without_wanted_rows_makes_no_arrow_batch(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: compaction had removed the range's offsets from a batch, and Spark got an Arrow batch of 0 rows."""
    choose(way, monkeypatch)
    schema = arrow_schema(source_schema(include_headers=False))
    sparse = Batch([Written(), Written(gap=8)])  # offsets 0 and 9
    with ScriptedBroker(answers({3: at(0, sparse)})) as broker:
        found = range_reader.read(options(), [OffsetRange(*WHERE, 3, 7)], {WHERE: broker.endpoint()}, schema)
        assert [batch.num_rows for batch in found] == []


def read_all_kinds() -> None:
    """Read all formats in each way, with headers and without, and a range without rows: for a process of its own.

    Rows are counted only: ``to_pylist`` imports pandas itself.
    """
    headers = (("a", b"1"), ("b", None))
    kinds = [Batch([Written(headers=headers), Written()]), Batch(TWO.records, magic=1), Batch(TWO.records, magic=0)]
    sparse = Batch([Written(), Written(gap=8)])
    for way in WAYS:
        for with_headers in (True, False):
            schema = arrow_schema(source_schema(with_headers))
            for log, range_, count in (
                ({0: at(0, *kinds)}, OffsetRange(*WHERE, 0, 6), 6),
                ({1: at(0, sparse)}, OffsetRange(*WHERE, 1, 7), 0),
            ):
                with going(way), ScriptedBroker(answers(log)) as broker:
                    found = range_reader.read(options(), [range_], {WHERE: broker.endpoint()}, schema)
                    assert sum(batch.num_rows for batch in found) == count


def test_reading_a_range_does_not_import_pandas() -> None:
    """Bug: ``pyarrow.array`` imports pandas if it is installed: 2.3 s of CPU time once per worker."""
    assert find_spec("pandas") is not None, "this test says nothing where pandas is not installed"
    script = (
        "import sys\nfrom tests.unit.spark.test_range_reader import read_all_kinds\n"
        "assert 'pandas' not in sys.modules, 'the test itself imports pandas'\nread_all_kinds()\n"
        "assert 'pandas' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert done.returncode == 0, done.stderr


def test_corrupt_data_is_named_by_its_position() -> None:
    data = bytearray(MessageSet([TWO]).data)
    data[20] ^= 1  # of the checksum
    with (
        ScriptedBroker(answers({0: fetched(bytes(data))})) as broker,
        pytest.raises(InvalidMessageException, match="t-3 at offset 0"),
    ):
        rows(options(), broker.endpoint(), OffsetRange(*WHERE, 0, 2))
    with ScriptedBroker(answers({0: fetched(bytes(data))})) as broker:
        unchecked = rows(options(**{"check.crcs": "false"}), broker.endpoint(), OffsetRange(*WHERE, 0, 1))
    assert [row["value"] for row in unchecked] == [b"a"]


def test_the_limit_of_an_expanded_batch_may_be_raised() -> None:
    """A query had the limit and refused its name, so nobody could read a larger batch."""
    large = Batch([Written(value=b"x" * 100_000)], codec=GZIP)
    for limit, is_read in (("200000", True), ("50000", False)):
        given = options(**{"batch.expanded.max.bytes": limit})
        with ScriptedBroker(answers({0: at(0, large)})) as broker:
            if is_read:
                assert len(rows(given, broker.endpoint(), OffsetRange(*WHERE, 0, 1))) == 1
            else:
                with pytest.raises(InvalidMessageException, match="t-3 at offset 0"):
                    rows(given, broker.endpoint(), OffsetRange(*WHERE, 0, 1))


def test_null_in_a_column_without_nulls_is_an_error() -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    schema = arrow_schema(StructType([StructField("key", BinaryType(), nullable=False)]))
    with ScriptedBroker(answers({0: at(0)})) as broker, pytest.raises(ConfigException, match="'key' is declared not"):
        rows(options(), broker.endpoint(), OffsetRange(*WHERE, 0, 2), schema)


def test_the_garbage_collector_is_restored_after_a_break() -> None:
    with ScriptedBroker(answers({0: at(0)})) as broker:
        found = range_reader.read(
            options(), [OffsetRange(*WHERE, 0, 2)], {WHERE: broker.endpoint()}, arrow_schema(source_schema(False))
        )
        next(found)
        assert not gc.isenabled()
        found.close()  # type: ignore[attr-defined]
    assert gc.isenabled()
