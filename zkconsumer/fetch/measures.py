"""What fetching from one broker measures, under the original's names.

Threads: called by its fetcher once a request. The instruments are told of many small answers at once, for to tell them
of each takes as long as to read it; whoever takes a snapshot has them told first. A queue that needs no lock is between
the two.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from time import monotonic

from zkconsumer.brokers import FetchAnswer
from zkconsumer.metrics import MetricName, Metrics
from zkconsumer.model import Endpoint

MANY = 64
SOON = 1.0
"""How many answers, or seconds, the instruments are told of later at the most, while there are answers."""


class FetchMeasures:
    """The instruments of one fetcher: its broker's, and those over all brokers."""

    def __init__(self, metrics: Metrics, client_id: str, endpoint: Endpoint) -> None:
        client = (("clientId", client_id),)
        broker = (*client, ("brokerHost", endpoint.host), ("brokerPort", str(endpoint.port)))
        kind = ("kafka.consumer", "FetchRequestAndResponseMetrics")
        server = ("kafka.server", "FetcherStats")
        times, throttles, sizes = (
            [MetricName(*kind, name, tags) for tags in (client, broker)]
            for name in ("FetchRequestRateAndTimeMs", "FetchRequestThrottleRateAndTimeMs", "FetchResponseSize")
        )
        volume, count = MetricName(*server, "BytesPerSec", broker), MetricName(*server, "RequestsPerSec", broker)
        self._metrics = metrics
        self._of_broker = (times[1], throttles[1], sizes[1], volume, count)
        self._times = [metrics.timer(name) for name in times]
        self._throttles = [metrics.timer(name) for name in throttles]
        self._sizes = [metrics.histogram(name) for name in sizes]
        self._bytes = metrics.meter(volume)
        self._requests = metrics.meter(count)
        self._fresh: deque[tuple[float, float, int]] = deque()
        self._since = 0.0
        metrics.late(self.settle)

    def remove(self) -> None:
        """Nothing is fetched from this broker any more: what is told of it alone goes."""
        self._metrics.remove(self._of_broker)

    def fetched(self, seconds: float, answer: FetchAnswer) -> None:
        """A request was answered after so many seconds."""
        size = 0
        for part in answer.partitions:
            size += len(part.records)
        now = monotonic()
        if not self._fresh:
            self._since = now
        self._fresh.append((seconds, answer.throttle, size))
        if len(self._fresh) >= MANY or now - self._since >= SOON:
            self.settle()

    def settle(self) -> None:
        """Tell the instruments what they have not been told yet; any thread."""
        told: list[tuple[float, float, int]] = []
        with suppress(IndexError):
            while True:
                told.append(self._fresh.popleft())
        if not told:
            return
        seconds, throttled, sizes = zip(*told, strict=True)
        for timer in self._times:
            timer.update_all(seconds)
        for throttle in self._throttles:
            throttle.update_all(throttled)
        for histogram in self._sizes:
            histogram.update_all(sizes)
        self._requests.mark(len(told))
        if any(sizes):
            self._bytes.mark(sum(sizes))

    @property
    def request_rate(self) -> float:
        """Requests per second over the last minute."""
        self.settle()
        return self._requests.value().one_minute_rate
