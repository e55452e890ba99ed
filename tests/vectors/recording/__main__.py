"""Records what the Java client of 3.9.1 writes into ``tests/vectors/data``: ``python -m tests.vectors.recording``."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from zkconsumer.devcluster import java
from zkconsumer.devcluster.kafka_server import kafka_jars
from zkconsumer.kafka.api_schema import BOOL, BYTES, INT8, STRING, ApiSchema, Field, FieldType
from zkconsumer.kafka.broker_schemas import BROKER_MESSAGES, FETCH
from zkconsumer.kafka.group_schemas import GROUP_MESSAGES

HERE = Path(__file__).parent
DATA = HERE.parent / "data"


def samples(fields: Sequence[Field], version: int, salt: int) -> dict[str, Any]:
    """Values for every field of a version; texts and byte strings of some are missing, some not ASCII."""
    found: dict[str, Any] = {}
    for number, field in enumerate(f for f in fields if f.since <= version <= f.until):
        seed = salt * 7 + number
        count = 1 + seed % 2
        found[field.name] = (
            [sample(field, version, seed + n) for n in range(count)] if field.many else sample(field, version, seed)
        )
    return found


def sample(field: Field, version: int, seed: int) -> Any:
    if not isinstance(field.kind, FieldType):
        return samples(field.kind, version, seed)
    if field.kind is STRING:
        nullable = field.default is None
        return None if nullable and seed % 2 else f"{field.name}-ü-{seed}"
    if field.kind is BYTES:
        return bytes(range(seed % 150)).hex()
    if field.kind is INT8:
        return seed % 128
    return bool(seed % 2) if field.kind is BOOL else seed


def as_java(fields: Sequence[Field], values: dict[str, Any]) -> dict[str, Any]:
    """The same values under Java's names, byte strings in base 64."""
    kinds = {field.name: field for field in fields}
    found: dict[str, Any] = {}
    for name, value in values.items():
        head, *tail = name.split("_")
        entries = value if kinds[name].many else [value]
        written = [_one(kinds[name].kind, entry) for entry in entries]
        found[head + "".join(map(str.title, tail))] = written if kinds[name].many else written[0]
    return found


def _one(kind: Any, value: Any) -> Any:
    if not isinstance(kind, FieldType):
        return as_java(kind, value)
    return base64.b64encode(bytes.fromhex(value)).decode() if kind is BYTES else value


Questions = Iterator[tuple[dict[str, Any], dict[str, Any]]]
"""What to record, and what to ask Java for it."""


def messages(described: Sequence[ApiSchema]) -> Questions:
    """Yield the requests and responses of every version."""
    for message in described:
        for version in range(message.lowest, message.highest + 1):
            for side, fields in (("request", message.request), ("response", message.response)):
                if message is FETCH and side == "response":
                    continue  # Java makes no records of a text
                values = samples(fields, version, message.key)
                head = {"what": "message", "message": message.name, "side": side, "version": version}
                name = f"{message.name}{side.title()}Data"
                theirs = as_java(fields, values)
                if name == "OffsetCommitRequestData" and "generationId" in theirs:
                    theirs["generationIdOrMemberEpoch"] = theirs.pop("generationId")  # since 3.6
                yield {**head, "values": values}, {**head, "class": name, "values": theirs}


def protocol() -> Iterator[dict[str, Any]]:
    """Yield subscriptions, assignments and user data."""
    held = [["t", 0], ["t", 2], ["ü", 1]]
    for version in range(4):
        for topics, user_data, owned, rack in ((["t", "ü"], "00ff", held, "r"), ([], None, [], None)):
            yield {
                "what": "subscription",
                "version": version,
                "topics": topics,
                "user_data": user_data,
                "owned": owned,
                "generation": 7 if owned else -1,
                "rack": rack,
            }
            yield {"what": "assignment", "version": version, "partitions": owned, "user_data": user_data}
    for what in ("sticky", "cooperative-sticky"):
        for previous, generation in ((held, 7), ([], -1), ([], 3)):
            yield {"what": what, "version": 0, "previous": previous, "generation": generation}


def record(name: str, questions: Questions) -> None:
    """Write a file with Java's answers."""
    recorded, asked = map(list, zip(*questions, strict=True))
    classes = ":".join(map(str, kafka_jars("3.9.1")))
    answer = subprocess.run(
        [str(java()), "-cp", classes, str(HERE / "GroupVectors.java")],
        input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    with (DATA / name).open("w", encoding="utf-8") as file:
        for number, (one, line) in enumerate(zip(recorded, lines, strict=True), 1):
            note = " ".join(str(one[key]) for key in ("message", "side", "what", "version") if key in one)
            file.write(
                json.dumps({"note": f"{number} {note}", **one, "hex": line}, ensure_ascii=False, separators=(",", ":"))
                + "\n"
            )


if __name__ == "__main__":
    record("kafka391_group_protocol.jsonl", chain(messages(GROUP_MESSAGES), ((one, one) for one in protocol())))
    record("kafka391_broker_requests.jsonl", messages(BROKER_MESSAGES))
