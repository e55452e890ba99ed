"""The options of every reading command that say where to read: a cluster, or files of ``zkconsumer snapshot``.

:func:`read_group` reads the group that a command names, and says what could not be read. The main thread's.
"""

from __future__ import annotations

import argparse
import gc
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import time
from typing import TypeVar

from zkconsumer.cli.tables import Options
from zkconsumer.cluster.cluster_client import ClusterClient, command_config, read_properties
from zkconsumer.errors import ConfigException
from zkconsumer.operations.group_lookup import require_group
from zkconsumer.operations.group_snapshot import GroupSnapshot, SnapshotSource
from zkconsumer.operations.printable import printable
from zkconsumer.operations.snapshot_file import FileSource
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.operations.watched_groups import ManyGroups

T = TypeVar("T")

_LONGEST_MS = 24 * 3600 * 1000
_AGO = re.compile(r"([0-9]{1,9})(s|m|h|d)", re.ASCII)
_END_OF_DAY = re.compile(r"[-0-9W]{7,10}[^-0-9W]24")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say where the cluster is."""
    where = parser.add_argument_group("where the groups are")
    where.add_argument(
        "--zookeeper", metavar="HOST:PORT/CHROOT", help="the ZooKeeper servers, with the chroot of the brokers"
    )
    where.add_argument("--bootstrap-server", metavar="HOST:PORT", help="brokers; without it ZooKeeper names them")
    where.add_argument(
        "--command-config", metavar="FILE", help="a properties file with the keys of TLS and logins, as for a member"
    )
    where.add_argument(
        "--timeout", type=_milliseconds, default=5000, metavar="MS", help="milliseconds for the answers (default: 5000)"
    )


def connect_options(arguments: argparse.Namespace) -> str:
    """Return the options to connect with, for a command line to copy."""
    names = ("zookeeper", "bootstrap_server", "command_config")
    given = [(name, getattr(arguments, name, None)) for name in names]
    return " ".join(f"--{name.replace('_', '-')} {shlex.quote(value)}" for name, value in given if value)


def add_source_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options that say where the cluster is, or which files to read in its place."""
    add_connection_arguments(parser)
    parser.add_argument(
        "--from",
        dest="snapshots",
        action="append",
        default=[],
        metavar="FILE",
        help="read this file of 'zkconsumer snapshot' in place of a cluster; may be repeated",
    )


def add_topics(parser: Options, text: str) -> None:
    """Declare ``--topic``, which names topics or some of their partitions."""
    text = f"{text}; may be repeated"
    parser.add_argument("--topic", action="append", default=[], metavar="TOPIC[:0,1,4-7]", help=text)


def add_execution(parser: Options, shown: str, done: str, saved: str = "") -> None:
    """Declare ``--dry-run`` and ``--execute`` with these helps, and an undo file for what is ``saved``."""
    parser.add_argument("--dry-run", action="store_true", help=shown)
    parser.add_argument("--execute", action="store_true", help=done)
    if saved:
        text = f"the new file for {saved} (default: a new file here)"
        parser.add_argument("--undo-file", metavar="FILE", help=text)


Verb = tuple[str, str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
"""A verb of a command: the name, the help, the function that declares its options, and the function that runs it."""


def add_verbs(parser: argparse.ArgumentParser, verbs: Sequence[Verb]) -> None:
    """Declare the verbs of a command with their options. :func:`run_verb` runs the verb that was given."""
    parsers = parser.add_subparsers(title="verbs", metavar="<verb>", required=True)
    for name, text, declare, perform in verbs:
        verb = parsers.add_parser(name, help=text, description=text.capitalize() + ".")
        declare(verb)
        verb.set_defaults(perform=perform)


def run_verb(arguments: argparse.Namespace) -> int:
    """Run the verb. Return the exit code. Raises: ZkConsumerError."""
    return int(arguments.perform(arguments))


def seconds_argument(text: str) -> float:
    """Return a number of seconds. Raises argparse.ArgumentTypeError."""
    with suppress(ValueError):
        value = float(text)
        if 0 <= value < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")


def parsed_file(path: Path, parse: Callable[..., T], *arguments: object) -> T:
    """Return what ``parse`` makes of a file's text and these arguments.

    Raises: ConfigException that names the file, if the file cannot be read or ``parse`` raises ValueError.
    """
    try:
        return parse(path.read_text(encoding="utf-8-sig"), *arguments)  # some editors write a byte order mark
    except OSError as error:
        raise ConfigException(str(path), f"cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ConfigException(str(path), str(error)) from None


def _milliseconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 12 and 0 < int(text) <= _LONGEST_MS):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds from 1 to {_LONGEST_MS}")
    return int(text)


def moment_argument(text: str) -> int:
    """Return a time in milliseconds since 1970: an age such as ``10m``, or a moment in UTC or with a zone."""
    if ago := _AGO.fullmatch(text):
        return int((time() - int(ago[1]) * _SECONDS[ago[2]]) * 1000)
    try:
        if _END_OF_DAY.match(text):
            raise ValueError  # Python 3.14 reads 24:00 as the next day, and older Pythons refuse it
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no time: write 10m, 2h, or 2026-11-22T17:00:00Z (UTC)") from None


@contextmanager
def open_source(arguments: argparse.Namespace) -> Iterator[SnapshotSource]:
    """Open the source that the options name, and close it at the end of the block.

    Raises: ConfigException for options that contradict each other, and for a file that cannot be used.
    """
    source: SnapshotSource
    if getattr(arguments, "snapshots", None):
        given = [name for name in ("zookeeper", "bootstrap_server", "command_config") if getattr(arguments, name)]
        if given:
            raise ConfigException("--from", f"goes without --{given[0].replace('_', '-')}: it reads no cluster")
        source = FileSource(arguments.snapshots)
    else:
        source = LiveSource(open_client(arguments))
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield source
    finally:
        gc.set_threshold(*before)
        source.close()


SELDOM = (200_000, 10, 10)
"""The limits of the garbage collector while groups are read.

Snapshots of many groups are millions of objects without cycles. With Python's own limits the collector looks at them
hundreds of times, which takes a third of the reading.
"""


def open_client(arguments: argparse.Namespace) -> ClusterClient:
    """Return the client that the options of :func:`add_connection_arguments` name. Raises ConfigException."""
    properties = read_properties(arguments.command_config) if arguments.command_config else {}
    config, warned = command_config(arguments.zookeeper, arguments.bootstrap_server, properties)
    for warning in () if "warned" in arguments else warned:  # only once, also if the cluster is opened again
        print(f"zkconsumer: {arguments.command_config}: {warning}", file=sys.stderr)
    arguments.warned = True
    return ClusterClient(config, arguments.timeout / 1000)


def read_group(source: SnapshotSource, group: str, *, message_times: bool = False) -> GroupSnapshot:
    """Return the snapshot of a group that exists. Unreadable parts are listed on standard error.

    Raises: UnknownGroupError; RegistryError, BrokerError as :meth:`SnapshotSource.snapshot`.
    """
    snapshot = require_group(source, group, message_times=message_times)
    for problem in snapshot.problems:
        print(f"zkconsumer: {printable(problem.what)}: {printable(problem.why)}", file=sys.stderr)
    return snapshot


def read_groups(
    source: SnapshotSource, groups: Sequence[str], *, message_times: bool = False
) -> Iterator[tuple[str, GroupSnapshot]]:
    """Yield the snapshots of these groups. Several groups of a cluster are read together.

    Raises: RegistryError, BrokerError as :meth:`SnapshotSource.snapshot`.
    """
    if len(groups) > 1 and isinstance(source, ManyGroups):
        for group, found in source.snapshots_once(groups, message_times=message_times):
            if isinstance(found, Exception):
                raise found
            yield group, found
        return
    for group in groups:
        yield group, source.snapshot(group, message_times=message_times)


def earlier_snapshots(source: SnapshotSource, group: str) -> Sequence[GroupSnapshot]:
    """Return the snapshots before the latest. A live cluster has none, and is not read for that."""
    return () if isinstance(source, LiveSource) else source.history(group)[:-1]
