"""``zkconsumer cat``: prints the messages of a topic, without a group or as a member of one.

Runs in the main thread.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, BinaryIO

from zkconsumer.cli.source_arguments import add_connection_arguments, moment_argument, open_client
from zkconsumer.cli.tables import UnwritableOutputError
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector.signal_shutdown import shutdown_on_signal
from zkconsumer.connector.zookeeper_connector import ZookeeperConsumerConnector
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.operations.printable import data_field, printable
from zkconsumer.streams.message import MessageAndMetadata

DESCRIPTION = """\
Prints the messages of a topic, from the beginning to the present end, and disturbs
nobody: without --group nothing is committed, and no group sees the reader.

  zkconsumer cat events --zookeeper HOST:PORT
  zkconsumer cat events --zookeeper HOST:PORT --from -10 --keys
  zkconsumer cat events --bootstrap-server HOST:PORT --from 2h --follow --format json
  zkconsumer cat events --zookeeper HOST:PORT --format '{partition} {offset} {key}\\t{value}\\n'
  zkconsumer cat events --zookeeper HOST:PORT --group billing

With --group it is a member of that group, which goes on at the committed offsets and
commits what it has printed.

Exit codes: 0 done; 1 the topic cannot be read; 2 wrong usage; 130 after Ctrl-C.
"""

Message = MessageAndMetadata[Any, Any]
Place = str | int | tuple[str, int]
"""``earliest``, ``latest`` or ``end``; an offset, from the end if it is negative; or ("time", ms since 1970)."""

FORMS = ("value", "raw", "json")
_FIELD = re.compile(r"\{(topic|partition|offset|timestamp|key|value|headers)\}")
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\\\": "\\"}
_ESCAPE = re.compile(r"\\[tn\\]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("topic", metavar="TOPIC", help="the topic")
    parser.add_argument(
        "--partition", type=_number, action="append", metavar="N", help="only this partition; may be repeated"
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=_place,
        metavar="WHERE",
        help="earliest (the default), latest, an offset, -10 for the last 10 of each partition, or a time",
    )
    parser.add_argument(
        "--until",
        type=_place,
        default="end",
        metavar="WHERE",
        help="end (the default), an offset if that comes first, or a time: 90s, 10m, 2h, 3d ago,"
        " or 2026-11-22T17:00:00Z",
    )
    parser.add_argument("--follow", action="store_true", help="go on after the end, until Ctrl-C")
    parser.add_argument("--max-messages", type=_number, metavar="N", help="stop after so many messages")
    parser.add_argument("--group", metavar="GROUP", help="read as a member of this group, and commit")
    shown = parser.add_argument_group("what is printed")
    shown.add_argument(
        "--format",
        default="value",
        metavar="FORMAT",
        help="value (a line each, control characters escaped), raw (the bytes and a newline), json (an object a line),"
        " or a text with {topic}, {partition}, {offset}, {timestamp}, {key}, {value} and {headers}",
    )
    shown.add_argument("--keys", action="store_true", help="with value: the key and a tab before it")
    shown.add_argument("--headers", action="store_true", help="with value: the headers and a tab before it")
    parser.add_argument("--isolation-level", choices=("read_uncommitted", "read_committed"), default="read_uncommitted")
    parser.add_argument("--skip-corrupt", action="store_true", help="pass over places that cannot be read")
    add_connection_arguments(parser)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _place(text: str) -> Place:
    if text in ("earliest", "latest", "end"):
        return text
    if re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII):
        return int(text)
    return "time", moment_argument(text)


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ZkConsumerError, UnwritableOutputError, BrokenPipeError."""
    problem = _wrong_usage(arguments)
    if problem:
        print(f"zkconsumer cat: {problem}", file=sys.stderr)
        return 2
    if sys.stdout is None:
        raise UnwritableOutputError("the standard output is closed")
    write, out = _writer(arguments), sys.stdout.buffer
    # a member's progress must be out before it is committed, and whoever follows wants to see each message
    at_once = arguments.group is not None or arguments.follow
    with (
        ZookeeperConsumerConnector(_config(arguments)) as connector,
        shutdown_on_signal(connector, signal.SIGTERM, signal.SIGINT) as guard,
    ):
        for message in islice(_messages(connector, arguments), arguments.max_messages):
            _print(out, write(message), flush=at_once)
        _print(out, b"", flush=True)
    return 0 if guard.received is None else 130


def _print(out: BinaryIO, data: bytes, *, flush: bool) -> None:
    try:
        out.write(data)
        if flush:
            out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UnwritableOutputError(f"the output cannot be written: {error}") from error


def _wrong_usage(arguments: argparse.Namespace) -> str:
    problem = name_problem(arguments.topic)
    if problem is not None:
        return f"{arguments.topic!r} cannot be a topic: {problem}"
    if arguments.start == "end" or arguments.until in ("earliest", "latest"):
        return "--from begins at earliest or latest, and --until ends at end"
    if isinstance(arguments.until, int) and arguments.until < 0:
        return "--until takes no offset from the end"
    if arguments.follow and arguments.until != "end":
        return "--follow goes on for ever: leave it out, or --until"
    if arguments.format not in FORMS and not _FIELD.search(arguments.format):
        return (
            f"--format {arguments.format!r} names no field: {', '.join(FORMS)}, or a text with fields such as {{value}}"
        )
    if arguments.group is None:
        return ""
    if arguments.start not in (None, "earliest", "latest"):
        return "with --group reading goes on at the committed offsets; --from earliest or latest is for those without"
    if arguments.partition:
        return "with --group the group decides on partitions: --partition has no place"
    return ""


def _config(arguments: argparse.Namespace) -> ConsumerConfig:
    client = open_client(arguments)
    return client.config.replace(
        {
            "group.id": arguments.group or client.config.group_id,
            "auto.offset.reset": "largest" if arguments.start == "latest" else "smallest",
            "isolation.level": arguments.isolation_level,
            "corrupt.message.policy": "skip" if arguments.skip_corrupt else "raise",
        }
    )


def _messages(connector: ZookeeperConsumerConnector, arguments: argparse.Namespace) -> Iterable[Message]:
    topic, timeout = arguments.topic, arguments.timeout / 1000
    until: Any = None if arguments.follow else arguments.until
    partitions = None if isinstance(until, str | None) else connector.partitions_for(topic, timeout)
    if isinstance(until, tuple):
        until = until[1]
    elif isinstance(until, int):
        # a shorter partition ends where it ends now
        ends = connector.end_offsets(partitions or (), timeout)
        until = {tp: min(until, end) for tp, end in ends.items()}
    if arguments.group is not None:
        return connector.create_message_streams({topic: 1}, until=until)[topic][0]
    chosen = _chosen(connector.partitions_for(topic, timeout), arguments.partition)
    if isinstance(until, dict):
        until = {tp: until[tp] for tp in chosen}
    return connector.read(chosen, _start(connector, chosen, arguments, timeout), until, timeout=timeout)


def _chosen(partitions: list[TopicPartition], numbers: list[int] | None) -> list[TopicPartition]:
    if numbers is None:
        return partitions
    missing = set(numbers) - {tp.partition for tp in partitions}
    if missing:
        raise ConfigException("--partition", f"{partitions[0].topic} has no partition {sorted(missing)[0]}")
    return [tp for tp in partitions if tp.partition in numbers]


def _start(
    connector: ZookeeperConsumerConnector, chosen: list[TopicPartition], arguments: argparse.Namespace, timeout: float
) -> Any:
    start = arguments.start or "earliest" if not isinstance(arguments.start, int) else arguments.start
    if isinstance(start, tuple):
        return start[1]
    if not isinstance(start, int):
        return start
    begins, ends = connector.beginning_offsets(chosen, timeout), connector.end_offsets(chosen, timeout)
    # a partition may be shorter than the others
    return {tp: min(ends[tp], max(begins[tp], start if start >= 0 else ends[tp] + start)) for tp in chosen}


# ---- what is printed


def _writer(arguments: argparse.Namespace) -> Callable[[Message], bytes]:
    """Return what makes the bytes of one message."""
    if arguments.format == "raw":
        return lambda message: (message.value or b"") + b"\n"
    if arguments.format == "json":
        return _json
    pattern = arguments.format
    if pattern == "value":
        prefix = ("{headers}\\t" if arguments.headers else "") + ("{key}\\t" if arguments.keys else "")
        pattern = f"{prefix}{{value}}\\n"
    pattern = _ESCAPE.sub(lambda found: _ESCAPES[found[0]], pattern)
    return lambda message: _FIELD.sub(lambda found: _shown(message, found[1]), pattern).encode(errors="replace")


def _shown(message: Message, field: str) -> str:
    value = getattr(message, field)
    if field == "headers":
        return ",".join(f"{printable(name)}={_text(data)}" for name, data in value)
    return str(value) if isinstance(value, int) else _text(value)


def _text(data: bytes | str | None) -> str:
    if data is None:
        return "null"
    return printable(data if isinstance(data, str) else data.decode(errors="backslashreplace"))


def _json(message: Message) -> bytes:
    document: dict[str, Any] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "timestamp": message.timestamp,
        **data_field("key", message.key),
        **data_field("value", message.value),
        "headers": [{"name": name, **data_field("value", data)} for name, data in message.headers],
    }
    return json.dumps(document, ensure_ascii=False).encode(errors="replace") + b"\n"
