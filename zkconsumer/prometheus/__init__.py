"""The metrics of a member for Prometheus: a custom collector for a registry of ``prometheus_client``::

    prometheus_client.REGISTRY.register(Collector(connector))
    prometheus_client.start_http_server(9100)

Each scrape reads ``connector.metrics()`` and ``connector.health()``; between scrapes nothing runs. A member exports the
partitions that it owns, under the names of kafka_exporter where there are any. ``zkconsumer serve`` exports a whole
group. Scrape one of the two, or sums over a group count everything twice.

Threads: any thread may scrape. Needs the extra ``prometheus``; ``import zkconsumer`` does not import this module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from typing import TYPE_CHECKING
from weakref import ref

from zkconsumer.errors import MissingExtraError
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.runtime.metrics import BucketsValue, MeterValue, MetricName, TimerValue, Value
from zkconsumer.version import VERSION

try:
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        InfoMetricFamily,
        Metric,
        SummaryMetricFamily,
    )
except ImportError as error:
    raise MissingExtraError("the collector for Prometheus", "prometheus") from error

if TYPE_CHECKING:
    from zkconsumer.connector.zookeeper_connector import ZookeeperConsumerConnector

__all__ = ["Collector"]

log = logging.getLogger(__name__)

_OF_MEMBER = ("consumergroup", "member")


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric family of ours. ``labels`` follow those of every member, and are tags of the original's metric."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    kind: Callable[..., Metric] = GaugeMetricFamily

    def empty(self) -> Metric:
        """Return the family without samples."""
        own = () if self.kind is InfoMetricFamily else self.labels  # an info has its own ones with each value
        return self.kind(self.name, self.help, labels=(*_OF_MEMBER, *own))


_PARTITION = ("topic", "partition")
_LIVE = _Family("zkconsumer_live", "1 if the member works or comes back by itself, 0 if it must be restarted.")
_READY = _Family("zkconsumer_ready", "1 if the member owns what it should under a valid lease.")
_INFO = _Family(
    "zkconsumer",
    "The member: its release and how its group is coordinated.",
    ("version", "strategy", "coordination", "client_id"),
    InfoMetricFamily,
)
_ERRORS = _Family("zkconsumer_scrape_errors", "Scrapes that could not read the member.", kind=CounterMetricFamily)
_OWNED = _Family("zkconsumer_partition_owned", "1 for each partition that the member owns.", _PARTITION)
_COMMITTED = _Family("kafka_consumergroup_current_offset", "The committed offset of an owned partition.", _PARTITION)
_LAG = _Family(
    "kafka_consumergroup_lag",
    "Messages from the committed offset to the end of the log that are not finished, if both are known.",
    _PARTITION,
)
_REBALANCES = _Family("zkconsumer_rebalances", "Rebalances that the member has ended.", kind=CounterMetricFamily)

_CONNECTOR = ("kafka.consumer", "ZookeeperConsumerConnector")
_TOPICS = ("kafka.consumer", "ConsumerTopicMetrics")
_OURS = ("zkconsumer", "Member")
_LAGS = ("kafka.server", "FetcherLagMetrics", "ConsumerLag")
_END = (*_OURS, "LogEndOffset")
_AT = (*_OURS, "CommittedOffset")
_BEYOND = (*_OURS, "FinishedBeyondCount")
_ROUNDS = (*_CONNECTOR, "RebalanceRateAndTime")

_PLAIN: Mapping[tuple[str, str, str], _Family] = {
    (*_OURS, "LeaseRemaining"): _Family(
        "zkconsumer_lease_remaining_seconds", "For how long the member may hand out messages without another answer."
    ),
    (*_OURS, "LastCommitTime"): _Family("zkconsumer_last_commit_timestamp_seconds", "When an offset was last written."),
    (*_OURS, "SessionsLost"): _Family(
        "zkconsumer_session_expirations",
        "Sessions, or memberships of a brokers' group, that ended before the member left.",
        kind=CounterMetricFamily,
    ),
    (*_OURS, "CommitsRefused"): _Family(
        "zkconsumer_commit_refused",
        "Offsets that were not written: another member owns the partition, or another client wrote its offset.",
        kind=CounterMetricFamily,
    ),
    (*_OURS, "WaitingPartitionsCount"): _Family(
        "zkconsumer_waiting_partitions", "Partitions that should be the member's and that others still own."
    ),
    (*_OURS, "PausedPartitionsCount"): _Family(
        "zkconsumer_paused_partitions", "Partitions that the application paused."
    ),
    (*_OURS, "LeaderlessPartitionsCount"): _Family(
        "zkconsumer_leaderless_partitions", "Owned partitions whose leader is unknown or cannot be reached."
    ),
    (*_OURS, "FollowedPartitionsCount"): _Family(
        "zkconsumer_followed_partitions", "Owned partitions that are read from a follower, by client.rack."
    ),
    (*_OURS, "QueuedBytes"): _Family("zkconsumer_queued_bytes", "Bytes that wait in the streams."),
    (*_OURS, "SkippedCount"): _Family(
        "zkconsumer_skipped", "Corrupt messages that were stepped over.", kind=CounterMetricFamily
    ),
    (*_TOPICS, "MessagesPerSec"): _Family(
        "zkconsumer_consumed_messages", "Messages that the streams handed out.", ("topic",), CounterMetricFamily
    ),
    (*_TOPICS, "BytesPerSec"): _Family(
        "zkconsumer_consumed_bytes",
        "Bytes of the messages that the streams handed out.",
        ("topic",),
        CounterMetricFamily,
    ),
    (*_CONNECTOR, "ZooKeeperCommitsPerSec"): _Family(
        "zkconsumer_zookeeper_commits", "Offsets that were written to ZooKeeper.", kind=CounterMetricFamily
    ),
    (*_CONNECTOR, "KafkaCommitsPerSec"): _Family(
        "zkconsumer_kafka_commits", "Offsets that were written to Kafka.", kind=CounterMetricFamily
    ),
    (*_OURS, "HandlerTime"): _Family(
        "zkconsumer_handler_duration_seconds",
        "How long handlers took, in a run with concurrency; quick ones are measured several at once.",
        kind=HistogramMetricFamily,
    ),
    (*_OURS, "Concurrency"): _Family("zkconsumer_concurrency", "Handlers that may run at the same time."),
    (*_OURS, "FailedAttempts"): _Family(
        "zkconsumer_failed_attempts", "Attempts at messages that failed.", kind=CounterMetricFamily
    ),
    (*_OURS, "LateResults"): _Family(
        "zkconsumer_late_results",
        "Results of handlers that came after their partition or slot had left.",
        kind=CounterMetricFamily,
    ),
    (*_OURS, "ZombieHandlers"): _Family(
        "zkconsumer_zombie_handlers", "Handlers that were running when a session ended.", kind=CounterMetricFamily
    ),
    (*_OURS, "LostMessages"): _Family(
        "zkconsumer_lost_messages", "Parked messages that the log had no longer.", kind=CounterMetricFamily
    ),
    (*_OURS, "StoppedPartitionsCount"): _Family(
        "zkconsumer_stopped_partitions", "Partitions of which nothing is handled until somebody acts."
    ),
    (*_OURS, "UnfinishedCount"): _Family(
        "zkconsumer_unfinished_messages", "Messages that were read and are not finished.", _PARTITION
    ),
    _BEYOND: _Family("zkconsumer_finished_beyond_messages", "Messages beyond the base that are finished.", _PARTITION),
    (*_OURS, "HeldTime"): _Family(
        "zkconsumer_base_held_seconds", "For how long the same message has held the base.", _PARTITION
    ),
    (*_OURS, "HeldAttempts"): _Family(
        "zkconsumer_base_failed_attempts", "Failed attempts at the message that holds the base.", _PARTITION
    ),
    (*_OURS, "InHandCount"): _Family("zkconsumer_in_hand_messages", "Messages whose handlers run.", _PARTITION),
    (*_OURS, "ParkedCount"): _Family(
        "zkconsumer_parked_messages", "Messages that the base has passed, and that are tried again.", _PARTITION
    ),
    (*_OURS, "DeadLetterCount"): _Family("zkconsumer_dead_letters", "Messages that were given up.", _PARTITION),
    (*_OURS, "UnnotedCount"): _Family(
        "zkconsumer_unnoted_results", "Results since the last commit, which a crash would repeat.", _PARTITION
    ),
    (*_OURS, "SlotsLent"): _Family(
        "zkconsumer_slots_lent", "Slots of an owned partition, of 256, that other members have on loan.", _PARTITION
    ),
    (*_OURS, "SlotsBorrowed"): _Family(
        "zkconsumer_slots_borrowed", "Slots of another member's partition that this one handles.", _PARTITION
    ),
    _ROUNDS: _Family("zkconsumer_rebalance_duration_seconds", "How long rebalances took.", kind=SummaryMetricFamily),
    ("kafka.consumer", "FetchRequestAndResponseMetrics", "FetchRequestRateAndTimeMs"): _Family(
        "zkconsumer_fetch_duration_seconds", "How long brokers took to answer fetches.", kind=SummaryMetricFamily
    ),
}
"""The families that are one metric of ``connector.metrics()`` each, if it has just the tags of the labels."""
_ALL = (_LIVE, _READY, _INFO, _ERRORS, _OWNED, _COMMITTED, _LAG, _REBALANCES, *_PLAIN.values())
_TAGS_OF_MEMBERS = frozenset({"clientId", "groupId"})


class Collector:
    """Collects the metrics of the connectors of this process, for ``prometheus_client``'s ``registry.register()``.

    Arguments: the connectors, with or without streams yet. One collector serves all of a process, because a registry
    takes each name once. :meth:`add` adds connectors later. The label ``member`` numbers them from 0 and uses the
    number of a connector that is gone again, so that a process has no more of them than connectors at one time.

    It keeps no connector alive. A scrape never raises: what cannot be read is left out, logged and counted.
    """

    def __init__(self, *connectors: ZookeeperConsumerConnector) -> None:
        self._members: dict[int, _MemberMetrics] = {}
        self._adding = InterruptibleLock()  # scrapes take no lock: they copy the table in one step of the interpreter
        for connector in connectors:
            self.add(connector)

    def add(self, connector: ZookeeperConsumerConnector) -> None:
        """Collect the metrics of this connector too. One that is known is not added again."""
        with self._adding:
            known = {number: member.connector() for number, member in self._members.items()}
            if not any(each is connector for each in known.values()):
                number = next(number for number in range(len(known) + 1) if known.get(number) is None)
                self._members[number] = _MemberMetrics(connector, str(number))

    def describe(self) -> Iterable[Metric]:
        """Return the families without samples. A registry calls this, to refuse names that it has already."""
        return [family.empty() for family in _ALL]

    def collect(self) -> Iterable[Metric]:
        """Return all families with the present values. A registry calls this at each scrape."""
        made = {family: family.empty() for family in _ALL}
        for member in list(self._members.values()):
            member.add_to(made)
        return list(made.values())


class _MemberMetrics:
    """One connector, which may be gone, and its number."""

    def __init__(self, connector: ZookeeperConsumerConnector, number: str) -> None:
        self.connector = ref(connector)
        self._number = number
        self._errors = 0

    def add_to(self, made: Mapping[_Family, Metric]) -> None:
        """Add the samples of this connector."""
        connector = self.connector()
        if connector is None:
            return
        first = (connector.config.group_id, self._number)
        samples: list[tuple[_Family, tuple[str, ...], Value]] = []
        try:
            samples += _samples(connector)
        except Exception as e:
            self._errors += 1
            level = logging.ERROR if self._errors == 1 else logging.DEBUG
            log.log(level, "the metrics of %s could not be read: %s", connector.consumer_id, e, exc_info=e)
        for family, labels, value in (*samples, (_ERRORS, (), self._errors)):
            _add(made[family], (*first, *labels), value)


def _samples(connector: ZookeeperConsumerConnector) -> Iterator[tuple[_Family, tuple[str, ...], Value]]:
    """Yield each sample of one connector: its family, the labels after the member's, and its value."""
    health, config = connector.health(), connector.config
    yield _LIVE, (), int(health.live)
    yield _READY, (), int(health.ready)
    coordination = f"{config.group_coordination} (migrating)" if config.group_migration else config.group_coordination
    yield _INFO, (VERSION, config.partition_assignment_strategy, coordination, config.client_id), 1
    ends: dict[tuple[str, ...], Value] = {}
    offsets: dict[tuple[str, ...], Value] = {}
    beyond: dict[tuple[str, ...], Value] = {}
    for name, value in sorted(connector.metrics().items()):
        key, tags = (name.group, name.type, name.name), _tags(name)
        if key == _LAGS:
            yield _OWNED, tags, 1
        elif key == _END:
            ends[tags] = value
        elif key == _AT:
            offsets[tags] = value
            yield _COMMITTED, tags, value
        elif key in _PLAIN and len(tags) == len(_PLAIN[key].labels):
            yield _PLAIN[key], tags, value
            if key == _ROUNDS:
                yield _REBALANCES, (), value
            elif key == _BEYOND:
                beyond[tags] = value
    for tags, offset in offsets.items():
        end = ends.get(tags)
        finished = beyond.get(tags, 0)
        if isinstance(end, int) and isinstance(offset, int) and isinstance(finished, int):
            yield _LAG, tags, max(0, end - offset - finished)


def _tags(name: MetricName) -> tuple[str, ...]:
    """Return the values of the tags that only some of a member's metrics have."""
    return tuple(value for tag, value in name.tags if tag not in _TAGS_OF_MEMBERS)


def _add(family: Metric, labels: tuple[str, ...], value: Value) -> None:
    match family, value:
        case InfoMetricFamily(), _:
            split = len(_OF_MEMBER)
            family.add_metric(labels[:split], dict(zip(_INFO.labels, labels[split:], strict=True)))
        case HistogramMetricFamily(), BucketsValue():
            family.add_metric(labels, list(_cumulative(value)), value.total)
        case SummaryMetricFamily(), TimerValue(duration=took):
            family.add_metric(labels, took.count, took.count * took.mean / 1000)
        case CounterMetricFamily(), TimerValue(duration=took):
            family.add_metric(labels, took.count)
        case CounterMetricFamily(), MeterValue(count=count):
            family.add_metric(labels, count)
        case ((CounterMetricFamily() | GaugeMetricFamily()), int() | float()) if isfinite(value):
            family.add_metric(labels, value)


def _cumulative(value: BucketsValue) -> Iterator[tuple[str, float]]:
    """Yield each bound as text with the number of durations up to it."""
    count = 0
    for bound, more in zip((*value.bounds, inf), value.counts, strict=True):
        count += more
        yield "+Inf" if bound == inf else repr(bound), count
