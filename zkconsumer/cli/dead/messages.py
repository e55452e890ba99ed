"""``zkconsumer dead show`` and ``export``: messages that pointers name, from the brokers. The main thread's."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from zkconsumer.cli.dead.listing import (
    Selected,
    add_group,
    add_selection,
    by_partition,
    complain,
    pointer_nodes,
    read_selected,
    when,
    wrong_usage,
)
from zkconsumer.cli.source_arguments import add_connection_arguments, open_client
from zkconsumer.cli.tables import JSON, as_json, data_field, printable
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.core.message_pointers import Pointer
from zkconsumer.errors import BrokerError, ConfigException
from zkconsumer.fetch.fetch_settings import FetchSettings
from zkconsumer.fetch.message_lookup import MessageAt, MessageLookup
from zkconsumer.kafka import EARLIEST
from zkconsumer.runtime.deadline import Deadline

LARGEST = 64 * 1024 * 1024
"""Bytes of the largest batch that is read."""
AT_ONCE = 16 * 1024 * 1024
"""Bytes of messages that are in memory at once."""


def add_show_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_group(parser)
    add_selection(parser)
    parser.add_argument("--format", choices=("text", JSON), default="text", help="text for people, or JSON")
    add_connection_arguments(parser)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    add_group(parser)
    parser.add_argument("--to", required=True, metavar="FILE", help="the new file; - is standard output")
    parser.add_argument(
        "--base64", action="store_true", help="write all keys and values as base64, not only those that are no text"
    )
    add_selection(parser)
    add_connection_arguments(parser)


def run_show(arguments: argparse.Namespace) -> int:
    """Show one message. Return the exit code. Raises: ZkConsumerError."""
    usage = wrong_usage(arguments)
    if not usage and (arguments.offset is None or len(arguments.offset) != 1):
        usage = "show takes one message: --topic TOPIC:PARTITION --offset N"
    if usage:
        print(f"zkconsumer dead: {usage}", file=sys.stderr)
        return 2
    arguments.parked = True  # a message named by its offset is shown, also a parked one
    with open_client(arguments) as client:
        selected, _ = read_selected(pointer_nodes(client, arguments.group), arguments)
        if not selected:
            complain(f"group {arguments.group} has no pointer to that message; see 'zkconsumer dead list --parked'")
            return 1
        ((one, message),) = read_messages(client, selected)
        document = _document(arguments.group, one, message, as_base64=False)
        print(as_json(document) if arguments.format == JSON else _text(document), flush=True)
        return 1 if message.record is None else 0


def run_export(arguments: argparse.Namespace) -> int:
    """Export messages. Return the exit code. Raises: ZkConsumerError."""
    usage = wrong_usage(arguments) or ("--to names no file" if not arguments.to else "")
    if usage:
        print(f"zkconsumer dead: {usage}", file=sys.stderr)
        return 2
    with open_client(arguments) as client:
        selected, whole = read_selected(pointer_nodes(client, arguments.group), arguments)
        missing = count = 0
        with nullcontext(sys.stdout) if arguments.to == "-" else _new_file(Path(arguments.to)) as out:
            for one, message in read_messages(client, selected):
                document = _document(arguments.group, one, message, as_base64=arguments.base64)
                out.write(json.dumps(document, ensure_ascii=True) + "\n")
                count += 1
                missing += message.record is None
        complain(f"{count - missing} messages were exported" + (f", {missing} could not be read" if missing else ""))
        return 1 if missing or not whole else 0


@contextmanager
def _new_file(path: Path) -> Iterator[TextIO]:
    """Open a new file, and remove it again if the block fails. Raises ConfigException, also for an existing file."""
    try:
        with path.open("x", encoding="ascii") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ConfigException(str(path), f"cannot be written: {error.strerror or error}") from None


def read_messages(client: ClusterClient, selected: Sequence[Selected]) -> Iterator[tuple[Selected, MessageAt]]:
    """Yield each pointer with its message, which has a problem if it is gone or cannot be read."""
    timeout = client.timeout
    settings = FetchSettings(
        client.config.client_id,
        max_wait=0.1,
        min_bytes=1,
        partition_bytes=1024 * 1024,
        max_bytes=LARGEST,
        reset_to=EARLIEST,
        socket_timeout=timeout,
        receive_buffer=65536,
        backoff=0.2,
        security=client.channels.security,
        largest_batch=LARGEST,
    )
    with closing(MessageLookup(settings, client.brokers)) as lookup:
        for tp, pointers in by_partition(selected).items():
            yield from (((tp, p), MessageAt(p.offset, problem=p.reason, gone=True)) for p in pointers if p.lost_ms)
            left = [pointer.offset for pointer in pointers if not pointer.lost_ms]
            named = {pointer.offset: pointer for pointer in pointers if not pointer.lost_ms}
            while left:
                try:
                    found = lookup.read(tp, left, Deadline(timeout), AT_ONCE)
                except BrokerError as error:
                    found = {offset: MessageAt(offset, problem=str(error)) for offset in left}
                yield from (
                    ((tp, named[offset]), _checked(named[offset], found[offset])) for offset in left if offset in found
                )
                left = [offset for offset in left if offset not in found]


def _checked(pointer: Pointer, message: MessageAt) -> MessageAt:
    """Return the message if it is that of the pointer, otherwise a problem."""
    if message.record is None or pointer.is_of(message.record.key):
        return message
    return MessageAt(message.offset, problem="a message of another key has its offset", gone=True)


def _document(group: str, selected: Selected, message: MessageAt, *, as_base64: bool) -> dict[str, Any]:
    tp, pointer = selected
    document: dict[str, Any] = {
        "group": group,
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": pointer.offset,
        "state": pointer.kind.value,
        "attempts": pointer.attempts,
        "first_failed": when(pointer.first_ms),
        "next_try": when(pointer.due_ms),
        "reason": pointer.reason,
    }
    record = message.record
    if record is None:
        return {**document, "problem": message.problem}
    document["timestamp"] = record.timestamp
    document |= data_field("key", record.key, as_base64) | data_field("value", record.value, as_base64)
    document["headers"] = [{"name": name, **data_field("value", value, as_base64)} for name, value in record.headers]
    return document


def _text(document: dict[str, Any]) -> str:
    lines = []
    for name, value in document.items():
        if name == "headers":
            lines += [f"header {printable(one.pop('name'))}: {_shown(next(iter(one.values())))}" for one in value]
        else:
            lines.append(f"{name.replace('_', ' ')}: {_shown(value)}")
    return "\n".join(lines)


def _shown(value: object) -> str:
    return "-" if value is None else printable(str(value))
