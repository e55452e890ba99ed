"""What fetching from one broker measures, under the original's names. Called by its fetcher once a request."""

from __future__ import annotations

from zkconsumer.brokers import FetchAnswer
from zkconsumer.metrics import MetricName, Metrics
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

    def remove(self) -> None:
        """Nothing is fetched from this broker any more: what is told of it alone goes."""
        self._metrics.remove(self._of_broker)

    def fetched(self, seconds: float, answer: FetchAnswer) -> None:
        """A request was answered after so many seconds."""
        size = sum(len(part.records) for part in answer.partitions)
        for timer in self._times:
            timer.update(seconds)
        for throttle in self._throttles:
            throttle.update(answer.throttle)
        for histogram in self._sizes:
            histogram.update(size)
        self._requests.mark()
        if size:
            self._bytes.mark(size)

    @property
    def request_rate(self) -> float:
        """Requests per second over the last minute."""
        return self._requests.value().one_minute_rate
