"""``zkconsumer snapshot``: writes everything about some groups at one moment to a file."""

from __future__ import annotations

import argparse
import sys

from zkconsumer.cli.source_arguments import add_source_arguments, open_source
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.snapshot_file import format_snapshot, write_snapshots

NAME = "snapshot"
HELP = "write everything about a group to a file, which other commands read"
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
    add_source_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    if arguments.append and not arguments.output:
        print("zkconsumer snapshot: --append goes with --output FILE", file=sys.stderr)
        return 2
    with open_source(arguments) as source:
        found = [require_group(source, group, message_times=True) for group in dict.fromkeys(arguments.groups)]
    for snapshot in found:
        for problem in snapshot.problems:
            print(f"zkconsumer snapshot: {problem.what}: {problem.why}", file=sys.stderr)
    if arguments.output:
        write_snapshots(arguments.output, found, append=arguments.append)
    else:
        sys.stdout.write("".join(map(format_snapshot, found)))
    return 0
