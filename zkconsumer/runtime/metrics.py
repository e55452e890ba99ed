"""The metrics of a member, under the original's names, in a plain registry.

Threads: the thread that does the work feeds an instrument, once a chunk, a request or a round. It never does so once a
message, but later for several at once. A small lock guards each instrument. Any thread may call
:meth:`Metrics.snapshot`, also a signal handler in the middle of all this: a thread that has a lock is let in again.
There is no thread for metrics, and no ticking clock: rates are brought up to date when they are fed or read.

Mirrors the original's Yammer metrics: names, tags, the values of a meter, timer or histogram. Differs on purpose. A
registry belongs to one connector; there all connectors share one, and a shutdown removes the metrics of other clients
whose id begins alike. Percentiles are of the last values, not of a sample of all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import exp, inf
from time import monotonic
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakMethod

from zkconsumer.runtime.interruptible_wait import InterruptibleLock

TICK = 5.0
_KEEP = tuple(exp(-TICK / 60 / minutes) for minutes in (1, 5, 15))
"""What is left of a rate after a tick: exponentially weighted averages, as Unix tells its load."""
KEPT = 512
"""How many values a histogram keeps for its percentiles."""


class MetricName(NamedTuple):
    """Where a metric stands, as in JMX; ``str()`` is the text that JMX tools show."""

    group: str
    type: str
    name: str
    tags: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.group}:type={self.type},name={self.name}" + "".join(f",{k}={v}" for k, v in self.tags)


@dataclass(frozen=True, slots=True)
class MeterValue:
    """How often something happened: since the start, and per second as exponentially weighted averages."""

    count: int
    mean_rate: float
    one_minute_rate: float
    five_minute_rate: float
    fifteen_minute_rate: float


@dataclass(frozen=True, slots=True)
class HistogramValue:
    """How large something was: over all ``count`` values, and percentiles of the last ones."""

    count: int
    min: float
    max: float
    mean: float
    p50: float
    p75: float
    p95: float
    p99: float
    p999: float


@dataclass(frozen=True, slots=True)
class TimerValue:
    """How often something was done, and how long it took in milliseconds."""

    rate: MeterValue
    duration: HistogramValue


@dataclass(frozen=True, slots=True)
class BucketsValue:
    """Durations in seconds, counted by size: ``counts[n]`` are those up to ``bounds[n]``, the last ones are longer.

    ``total`` is their sum.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)


Value = int | float | str | MeterValue | HistogramValue | TimerValue | BucketsValue


class Meter:
    """Counts events and their rates."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._lock = InterruptibleLock()
        self._began = self._ticked = clock()
        self._count = self._fresh = 0
        self._rates: list[float] | None = None

    def mark(self, events: int = 1) -> None:
        """Count events."""
        with self._lock:
            self._tick()
            self._count += events
            self._fresh += events

    def value(self) -> MeterValue:
        """Return the present numbers."""
        with self._lock:
            self._tick()
            seconds = self._clock() - self._began
            one, five, fifteen = self._rates or (0.0, 0.0, 0.0)
            return MeterValue(self._count, self._count / seconds if seconds > 0 else 0.0, one, five, fifteen)

    def _tick(self) -> None:
        """Do at once what a clock would have done every five seconds."""
        ticks = int((self._clock() - self._ticked) / TICK)
        if ticks <= 0:
            return
        self._ticked += ticks * TICK
        latest, self._fresh = self._fresh / TICK, 0
        before = self._rates or [latest] * 3
        # all events happened in the first tick, and none in the later ticks
        self._rates = [
            (latest + keep * (rate - latest)) * keep ** (ticks - 1) for rate, keep in zip(before, _KEEP, strict=True)
        ]


class Histogram:
    """Keeps sizes."""

    def __init__(self) -> None:
        self._lock = InterruptibleLock()
        self._count = 0
        self._sum = 0.0
        self._min, self._max = inf, -inf
        self._last: deque[float] = deque(maxlen=KEPT)

    def update(self, size: float) -> None:
        """Add a value."""
        self.update_all((size,))

    def update_all(self, sizes: Sequence[float]) -> None:
        """Add values, at least one, in their order."""
        with self._lock:
            self._count += len(sizes)
            self._sum += sum(sizes)
            self._min, self._max = min(self._min, *sizes), max(self._max, *sizes)
            self._last.extend(sizes)

    def value(self) -> HistogramValue:
        """Return the present numbers; all 0 if there was no value."""
        with self._lock:
            count, total, least, most, last = self._count, self._sum, self._min, self._max, sorted(self._last)
        if not count:
            return HistogramValue(0, *[0.0] * 8)
        parts = [last[min(len(last) - 1, int(part * len(last)))] for part in (0.5, 0.75, 0.95, 0.99, 0.999)]
        return HistogramValue(count, least, most, total / count, *parts)


class Timer:
    """Keeps durations and how often there was one."""

    def __init__(self) -> None:
        self._meter = Meter()
        self._histogram = Histogram()

    def update(self, seconds: float) -> None:
        """Add a duration."""
        self.update_all((seconds,))

    def update_all(self, seconds: Sequence[float]) -> None:
        """Add durations, at least one."""
        self._meter.mark(len(seconds))
        self._histogram.update_all([each * 1000 for each in seconds])

    def value(self) -> TimerValue:
        """Return the present numbers."""
        return TimerValue(self._meter.value(), self._histogram.value())


BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds of the bounds of :class:`Buckets`: half a millisecond to five minutes."""


class Buckets:
    """Counts durations by their size, so that a monitoring system can add up those of many members.

    Threads: any thread may add; the lock is held for a few steps of the interpreter.
    """

    def __init__(self) -> None:
        self._lock = InterruptibleLock()
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Add ``count`` durations that took ``seconds`` each."""
        with self._lock:
            self._counts[bisect_left(BOUNDS, seconds)] += count
            self._total += seconds * count

    def value(self) -> BucketsValue:
        """Return the present numbers."""
        with self._lock:
            return BucketsValue(BOUNDS, tuple(self._counts), self._total)


Instrument = TypeVar("Instrument", Meter, Histogram, Timer)
Item = TypeVar("Item")

MANY = 64
SOON = 1.0
"""How many things, or seconds, instruments are told of later at the most, while anything happens."""


class Backlog(Generic[Item]):
    """A queue of measurements that instruments take later, several at once.

    Updating four instruments for one small message would take as long as all other work on the message. Any thread may
    add an item; the queue needs no lock.

    Arguments: ``tell`` feeds the instruments with at least one item.
    """

    def __init__(self, metrics: Metrics, tell: Callable[[Sequence[Item]], None]) -> None:
        self._tell = tell
        self._items: deque[Item] = deque()
        self._due = 0.0  # where two threads add the first two items at once, neither sees one alone
        metrics.late(self.settle)

    def add(self, item: Item) -> None:
        """Note what has happened."""
        items = self._items
        items.append(item)
        now = monotonic()
        if len(items) == 1:
            self._due = now + SOON
        elif len(items) >= MANY or now >= self._due:
            self.settle()

    def settle(self) -> None:
        """Tell the instruments what they have not been told yet."""
        told: list[Item] = []
        with suppress(IndexError):
            while True:
                told.append(self._items.popleft())
        if told:
            self._tell(told)


Gauges = Callable[[], Iterable[tuple[MetricName, Value]]]


class Metrics:
    """All metrics of one connector.

    Instruments are made when they are first asked for, and kept; gauges are functions that are asked at each snapshot,
    so that what is no longer there needs no removing.
    """

    def __init__(self) -> None:
        self._lock = InterruptibleLock()
        self._instruments: dict[MetricName, Meter | Histogram | Timer] = {}
        self._gauges: list[Gauges] = []
        self._late: list[WeakMethod[Callable[[], None]]] = []

    def meter(self, name: MetricName) -> Meter:
        """Return the meter of that name."""
        return self._get(name, Meter)

    def histogram(self, name: MetricName) -> Histogram:
        """Return the histogram of that name."""
        return self._get(name, Histogram)

    def timer(self, name: MetricName) -> Timer:
        """Return the timer of that name."""
        return self._get(name, Timer)

    def remove(self, names: Iterable[MetricName]) -> None:
        """Show these no more: their subject is gone. Feeding one of them has no effect any more."""
        with self._lock:
            for name in names:
                self._instruments.pop(name, None)

    def late(self, feed: Callable[[], None]) -> None:
        """Register a method that feeds instruments with queued items. Each snapshot calls it while its object lives."""
        with self._lock:
            self._late = [known for known in self._late if known() is not None]
            self._late.append(WeakMethod(feed))

    def gauges(self, gauges: Gauges) -> None:
        """Ask this too at each snapshot."""
        with self._lock:
            self._gauges.append(gauges)

    def snapshot(self) -> Mapping[MetricName, Value]:
        """Return every metric with its present value."""
        with self._lock:
            late = list(self._late)
        for known in late:
            feed = known()
            if feed is not None:
                feed()  # which may make instruments
        with self._lock:
            instruments, gauges = dict(self._instruments), list(self._gauges)
        found: dict[MetricName, Value] = {name: instrument.value() for name, instrument in instruments.items()}
        for ask in gauges:
            found.update(ask())
        return found

    def _get(self, name: MetricName, kind: type[Instrument]) -> Instrument:
        with self._lock:
            known = self._instruments.get(name)
            if known is None:
                known = self._instruments[name] = kind()
        assert isinstance(known, kind), f"{name} is a {type(known).__name__}"
        return known
