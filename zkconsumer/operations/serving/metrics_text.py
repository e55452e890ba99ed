"""The answer of ``/metrics``, in Prometheus' text format 0.0.4. Pure; any thread.

A group has the names and labels of danielqsj/kafka_exporter, so that its dashboards and alerts go on working. All other
names begin with ``zkconsumer_``. A value that is unknown has no sample: a sample of -1 or 0 would be a guess.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby

from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, gone_before
from zkconsumer.operations.judgement import FINE, STATUSES, Judgement, known_number
from zkconsumer.operations.serving.burrow_rules import NO_COMMIT, BurrowStatus
from zkconsumer.operations.serving.group_history import HistoryState
from zkconsumer.operations.serving.group_trends import GroupTrend
from zkconsumer.operations.serving.observed_group import ObservedGroup
from zkconsumer.operations.serving.poller import Board
from zkconsumer.version import VERSION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NUMBERS = {word: BurrowStatus[word] for word in STATUSES.values()}
"""The numbers of the words for a status. One that is unknown has no sample."""

STATES = ("Stable", "Rebalancing", "Stuck", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Unknown")


class MetricsLevel(enum.IntEnum):
    """How far down the samples go: those of groups alone, those of topics as well, or those of partitions as well."""

    GROUP = 0
    TOPIC = 1
    PARTITION = 2


_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family:
    """A metric with its samples. Its text is made when it is wanted, since all texts together take much memory."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = name
        self._begin = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        self.labels: list[str] = []
        """The labels of each sample, as :func:`labelled` writes them."""
        self.values: list[float] = []

    def add(self, value: float | None, labels: str = "") -> None:
        """Add a sample, unless the value is unknown."""
        if value is not None:
            self.labels.append(labels)
            self.values.append(value)

    def text(self) -> bytes:
        """Return the text of the metric, empty without samples."""
        name, named = self.name, self.name + "{"
        lines = [
            f"{named}{labels}}} {value if type(value) is int else _number(value)}\n"
            if labels
            else f"{name} {_number(value)}\n"
            for labels, value in zip(self.labels, self.values, strict=True)
        ]
        return "".join((self._begin, *lines)).encode("utf-8", "backslashreplace") if lines else b""


def labelled(**labels: str) -> str:
    """Return labels as the text format has them, so that the samples of one partition share one text."""
    return ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())


def escaped(text: str) -> str:
    """Return a label's value. Control characters, also of directions, which a node's name may have, are spelt out."""
    return _REFUSED.sub(lambda found: found.group().encode("unicode_escape").decode(), text).translate(_ESCAPES)


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def metrics_text(
    board: Board,
    level: MetricsLevel = MetricsLevel.PARTITION,
    groups: Collection[str] | None = None,
    trends: Mapping[str, GroupTrend] = {},
    history: HistoryState | None = None,
) -> list[Callable[[], bytes]]:
    """Return functions that make the metrics of all groups, or of these alone, in parts.

    Arguments: ``trends`` have the rates; ``history`` is that of a file.
    """
    found = _GroupFamilies(level)
    for name in sorted(board.groups.keys() if groups is None else board.groups.keys() & groups):
        found.add(board.groups[name], board.judgements.get(name, Judgement()), trends.get(name, GroupTrend()))
    return [family.text for family in (*_server(board, history), *found.families())]


def _server(board: Board, history: HistoryState | None) -> Iterable[Family]:
    info = Family("zkconsumer_info", "gauge", "The version of zkconsumer")
    info.add(1, labelled(version=VERSION))
    yield info
    seconds = board.seconds if board.completed is not None else None
    reads = None if board.completed is None else not board.failure
    kept = history if history is not None and history.file else None
    written = None if kept is None or kept.written is None else kept.written / 1000
    for name, kind, text, value in (
        ("polls_total", "counter", "Polls of all groups", board.polls),
        ("poll_failures_total", "counter", "Polls in which a group could not be read", board.failures),
        ("poll_duration_seconds", "gauge", "Duration of the last poll", seconds),
        ("read_success", "gauge", "Whether the last poll could read anything at all", reads),
        ("groups_left_out", "gauge", "Groups beyond the most that are watched", board.left_out),
        ("groups_missing", "gauge", "Groups that were not read yet, since the server began", board.missing),
        ("differences_total", "counter", "Nodes that had changed without an event of ZooKeeper", board.differences),
        (
            "history_success",
            "gauge",
            "Whether the history was written lately",
            None if kept is None else not kept.failure,
        ),
        ("history_written_timestamp_seconds", "gauge", "When the history was last written", written),
        ("history_bytes", "gauge", "Size of the history's file that is in use", None if kept is None else kept.size),
    ):
        family = Family(f"zkconsumer_serve_{name}", kind, text)
        family.add(value)
        yield family


_GAUGES = {
    "kafka_consumergroup_current_offset": "Current Offset of a ConsumerGroup at Topic/Partition",
    "kafka_consumergroup_current_offset_sum": "Current Offset of a ConsumerGroup at Topic for all partitions",
    "kafka_consumergroup_lag": "Current Approximate Lag of a ConsumerGroup at Topic/Partition",
    "kafka_consumergroup_lag_sum": "Current Approximate Lag of a ConsumerGroup at Topic for all partitions",
    "kafka_consumergroupzookeeper_lag_zookeeper": "Current Approximate Lag(zookeeper) of a ConsumerGroup",
    "kafka_consumergroup_members": "Amount of members in a consumer group",
    "kafka_consumergroup_group_lag_seconds": "Age of the message at the committed offset, 0 without lag",
    "zkconsumer_group_state": "1 for the state that the group is in",
    "zkconsumer_group_info": "How the group is coordinated, and its strategy",
    "zkconsumer_group_severity": "The worst finding of the doctor about the group: 0 ok, 1 note, 2 warn, 3 error",
    "zkconsumer_group_findings": "Findings of the doctor about the group, by level",
    "zkconsumer_group_status": "The severity in Burrow's numbers: 1 OK, 2 WARN, 3 ERR",
    "zkconsumer_group_read_success": "Whether the last reading of the group succeeded and was complete",
    "zkconsumer_group_read_timestamp_seconds": "Time of the last reading of the group that succeeded",
    "zkconsumer_group_lag_timestamp_seconds": "Time of the oldest reading among the lags that are shown",
    "zkconsumer_group_lag": "Messages that wait, in all topics that the group has not left",
    "zkconsumer_group_lag_seconds": "Age of the oldest message that waits, in all topics that the group has not left",
    "zkconsumer_group_drain_seconds": "Time until nothing waits at the rates of the last 5 minutes, +Inf: never",
    "zkconsumer_group_partitions": "Partitions in all topics that the group has not left",
    "zkconsumer_group_partitions_unowned": "Partitions among them that no registered thread owns",
    "zkconsumer_group_partitions_lag_unknown": "Partitions among them whose lag is unknown",
    "zkconsumer_group_stands_still_seconds": "The longest time for which an owner has not moved on, although it lags",
    "zkconsumer_group_gone_messages": "Messages that were deleted before the group read them",
    "zkconsumer_group_parked_messages": "Messages that wait for their next attempt",
    "zkconsumer_group_dead_letters": "Dead letters of the group",
    "zkconsumer_group_last_commit_timestamp_seconds": "Time of the latest commit of any partition",
    "zkconsumer_topic_lag_seconds": "Age of the oldest message of the topic that waits",
    "zkconsumer_partition_owned": "Whether a registered thread owns the partition",
    "zkconsumer_partition_owned_as_expected": "Whether the owner is the thread that the strategy gives it to",
    "zkconsumer_partition_severity": "The worst finding about the partition: 0 ok, 1 note, 2 warn, 3 error",
    "zkconsumer_partition_status": "The severity in Burrow's numbers: 1 OK, 2 WARN, 3 ERR",
    "zkconsumer_partition_stands_still_seconds": "Least time for which its owner has not moved on, although it lags",
    "zkconsumer_partition_last_commit_timestamp_seconds": "Time of the last commit",
    "zkconsumer_partition_gone_messages": "Messages that were deleted before the group read them",
    "zkconsumer_partition_log_start_offset": "First offset in the log of a partition that the group consumes",
    "zkconsumer_partition_log_end_offset": "End of the log of a partition that the group consumes",
    "zkconsumer_partition_finished_beyond": "Messages beyond the committed offset that a note says to be finished",
    "zkconsumer_partition_parked_messages": "Messages that the offset has passed and that wait for their next attempt",
    "zkconsumer_partition_dead_letters": "Dead letters of the partition",
    "zkconsumer_partition_note_bytes": "Size of the note of what is finished beyond the offset",
    "zkconsumer_partition_slots_lent": "Slots of the partition, of 256, that its owner lends to other members",
    "zkconsumer_topic_abandoned": "Whether the group has members, and none of them subscribes to this topic",
}
_COUNTERS = {
    "zkconsumer_group_membership_changes_total": "Members that joined or left since the group's node was made",
    "zkconsumer_group_consumed_messages_total": "Messages that commits have passed since the group was first seen",
    "zkconsumer_group_produced_messages_total": "Messages by which the logs have grown since the group was first seen",
}


class _GroupFamilies:
    """The families with a label for the group, filled group by group."""

    def __init__(self, level: MetricsLevel) -> None:
        self._level = level
        self._families = {name: Family(name, "gauge", text) for name, text in _GAUGES.items()}
        self._families |= {name: Family(name, "counter", text) for name, text in _COUNTERS.items()}

    def families(self) -> list[Family]:
        """Return all families in the order of the tables."""
        return list(self._families.values())

    def _add(self, name: str, value: float | None, labels: str) -> None:
        if value is not None:  # for each of half a million samples, so without another call
            family = self._families[name]
            family.labels.append(labels)
            family.values.append(value)

    def add(self, watched: ObservedGroup, judgement: Judgement, trend: GroupTrend) -> None:
        """Add the samples of one group."""
        group = labelled(consumergroup=watched.group)
        partitions = sorted({*watched.snapshot.partitions(), *judgement.expected, *watched.lags})
        self._add_group(watched, judgement, group)
        current = [tp for tp in partitions if not judgement.abandoned(tp.topic)]
        self._add_totals(watched, judgement, current, group)
        self._add("zkconsumer_group_drain_seconds", trend.drain_seconds(), group)
        if trend.totals:
            self._add("zkconsumer_group_consumed_messages_total", trend.totals[-1].consumed, group)
            self._add("zkconsumer_group_produced_messages_total", trend.totals[-1].produced, group)
        if self._level >= MetricsLevel.TOPIC:
            for topic, found in groupby(partitions, key=lambda tp: tp.topic):
                self._add_topic(watched, judgement, list(found), f"{group},{labelled(topic=topic)}")
        if self._level >= MetricsLevel.PARTITION:
            for topic, found in groupby(partitions, key=lambda tp: tp.topic):
                begin = f"{group},{labelled(topic=topic)}"
                for tp in found:
                    self._add_partition(watched, judgement, tp, f'{begin},partition="{tp.partition}"')

    def _add_group(self, watched: ObservedGroup, judgement: Judgement, labels: str) -> None:
        snapshot = watched.snapshot
        read = watched.failure == "" or watched.serial > 1
        members = known_number(len(judgement.kinds), snapshot, "ids") if read else None
        self._add("kafka_consumergroup_members", members, labels)
        for state in dict.fromkeys((*STATES, judgement.state)):
            self._add("zkconsumer_group_state", state == judgement.state, f"{labels},{labelled(state=state)}")
        info = labelled(coordination=judgement.coordination, strategy=judgement.strategy)
        self._add("zkconsumer_group_info", 1, f"{labels},{info}")
        self._add("zkconsumer_group_read_success", watched.complete, labels)
        self._add("zkconsumer_group_read_timestamp_seconds", snapshot.taken / 1000 if read else None, labels)
        oldest = min((known.taken for known in watched.lags.values()), default=None)
        self._add("zkconsumer_group_lag_timestamp_seconds", None if oldest is None else oldest / 1000, labels)
        ids = snapshot.ids_node
        self._add("zkconsumer_group_membership_changes_total", None if ids is None else ids.cversion, labels)
        self._add("zkconsumer_group_severity", judgement.severity, labels)
        self._add("zkconsumer_group_status", _NUMBERS.get(judgement.status), labels)
        for level, number in judgement.counts.items():
            self._add("zkconsumer_group_findings", number, f"{labels},{labelled(level=level)}")

    def _add_totals(
        self, watched: ObservedGroup, judgement: Judgement, current: Sequence[TopicPartition], labels: str
    ) -> None:
        """Add what is known of the partitions together. They are those of the topics that the group has not left."""
        snapshot, lags, logs = watched.snapshot, watched.lags, watched.logs
        known = [lags[tp] for tp in current if tp in lags]
        pointers = [found for tp in current if (found := snapshot.pointers.get(tp)) is not None]
        windows = (watched.windows.get(tp, NO_COMMIT) for tp in current)
        commits = [time for window in windows if (time := window.last_time) is not None]
        gone = [gone_before(snapshot.committed(tp), logs[tp].log) for tp in current if tp in logs]
        still = [age for tp in current if (age := _stands_still(watched, judgement, tp)) is not None]
        unowned = sum(judgement.owners.get(tp) not in judgement.member_of for tp in current)
        for name, value in (
            ("lag", _sum(one.lag for one in known)),
            ("lag_seconds", max((one.seconds for one in known if one.seconds is not None), default=None)),
            ("partitions", len(current)),
            ("partitions_unowned", None if _owners_unread(snapshot) else unowned),
            ("partitions_lag_unknown", len(current) - len(known)),
            ("stands_still_seconds", max(still, default=None)),
            ("gone_messages", _sum(gone)),
            ("parked_messages", _sum(found.parked for found in pointers)),
            ("dead_letters", _sum(found.dead for found in pointers)),
            ("last_commit_timestamp_seconds", max(commits) / 1000 if commits else None),
        ):
            self._add(f"zkconsumer_group_{name}", value, labels)

    def _add_topic(
        self, watched: ObservedGroup, judgement: Judgement, partitions: Sequence[TopicPartition], labels: str
    ) -> None:
        offsets = (watched.snapshot.committed(tp) for tp in partitions)
        known = [watched.lags[tp] for tp in partitions if tp in watched.lags]
        self._add("kafka_consumergroup_current_offset_sum", _sum(offsets), labels)
        self._add("kafka_consumergroup_lag_sum", _sum(one.lag for one in known), labels)
        late = max((one.seconds for one in known if one.seconds is not None), default=None)
        self._add("zkconsumer_topic_lag_seconds", late, labels)
        self._add("zkconsumer_topic_abandoned", judgement.abandoned(partitions[0].topic), labels)

    def _add_partition(self, watched: ObservedGroup, judgement: Judgement, tp: TopicPartition, labels: str) -> None:
        verdict = judgement.verdict(tp)
        self._add("zkconsumer_partition_severity", verdict.level, labels)
        self._add("zkconsumer_partition_status", _NUMBERS.get(verdict.status), labels)
        if verdict is not FINE:
            self._add("zkconsumer_partition_stands_still_seconds", _stands_still(watched, judgement, tp), labels)
        self._add_offsets(watched, tp, labels)
        self._add_ownership(watched, judgement, tp, labels)
        snapshot = watched.snapshot
        if snapshot.acks or snapshot.pointers or snapshot.loans or snapshot.kafka_offsets:
            self._add_balance(snapshot, tp, labels)

    def _add_offsets(self, watched: ObservedGroup, tp: TopicPartition, labels: str) -> None:
        snapshot, known, log = watched.snapshot, watched.lags.get(tp), watched.logs.get(tp)
        window = watched.windows.get(tp, NO_COMMIT)
        offset = snapshot.committed(tp)
        self._add("kafka_consumergroup_current_offset", offset, labels)
        if known is not None:
            self._add("kafka_consumergroup_lag", known.lag, labels)
            self._add("kafka_consumergroup_group_lag_seconds", known.seconds, labels)
            if tp in snapshot.offsets:
                self._add("kafka_consumergroupzookeeper_lag_zookeeper", known.lag, labels)
        if log is not None:
            self._add("zkconsumer_partition_gone_messages", gone_before(offset, log.log), labels)
            self._add("zkconsumer_partition_log_start_offset", log.log.start, labels)
            self._add("zkconsumer_partition_log_end_offset", log.log.end, labels)
        if (last := window.last_time) is not None:
            self._add("zkconsumer_partition_last_commit_timestamp_seconds", last / 1000, labels)

    def _add_ownership(self, watched: ObservedGroup, judgement: Judgement, tp: TopicPartition, labels: str) -> None:
        owner = judgement.owners.get(tp)
        if owner is None and _owners_unread(watched.snapshot):
            return  # whether anybody owns it is unknown
        self._add("zkconsumer_partition_owned", owner in judgement.member_of, labels)
        if tp in judgement.expected:
            self._add("zkconsumer_partition_owned_as_expected", owner == judgement.expected[tp], labels)

    def _add_balance(self, snapshot: GroupSnapshot, tp: TopicPartition, labels: str) -> None:
        """Add a partition's values of balanced members. A value that no member wrote has no sample."""
        noted, pointers = snapshot.acks.get(tp), snapshot.pointers.get(tp)
        if noted is not None or snapshot.note(tp) is not None:
            self._add("zkconsumer_partition_finished_beyond", snapshot.finished_beyond(tp), labels)
        if noted is not None and noted.stat is not None:
            self._add("zkconsumer_partition_note_bytes", noted.stat.length, labels)
        if pointers is not None:
            self._add("zkconsumer_partition_parked_messages", pointers.parked, labels)
            self._add("zkconsumer_partition_dead_letters", pointers.dead, labels)
        lent = [loan.slots for loan in snapshot.loans.get(tp, {}).values()]
        if lent and None not in lent:
            self._add("zkconsumer_partition_slots_lent", sum(slots or 0 for slots in lent), labels)


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum of the known values, None if there is none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _owners_unread(snapshot: GroupSnapshot) -> bool:
    return any("/owners" in problem.what for problem in snapshot.problems)


def _stands_still(watched: ObservedGroup, judgement: Judgement, tp: TopicPartition) -> float | None:
    """Return for how many seconds at least the owner of a partition had not moved on at the last reading."""
    verdict = judgement.verdict(tp)
    if verdict.check != "standing-still" or verdict.since is None:
        return None
    return max(0, watched.judged.taken - verdict.since) / 1000
