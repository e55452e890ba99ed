"""``zkconsumer migrate``: moves a group's offsets from ZooKeeper to Kafka and back.

Runs in the main thread. ``core.offset_move_plan`` makes the plan, ``migration_steps`` performs the plan and prints the
result, and ``operations.offset_writer`` writes the stores.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from pathlib import Path

from zkconsumer.cli.migrate import migration_steps
from zkconsumer.cli.migrate.migration_steps import MigratedGroup
from zkconsumer.cli.source_arguments import add_topics, connect_options, seconds_argument
from zkconsumer.cluster.cluster_client import read_properties
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.offset_move_plan import AheadPolicy, OutOfRangePolicy, Store, parse_selection
from zkconsumer.errors import ConfigException

DESCRIPTION = """\
Moves the offsets of a group between ZooKeeper and Kafka, compares the two, writes
them to a file, or restores the offsets that an earlier run overwrote.

  zkconsumer migrate GROUP --zookeeper HOST:2181 --to kafka --dry-run
  zkconsumer migrate GROUP --zookeeper HOST:2181 --to kafka --execute
  zkconsumer migrate GROUP --zookeeper HOST:2181 --verify
  zkconsumer offsets undo FILE --zookeeper HOST:2181 --execute

It writes nothing while the group has live members on either side (see --rolling). It
also writes nothing while you have to decide about an offset: one that is not in its log,
or one that would move back. It lists these obstacles. Before it overwrites offsets, it
saves them to an undo file, which "offsets undo" puts back.

This release still writes without --execute, with a warning. The next one will not.

Exit codes: 0 done, or both stores agree; 1 failed (the written offsets are listed);
2 wrong usage; 3 there is nothing to move; 4 you have to decide something first, or the
stores differ; 5 the group has live members. With 2 to 5 nothing was written. 130 after
Ctrl-C and 143 after SIGTERM: the written offsets are listed.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("group", metavar="GROUP", help="the group.id")
    where = parser.add_argument_group("where the group is")
    where.add_argument(
        "--command-config",
        metavar="FILE",
        help="a properties file with the connector's keys: zookeeper.connect, and those of security",
    )
    where.add_argument("--config", metavar="FILE", help="the former name of --command-config")
    where.add_argument("--zookeeper", metavar="CONNECT", help="zookeeper.connect, in place of the file's")
    where.add_argument(
        "--timeout",
        type=seconds_argument,
        default=30.0,
        metavar="S",
        help="seconds for each access to a store (default: 30)",
    )
    _add_actions(parser)
    _add_selection(parser)
    _add_ways(parser)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    moves = parser.add_argument_group("what to move")
    add_topics(moves, "only this topic, or these partitions of it")
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


def _add_ways(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how")
    how.add_argument("--dry-run", action="store_true", help="show the plan, and write nothing")
    how.add_argument("--execute", action="store_true", help="write the offsets")
    how.add_argument("--undo-file", metavar="FILE", help="the new file for what is overwritten (default: one here)")
    how.add_argument("--backup", metavar="FILE", help="the former name of --undo-file")
    how.add_argument(
        "--rolling",
        action="store_true",
        help='with --to: allow live members that coordinate through the other side (docs: "Leaving ZooKeeper")',
    )
    how.add_argument("--force", action="store_true", help="with --rollback: also restore offsets that changed since")
    how.add_argument(
        "--wait",
        type=seconds_argument,
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
    actions.add_argument("--rollback", metavar="FILE", help="the former way to 'zkconsumer offsets undo FILE'")
    actions.add_argument(
        "--export",
        choices=stores,
        help="print this store's offsets as the CSV of kafka-consumer-groups.sh (topic,partition,offset)",
    )


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
    _take_former_options(arguments)
    config = _config(arguments)
    arguments.zookeeper = config.zookeeper_connect  # an undo by the file alone would ask the file's bootstrap.servers
    _warn_of_former_ways(arguments)
    with MigratedGroup(config, arguments.timeout) as group:
        if arguments.verify:
            return migration_steps.verify(group, selection, arguments.wait)
        if arguments.export:
            output = Path(arguments.output) if arguments.output else None
            return migration_steps.export(
                group, Store(arguments.export), selection, output, with_group=arguments.with_group
            )
        options = migration_steps.MigrationOptions(
            execute=not arguments.dry_run,
            rolling=arguments.rolling,
            force=arguments.force,
            undo_file=Path(arguments.undo_file) if arguments.undo_file else None,
            connect=connect_options(arguments),
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
    for former, option in _FORMER.items():
        if getattr(arguments, former) is not None and getattr(arguments, option) is not None:
            return f"--{former} is the former name of --{option.replace('_', '-')}: give one of them"
    if not arguments.command_config and not arguments.config and not arguments.zookeeper:
        return "--zookeeper or --command-config is needed, to know where the group is"
    for option in ("command_config", "config", "from_file", "undo_file", "backup", "rollback", "output"):
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
    if arguments.dry_run and arguments.execute:
        return "only one of --execute and --dry-run goes"
    writing = (arguments.dry_run, arguments.execute, arguments.undo_file, arguments.backup)
    if (arguments.verify or arguments.export) and any(writing):
        return "--dry-run, --execute and --undo-file go with what writes, --to or --rollback"
    return ""


_FORMER = {"config": "command_config", "backup": "undo_file"}
"""Options of earlier releases, and their names now. They go with the next release."""


def _take_former_options(arguments: argparse.Namespace) -> None:
    """Take options of earlier releases for those of now, with a warning for each."""
    for former, option in _FORMER.items():
        if getattr(arguments, former) is not None:
            setattr(arguments, option, getattr(arguments, former))
            _warn(f"--{former} is now --{option.replace('_', '-')}")


def _warn_of_former_ways(arguments: argparse.Namespace) -> None:
    """Warn of ``--rollback``, and of writing without ``--execute``."""
    if arguments.rollback:
        _warn(f"--rollback is now: {_undo_command(arguments)}")
        if arguments.topic:
            _warn("offsets undo has no --topic: it puts back all partitions of the file")
    if (arguments.to or arguments.rollback) and not arguments.dry_run and not arguments.execute:
        _warn("the next release will write only with --execute, and without it show the plan, as with --dry-run")


def _undo_command(arguments: argparse.Namespace) -> str:
    """Return the command that takes the place of ``--rollback`` with these options, for a shell."""
    words = ["zkconsumer", "offsets", "undo", arguments.rollback, *shlex.split(connect_options(arguments))]
    words += ["--force"] if arguments.force else []
    if not arguments.dry_run:  # a copied command must not write where this one does not
        words += ["--undo-file", arguments.undo_file] if arguments.undo_file else []
        words.append("--execute")
    return shlex.join(words)


def _warn(text: str) -> None:
    print(f"zkconsumer migrate: warning: {text}", file=sys.stderr)


def _config(arguments: argparse.Namespace) -> ConsumerConfig:
    """Return the configuration. Raises ConfigException."""
    properties: dict[str, str] = {}
    if arguments.command_config:
        properties = read_properties(arguments.command_config)
    named = properties.get("group.id", arguments.group)
    if named != arguments.group:
        reason = f"{arguments.command_config} is for {named!r}, and {arguments.group!r} is asked for"
        raise ConfigException("group.id", reason)
    properties["group.id"] = arguments.group
    if arguments.zookeeper:
        properties["zookeeper.connect"] = arguments.zookeeper
    if properties.get("zookeeper.connect"):  # brokers of another cluster would get this cluster's offsets
        properties.pop("bootstrap.servers", None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = ConsumerConfig(properties)
    if not config.zookeeper_connect:
        raise ConfigException("zookeeper.connect", "is missing: one of the two stores is ZooKeeper")
    for warning in caught:
        print(f"zkconsumer migrate: {warning.message}", file=sys.stderr)
    return config
