"""``zkconsumer timeline``: the changes of a group in the order of ZooKeeper's transactions, and its rebalances.

Runs in the main thread. ``group_timeline`` of ``operations`` makes the events of snapshots, ``timeline_watch`` follows.
Each event is a line. Neighbours of one kind and one thread share a line. A rebalance ends with a line that sums it up.
An unknown value is a dash, or a bound: ``<=0x1f`` is a transaction not after 0x1f. Names come from nodes, so control
characters in them are written as escapes.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from time import monotonic, time

from zkconsumer.cli.source_arguments import add_source_arguments, moment_argument, open_client, open_source
from zkconsumer.cli.tables import reader_is_gone, terminated
from zkconsumer.cluster.cluster_client import zookeeper_session
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.group_timeline import (
    CAUSES,
    EventKind,
    Rebalance,
    TimelineEvent,
    cause_text,
    events,
    rebalances,
)
from zkconsumer.operations.printable import duration, printable
from zkconsumer.operations.serving.history_file import DAY, LEVELS, TEN_MINUTES, PastFinding, Sample, read_history
from zkconsumer.operations.timeline_watch import GroupWatch, OpenRebalance

DESCRIPTION = """\
Shows the joins, leaves, claims and releases of a group in the order of ZooKeeper's
transactions, and sums each rebalance up: its cause, its duration, the partitions that
moved, and the last claim.

  zkconsumer timeline GROUP --zookeeper HOST:PORT
  zkconsumer timeline GROUP --zookeeper HOST:PORT --follow --format json
  zkconsumer timeline GROUP --from MONDAY.json --from TUESDAY.json --since 2h
  zkconsumer timeline GROUP --history FILE --since 1d

Without --follow it shows what the nodes tell that still stand. Several snapshots also
tell what vanished between them. What is unknown is a dash, or a bound as in "<=0x1f".
With --history it reads the file of 'zkconsumer serve --history', which also has the
findings that came and went, and the lag.

Exit codes: 0 done; 1 there is no such group, or it cannot be read; 2 wrong usage; 130
after Ctrl-C or SIGTERM, which are the usual ends of --follow.
"""

_MOST_WARNINGS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("group", metavar="GROUP", help="the group.id")
    add_source_arguments(parser)
    parser.add_argument(
        "--history", metavar="FILE", help="read this file of 'zkconsumer serve --history' in place of a cluster"
    )
    parser.add_argument("--follow", action="store_true", help="print further changes as they happen, until Ctrl-C")
    parser.add_argument(
        "--since",
        type=moment_argument,
        metavar="WHEN",
        help="only from this time on: 90s, 10m, 2h, 3d, or 2026-11-22T17:00:00Z",
    )
    parser.add_argument("--commits", action="store_true", help="also show the last commit of each partition")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="print text, or one JSON object a line"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    if arguments.history is not None:
        if arguments.follow or arguments.snapshots or arguments.zookeeper or arguments.bootstrap_server:
            raise ConfigException("--history", "goes without --follow, --from and the addresses of a cluster")
        return _past(arguments)
    if arguments.follow:
        if arguments.snapshots:
            raise ConfigException("--follow", "goes without --from: a file does not change any more")
        return _follow(arguments)
    with open_source(arguments) as source:
        history = source.history(arguments.group)
        if not any(one.in_zookeeper or one.in_kafka for one in history):
            history = [require_group(source, arguments.group)]
    found = events(history)
    _warn(history[-1], found)
    if arguments.since is not None:
        found = since(found, arguments.since)
    if arguments.format == "json":
        _print(_json_lines(found, rebalances(found), arguments.commits))
    else:
        _print(report(found, commits=arguments.commits))
    return 0


def _past(arguments: argparse.Namespace) -> int:
    """Show what the file of ``serve --history`` has of the group."""
    begin, end = (arguments.since or 0) // 1000, int(time()) + DAY
    with closing(read_history(arguments.history)) as file:
        try:
            if arguments.group not in file.groups():
                raise ConfigException("GROUP", f"{arguments.group!a} is not in {arguments.history}")
            formed = file.rebalances(arguments.group, begin, end)
            found = file.findings(arguments.group, begin, end)
            samples = file.samples(arguments.group, begin, end, TEN_MINUTES)
        except sqlite3.Error as error:
            raise ConfigException("--history", f"{arguments.history} cannot be read: {error}") from None
    if arguments.format == "json":
        for one in formed:
            _print(_json_lines(one.events, [one], False))
        _print(json.dumps({"type": "finding", **one.document()}) for one in found)
        _print(json.dumps({"type": "lag", **one.document()}) for one in samples)
    else:
        _print(past_report(formed, found, samples))
    return 0


def past_report(formed: Sequence[Rebalance], found: Sequence[PastFinding], samples: Sequence[Sample]) -> Iterator[str]:
    """Yield the lines of rebalances and findings in the order of their times, and one about the lag."""
    told: list[tuple[int, list[str]]] = []
    for rebalance in formed:
        times = [event.at or event.seen or 0 for event in rebalance.events]
        told.append((max(times, default=0), list(report(rebalance.events, [rebalance]))))
    for one in found:
        what = printable(f"{one.check}: {LEVELS[one.level]}: {one.text.partition('. ')[0]}")
        where = f" ({printable(one.node)})" if one.node else ""
        told.append((one.came * 1000, [_past_line(one.came, "finding came", f"{what}{where}")]))
        if one.went is not None:
            took = duration((one.went - one.came) * 1000)
            line = _past_line(one.went, "finding went", f"{printable(one.check)} after {took}{where}")
            told.append((one.went * 1000, [line]))
    for _, lines in sorted(told, key=lambda one: one[0]):
        yield from lines
    known = [one for one in samples if one.lag is not None]
    if known:
        most = max(known, key=lambda one: one.lag or 0)
        seconds = sum(one.seconds for one in samples)
        yield (
            f"(lag: at most {most.lag} at {_instant(most.at * 1000)}, then {known[-1].lag};"
            f" {sum(one.consumed for one in samples)} messages consumed in {duration(seconds * 1000)} of watching)"
        )


def _past_line(at: int, kind: str, text: str) -> str:
    return f"{_instant(at * 1000):24}  {NO_TIME:{_ZXID_WIDTH}}  {kind:{_KIND_WIDTH}}  {text}"


def _warn(latest: GroupSnapshot, found: tuple[TimelineEvent, ...]) -> None:
    """Say on standard error what was not read, and why there may be nothing to show."""
    for problem in latest.problems[:_MOST_WARNINGS]:
        print(f"zkconsumer timeline: not read: {printable(f'{problem.what}: {problem.why}')}", file=sys.stderr)
    if not found and latest.in_kafka and not latest.in_zookeeper:
        told = "the brokers tell only the present state: give several snapshots with --from"
        print(f"zkconsumer timeline: {told}", file=sys.stderr)


def _print(lines: Iterable[str]) -> None:
    """Print lines, each at once: a program may read them while we follow."""
    for line in lines:
        print(line, flush=True)


def _json_lines(found: Iterable[TimelineEvent], over: Iterable[Rebalance], commits: bool) -> Iterator[str]:
    for event in found:
        if commits or event.kind is not EventKind.COMMITTED:
            yield json.dumps({"type": "event", **event.document()})
    for one in over:
        yield json.dumps({"type": "rebalance", **one.document()})


def _follow(arguments: argparse.Namespace) -> int:
    if problem := name_problem(arguments.group):
        raise ConfigException("GROUP", problem)
    client = open_client(arguments)
    if not client.zookeeper:
        raise ConfigException("--zookeeper", "is missing: --follow needs it; brokers tell nobody of changes")
    session = partial(zookeeper_session, client.config)
    with terminated(), GroupWatch(session, arguments.group, timeout=client.timeout) as watch:
        collected, first = OpenRebalance(), True
        for found in watch.changes():
            if first and watch.snapshot is not None:
                first = False
                _show_standing(found, arguments)
                continue
            over = collected.add(found, monotonic(), watch.snapshot)
            if arguments.format == "json":
                _print(_json_lines(found, over, True))
            else:
                _print([*report(found, ()), *map(rebalance_line, over)])
            if reader_is_gone():
                return 0
    return 0


def _show_standing(found: tuple[TimelineEvent, ...], arguments: argparse.Namespace) -> None:
    if arguments.since is not None:
        found = since(found, arguments.since)
    if arguments.format == "json":
        _print(_json_lines(found, rebalances(found), True))
    else:
        _print(report(found))


_FOLDED = frozenset({EventKind.CLAIMED, EventKind.RELEASED, EventKind.COMMITTED, EventKind.OFFSET_DELETED})
_ZXID_WIDTH = 14
_KIND_WIDTH = max(len(kind.value) for kind in EventKind)
_USEFUL = 600.0
"""Seconds. A larger bound of a duration tells nothing but how rarely somebody looked."""
NO_TIME = "-"


def report(
    found: Sequence[TimelineEvent], formed: Sequence[Rebalance] | None = None, *, commits: bool = True
) -> Iterator[str]:
    """Yield the lines of events that stand in order, and of the rebalances that they ``formed`` (None: find them).

    Without ``commits`` the commits are only counted.
    """
    ends = {id(one.events[-1]): one for one in (rebalances(found) if formed is None else formed) if one.events}
    run: list[TimelineEvent] = []
    left_out = 0
    for event in found:
        if not commits and event.kind is EventKind.COMMITTED:
            left_out += 1
            continue
        if run and not _together(run[-1], event):
            yield event_line(run)
            run = []
        run.append(event)
        if (ended := ends.get(id(event))) is not None:
            yield event_line(run)
            run = []
            yield rebalance_line(ended)
    if run:
        yield event_line(run)
    if left_out:
        yield f"(--commits also shows the last commits, here {left_out})"


def event_line(run: Sequence[TimelineEvent]) -> str:
    """Return the line of one event, or of neighbours that :func:`report` puts together."""
    first = run[0]
    words = [printable(first.member)] if first.member else []
    if first.partition is not None:
        numbers = _numbers([event.partition.partition for event in run if event.partition is not None])
        words.append(f"{printable(first.partition.topic)}:{numbers}")
    details = list(dict.fromkeys(event.detail for event in run if event.detail))
    if details:
        words.append(f"({printable(details[0])}{', ...' if len(details) > 1 else ''})")
    return (
        f"{time_text(first):24}  {zxid_text(first):{_ZXID_WIDTH}}  {first.kind.value:{_KIND_WIDTH}}  {' '.join(words)}"
    )


def rebalance_line(one: Rebalance) -> str:
    """Return the line that sums a rebalance up."""
    cause = printable("; ".join(map(cause_text, one.causes))) or "unknown, nothing that stands explains it"
    parts = [f"cause: {cause}"]
    if one.claims:
        parts.append(_duration_text(one))
        moved, unknown = len(one.moved), sum(move.before is None for move in one.moves)
        parts.append(f"{len(one.moves)} claimed, {moved} of them moved" + (f", {unknown} unknown" if unknown else ""))
        parts.append(f"last claim by {printable(one.last) or 'an unreadable owner'}")
    else:
        parts.append("no claim that still stands")
    return f"  = rebalance: {'; '.join(parts)}"


def _duration_text(one: Rebalance) -> str:
    if one.duration is not None:
        return f"{one.duration:.3f} s"
    if one.at_least is not None and one.at_most is not None and one.at_least <= one.at_most < _USEFUL:
        return f"{one.at_least:.3f} to {one.at_most:.3f} s"
    least = f"at least {one.at_least:.3f} s, " if one.at_least is not None else ""
    return f"duration: {least}its begin is unknown" if least else "duration: unknown"


def time_text(event: TimelineEvent) -> str:
    """Return when it happened: by ZooKeeper's clock, else the time by which our clock had seen it, else a dash."""
    if event.at is not None:
        return _instant(event.at)
    return f"<={_instant(event.seen)}" if event.seen is not None else NO_TIME


def zxid_text(event: TimelineEvent) -> str:
    """Return the transaction as ZooKeeper's tools write it."""
    if event.zxid is not None:
        return f"{event.zxid:#x}"
    return f"<={event.before:#x}" if event.before else NO_TIME


def _instant(at: int) -> str:
    try:
        text = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):  # a clock that is thousands of years off
        return f"{at} ms"
    return text.replace("+00:00", "Z")


def _together(one: TimelineEvent, other: TimelineEvent) -> bool:
    return (
        one.kind in _FOLDED
        and (one.kind, one.member) == (other.kind, other.member)
        and one.partition is not None
        and other.partition is not None
        and one.partition.topic == other.partition.topic
    )


def _numbers(partitions: Sequence[int]) -> str:
    """Return numbers as ``0-3,7``."""
    spans: list[list[int]] = []
    for number in sorted(set(partitions)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def since(found: Sequence[TimelineEvent], at: int) -> tuple[TimelineEvent, ...]:
    """Return the events from a time on (milliseconds since 1970), also later events without a time."""
    for number, event in enumerate(found):
        when = event.at if event.at is not None else event.seen
        if when is not None and when >= at:
            # a cause without a time directly before its claims belongs to them
            while number > 0 and found[number - 1].kind in CAUSES and found[number - 1].at is None:
                number -= 1
            return tuple(found[number:])
    return ()
