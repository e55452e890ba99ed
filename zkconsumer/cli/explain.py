"""``zkconsumer explain``: why each partition of a group is where it is."""

from __future__ import annotations

import argparse

from zkconsumer.cli.source_arguments import add_source_arguments, earlier_snapshots, open_source, read_group
from zkconsumer.cli.tables import CSV, JSON, Table, add_format_argument, as_json, json_row, render
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.operations.doctor import Level, Observations
from zkconsumer.operations.explanation import Explanation, explain, explained_partitions
from zkconsumer.operations.group_view import GroupAnalysis, is_unread, member_kind
from zkconsumer.operations.judgement import Judgement, judgement_of
from zkconsumer.operations.printable import duration, moment, printable

DESCRIPTION = """\
Says for each partition of a group who should own it by the strategy, who does and since
when, why they differ and what that waits for, the last commit, and the lag.

  zkconsumer explain GROUP --zookeeper HOST:2181/CHROOT
  zkconsumer explain GROUP TOPIC:PARTITION --zookeeper HOST:2181/CHROOT
  zkconsumer explain GROUP --from group.jsonl

Exit codes: 0 done; 1 failed, or the group or partition is unknown; 2 wrong usage.
"""

EXPLAINED = 10
"""The partitions that the report on a group explains in full. Mostly they have one cause."""

_COLUMNS = ("TOPIC", "PARTITION", "SHOULD-OWN", "OWNER", "SINCE", "LAG", "LAG-TIME", "WHY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("group", metavar="GROUP", help="the group.id")
    parser.add_argument(
        "partition", metavar="TOPIC:PARTITION", nargs="?", type=partition_argument, help="only this one"
    )
    add_source_arguments(parser)
    add_format_argument(parser)


def partition_argument(text: str) -> TopicPartition:
    """Return the partition that ``TOPIC:PARTITION`` names. Raises argparse.ArgumentTypeError."""
    topic, colon, number = text.rpartition(":")
    if not (topic and colon and number.isascii() and number.isdecimal() and len(number) < 11):
        raise argparse.ArgumentTypeError(f"{text!r} is no partition; write TOPIC:PARTITION, as in events:3")
    return TopicPartition(topic, int(number))


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    with open_source(arguments) as source:
        snapshot = read_group(source, arguments.group, message_times=True)
        earlier = earlier_snapshots(source, arguments.group)
    seen = Observations((*earlier, snapshot))
    analysis, judgement = seen.analysis, judgement_of(seen)
    wanted = (arguments.partition,) if arguments.partition else explained_partitions(analysis)
    explained = [explain(analysis, partition, judgement.verdict(partition)) for partition in wanted]
    if arguments.format == JSON:
        print(as_json(document(analysis, judgement, explained)))
    elif arguments.format == CSV:
        print(render(partition_table(explained), CSV))
    else:
        for line in report(analysis, judgement, explained, single=arguments.partition is not None):
            print(line)
    known = arguments.partition is None or arguments.partition in {
        *explained_partitions(analysis),
        *analysis.snapshot.partitions(),
    }
    return 0 if known else 1


def report(analysis: GroupAnalysis, judgement: Judgement, explained: list[Explanation], *, single: bool) -> list[str]:
    """Return the report for a terminal, line by line."""
    if single:
        return [printable(line) for one in explained for line in one.lines()]
    state, strategy = analysis.state, analysis.strategy
    sure = "" if strategy.sure else ", not sure"
    lines = [
        f"Group {printable(analysis.snapshot.group)} is {state.state.value}: {printable(state.reason)}.",
        f"Strategy {printable(strategy.label or 'unknown')}{sure}: {printable(strategy.why)}.",
    ]
    if any(one.level > Level.NOTE or not one.unknown for one in judgement.findings):
        lines.append(f"Judged {judgement.severity}: {printable(judgement.summary)}.")
    members = member_table(analysis)
    for table in (members, partition_table(explained)):
        lines += ["", *render(table).splitlines()] if table.rows else []
    unsettled = [one for one in explained if not one.settled]
    for one in unsettled[:EXPLAINED]:
        lines += ["", *(printable(line) for line in one.lines())]
    if len(unsettled) > EXPLAINED:
        lines += ["", f"{len(unsettled) - EXPLAINED} more are not where they should be: name one as TOPIC:PARTITION."]
    return lines


def member_table(analysis: GroupAnalysis) -> Table:
    """Return the registered members with the numbers of their partitions, present and expected.

    Where owners lend slots, a column has the borrowed slots of each member. A member without partitions may have work.
    """
    borrowed = _borrowed(analysis)
    owned, expected = _counts(analysis.owners), _counts(analysis.expected)
    rows = []
    for consumer, node in sorted(analysis.snapshot.members.items()):
        ids = {thread for threads in analysis.threads.get(consumer, {}).values() for thread in threads}
        rows.append(
            (
                consumer,
                member_kind(node).value,
                len(ids) if consumer in analysis.threads else None,
                None if is_unread(analysis.snapshot, "owners") else owned.get(consumer, 0),
                None if analysis.problem else expected.get(consumer, 0),
                *((borrowed.get(consumer),) if analysis.snapshot.loans else ()),
                moment(node.stat.ctime) if node.stat is not None else None,
                analysis.view.unreadable.get(f"/consumers/{analysis.snapshot.group}/ids/{consumer}"),
            )
        )
    more = ("SLOTS-ON-LOAN",) if analysis.snapshot.loans else ()
    return Table(("MEMBER", "KIND", "#THREADS", "#OWNS", "#SHOULD-OWN", *more, "SINCE", "PROBLEM"), rows)


def _borrowed(analysis: GroupAnalysis) -> dict[ConsumerId, str]:
    """Return the slots that each member has on loan, as ``events:0 64``."""
    found: dict[ConsumerId, list[str]] = {}
    for tp, loans in sorted(analysis.snapshot.loans.items()):
        for borrower, loan in loans.items():
            if loan.slots:
                found.setdefault(borrower, []).append(f"{tp.topic}:{tp.partition} {loan.slots}")
    return {borrower: ", ".join(texts) for borrower, texts in found.items()}


def _counts(assignment: Assignment) -> dict[ConsumerId, int]:
    found: dict[ConsumerId, int] = {}
    for thread in assignment.values():
        consumer = ConsumerId(thread.rpartition("-")[0])
        found[consumer] = found.get(consumer, 0) + 1
    return found


def partition_table(explained: list[Explanation]) -> Table:
    """Return a row for each partition."""
    return Table(
        _COLUMNS,
        [
            (
                one.partition.topic,
                one.partition.partition,
                one.should,
                one.owner,
                None if one.since is None else moment(one.since),
                one.position.lag,
                None if one.position.lag_ms is None else duration(one.position.lag_ms),
                "as it should be" if one.settled else one.cause.short,
            )
            for one in explained
        ],
    )


def document(analysis: GroupAnalysis, judgement: Judgement, explained: list[Explanation]) -> dict[str, object]:
    """Return the report as values for JSON."""
    state, strategy = analysis.state, analysis.strategy
    members = member_table(analysis)
    return {
        "group": analysis.snapshot.group,
        "taken": analysis.snapshot.taken,
        "state": state.state.value,
        "reason": state.reason,
        "severity": str(judgement.severity),
        "finding_counts": dict(judgement.counts),
        "headline": judgement.headline or None,
        "strategy": {"name": strategy.label, "sure": strategy.sure, "why": strategy.why},
        "members": [json_row(members, row) for row in members.rows],
        "topics": {
            one.partition.topic: {"threads": list(one.topic.threads), "partitions": list(one.topic.partitions)}
            for one in explained
        },
        "partitions": [one.document() for one in explained],
    }
