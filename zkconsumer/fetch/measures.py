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
        self._times = [metrics.timer(MetricName(*kind, "FetchRequestRateAndTimeMs", tags)) for tags in (client, broker)]
        self._throttles = [
            metrics.timer(MetricName(*kind, "FetchRequestThrottleRateAndTimeMs", tags)) for tags in (client, broker)
        ]
        self._sizes = [metrics.histogram(MetricName(*kind, "FetchResponseSize", tags)) for tags in (client, broker)]
        self._bytes = metrics.meter(MetricName("kafka.server", "FetcherStats", "BytesPerSec", broker))
        self._requests = metrics.meter(MetricName("kafka.server", "FetcherStats", "RequestsPerSec", broker))

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
