"""What fetching from one broker measures, under the original's names.

Threads: called by its fetcher once a request, which is not more than noted then (``metrics.Backlog``).
"""

from __future__ import annotations

from collections.abc import Sequence

from zkconsumer.kafka import FetchAnswer
from zkconsumer.metrics import Backlog, MetricName, Metrics
from zkconsumer.model import Endpoint


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
        self._fresh: Backlog[tuple[float, float, int]] = Backlog(metrics, self._tell)

    def remove(self) -> None:
        """Nothing is fetched from this broker any more: what is told of it alone goes."""
        self._metrics.remove(self._of_broker)

    def fetched(self, seconds: float, answer: FetchAnswer) -> None:
        """A request was answered after so many seconds."""
        size = 0
        for part in answer.partitions:
            size += len(part.records)
        self._fresh.add((seconds, answer.throttle, size))

    def settle(self) -> None:
        """Tell the instruments what they have not been told yet; any thread."""
        self._fresh.settle()

    def _tell(self, answers: Sequence[tuple[float, float, int]]) -> None:
        seconds, throttled, sizes = zip(*answers, strict=True)
        for timer in self._times:
            timer.update_all(seconds)
        for throttle in self._throttles:
            throttle.update_all(throttled)
        for histogram in self._sizes:
            histogram.update_all(sizes)
        self._requests.mark(len(answers))
        if any(sizes):
            self._bytes.mark(sum(sizes))

    @property
    def request_rate(self) -> float:
        """Requests per second over the last minute."""
        self.settle()
        return self._requests.value().one_minute_rate
