"""``zkconsumer groups``: lists, describes and deletes groups, with the flags of ``kafka-consumer-groups.sh``.

Runs in the main thread. ``group_tables`` makes the tables from snapshots. Only ``group_deletion`` writes.
"""

from __future__ import annotations

import argparse
import sys

from zkconsumer.cli.groups import arguments as options
from zkconsumer.cli.groups.arguments import add_arguments, as_flags
from zkconsumer.cli.groups.delete_command import delete_groups, delete_offsets
from zkconsumer.cli.groups.group_output import describe_groups, list_groups
from zkconsumer.cli.source_arguments import open_client, open_source
from zkconsumer.operations.snapshot_reader import LiveSource

__all__ = ["DESCRIPTION", "HELP", "NAME", "add_arguments", "as_flags", "run"]

NAME = "groups"
HELP = "list, describe and delete groups, as kafka-consumer-groups.sh"
DESCRIPTION = """\
Shows the groups that ZooKeeper coordinates, and those that the brokers coordinate, with
the flags, columns and texts of kafka-consumer-groups.sh. Each action is also a verb.

  zkconsumer groups --zookeeper HOST:2181 --list
  zkconsumer groups --zookeeper HOST:2181 --describe --group G
  zkconsumer groups describe G --members --verbose --zookeeper HOST:2181
  zkconsumer groups delete G --zookeeper HOST:2181 --execute
  zkconsumer groups --reset-offsets --group G --all-topics --to-earliest ...

--reset-offsets is "zkconsumer offsets reset", see its help.

One thing differs from Kafka's tool on purpose: --delete and --delete-offsets show what
they would do, and do it only with --execute.

Exit codes: 0 done, also for a group that does not exist, as in Kafka's tool; 1 failed, or
something was not deleted; 2 wrong usage; 130 after Ctrl-C.
"""


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    usage = options.wrong_usage(arguments)
    if usage:
        print(f"zkconsumer groups: {usage}", file=sys.stderr)
        return 2
    if arguments.action in (options.DELETE, options.DELETE_OFFSETS):
        with open_client(arguments) as client:
            delete = delete_groups if arguments.action == options.DELETE else delete_offsets
            return delete(LiveSource(client), client, arguments)
    with open_source(arguments) as source:
        if arguments.action == options.LIST:
            return list_groups(source, arguments)
        return describe_groups(source, arguments)
