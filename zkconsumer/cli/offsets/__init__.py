"""``zkconsumer offsets``: resets a group's offsets, undoes a reset, and deletes dead offsets. The main thread's."""

from __future__ import annotations

import argparse

from zkconsumer.cli.offsets.prune import add_prune_arguments, run_prune
from zkconsumer.cli.offsets.reset import run_reset
from zkconsumer.cli.offsets.reset_arguments import add_reset_arguments, as_reset
from zkconsumer.cli.offsets.undo import add_undo_arguments, run_undo

__all__ = ["DESCRIPTION", "HELP", "NAME", "add_arguments", "add_reset_arguments", "as_reset", "run", "run_reset"]

NAME = "offsets"
HELP = "reset the offsets of groups, undo a reset, delete dead offsets"
DESCRIPTION = """\
Writes the offsets of groups, in ZooKeeper, in Kafka, or in both. Nothing is written
without --execute.

  zkconsumer offsets reset GROUP --to-earliest --all-topics --zookeeper HOST:2181
  zkconsumer offsets undo FILE --zookeeper HOST:2181
  zkconsumer offsets prune GROUP --zookeeper HOST:2181

"reset" takes the options of kafka-consumer-groups.sh --reset-offsets. It also resets a
live group, if every owner of the partitions is a member of this package that adopts the
new offset (offset.conflict=adopt).

Exit codes: 0 done; 1 refused or failed, or a member did not follow (each is named); 2
wrong usage; 130 after Ctrl-C and 143 after SIGTERM: what was written is listed.
"""

_VERBS = (
    ("reset", "move the offsets of groups", add_reset_arguments, run_reset),
    ("undo", "put back the offsets from before a reset", add_undo_arguments, run_undo),
    ("prune", "delete offsets of topics and partitions that exist no more", add_prune_arguments, run_prune),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verbs with their options."""
    verbs = parser.add_subparsers(title="verbs", metavar="<verb>", required=True)
    for name, text, declare, perform in _VERBS:
        verb = verbs.add_parser(name, help=text, description=text.capitalize() + ".")
        declare(verb)
        verb.set_defaults(perform=perform)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb. Return the exit code. Raises: ZkConsumerError."""
    return int(arguments.perform(arguments))
