"""``zkconsumer doctor``: finds what is wrong with a group, and says what to do.

``operations.doctor`` has the checks. This module reads the snapshots and prints the findings. Runs in the main thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from zkconsumer.cli.source_arguments import add_source_arguments, earlier_snapshots, open_source, read_groups
from zkconsumer.cli.tables import (
    CSV,
    JSON,
    Table,
    add_format_argument,
    add_watch_argument,
    as_json,
    cut,
    interval_argument,
    painted,
    render,
    watched,
)
from zkconsumer.cluster.cluster_client import read_properties
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.operations.doctor import ClockProbe, Finding, Level, examine, worst
from zkconsumer.operations.doctor.cluster import chroots_beside, probe_clock, with_rights
from zkconsumer.operations.doctor.findings import counted, listed
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.printable import printable
from zkconsumer.operations.serving.observed_group import ObservedGroup, observed
from zkconsumer.operations.snapshot_reader import BATCH, LiveSource

DESCRIPTION = """\
Examines groups: owners, registrations, strategies, offsets, rights, chroots, brokers and
clocks. Each finding has its evidence, the node, and what to do with the command to type.

  zkconsumer doctor GROUP --zookeeper HOST:2181/CHROOT
  zkconsumer doctor GROUP --zookeeper HOST:2181/CHROOT --member-config consumer.properties
  zkconsumer doctor --from monday.jsonl --from tuesday.jsonl --format json
  zkconsumer doctor --watch 10 --zookeeper HOST:2181/CHROOT

Without GROUP it examines all groups, and names those that are ok with --verbose only.
Nothing is written, except with --write-probe. What a finding means: zkconsumer help CHECK

Exit codes: 0 no error was found; 1 an error was found, or a group is unknown; 2 wrong
usage; 130 after Ctrl-C, which ends --watch. After q it is that of the last look.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("groups", metavar="GROUP", nargs="*", help="the group.id (default: all groups)")
    parser.add_argument(
        "--member-config",
        metavar="FILE",
        help="the properties file of a Scala member, for its retries, timeouts and zookeeper.connect",
    )
    parser.add_argument(
        "--write-probe",
        action="store_true",
        help="make one ephemeral node and delete it, to compare this machine's clock with ZooKeeper's",
    )
    parser.add_argument(
        "--twice",
        type=interval_argument,
        metavar="S",
        help="look again after so many seconds, for what one look cannot tell (such as flapping)",
    )
    add_watch_argument(parser)
    parser.add_argument("--verbose", action="store_true", help="name also the checks that found nothing")
    add_format_argument(parser)
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    config = None if arguments.member_config is None else read_properties(arguments.member_config)
    if arguments.watch is None:
        return _examine(arguments, config, None)
    if arguments.twice is not None or arguments.write_probe:
        raise ConfigException("--watch", "goes without --write-probe and --twice")
    title = f"doctor {' '.join(map(printable, arguments.groups)) or 'of all groups'}"
    return watched(partial(_examine, arguments, config, {}), arguments.watch, title)


def _examine(
    arguments: argparse.Namespace, config: Mapping[str, str] | None, before: dict[str, ObservedGroup] | None
) -> int:
    """Look once and print the findings. ``before`` is what earlier looks have seen, and takes this look in."""
    with open_source(arguments) as source:
        live = source if isinstance(source, LiveSource) else None
        if live is None and (arguments.write_probe or arguments.twice):
            raise ConfigException("--from", "goes without --write-probe and --twice: it reads no cluster")
        groups = tuple(dict.fromkeys(arguments.groups)) or source.groups()
        earlier = {group: [*earlier_snapshots(source, group)] for group in groups}
        named = bool(arguments.groups)
        if arguments.twice is not None:
            for one in _look(source, groups, named=named):
                earlier[one.group].append(one)
            time.sleep(arguments.twice)
        found, probed = {}, None
        for one in _look(source, groups, named=named and arguments.twice is None, live=live):
            if probed is None:  # the groups that were named exist
                probed = _probed(live, groups, writes=arguments.write_probe)
            probe, chroots = probed
            snapshots, progress = [*earlier.pop(one.group), one], None
            if before is not None:
                seen = before[one.group] = observed(before.get(one.group), one, points=1)
                snapshots, progress = [*seen.changes, one], seen.progress
            beside = None if chroots is None else chroots.get(one.group)
            found[one.group] = examine(snapshots, config, probe=probe, chroots=beside, progress=progress)
    if before is not None:
        for gone in before.keys() - found:
            del before[gone]
    print(shown(found, arguments.format, verbose=arguments.verbose))
    return 1 if any(worst(findings) is Level.ERROR for findings in found.values()) else 0


def _look(
    source: SnapshotSource, groups: Sequence[str], *, named: bool, live: LiveSource | None = None
) -> Iterator[GroupSnapshot]:
    """Yield the snapshot of each group now, with the times of the next messages, and the rights that ``live`` tells.

    The times tell whether an owner stands still. Of all groups, one may vanish before it is read. Raises
    UnknownGroupError for ``named`` groups.
    """
    batch: list[GroupSnapshot] = []
    for number, (group, found) in enumerate(read_groups(source, groups, message_times=True), 1):
        known = found.in_zookeeper or found.in_kafka or not named
        batch.append(found if known else require_group(source, group, message_times=True))
        if len(batch) == BATCH or number == len(groups):
            yield from batch if live is None else with_rights(live.client, batch)
            batch.clear()


def _probed(
    live: LiveSource | None, groups: Sequence[str], *, writes: bool
) -> tuple[ClockProbe | None, Mapping[str, Mapping[str, Collection[str]]] | None]:
    """Return what a live cluster says beyond the snapshots."""
    if live is None or not groups:
        return None, None
    usable = [group for group in groups if name_problem(group) is None]
    probe = probe_clock(live.client, usable[0]) if writes and usable else None
    return probe, chroots_beside(live.client, usable)


# ---- output


def shown(found: Mapping[str, Sequence[Finding]], form: str, *, verbose: bool = False) -> str:
    """Return the findings by group as text, CSV or JSON."""
    if form == JSON:
        return as_json([group_document(group, findings) for group, findings in found.items()])
    if form == CSV:
        rows = [
            [group, str(one.level), one.check, one.text, one.evidence, one.node, one.remedy, one.link]
            for group, findings in found.items()
            for one in findings
            if verbose or one.level is not Level.OK
        ]
        return render(Table(["GROUP", "LEVEL", "CHECK", "FINDING", "EVIDENCE", "NODE", "REMEDY", "DOCS"], rows), CSV)
    if len(found) < 2:
        return "".join(_text(group, findings, verbose=verbose) for group, findings in found.items()) or "no group"
    worst_first = sorted(found.items(), key=lambda one: -worst(one[1]))
    told = [
        _text(group, findings, verbose=verbose)
        for group, findings in worst_first
        if verbose or worst(findings) > Level.OK
    ]
    return "\n\n".join([summary(found), *told])


_LONGEST_NAME = 40
NAMED = {Level.ERROR: "error", Level.WARN: "warning", Level.NOTE: "note"}


def summary(found: Mapping[str, Sequence[Finding]]) -> str:
    """Return one line about several groups: ``3 errors in g5, g12; 40 groups are ok``.

    A group counts by its worst findings.
    """
    parts = []
    for level, word in NAMED.items():
        groups = {group: findings for group, findings in found.items() if worst(findings) is level}
        number = sum(one.level is level for findings in groups.values() for one in findings)
        if groups:
            names = (cut(printable(group), _LONGEST_NAME) for group in groups)
            parts.append(painted(f"{counted(number, word)} in {listed(names)}", level))
    fine = sum(worst(findings) is Level.OK for findings in found.values())
    if fine:
        parts.append(painted(f"{counted(fine, 'group')} {'is' if fine == 1 else 'are'} ok", Level.OK))
    return "; ".join(parts)


def group_document(group: str, findings: Sequence[Finding]) -> dict[str, object]:
    """Return the findings about a group as a JSON document."""
    return {
        "group": group,
        "level": str(worst(findings)),
        "findings": [
            {
                "level": str(one.level),
                "check": one.check,
                "unknown": one.unknown,
                "text": one.text,
                "evidence": one.evidence,
                "node": one.node,
                "remedy": one.remedy,
                "link": one.link,
            }
            for one in findings
        ],
    }


def _counts(findings: Sequence[Finding]) -> str:
    numbers = [(sum(one.level is level for one in findings), word) for level, word in NAMED.items()]
    told = ", ".join(counted(number, word) for number, word in numbers if number)
    return f" ({told})" if told else ""


def _text(group: str, findings: Sequence[Finding], *, verbose: bool) -> str:
    level = worst(findings)
    lines = [f"group {printable(group)}: {painted(str(level), level)}{_counts(findings)}"]
    asked = {one.check for one in findings if one.level is Level.OK and one.unknown}
    fine = {one.check for one in findings if one.level is Level.OK} - asked
    width = max(len(one.check) for one in findings) if findings else 0
    for one in findings:
        if one.level is Level.OK and not verbose:
            continue
        word = painted(f"{one.level!s:5}", one.level)
        lines.append(f"  {word} {one.check:{width}}  {printable(one.text)}")
        for name in ("evidence", "node", "remedy", "link"):
            value = getattr(one, name)
            if value and (name != "link" or one.level > Level.NOTE):
                lines.append(f"        {name + ':':9} {printable(value)}")
    need = "needs" if len(asked) == 1 else "need"
    more = "" if verbose or not asked else f"; {len(asked)} {need} an option or a right, see --verbose"
    lines.append(f"  {len(fine)} of {len({one.check for one in findings})} checks found nothing{more}")
    return "\n".join(lines)
