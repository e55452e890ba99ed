"""The options of ``zkconsumer groups``: Kafka's flags, and the same as verbs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from zkconsumer.cli.offsets import as_reset
from zkconsumer.cli.source_arguments import add_source_arguments
from zkconsumer.cli.tables import add_format_argument
from zkconsumer.core.migration_plan import PartitionSelection, parse_selection

LIST, DESCRIBE, DELETE, DELETE_OFFSETS = "list", "describe", "delete", "delete-offsets"
ACTIONS = (LIST, DESCRIBE, DELETE, DELETE_OFFSETS)

STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
OUR_STATES = ("Rebalancing", "Stuck")
TYPES = ("Consumer", "Classic", "Share", "ZooKeeper")
_ANY = ""


def as_flags(argv: Sequence[str]) -> list[str]:
    """Return the command line with its verb as a flag: ``groups describe G`` becomes ``groups --describe G``.

    ``groups --reset-offsets`` becomes ``offsets reset``, which has the same options.
    """
    words = as_reset(argv)
    if words[:1] == ["groups"] and len(words) > 1 and words[1] in ACTIONS:
        words[1] = f"--{words[1]}"
    return words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="the same as --group GROUP")
    actions = parser.add_argument_group("what to do").add_mutually_exclusive_group(required=True)
    for action, text in (
        (LIST, "list the groups"),
        (DESCRIBE, "show the partitions of a group with offsets, lag and members; see --members and --state"),
        (DELETE, "delete groups, their offsets included"),
        (DELETE_OFFSETS, "delete a group's offsets of the topics of --topic"),
    ):
        actions.add_argument(f"--{action}", dest="action", action="store_const", const=action, help=text)
    _add_selection(parser)
    _add_columns(parser)
    how = parser.add_argument_group("deleting").add_mutually_exclusive_group()
    how.add_argument("--dry-run", action="store_true", help="show what would be deleted; this is the default")
    how.add_argument("--execute", action="store_true", help="delete; Kafka's own tool deletes without this option")
    add_source_arguments(parser)


def _add_selection(parser: argparse.ArgumentParser) -> None:
    which = parser.add_argument_group("which groups")
    which.add_argument("--group", action="append", default=[], metavar="GROUP", help="a group; may be repeated")
    which.add_argument("--all-groups", action="store_true", help="all groups")
    which.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:0,1,2]",
        help="with --delete-offsets: this topic, or these partitions of it; may be repeated",
    )
    which.add_argument("--all-topics", action="store_true", help="with --delete-offsets: all topics of the group")


def _add_columns(parser: argparse.ArgumentParser) -> None:
    shown = parser.add_argument_group("what to show")
    shown.add_argument("--members", action="store_true", help="with --describe: the members")
    shown.add_argument("--offsets", action="store_true", help="with --describe: the offsets; this is the default")
    shown.add_argument(
        "--state",
        nargs="?",
        const=_ANY,
        metavar="STATE,...",
        help="with --describe: the state; with --list: the state of each group, or only groups in these states",
    )
    shown.add_argument(
        "--type",
        nargs="?",
        const=_ANY,
        metavar="TYPE,...",
        help="with --list: the type of each group, or only groups of these types",
    )
    shown.add_argument("--verbose", action="store_true", help="with --describe: further columns")
    add_format_argument(shown)


def selection_of(arguments: argparse.Namespace) -> PartitionSelection:
    """Return the partitions that ``--topic`` names. Raises ValueError."""
    return parse_selection(arguments.topic)


def wrong_usage(arguments: argparse.Namespace) -> str:
    """Return the error in the combination of options, or an empty text. Moves the words to ``--group``."""
    action = arguments.action
    arguments.group = [*arguments.group, *arguments.groups]
    if action == DESCRIBE:
        _take_state_as_group(arguments)
    if any(not group for group in arguments.group):  # for example, an unset variable in a script
        return "--group names no group"
    if arguments.group and arguments.all_groups:
        return 'Option "[group]" can\'t be used with option "[all-groups]"'
    if action == LIST:
        if arguments.group:
            return 'Option "[group]" can\'t be used with option "[list]"'
    elif not arguments.group and not arguments.all_groups:
        return f"Option [{action}] takes one of these options: [group], [all-groups]"
    return (
        _wrong_place(arguments)
        or _wrong_states(arguments.state)
        or _wrong_choice(arguments.type, TYPES, "types", "types")
        or _wrong_deletion(arguments)
    )


def _take_state_as_group(arguments: argparse.Namespace) -> None:
    """Take the word behind ``--describe --state`` as a group, since ``--describe`` filters by no state.

    Kafka's tool ignores the word. So do we where the groups are named otherwise and the word names states.
    """
    word, arguments.state = arguments.state, arguments.state and _ANY
    if word and (not (arguments.group or arguments.all_groups) or _wrong_states(word)):
        arguments.group.append(word)


def _wrong_place(arguments: argparse.Namespace) -> str:
    """Return the option that does not go with the action, in words, or an empty text."""
    action = arguments.action
    details = [name for name in ("members", "offsets") if getattr(arguments, name)]
    if action == DESCRIBE:
        if arguments.state is not None:
            details.append("state")
        if len(details) > 1:
            return "Option [describe] takes at most one of these options: [members], [offsets], [state]"
    elif details or arguments.verbose:
        return f"--{(details or ['verbose'])[0]} goes with --describe only"
    if arguments.state is not None and action not in (LIST, DESCRIBE):
        return "--state goes with --describe and --list only"
    if arguments.type is not None and action != LIST:
        return "--type goes with --list only"
    return ""


def _wrong_deletion(arguments: argparse.Namespace) -> str:
    action = arguments.action
    deletes = action in (DELETE, DELETE_OFFSETS)
    if not deletes and (arguments.dry_run or arguments.execute):
        return f"--dry-run and --execute go with what writes, --{DELETE} and --{DELETE_OFFSETS}"
    if action != DELETE_OFFSETS and (arguments.topic or arguments.all_topics):
        return f"--topic and --all-topics go with --{DELETE_OFFSETS} only"
    if action == DELETE_OFFSETS:
        if len(arguments.group) != 1:
            return f"--{DELETE_OFFSETS} takes one --group"
        if bool(arguments.topic) == arguments.all_topics:
            return f"Option [{DELETE_OFFSETS}] takes one of these options: [topic], [all-topics]"
        try:
            selection_of(arguments)
        except ValueError as error:
            return f"--topic: {error}"
    if deletes and getattr(arguments, "snapshots", None):
        return "--from reads files, in which nothing can be deleted"
    return ""


def _wrong_states(given: str | None) -> str:
    return _wrong_choice(given, (*STATES, *OUR_STATES), "state", "states")


def _wrong_choice(given: str | None, valid: Sequence[str], word: str, words: str) -> str:
    if not given or set(chosen(given)) <= {one.lower() for one in valid}:
        return ""
    return f"Invalid {word} list '{given}'. Valid {words} are: {', '.join(valid)}"


def chosen(text: str) -> list[str]:
    """Return the words of a list such as ``stable,empty``, in small letters."""
    return [word.strip().lower() for word in text.split(",")]
