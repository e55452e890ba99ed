"""Instruments and their registry: counts, rates that need no ticking clock, percentiles, names."""

from __future__ import annotations

import gc
import math
from collections.abc import Sequence
from contextlib import ExitStack
from threading import Thread
from time import monotonic

import pytest

from tests.streams import new_stream
from tests.timing import scaled
from tests.unit.streams.bench import Bench, position
from zkconsumer import KafkaStream
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.fetch.broker_fetch import FetchMetrics
from zkconsumer.model import Endpoint
from zkconsumer.runtime.metrics import MANY, Backlog, Histogram, HistogramValue, Meter, MeterValue, MetricName, Metrics

BROKER = (("clientId", "c"), ("brokerHost", "h"), ("brokerPort", "2"))

NAME = MetricName("kafka.consumer", "ConsumerTopicMetrics", "MessagesPerSec", (("clientId", "c"), ("topic", "t")))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_meter_counts_and_averages() -> None:
    clock = Clock()
    meter = Meter(clock)
    meter.mark(50)
    assert meter.value().one_minute_rate == 0.0, "nothing is known before the first five seconds"
    clock.now += 5
    value = meter.value()
    assert (value.count, value.mean_rate) == (50, 10.0)
    assert (value.one_minute_rate, value.five_minute_rate, value.fifteen_minute_rate) == (10.0, 10.0, 10.0)
    clock.now += 60
    value = meter.value()
    assert value.one_minute_rate == pytest.approx(10 / math.e)
    assert value.fifteen_minute_rate == pytest.approx(10 * math.exp(-1 / 15))
    assert value.mean_rate == pytest.approx(50 / 65)


def test_a_meter_that_is_read_seldom_tells_the_same() -> None:
    clock = Clock()
    seldom, often = Meter(clock), Meter(clock)
    for messages in (10, 20):
        seldom.mark(messages)
        often.mark(messages)
        clock.now += 5
    for _ in range(119):
        often.value()
        clock.now += 5
    assert seldom.value().five_minute_rate == pytest.approx(often.value().five_minute_rate)


def test_a_histogram_has_all_extremes_and_recent_percentiles() -> None:
    histogram = Histogram()
    assert histogram.value() == HistogramValue(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    histogram.update(10**6)
    for size in [*range(1, 101)] * 6:
        histogram.update(size)
    value = histogram.value()
    assert (value.count, value.min, value.max) == (601, 1, 10**6)
    assert 45 <= value.p50 <= 55
    assert 95 <= value.p99 <= 100


def test_an_instrument_is_made_once_and_a_gauge_asked_each_time() -> None:
    metrics = Metrics()
    assert metrics.meter(NAME) is metrics.meter(NAME)
    metrics.meter(NAME).mark()
    values = iter([1, 2])
    lag = MetricName("kafka.server", "FetcherLagMetrics", "ConsumerLag")
    metrics.gauges(lambda: [(lag, next(values))])
    assert [metrics.snapshot()[lag] for _ in range(2)] == [1, 2]
    assert metrics.snapshot.__doc__
    with pytest.raises(AssertionError, match="is a Meter"):
        metrics.timer(NAME)


def test_a_snapshot_shows_what_was_not_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetcher tells its instruments of many small answers together; what has ended is asked no more."""
    monkeypatch.setattr("zkconsumer.runtime.metrics.SOON", math.inf)
    metrics = Metrics()
    measures = FetchMetrics(metrics, "c", Endpoint(1, "h", 2))
    for number in range(MANY + 2):
        measures.fetched(0.25, 0.5, 5 * number)
    count = MetricName("kafka.server", "FetcherStats", "RequestsPerSec", BROKER)
    assert metrics.meter(count).value().count == MANY
    told = metrics.snapshot()
    assert told[count].count == MANY + 2  # type: ignore[union-attr]
    sizes = told[MetricName("kafka.consumer", "FetchRequestAndResponseMetrics", "FetchResponseSize", BROKER)]
    assert (sizes.count, sizes.min, sizes.max) == (MANY + 2, 0, 5 * (MANY + 1))  # type: ignore[union-attr]
    times = told[MetricName("kafka.consumer", "FetchRequestAndResponseMetrics", "FetchRequestRateAndTimeMs", BROKER)]
    assert (times.rate.count, times.duration.p50) == (MANY + 2, 250.0)  # type: ignore[union-attr]
    measures.fetched(0.25, 0.5, 0)
    del measures
    gc.collect()
    assert metrics.snapshot()[count].count == MANY + 2  # type: ignore[union-attr]


def test_a_stream_counts_whole_chunks_and_parts_handed_out() -> None:
    bench = Bench()
    told: list[tuple[str, int, int]] = []
    stream: KafkaStream[bytes, bytes] = new_stream(
        "t/g_c-0", bench.queue, bench.lease, timeout=0.0, count=lambda *counted: told.append(counted)
    )
    one, other = position(0), position(1, start=2)
    bench.put(one, 0, 3)
    before = bench.queue.bytes
    bench.put(other, 0, 4)
    size = bench.queue.bytes - before
    for _ in range(5):
        stream.get(timeout=0)
    assert [messages for _, messages, _ in told] == [3]
    with pytest.raises(ConsumerTimeoutException):
        stream.get(timeout=0)
    assert told[1] == ("t", 2, size), "records before the start were not handed out"
    bench.put(one, 3, 5)
    stream.get(timeout=0)
    stream.get(timeout=0)
    bench.queue.pause(one)
    with pytest.raises(ConsumerTimeoutException):
        stream.get(timeout=0)
    assert told[2] == ("t", 2, 0)
    bench.queue.resume(one)
    for _ in range(3):
        stream.get(timeout=0)
    with pytest.raises(ConsumerTimeoutException):
        stream.get(timeout=0)
    assert told[3][1] == 3
    bench.queue.close()


def test_a_snapshot_shows_late_and_new_instruments() -> None:
    metrics = Metrics()
    told: list[Sequence[int]] = []

    def tell(counts: Sequence[int]) -> None:
        told.append(counts)
        metrics.meter(NAME).mark(sum(counts))

    backlog = Backlog[int](metrics, tell)
    backlog.add(3)
    backlog.add(4)
    assert told == []
    found = metrics.snapshot()[NAME]
    assert isinstance(found, MeterValue)
    assert found.count == 7
    assert told == [[3, 4]]
    for _ in range(MANY):
        backlog.add(1)
    assert told == [[3, 4], [1] * MANY], "nobody has asked, but they are many"
    del backlog
    assert metrics.snapshot().keys() == {NAME}


def test_the_first_items_of_two_threads_are_counted_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: each thread found two items in the queue, and neither began the time after which items are told."""
    told: list[int] = []
    backlog = Backlog[int](Metrics(), told.extend)

    def in_between() -> float:
        """Add the other thread's item between the first item and the look at the queue's length."""
        monkeypatch.setattr("zkconsumer.runtime.metrics.monotonic", monotonic)
        backlog.add(2)
        return monotonic()

    monkeypatch.setattr("zkconsumer.runtime.metrics.monotonic", in_between)
    backlog.add(1)
    assert told == [1, 2]


def test_a_signal_handler_may_look_while_its_thread_counts() -> None:
    metrics = Metrics()
    meter, histogram = metrics.meter(NAME), metrics.histogram(NAME._replace(name="Sizes"))

    def interrupted() -> None:
        with ExitStack() as locked:
            for one in (metrics, meter, histogram):
                locked.enter_context(one._lock)
            metrics.snapshot()

    thread = Thread(target=interrupted, name="interrupted", daemon=True)
    thread.start()
    thread.join(scaled(10))
    assert not thread.is_alive()
