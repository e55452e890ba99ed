"""The group protocol: members write the same bytes as the Java client of 3.9.1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.vectors.cases import Case
from zkconsumer.assignors.java_consumer_assignors import (
    CooperativeStickyGroupAssignor,
    StickyGroupAssignor,
    decode_sticky,
)
from zkconsumer.core.consumer_protocol import (
    MemberAssignment,
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from zkconsumer.kafka.api_schema import BYTES, Field, FieldType
from zkconsumer.kafka.group_schemas import GROUP_MESSAGES
from zkconsumer.model import TopicPartition

FILES = ("kafka391_group_protocol",)


def with_bytes(fields: Sequence[Field], values: dict[str, Any]) -> dict[str, Any]:
    """The recorded values, with byte strings made of their digits."""

    def one(kind: Any, value: Any) -> Any:
        if not isinstance(kind, FieldType):
            return with_bytes(kind, value)
        return bytes.fromhex(value) if kind is BYTES else value

    kinds = {field.name: field for field in fields}
    return {
        name: [one(kinds[name].kind, entry) for entry in value] if kinds[name].many else one(kinds[name].kind, value)
        for name, value in values.items()
    }


def tps(listed: list[list[Any]]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(*one) for one in listed)


def data_of(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def check_message(data: dict[str, Any], written: bytes) -> None:
    message = next(message for message in GROUP_MESSAGES if message.name == data["message"])
    version = data["version"]
    fields = message.request if data["side"] == "request" else message.response
    values = with_bytes(fields, data["values"])
    assert message.write(fields, version, values) == written
    assert message.read(fields, version, written) == values


def check_subscription(data: dict[str, Any], written: bytes) -> None:
    version = data["version"]
    said = MemberSubscription(
        tuple(data["topics"]), data_of(data["user_data"]), tps(data["owned"]), data["generation"], data["rack"]
    )
    assert encode_subscription(said, version) == written
    told = decode_subscription(written, "m")
    assert (told.topics, told.user_data) == (said.topics, said.user_data)
    assert told.owned == (said.owned if version >= 1 else ())
    assert told.generation == (said.generation if version >= 2 else -1)
    assert told.rack == (said.rack if version >= 3 else None)


def check_assignment(data: dict[str, Any], written: bytes) -> None:
    given = MemberAssignment(tps(data["partitions"]), data_of(data["user_data"]))
    assert encode_assignment(given, data["version"]) == written
    assert decode_assignment(written, "m") == given


def check_sticky(data: dict[str, Any], written: bytes) -> None:
    held, generation = tps(data["previous"]), data["generation"]
    assert (StickyGroupAssignor().user_data(["t"], held, generation) or b"") == written
    assert decode_sticky(written) == (list(held), generation)


def check_cooperative(data: dict[str, Any], written: bytes) -> None:
    held, generation = tps(data["previous"]), data["generation"]
    assert CooperativeStickyGroupAssignor().user_data(["t"], held, generation) == written


CHECKS: dict[str, Callable[[dict[str, Any], bytes], None]] = {
    "message": check_message,
    "subscription": check_subscription,
    "assignment": check_assignment,
    "sticky": check_sticky,
    "cooperative-sticky": check_cooperative,
}


def test_members_write_what_java_s_write(case: Case) -> None:
    CHECKS[case.data["what"]](case.data, bytes.fromhex(case.data["hex"]))


@pytest.mark.parametrize("message", GROUP_MESSAGES, ids=lambda message: message.name)
def test_no_version_beyond_the_described_ones_is_written(message: Any) -> None:
    for version in (message.lowest - 1, message.highest + 1):
        with pytest.raises(ValueError, match="is not described"):
            message.write(message.request, version, {})
