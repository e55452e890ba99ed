"""The command line: ``zkconsumer <command> ...``.

Each command is a module of its name, with ``DESCRIPTION``, ``add_arguments(parser)`` and ``run(arguments)``, which
returns the exit code. Only the module of the given command is imported, since a shell that completes a word waits for
the import. A module imports those of an extra inside ``run``. So the help works without the extra, and a missing extra
becomes a ``MissingExtraError`` that names it.

Exit codes: 0 done, 1 failed (the reason is on stderr), 2 wrong usage, 130 after Ctrl-C, others as in the command's
help. Runs in the main thread.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any, NoReturn, Protocol, cast

from zkconsumer.cli.tables import UnwritableOutputError
from zkconsumer.errors import ZkConsumerError
from zkconsumer.operations.printable import printable
from zkconsumer.version import DATA_PLANE

__all__ = ["COMMANDS", "main"]


class Command(Protocol):
    """The interface of a command's module."""

    DESCRIPTION: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's options and subcommands."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Run the command. Return the exit code. A ZkConsumerError is printed and becomes 1."""


COMMANDS = {
    "cat": "print the messages of a topic",
    "dead": "list, show, export, drop and replay dead letters",
    "dev": "a real ZooKeeper and Kafka on this machine, to try things out",
    "doctor": "find what is wrong with a group, and say what to do",
    "errors": "say what an error means, and what to do",
    "explain": "say who should own a group's partitions, who does, and why they differ",
    "groups": "list, describe and delete groups, as kafka-consumer-groups.sh",
    "help": "explain a command, an error, a check, a property, or a subject",
    "migrate": "move a group's offsets from ZooKeeper to Kafka, and back",
    "offsets": "reset the offsets of groups, undo a reset, delete dead offsets",
    "plan": "say what would move if members join or leave, or partitions or the strategy change",
    "serve": "a page, Prometheus metrics and Burrow's paths about groups, over HTTP",
    "snapshot": "write everything about a group to a file, which other commands read",
    "timeline": "show the rebalances of a group, with cause and duration",
    "top": "watch all groups in the terminal, the worst first",
}
"""The commands with their helps. The module of a command has its name; ``help`` also has ``errors``."""

_DESCRIPTION = """\
Kafka's ZooKeeper-based high-level consumer, from the command line.

No Kafka at hand? Start one on this machine:
  zkconsumer dev up
"""
_INVALID = re.compile(r"invalid choice: (['\"])(.*?)\1 ")
_COMPLETING = "_ARGCOMPLETE"
"""The variable by which a shell asks argcomplete for the words that may follow."""


class CommandParser(argparse.ArgumentParser):
    """A parser that names the likely command or option in its errors. Before Python 3.14, argparse has no such thing.

    The parser of a command refuses unknown options itself. argparse leaves them to the parser of the program, which
    does not know the command's options.
    """

    _words: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        self._words = sys.argv[1:] if args is None else list(args)
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and _COMPLETING not in os.environ:
            options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            meant = _meant(options, self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        if invalid := _INVALID.search(message):
            choices = (str(one) for action in self._actions for one in action.choices or ())
            message += _meant([invalid[2]], choices)
        elif "one of the arguments" in message:  # the verb of "zkconsumer groups", which is also a flag
            message += _meant(self._words[:1], (one.lstrip("-") for one in self._option_string_actions))
        super().error(message)

    def complete(self, completers: Mapping[str, object]) -> None:
        """Let a shell complete the arguments with these names or metavars, also those of subcommands."""
        for action in self._actions:
            for one in action.choices.values() if isinstance(action.choices, dict) else ():
                if isinstance(one, CommandParser):
                    one.complete(completers)
            if found := completers.get(action.dest, completers.get(str(action.metavar))):
                action.completer = found  # type: ignore[attr-defined]


def _meant(words: Iterable[str], known: Iterable[str]) -> str:
    """Return a line with the known words that these may be meant to be, empty if none is like them."""
    known = list(known)
    close = [f"{one!r}" for word in words for one in difflib.get_close_matches(word, known, n=1, cutoff=0.6)]
    return f"\nDid you mean {' and '.join(close)}?" if close else ""


def _parser(command: str) -> CommandParser:
    """Return the parser, with the arguments of this command alone."""
    parser = CommandParser(
        prog="zkconsumer", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"zkconsumer {version('zkconsumer')} ({DATA_PLANE})")
    commands = parser.add_subparsers(title="commands", metavar="<command>", dest="command")
    for name, text in COMMANDS.items():
        one = commands.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == command:
            module = _module(name)
            one.description = module.DESCRIPTION
            module.add_arguments(one)
            one.set_defaults(run=module.run)
    return parser


def _module(command: str) -> Command:
    name = "help" if command == "errors" else command
    return cast(Command, importlib.import_module(f"zkconsumer.cli.{name}"))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. ``argv`` is without the program's name (default: ``sys.argv``).

    Raises: SystemExit from argparse, for ``--help``, ``--version`` and wrong usage; also after a second SIGINT or
    SIGTERM while offsets are written.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if _COMPLETING in os.environ:
        _complete(os.environ.get("COMP_LINE", "").split()[1:])
    if words[:1] == ["groups"]:
        from zkconsumer.cli.groups import as_flags

        words = as_flags(words)
    parser = _parser(words[0] if words else "")
    arguments = parser.parse_args(words)
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


def _complete(words: Sequence[str]) -> None:
    """Tell the shell that asks which words may follow, and end the process. Asks no cluster, and reads no file."""
    try:
        import argcomplete
    except ImportError:  # it is installed for the shell, and not for this Python
        return
    command = words[0] if words else ""
    parser = _parser(command)
    known = getattr(_module(command), "completions", None) if command in COMMANDS else None
    words_of = {} if known is None else known(command)
    choices = {name: argcomplete.completers.ChoicesCompleter(found) for name, found in words_of.items()}
    parser.complete({"FILE": argcomplete.completers.FilesCompleter(), **choices})
    argcomplete.autocomplete(parser, default_completer=argcomplete.completers.SuppressCompleter())


def _drop_output() -> None:
    """Let what is still buffered go: Python would write it at its exit, and fail again."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
