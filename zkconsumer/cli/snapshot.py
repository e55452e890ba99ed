"""``zkconsumer snapshot``: writes everything about some groups at one moment to a file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from zkconsumer.cli.source_arguments import add_source_arguments, open_source
from zkconsumer.operations.anonymization import anonymized
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.printable import printable
from zkconsumer.operations.snapshot_file import FileSource, format_snapshot, write_snapshots

DESCRIPTION = """\
Writes what ZooKeeper and the brokers say about groups at this moment: members, owners,
offsets, logs. Every reading command takes the file in place of a cluster, with --from.

  zkconsumer snapshot GROUP --zookeeper HOST:2181/CHROOT --output group.jsonl
  zkconsumer snapshot GROUP --zookeeper HOST:2181/CHROOT --output group.jsonl --append
  zkconsumer snapshot GROUP --from group.jsonl --anonymize --output to-send.jsonl

Exit codes: 0 done; 1 failed, or a group is unknown; 2 wrong usage.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("groups", metavar="GROUP", nargs="+", help="the group.id")
    parser.add_argument("--output", metavar="FILE", help="the file to write (default: standard output)")
    parser.add_argument("--append", action="store_true", help="add to the file in place of replacing it")
    parser.add_argument(
        "--anonymize", action="store_true", help="replace all names and addresses by random ones, in the same order"
    )
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    if arguments.append and not arguments.output:
        print("zkconsumer snapshot: --append goes with --output FILE", file=sys.stderr)
        return 2
    with open_source(arguments) as source:
        found = [one for group in dict.fromkeys(arguments.groups) for one in _of_group(source, group)]
    for snapshot in found:
        for problem in snapshot.problems:
            print(f"zkconsumer snapshot: {printable(f'{problem.what}: {problem.why}')}", file=sys.stderr)
    if arguments.anonymize:
        found = anonymized(found)
    if arguments.output:
        write_snapshots(arguments.output, found, append=arguments.append)
    else:
        sys.stdout.write("".join(map(format_snapshot, found)))
    return 0


def _of_group(source: SnapshotSource, group: str) -> Sequence[GroupSnapshot]:
    """Return the present snapshot of a cluster's group, or all those of a file. Raises UnknownGroupError."""
    present = require_group(source, group, message_times=True)
    return source.history(group) if isinstance(source, FileSource) else (present,)
