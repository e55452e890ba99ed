"""The files of commands that write offsets: the Java tool's CSV, and the undo file of a run. Pure; any thread."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.core.names import name_problem
from zkconsumer.core.offset_move_plan import SavedEntry, Store, StoreEntry
from zkconsumer.model import TopicPartition

_FORMAT = "zkconsumer migrate, what was there before"
_VERSION = 1
_LARGEST = (1 << 63) - 1
_PARTITIONS = range(1 << 31)
_OFFSETS = range(-(1 << 63), 1 << 63)
_EPOCHS = range(-1, 1 << 31)
_METADATA_BYTES = (1 << 15) - 1
_NUMBER = re.compile(r"[+-]?\d+")


def format_csv(offsets: Mapping[TopicPartition, int], group: str | None = None) -> str:
    """Return lines of ``topic,partition,offset`` without a heading, with ``group`` as first column if it is given.

    This is the form of ``kafka-consumer-groups.sh --reset-offsets --export`` and ``--from-file``.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    first = [] if group is None else [group]
    writer.writerows([*first, tp.topic, tp.partition, offset] for tp, offset in sorted(offsets.items()))
    return text.getvalue()


def parse_csv(text: str, group: str) -> dict[TopicPartition, int]:
    """Parse the lines of :func:`format_csv`, in either form, without lines of other groups than ``group``.

    Raises ValueError that names the line, for a line that cannot be read, has another form than the first line, or
    repeats a partition.
    """
    offsets: dict[TopicPartition, int] = {}
    width = 0
    reader = csv.reader(io.StringIO(text), strict=True)
    try:
        for row in reader:
            if row:
                tp, offset = _row(row[-3:] if len(row) == 4 else row)
                width = width or len(row)
                if len(row) != width:
                    raise ValueError(f"{len(row)} columns, and {width} before")
                if width == 4 and row[0] != group:
                    continue
                if tp in offsets:
                    raise ValueError(f"{tp} was named before")
                offsets[tp] = offset
    except (ValueError, csv.Error) as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    return offsets


def _row(row: list[str]) -> tuple[TopicPartition, int]:
    if len(row) != 3:
        raise ValueError(f"topic,partition,offset (or group,topic,partition,offset) is wanted, not {','.join(row)!r}")
    topic, partition, offset = (text.strip() for text in row)
    problem = name_problem(topic)
    if problem is not None:
        raise ValueError(f"{topic!r} is no topic: {problem}")
    if not _is_number(partition, 2**31 - 1):
        raise ValueError(f"{partition!r} is no partition")
    if not _is_number(offset, _LARGEST):
        raise ValueError(f"{offset!r} is no offset")
    return TopicPartition(topic, int(partition)), int(offset)


def _is_number(text: str, largest: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) <= largest


@dataclass(frozen=True, slots=True)
class UndoFile:
    """The entries that one run overwrote, with its group, store, cluster (``zookeeper.connect``) and time."""

    group: str
    store: Store
    cluster: str
    when: str
    saved: Mapping[TopicPartition, SavedEntry]


def format_undo_file(backup: UndoFile) -> str:
    """Return a backup as JSON text, with one line for each partition. :func:`parse_undo_file` reads it."""
    head = {
        "format": _FORMAT,
        "version": _VERSION,
        "group": backup.group,
        "store": backup.store.value,
        "zookeeper.connect": backup.cluster,
        "when": backup.when,
    }
    lines = [
        json.dumps({"topic": tp.topic, "partition": tp.partition, **_saved(backup.saved[tp])})
        for tp in sorted(backup.saved)
    ]
    partitions = ",\n    ".join(lines)
    return json.dumps(head, indent=2)[:-2] + f',\n  "partitions": [\n    {partitions}\n  ]\n}}\n'


def _saved(saved: SavedEntry) -> dict[str, Any]:
    return {"before": _written(saved.before), "wrote": _written(saved.wrote)}


def _written(entry: StoreEntry | None) -> dict[str, Any] | None:
    """Return the fields of an entry that are not empty."""
    if entry is None:
        return None
    fields = {"problem": entry.problem, "text": entry.text, "metadata": entry.metadata}
    said: dict[str, Any] = {"offset": entry.offset, **{key: value for key, value in fields.items() if value}}
    return said if entry.leader_epoch < 0 else {**said, "leader_epoch": entry.leader_epoch}


def parse_undo_file(text: str) -> UndoFile:
    """Parse a backup. Raises ValueError that says what is wrong."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict) or document.get("format") != _FORMAT:
            raise ValueError("it is no undo file of zkconsumer offsets or zkconsumer migrate")
        if document["version"] != _VERSION:
            raise ValueError(f"it has version {document['version']!r}, this program knows {_VERSION}")
        return UndoFile(
            _text(document["group"]),
            Store(document["store"]),
            _text(document["zookeeper.connect"]),
            _text(document["when"]),
            _once(_parsed(entries) for entries in _partitions(document["partitions"])),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"it is damaged: {error!r}") from None
    except RecursionError:
        raise ValueError("it is damaged: it is nested too deeply") from None


def _partitions(value: object) -> Iterable[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise TypeError("partitions")
    return value


def _once(entries: Iterable[tuple[TopicPartition, SavedEntry]]) -> dict[TopicPartition, SavedEntry]:
    found: dict[TopicPartition, SavedEntry] = {}
    for tp, saved in entries:
        if tp in found:
            raise ValueError(f"it is damaged: {tp} stands in it twice")
        found[tp] = saved
    return found


def _parsed(one: dict[str, Any]) -> tuple[TopicPartition, SavedEntry]:
    tp = TopicPartition(_text(one["topic"]), _whole(one["partition"], _PARTITIONS))
    return tp, SavedEntry(_entry(tp, one["before"]), _entry(tp, one["wrote"]))


def _entry(tp: TopicPartition, value: object) -> StoreEntry | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.40} is no entry")
    problem, text, metadata = (_text(value.get(key, "")) for key in ("problem", "text", "metadata"))
    offset = None if value["offset"] is None else _whole(value["offset"], _OFFSETS)
    if offset is not None and text and (_NUMBER.fullmatch(text) is None or int(text) != offset):
        # the text is what would be written, and the offset what people are shown
        raise ValueError(f"it is damaged: {tp} has the offset {offset} and the text {text!r:.40}; change both")
    if len(metadata.encode("utf-8", "surrogatepass")) > _METADATA_BYTES:
        raise ValueError(f"it is damaged: {tp} has metadata of more than {_METADATA_BYTES} bytes")
    text.encode("utf-8", "surrogateescape")  # a ValueError here, and not at the write
    return StoreEntry(offset, problem, text, metadata, _whole(value.get("leader_epoch", -1), _EPOCHS))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _whole(value: object, among: range) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in among:
        raise TypeError(f"{value!r:.40} is no whole number from {among[0]} to {among[-1]}")
    return value
