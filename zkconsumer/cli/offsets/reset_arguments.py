"""The options of ``zkconsumer offsets reset``: those of ``kafka-consumer-groups.sh --reset-offsets``, and some more.

Times mirror Java's ``Utils.getDateTime`` (Kafka 3.9) and ``Duration.parse``. They differ on purpose: the seconds and
their fraction may be missing, and a fraction has exactly three digits. Java reads ``.5`` as 5 ms.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

from zkconsumer.cli.source_arguments import add_execution, add_source_arguments, add_topics, seconds_argument
from zkconsumer.cli.tables import Options, add_format_argument
from zkconsumer.core.names import name_problem
from zkconsumer.core.offset_move_plan import Store, parse_selection
from zkconsumer.operations.offset_reset import Scenario

RESET_FLAG = "--reset-offsets"
WAIT = 30.0
"""Seconds that owners have by default to go on from a new offset: more than ``rebalance.interval.ms``, 20 s."""

MISSING_EXECUTE = (
    "WARN: No action will be performed as the --execute option is missing."
    "In a future major release, the default behavior of this command will be to prompt the user before "
    "executing the reset rather than doing a dry run. You should add the --dry-run option explicitly "
    "if you are scripting this command and want to keep the current default behavior without prompting."
)
"""Kafka's own warning, with its missing blank."""

KAFKAS_FILE = ".kafka"
"""The end of the second undo file's name, if both stores are written."""

_INT64 = range(-(1 << 63), 1 << 63)
_NUMBER = re.compile("[+-]?[0-9]{1,19}", re.ASCII)


def as_reset(argv: Sequence[str]) -> list[str]:
    """Return the command line with ``groups --reset-offsets`` or ``groups reset-offsets`` as ``offsets reset``."""
    words = list(argv)
    if words[:1] != ["groups"]:
        return words
    if RESET_FLAG in words:
        words.remove(RESET_FLAG)
    elif words[1:2] == ["reset-offsets"]:
        del words[1]
    else:
        return words
    return ["offsets", "reset", *words[1:]]


def add_reset_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="the same as --group GROUP")
    which = parser.add_argument_group("which offsets")
    which.add_argument("--group", action="append", default=[], metavar="GROUP", help="a group; may be repeated")
    which.add_argument("--all-groups", action="store_true", help="all groups")
    add_topics(which, "this topic, or these partitions of it")
    which.add_argument("--all-topics", action="store_true", help="all partitions of which the group has an offset")
    which.add_argument(
        "--store",
        choices=[*(store.value for store in Store), "both"],
        help="where to write (default: where the group's offsets are; both with dual commit)",
    )
    _add_scenarios(parser)
    how = parser.add_argument_group("how")
    add_execution(how, "show the new offsets, and write nothing; the default", "write the new offsets")
    how.add_argument("--export", action="store_true", help="print the new offsets as CSV, for --from-file")
    how.add_argument(
        "--undo-file",
        metavar="FILE",
        help="with --execute: the new file for the overwritten offsets (default: a new file here)",
    )
    add_wait_argument(how)
    how.add_argument("--verbose", action="store_true", help="show CURRENT-OFFSET, LAG-AFTER and EFFECT as well")
    add_format_argument(parser)
    add_source_arguments(parser)


def add_wait_argument(parser: Options) -> None:
    """Declare ``--wait``."""
    parser.add_argument(
        "--wait",
        type=seconds_argument,
        default=WAIT,
        metavar="S",
        help=f"seconds that live members have to go on from the new offsets (default: {WAIT:g})",
    )


def _add_scenarios(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("where to, exactly one")
    for scenario, text in (
        (Scenario.TO_EARLIEST, "the log's first offset"),
        (Scenario.TO_LATEST, "the log's end"),
        (Scenario.TO_CURRENT, "the present offset; the log's end where there is none"),
    ):
        where.add_argument(scenario.value, action="store_true", help=text)
    where.add_argument("--to-offset", type=_offset, metavar="N", help="this offset")
    where.add_argument("--shift-by", type=_offset, metavar="N", help="the present offset plus N, which may be negative")
    where.add_argument(
        "--to-datetime",
        type=_with_reason(parse_datetime),
        metavar="YYYY-MM-DDTHH:mm:SS.sss",
        help="the first message from this time on; UTC, or with a zone at its end",
    )
    where.add_argument(
        "--by-duration",
        type=_with_reason(parse_duration),
        metavar="PnDTnHnMnS",
        help="the first message of this time before now",
    )
    where.add_argument("--from-file", metavar="FILE", help="the offsets in this CSV file, as --export prints it")


def _offset(text: str) -> int:
    value = int(text) if _NUMBER.fullmatch(text) else _INT64.stop
    if value not in _INT64:
        raise argparse.ArgumentTypeError(f"{text!r} is no offset")
    return value


def _with_reason(parse: Callable[[str], int]) -> Callable[[str], int]:
    """Return the parser of an option that tells why a text is none."""

    def parsed(text: str) -> int:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def scenario_of(arguments: argparse.Namespace) -> list[Scenario]:
    """Return the scenarios that are given; exactly one should be."""
    given = ((one, getattr(arguments, _name(one))) for one in Scenario)
    return [one for one, value in given if value is not None and value is not False]  # 0 is a value


def _name(scenario: Scenario) -> str:
    return scenario.value.removeprefix("--").replace("-", "_")


def number_of(arguments: argparse.Namespace, scenario: Scenario) -> int:
    """Return the scenario's number, 0 if it has none."""
    value = getattr(arguments, _name(scenario))
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def wrong_usage(arguments: argparse.Namespace) -> str:
    """Return the error in the combination of options, or an empty text. Moves the words to ``--group``."""
    arguments.group = list(dict.fromkeys([*arguments.group, *arguments.groups]))
    arguments.groups = []
    if arguments.dry_run and arguments.execute:
        return "Option [reset-offsets] only accepts one of [execute] and [dry-run]"
    if any(not name for name in (*arguments.group, arguments.undo_file, arguments.from_file) if name is not None):
        return "an option has an empty value"  # for example, an unset variable in a script
    if not arguments.group and not arguments.all_groups:
        return "Option [reset-offsets] takes one of these options: [group], [all-groups]"
    if arguments.group and arguments.all_groups:
        return 'Option "[group]" can\'t be used with option "[all-groups]"'
    for group in arguments.group:
        problem = name_problem(group)
        if problem is not None:
            return f"{group!r} is no group: {problem}"
    given = scenario_of(arguments)
    if not given:
        names = ", ".join(f"[{one.value.removeprefix('--')}]" for one in Scenario)
        return f"Option '[reset-offsets]' requires one of the following scenarios: [{names}]"
    if len(given) > 1:
        first, second = (one.value.removeprefix("--") for one in given[:2])
        return f'Option "[{first}]" can\'t be used with option "[{second}]"'
    return _wrong_scope(arguments, given[0]) or _wrong_files(arguments, given[0])


def _wrong_scope(arguments: argparse.Namespace, scenario: Scenario) -> str:
    if arguments.topic and arguments.all_topics:
        return 'Option "[topic]" can\'t be used with option "[all-topics]"'
    if not arguments.topic and not arguments.all_topics and scenario is not Scenario.FROM_FILE:
        return "One of the reset scopes should be defined: --all-topics, --topic."
    try:
        parse_selection(arguments.topic)
    except ValueError as error:
        return f"--topic: {error}"
    return ""


def _wrong_files(arguments: argparse.Namespace, scenario: Scenario) -> str:
    if arguments.undo_file is not None and not arguments.execute:
        return "--undo-file goes with --execute only"
    if arguments.undo_file is not None and len(arguments.group) != 1:
        return "--undo-file is for one group; without it, each group gets a file of its own"
    if arguments.snapshots and (arguments.execute or scenario.by_time):
        return f"--from reads files; {'--execute' if arguments.execute else scenario.value} needs a cluster"
    return existing_undo_file(arguments.undo_file)


def existing_undo_file(name: str | None) -> str:
    """Return the error if an undo file of that name exists, which must not be overwritten.

    This check comes before the first write. Otherwise one store would be written, and the other store would fail.
    """
    for file in (name, f"{name}{KAFKAS_FILE}") if name is not None else ():
        if Path(file).exists():
            return f"--undo-file: {file} exists"
    return ""


# Hours end at 23: Python 3.14 reads 24:00 as the next day, and older ones refuse it.
_DATETIME = re.compile(
    r"(?P<day>[0-9]{4}-[0-9]{2}-[0-9]{2})T(?P<time>(?:[01][0-9]|2[0-3]):[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{3})?)?)"
    r"(?P<zone>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?",
    re.ASCII,
)
_DURATION = re.compile(
    r"(?P<sign>[+-]?)P(?:(?P<days>[+-]?[0-9]{1,18})D)?"
    r"(?:T(?=.)(?:(?P<hours>[+-]?[0-9]{1,18})H)?(?:(?P<minutes>[+-]?[0-9]{1,18})M)?"
    r"(?:(?P<seconds>[+-]?[0-9]{1,18})(?:[.,](?P<fraction>[0-9]{0,9}))?S)?)?",
    re.ASCII | re.IGNORECASE,
)
_LARGEST = (1 << 63) - 1


def parse_datetime(text: str) -> int:
    """Return a ``YYYY-MM-DDTHH:mm:SS.sss`` with or without a zone as milliseconds since 1970; without one it is UTC.

    Raises ValueError that quotes the text.
    """
    found = _DATETIME.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        moment = datetime.fromisoformat(f"{found['day']}T{found['time']}{found['zone'] or 'Z'}")
        since = moment.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is no time; the format is 'YYYY-MM-DDTHH:mm:SS.sss', in UTC or with a zone"
        ) from None
    milliseconds = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    if milliseconds < 0:
        raise ValueError(f"{text!r} is before 1970")
    return milliseconds


def parse_duration(text: str) -> int:
    """Return a ``PnDTnHnMnS`` in milliseconds, rounded down. It may be negative. Raises ValueError that quotes it."""
    found = _DURATION.fullmatch(text)
    if found is None or not any(found[name] for name in ("days", "hours", "minutes", "seconds")):
        raise ValueError(f"{text!r} is no duration; the format is 'PnDTnHnMnS', as in P1D or PT1H30M")
    whole = sum(
        int(found[name] or 0) * length
        for name, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))
    )
    digits = found["fraction"] or "0"
    fraction = Fraction(int(digits), 10 ** len(digits)) * (-1 if (found["seconds"] or "").startswith("-") else 1)
    milliseconds = (whole + fraction) * 1000 * (-1 if found["sign"] == "-" else 1)
    if abs(milliseconds) > _LARGEST:
        raise ValueError(f"{text!r} is too long")
    return int(milliseconds // 1)
