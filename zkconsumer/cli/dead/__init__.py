"""``zkconsumer dead``: lists, shows, exports, drops and replays dead letters and parked messages. The main thread's."""

from __future__ import annotations

import argparse

from zkconsumer.cli.dead.changes import (
    add_drop_arguments,
    add_replay_arguments,
    add_undo_arguments,
    run_drop,
    run_replay,
    run_undo,
)
from zkconsumer.cli.dead.listing import add_list_arguments, run_list
from zkconsumer.cli.dead.messages import add_export_arguments, add_show_arguments, run_export, run_show

__all__ = ["DESCRIPTION", "HELP", "NAME", "add_arguments", "run"]

NAME = "dead"
HELP = "list, show, export, drop and replay dead letters"
DESCRIPTION = """\
Looks after the messages that a run with concurrency= gave up, its dead letters, and those
that wait for another attempt (--parked). ZooKeeper keeps a pointer to each; the message
itself stays in the log.

  zkconsumer dead list --zookeeper HOST:2181
  zkconsumer dead show GROUP --topic TOPIC:0 --offset 1234 --zookeeper HOST:2181
  zkconsumer dead export GROUP --to FILE --zookeeper HOST:2181
  zkconsumer dead replay GROUP --all --zookeeper HOST:2181 --execute
  zkconsumer dead drop GROUP --reason TimeoutError --zookeeper HOST:2181 --execute
  zkconsumer dead undo FILE --zookeeper HOST:2181 --execute

"drop", "replay" and "undo" only show what they would do, without --execute. The group may
be live: a member hands a replayed message out within seconds.

Exit codes: 0 done; 1 failed, refused, or a message could not be read; 2 wrong usage; 130
after Ctrl-C.
"""

_VERBS = (
    ("list", "list dead letters", add_list_arguments, run_list),
    ("show", "show the content of one message", add_show_arguments, run_show),
    ("export", "write messages to a file, one JSON object a line", add_export_arguments, run_export),
    ("drop", "give up messages for good", add_drop_arguments, run_drop),
    ("replay", "hand messages to a member once more", add_replay_arguments, run_replay),
    ("undo", "put back the pointers that a drop removed", add_undo_arguments, run_undo),
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
