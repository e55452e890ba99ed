"""The properties of strategies, of the rebalance listener, of the replica to read and of the end of streams.

Immutable; any thread.

The original has none of them. Those of the strategies hold the arguments of RocketMQ's strategies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.config.config_definition import choice, integer, node_name, not_empty, text
from zkconsumer.errors import ConfigException
from zkconsumer.model import LAG_AWARE, PLACEMENTS, TopicPartition

_LONGEST_TEXT = 32_767
"""Bytes of a text in a request to a broker."""


def parse_rooms(value: str) -> tuple[str, ...]:
    """Parse the names of rooms in ``a,b``. Raises ValueError if there are none."""
    rooms = tuple(name.strip() for name in value.split(",") if name.strip())
    if not rooms:
        raise ValueError(f"must name at least one room, not {value!r}")
    return rooms


def parse_assignment_table(value: str) -> dict[str, tuple[TopicPartition, ...]]:
    """Parse an assignment like ``member=topic:0,topic:1; member=...``, by thread or consumer id. Raises ValueError."""
    table: dict[str, tuple[TopicPartition, ...]] = {}
    for entry in value.split(";"):
        if not entry.strip():
            continue
        member, equals, listed = entry.strip().partition("=")
        member = member.strip()
        if not equals or not member or member in table:
            raise ValueError(
                f"must be like 'member=topic:0,topic:1; member=topic:2', each member once; {entry!r} is not"
            )
        table[member] = tuple(_partition(text.strip()) for text in listed.split(",") if text.strip())
    if not table:
        raise ValueError("must name at least one member")
    return table


def _partition(value: str) -> TopicPartition:
    topic, _, number = value.rpartition(":")
    if not topic or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{value!r} is not topic:partition")
    return TopicPartition(topic, int(number))


def _rooms(value: str) -> str:
    return ",".join(parse_rooms(value))


def _rack(value: str) -> str:
    if len(value.encode()) > _LONGEST_TEXT:
        raise ValueError(f"may have {_LONGEST_TEXT} bytes, not {len(value.encode())}")
    return value


def _table(value: str) -> str:
    parse_assignment_table(value)
    return value


def check_placement(values: Mapping[str, Any]) -> None:
    """Check the properties of strategies that need a plan. Raises :class:`ConfigException`."""
    by_brokers = values["group.coordination"] == "kafka"
    strategy, instance = values["partition.assignment.strategy"], values["group.instance.id"]
    if by_brokers:
        if LAG_AWARE in (name.strip() for name in strategy.split(",")):
            reason = f"{LAG_AWARE!r} follows a plan in ZooKeeper; with group.coordination=kafka take another strategy"
            raise ConfigException("partition.assignment.strategy", reason)
        return
    if strategy not in PLACEMENTS or instance is None:
        return
    if values["consumer.id"] not in (None, instance):
        reason = f"{instance!r} names the member, and so does consumer.id={values['consumer.id']!r}; leave that out"
        raise ConfigException("group.instance.id", reason)
    try:
        node_name(instance)
    except ValueError as error:
        raise ConfigException("group.instance.id", str(error)) from error


@dataclass(frozen=True, init=False, repr=False)
class AssignmentConfig:
    """The part of :class:`~zkconsumer.config.ConsumerConfig` for strategies, the rebalance listener and streams."""

    assignment_mixed_group: str = choice(
        "what members do if their strategy is not the original's and another member does not advertise it."
        " `range`: all members of this package fall back to it together. `refuse`: they keep their partitions",
        {"range": "range", "refuse": "refuse"},
        default="range",
    )
    assignment_rooms: str | None = text(
        "for the strategy `machine-room`: the rooms to consume from, `a,b`", check=_rooms, default_text="none"
    )
    assignment_table: str | None = text(
        "for the strategy `configured`: `member=topic:0,topic:1; member=...`, with consumer or thread ids",
        check=_table,
        default_text="none",
    )
    group_instance_grace_ms: int = integer(
        "for `sticky` and `lag-aware` in ZooKeeper: how long the partitions of a member with a `group.instance.id` are"
        " kept for it after it has left or died; 0: not at all. The same in the whole group",
        least=0,
        default=60_000,
    )
    machine_room: str | None = text(
        "the room (rack, zone) this member advertises to strategies", check=not_empty, default_text="none"
    )
    client_rack: str = text(
        "the rack (zone) of this member. Messages are read from the replica there that the leader names (brokers from"
        " 2.4 on with `replica.selector.class`), and from the leader where there is none",
        check=_rack,
        default="",
        default_text="none",
    )
    rebalance_listener_timeout_ms: int = integer(
        "how long a rebalance waits for one call of the listener", least=1, default=3000
    )
    consumer_timeout_action: str = choice(
        "what a stream does at `consumer.timeout.ms`: `raise` ConsumerTimeoutException, or `end` the loop. You"
        " can iterate on in either case",
        {"raise": "raise", "end": "end"},
        default="raise",
    )
    unfinished_max_offsets: int = integer(
        "how many messages of one partition `run` with `concurrency` reads ahead of those that are finished",
        least=1,
        default=10_000,
    )
    consumed_max_per_second: int = integer(
        "limit of the messages that this member hands out in a second, from all its streams together, against the"
        " burst after a rebalance; 0: no limit",
        least=0,
        default=0,
    )
