"""``zkconsumer doctor``: finds what is wrong with a group, and says what to do.

``operations.doctor`` has the checks. This module reads the snapshots and prints the findings. Runs in the main thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Collection, Mapping, Sequence

from zkconsumer.cli.source_arguments import add_source_arguments, earlier_snapshots, open_source
from zkconsumer.cli.tables import CSV, JSON, Table, add_format_argument, as_json, printable, render
from zkconsumer.cluster.cluster_client import read_properties
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.operations.doctor import ClockProbe, Finding, Level, examine, worst
from zkconsumer.operations.doctor.cluster import chroots_beside, probe_clock, with_rights
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.snapshot_reader import LiveSource

NAME = "doctor"
HELP = "find what is wrong with a group, and say what to do"
DESCRIPTION = """\
Examines groups: owners, registrations, strategies, offsets, rights, chroots, brokers and
clocks. Each finding has its evidence, the node, and what to do with the command to type.

  zkconsumer doctor GROUP --zookeeper HOST:2181/CHROOT
  zkconsumer doctor GROUP --zookeeper HOST:2181/CHROOT --member-config consumer.properties
  zkconsumer doctor --from monday.jsonl --from tuesday.jsonl --format json

Without GROUP it examines all groups. Nothing is written, except with --write-probe.

Exit codes: 0 no error was found; 1 an error was found, or a group is unknown; 2 wrong
usage.
"""
_LONGEST_S = 24 * 3600.0


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
        type=_seconds,
        metavar="S",
        help="look again after so many seconds, for what one look cannot tell (such as flapping)",
    )
    parser.add_argument("--verbose", action="store_true", help="name also the checks that found nothing")
    add_format_argument(parser)
    add_source_arguments(parser)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= _LONGEST_S:
        raise ValueError
    return value


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    config = None if arguments.member_config is None else read_properties(arguments.member_config)
    with open_source(arguments) as source:
        live = source if isinstance(source, LiveSource) else None
        if live is None and (arguments.write_probe or arguments.twice):
            raise ConfigException("--from", "goes without --write-probe and --twice: it reads no cluster")
        groups = tuple(dict.fromkeys(arguments.groups)) or source.groups()
        looks = {group: [*earlier_snapshots(source, group)] for group in groups}
        for group, snapshots in looks.items():  # of all groups, one may vanish before it is read
            snapshots.append(_look(source, group, named=bool(arguments.groups)))
        if arguments.twice is not None:
            time.sleep(arguments.twice)
            for group, snapshots in looks.items():
                snapshots.append(_look(source, group))
        if live is not None:
            for snapshots in looks.values():
                snapshots[-1] = with_rights(live.client, snapshots[-1])
        probe, chroots = _probed(live, groups, writes=arguments.write_probe)
    found = {
        group: examine(snapshots, config, probe=probe, chroots=None if chroots is None else chroots.get(group))
        for group, snapshots in looks.items()
    }
    print(shown(found, arguments.format, verbose=arguments.verbose))
    return 1 if any(worst(findings) is Level.ERROR for findings in found.values()) else 0


def _look(source: SnapshotSource, group: str, *, named: bool = False) -> GroupSnapshot:
    """Return the group now, with the times of the next messages: they tell whether an owner stands still."""
    return require_group(source, group, message_times=True) if named else source.snapshot(group, message_times=True)


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
    return "\n\n".join(_text(group, findings, verbose=verbose) for group, findings in found.items()) or "no group"


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


def _text(group: str, findings: Sequence[Finding], *, verbose: bool) -> str:
    lines = [f"group {group}: {worst(findings)}"]
    asked = {one.check for one in findings if one.level is Level.OK and one.unknown}
    fine = {one.check for one in findings if one.level is Level.OK} - asked
    width = max(len(one.check) for one in findings) if findings else 0
    for one in findings:
        if one.level is Level.OK and not verbose:
            continue
        lines.append(f"  {one.level!s:5} {one.check:{width}}  {one.text}")
        for name in ("evidence", "node", "remedy", "link"):
            value = getattr(one, name)
            if value and (name != "link" or one.level > Level.NOTE):
                lines.append(f"        {name + ':':9} {value}")
    need = "needs" if len(asked) == 1 else "need"
    more = "" if verbose or not asked else f"; {len(asked)} {need} an option or a right, see --verbose"
    lines.append(f"  {len(fine)} of {len({one.check for one in findings})} checks found nothing{more}")
    return "\n".join(map(printable, lines))
