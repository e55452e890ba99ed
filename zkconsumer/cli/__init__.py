"""The command line: ``zkconsumer <command> ...``.

Each command is a module in ``_COMMANDS`` with ``NAME``, ``HELP`` (one line), ``DESCRIPTION``, ``add_arguments(parser)``
and ``run(arguments) -> exit code``. It imports the modules of an extra inside ``run``. So the help works without the
extra, and a missing extra becomes a ``MissingExtraError`` that names it.

Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage, 130 after Ctrl-C, others as in the command's
help. Runs in the main thread.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Protocol

from zkconsumer.cli import cat, dead, dev, doctor, explain, groups, migrate, offsets, plan, serve, snapshot, timeline
from zkconsumer.cli.cat import UnwritableOutputError
from zkconsumer.cli.tables import printable
from zkconsumer.errors import ZkConsumerError
from zkconsumer.version import DATA_PLANE

__all__ = ["main"]


class Command(Protocol):
    """The interface of a command's module."""

    NAME: str
    HELP: str
    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options and subcommands."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command. Return the exit code. A ZkConsumerError is printed and becomes 1."""


_COMMANDS: tuple[Command, ...] = (
    cat,
    dead,
    dev,
    doctor,
    explain,
    groups,
    migrate,
    offsets,
    plan,
    serve,
    snapshot,
    timeline,
)

_DESCRIPTION = """\
Kafka's ZooKeeper-based high-level consumer, from the command line.

No Kafka at hand? Start one on this machine:
  zkconsumer dev up
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="zkconsumer", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"zkconsumer {version('zkconsumer')} ({DATA_PLANE})")
    commands = parser.add_subparsers(title="commands", metavar="<command>", dest="command")
    for command in _COMMANDS:
        one = commands.add_parser(
            command.NAME,
            help=command.HELP,
            description=command.DESCRIPTION,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(one)
        one.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` is without the program's name (default: ``sys.argv``).

    Raises: SystemExit from argparse, for ``--help``, ``--version`` and wrong usage; also after a second SIGINT or
    SIGTERM while offsets are written.
    """
    parser = _parser()
    arguments = parser.parse_args(groups.as_flags(sys.argv[1:] if argv is None else argv))
    if arguments.command is None:
        parser.print_help()
        return 2
    if isinstance(sys.stdout, io.TextIOWrapper):  # a name in a node may have characters that the terminal has not
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = arguments.run(arguments)
        if sys.stdout is not None:  # it is closed otherwise
            sys.stdout.flush()
        return int(code)
    except ZkConsumerError as error:
        # an error may quote a node
        print("zkconsumer: " + "\n".join(map(printable, str(error).split("\n"))), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        _drop_output()
        return 0
    except UnwritableOutputError as error:
        _drop_output()
        print(f"zkconsumer: {error}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Let what is still buffered go: Python would write it at its exit, and fail again."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
