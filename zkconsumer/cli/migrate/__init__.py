"""``zkconsumer migrate``: moves a group's offsets from ZooKeeper to Kafka and back.

Runs in the main thread. ``core.migration`` makes the plan, ``migration_steps`` performs it and prints the result, and
``group_offsets`` reads and writes the stores.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from pathlib import Path

from zkconsumer.cli.migrate import migration_steps
from zkconsumer.cli.migrate.migrated_group import MigratedGroup
from zkconsumer.config import ConsumerConfig
from zkconsumer.config.java_properties import parse_properties
from zkconsumer.core.migration.planning import AheadPolicy, OutOfRangePolicy, Store, parse_selection
from zkconsumer.errors import ConfigException

NAME = "migrate"
HELP = "move a group's offsets from ZooKeeper to Kafka, and back"
DESCRIPTION = """\
Moves the offsets of a group between ZooKeeper and Kafka, compares the two, writes
them to a file, or restores the offsets that an earlier run overwrote.

  zkconsumer migrate GROUP --config consumer.properties --to kafka --dry-run
  zkconsumer migrate GROUP --config consumer.properties --to kafka
  zkconsumer migrate GROUP --config consumer.properties --verify
  zkconsumer migrate GROUP --config consumer.properties --rollback FILE

It writes nothing while the group has live members on either side (see --rolling). It
also writes nothing while you have to decide about an offset: one that is not in its log,
or one that would move back. It lists these obstacles. Before it overwrites offsets, it
saves them to a file.

Exit codes: 0 done, or both stores agree; 1 failed (the written offsets are listed);
2 wrong usage; 3 there is nothing to move; 4 you have to decide something first, or the
stores differ; 5 the group has live members. With 2 to 5 nothing was written. 130 after
Ctrl-C: the written offsets are listed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("group", metavar="GROUP", help="the group.id")
    where = parser.add_argument_group("where the group is")
    where.add_argument(
        "--config",
        metavar="FILE",
        help="a properties file with the connector's keys: zookeeper.connect, and those of security",
    )
    where.add_argument("--zookeeper", metavar="CONNECT", help="zookeeper.connect, in place of the file's")
    where.add_argument(
        "--timeout", type=_seconds, default=30.0, metavar="S", help="seconds for each access to a store (default: 30)"
    )
    _add_actions(parser)
    moves = parser.add_argument_group("what to move")
    moves.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:0,1,4-7]",
        help="only this topic, or these partitions of it; may be repeated",
    )
    moves.add_argument(
        "--from-file", metavar="FILE", help="with --to: write the offsets of this CSV, in place of the other store's"
    )
    moves.add_argument(
        "--out-of-range",
        choices=[policy.value for policy in OutOfRangePolicy],
        default="refuse",
        help="for an offset that is not in its log: write the log's earliest or latest offset, keep the offset, or "
        "skip the partition (default: refuse to write anything)",
    )
    moves.add_argument(
        "--ahead",
        choices=[policy.value for policy in AheadPolicy],
        default="refuse",
        help="for an offset that is larger in the store to write to (default: refuse to write anything)",
    )
    how = parser.add_argument_group("how")
    how.add_argument("--dry-run", action="store_true", help="show the plan, and write nothing")
    how.add_argument("--backup", metavar="FILE", help="file for the overwritten offsets (default: a new file here)")
    how.add_argument(
        "--rolling",
        action="store_true",
        help='with --to: allow live members that coordinate through the other side (docs: "Leaving ZooKeeper")',
    )
    how.add_argument("--force", action="store_true", help="with --rollback: also restore offsets that changed since")
    how.add_argument(
        "--wait",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="with --verify: repeat the comparison for so many seconds while the stores differ",
    )
    how.add_argument("--output", metavar="FILE", help="with --export: write to this file (default: standard output)")
    how.add_argument("--with-group", action="store_true", help="with --export: add the group as the first column")


def _add_actions(parser: argparse.ArgumentParser) -> None:
    stores = [store.value for store in Store]
    actions = parser.add_argument_group("what to do").add_mutually_exclusive_group(required=True)
    actions.add_argument("--to", choices=stores, help="write the other store's offsets to this one")
    actions.add_argument("--verify", action="store_true", help="compare the two stores")
    actions.add_argument(
        "--rollback", metavar="FILE", help="restore the offsets from before the run that made this file"
    )
    actions.add_argument(
        "--export",
        choices=stores,
        help="print this store's offsets as the CSV of kafka-consumer-groups.sh (topic,partition,offset)",
    )


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError."""
    usage = _usage(arguments)
    if usage:
        print(f"zkconsumer migrate: {usage}", file=sys.stderr)
        return 2
    try:
        selection = parse_selection(arguments.topic)
    except ValueError as error:
        print(f"zkconsumer migrate: --topic: {error}", file=sys.stderr)
        return 2
    with MigratedGroup(_config(arguments), arguments.timeout) as group:
        if arguments.verify:
            return migration_steps.verify(group, selection, arguments.wait)
        if arguments.export:
            output = Path(arguments.output) if arguments.output else None
            return migration_steps.export(
                group, Store(arguments.export), selection, output, with_group=arguments.with_group
            )
        options = migration_steps.MigrationOptions(
            dry_run=arguments.dry_run,
            rolling=arguments.rolling,
            force=arguments.force,
            backup=Path(arguments.backup) if arguments.backup else None,
            out_of_range=OutOfRangePolicy(arguments.out_of_range),
            ahead=AheadPolicy(arguments.ahead),
        )
        if arguments.rollback:
            return migration_steps.rollback(group, Path(arguments.rollback), selection, options)
        source = Path(arguments.from_file) if arguments.from_file else None
        return migration_steps.move(group, Store(arguments.to), source, selection, options)


_ONLY_WITH = {
    "to": ("from_file", "rolling", "out_of_range", "ahead"),
    "verify": ("wait",),
    "rollback": ("force",),
    "export": ("output", "with_group"),
}
_DEFAULTS = {"out_of_range": "refuse", "ahead": "refuse", "wait": 0.0}


def _usage(arguments: argparse.Namespace) -> str:
    """Return the error in the combination of options, or an empty text."""
    if not arguments.config and not arguments.zookeeper:
        return "--zookeeper or --config is needed, to know where the group is"
    for option in ("config", "from_file", "backup", "rollback", "output"):
        if getattr(arguments, option) == "":  # for example, an unset variable in a script
            return f"--{option.replace('_', '-')} names no file"
    for action, options in _ONLY_WITH.items():
        for option in options:
            if not getattr(arguments, action) and getattr(arguments, option) not in (
                None,
                False,
                _DEFAULTS.get(option),
            ):
                return f"--{option.replace('_', '-')} goes with --{action} only"
    if (arguments.verify or arguments.export) and (arguments.dry_run or arguments.backup):
        return "--dry-run and --backup go with what writes, --to or --rollback"
    return ""


def _config(arguments: argparse.Namespace) -> ConsumerConfig:
    """Return the configuration. Raises ConfigException."""
    properties: dict[str, str] = {}
    if arguments.config:
        try:
            properties = parse_properties(Path(arguments.config).read_bytes().decode("iso-8859-1"))
        except (OSError, ValueError) as error:
            raise ConfigException(arguments.config, str(error)) from None
    named = properties.get("group.id", arguments.group)
    if named != arguments.group:
        raise ConfigException("group.id", f"{arguments.config} is for {named!r}, and {arguments.group!r} is asked for")
    properties["group.id"] = arguments.group
    if arguments.zookeeper:
        properties["zookeeper.connect"] = arguments.zookeeper
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = ConsumerConfig(properties)
    if not config.zookeeper_connect:
        raise ConfigException("zookeeper.connect", "is missing: one of the two stores is ZooKeeper")
    for warning in caught:
        print(f"zkconsumer migrate: {warning.message}", file=sys.stderr)
    return config
