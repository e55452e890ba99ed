"""The answer of ``/metrics``, in Prometheus' text format 0.0.4. Pure; any thread.

A group has the names and labels of danielqsj/kafka_exporter, so that its dashboards and alerts go on working. All other
names begin with ``zkconsumer_``. A value that is unknown has no sample: a sample of -1 or 0 would be a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, gone_before
from zkconsumer.operations.judgement import STATUSES, Judgement, known_number
from zkconsumer.operations.serving.burrow_rules import BurrowStatus, CommitWindow
from zkconsumer.operations.serving.poller import Board
from zkconsumer.operations.serving.watched_group import WatchedGroup
from zkconsumer.version import VERSION

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_NUMBERS = {word: BurrowStatus[word] for word in STATUSES.values()}
"""The numbers of the words for a status. One that is unknown has no sample."""

STATES = ("Stable", "Rebalancing", "Stuck", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Unknown")

_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


@dataclass(slots=True)
class Family:
    """A metric with its samples: pairs of labels and a value."""

    name: str
    kind: str
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float | None, labels: Mapping[str, str] = {}) -> None:
        """Add a sample, unless the value is unknown."""
        if value is not None:
            self.samples.append((labels, value))

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text format, none without samples."""
        if self.samples:
            yield f"# HELP {self.name} {self.help}"
            yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            inside = ",".join(f'{name}="{escaped(text)}"' for name, text in labels.items())
            yield f"{self.name}{{{inside}}} {_number(value)}" if inside else f"{self.name} {_number(value)}"


def escaped(text: str) -> str:
    """Return a label's value. Control characters, which a node's name may have, are spelt out."""
    return _REFUSED.sub(lambda found: found.group().encode("unicode_escape").decode(), text).translate(_ESCAPES)


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def metrics_text(board: Board) -> str:
    """Return the metrics of all groups."""
    families = [*_server(board)]
    groups = _GroupFamilies()
    for name in sorted(board.groups):
        groups.add(board.groups[name], board.judgements.get(name, Judgement()))
    families += groups.families()
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _server(board: Board) -> Iterable[Family]:
    info = Family("zkconsumer_info", "gauge", "The version of zkconsumer")
    info.add(1, {"version": VERSION})
    yield info
    seconds = board.seconds if board.completed is not None else None
    for name, kind, text, value in (
        ("polls_total", "counter", "Polls of all groups", board.polls),
        ("poll_failures_total", "counter", "Polls in which a group could not be read", board.failures),
        ("poll_duration_seconds", "gauge", "Duration of the last poll", seconds),
        ("groups_left_out", "gauge", "Groups beyond the most that are watched", board.left_out),
        ("groups_missing", "gauge", "Groups that were not read yet, since the server began", board.missing),
        ("differences_total", "counter", "Nodes that had changed without an event of ZooKeeper", board.differences),
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
_COUNTERS = {"zkconsumer_group_membership_changes_total": "Members that joined or left since the group's node was made"}


class _GroupFamilies:
    """The families with a label for the group, filled group by group."""

    def __init__(self) -> None:
        self._families = {name: Family(name, "gauge", text) for name, text in _GAUGES.items()}
        self._families |= {name: Family(name, "counter", text) for name, text in _COUNTERS.items()}

    def families(self) -> list[Family]:
        """Return all families in the order of the tables."""
        return list(self._families.values())

    def _add(self, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        self._families[name].add(value, labels)

    def add(self, watched: WatchedGroup, judgement: Judgement) -> None:
        """Add the samples of one group."""
        self._add_group(watched, judgement, {"consumergroup": watched.group})
        partitions = sorted({*watched.snapshot.partitions(), *judgement.expected, *watched.lags})
        for tp in partitions:
            labels = {"consumergroup": watched.group, "topic": tp.topic, "partition": str(tp.partition)}
            verdict = judgement.verdict(tp)
            self._add("zkconsumer_partition_severity", verdict.level, labels)
            self._add("zkconsumer_partition_status", _NUMBERS.get(verdict.status), labels)
            if verdict.check == "standing-still" and verdict.since is not None:
                still = max(0, watched.judged.taken - verdict.since) / 1000  # later it may have moved
                self._add("zkconsumer_partition_stands_still_seconds", still, labels)
            self._add_offsets(watched, tp, labels)
            self._add_ownership(watched, judgement, tp, labels)
            self._add_balance(watched.snapshot, tp, labels)
        for topic in sorted({tp.topic for tp in partitions}):
            self._add_topic(watched, judgement, topic)

    def _add_group(self, watched: WatchedGroup, judgement: Judgement, labels: Mapping[str, str]) -> None:
        snapshot = watched.snapshot
        read = watched.failure == "" or watched.serial > 1
        members = known_number(len(judgement.kinds), snapshot, "ids") if read else None
        self._add("kafka_consumergroup_members", members, labels)
        for state in dict.fromkeys((*STATES, judgement.state)):
            self._add("zkconsumer_group_state", state == judgement.state, {**labels, "state": state})
        info = {"coordination": judgement.coordination, "strategy": judgement.strategy}
        self._add("zkconsumer_group_info", 1, {**labels, **info})
        self._add("zkconsumer_group_read_success", watched.complete, labels)
        self._add("zkconsumer_group_read_timestamp_seconds", snapshot.taken / 1000 if read else None, labels)
        oldest = min((known.taken for known in watched.lags.values()), default=None)
        self._add("zkconsumer_group_lag_timestamp_seconds", None if oldest is None else oldest / 1000, labels)
        ids = snapshot.ids_node
        self._add("zkconsumer_group_membership_changes_total", None if ids is None else ids.cversion, labels)
        self._add("zkconsumer_group_severity", judgement.severity, labels)
        self._add("zkconsumer_group_status", _NUMBERS.get(judgement.status), labels)
        for level, number in judgement.counts.items():
            self._add("zkconsumer_group_findings", number, {**labels, "level": level})

    def _add_offsets(self, watched: WatchedGroup, tp: TopicPartition, labels: Mapping[str, str]) -> None:
        snapshot, known, log = watched.snapshot, watched.lags.get(tp), watched.logs.get(tp)
        window = watched.windows.get(tp, CommitWindow())
        self._add("kafka_consumergroup_current_offset", snapshot.committed(tp), labels)
        if known is not None:
            self._add("kafka_consumergroup_lag", known.lag, labels)
            self._add("kafka_consumergroup_group_lag_seconds", known.seconds, labels)
            if tp in snapshot.offsets:
                self._add("kafka_consumergroupzookeeper_lag_zookeeper", known.lag, labels)
        if log is not None:
            gone = gone_before(snapshot.committed(tp), log.log)
            self._add("zkconsumer_partition_gone_messages", gone, labels)
            self._add("zkconsumer_partition_log_start_offset", log.log.start, labels)
            self._add("zkconsumer_partition_log_end_offset", log.log.end, labels)
        if window.commits:
            last = window.commits[-1].time / 1000
            self._add("zkconsumer_partition_last_commit_timestamp_seconds", last, labels)

    def _add_ownership(
        self, watched: WatchedGroup, judgement: Judgement, tp: TopicPartition, labels: Mapping[str, str]
    ) -> None:
        owner = judgement.owners.get(tp)
        if owner is None and any("/owners" in problem.what for problem in watched.snapshot.problems):
            return  # whether anybody owns it is unknown
        self._add("zkconsumer_partition_owned", owner in judgement.member_of, labels)
        if tp in judgement.expected:
            self._add("zkconsumer_partition_owned_as_expected", owner == judgement.expected[tp], labels)

    def _add_balance(self, snapshot: GroupSnapshot, tp: TopicPartition, labels: Mapping[str, str]) -> None:
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

    def _add_topic(self, watched: WatchedGroup, judgement: Judgement, topic: str) -> None:
        labels = {"consumergroup": watched.group, "topic": topic}
        snapshot = watched.snapshot
        offsets = [snapshot.committed(tp) for tp in snapshot.partitions() if tp.topic == topic]
        known = [offset for offset in offsets if offset is not None]
        lags = [lag.lag for tp, lag in watched.lags.items() if tp.topic == topic]
        self._add("kafka_consumergroup_current_offset_sum", sum(known) if known else None, labels)
        self._add("kafka_consumergroup_lag_sum", sum(lags) if lags else None, labels)
        self._add("zkconsumer_topic_abandoned", judgement.abandoned(topic), labels)
