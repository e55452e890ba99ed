"""The properties of groups that the brokers coordinate, and what contradicts them. Immutable; any thread.

Names and defaults are those of the Java consumer (3.x), but for ``heartbeat.interval.ms``: a member that hears of a
leave three seconds late lets the leaver's partitions lie for so long, and to ask ten times as often costs a sixth of a
percent of a core. They mean nothing while ZooKeeper coordinates; given there all the same, they are reported, since
files that were written for the one consumer end up with the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.config.addresses import parse_servers
from zkconsumer.config.property_keys import boolean, choice, integer, keys_of, not_empty, text
from zkconsumer.errors import ConfigException

BY_BROKERS = "kafka"
_ONLY_BY_BROKERS = {
    "bootstrap.servers": "zookeeper.connect",
    "session.timeout.ms": "zookeeper.session.timeout.ms",
    "heartbeat.interval.ms": None,
    "max.poll.interval.ms": None,
    "group.instance.id": "consumer.id",
}
"""The keys of brokers' groups, and the nearest one for each where ZooKeeper coordinates."""


def _servers(value: str) -> str:
    parse_servers(value)
    return value


@dataclass(frozen=True, init=False, repr=False)
class CoordinationConfig:
    """The part of :class:`~zkconsumer.config.ConsumerConfig` that says who coordinates the group, and how."""

    group_coordination: str = choice(
        "who coordinates the group: `zookeeper`, with Scala members, or `kafka`, the brokers' own coordinator, with the"
        " Java consumer and librdkafka. In any case",
        {"zookeeper": "zookeeper", "kafka": BY_BROKERS},
        any_case=True,
        default="zookeeper",
        ours=True,
    )
    group_migration: bool = boolean(
        "with `group.coordination=kafka`, while a group moves from ZooKeeper or back: the member is in both. ZooKeeper"
        " coordinates while it has members without this, the brokers where it has none; offsets are kept in both",
        default=False,
        ours=True,
    )
    bootstrap_servers: str | None = text(
        "`host1:port1,host2:port2`: brokers that are asked for all others; without it they are read from ZooKeeper",
        check=_servers,
        default_text="none",
        ours=True,
    )
    session_timeout_ms: int = integer(
        "how long a vanished member keeps what it owns; brokers bound it by `group.min.session.timeout.ms` and"
        " `group.max.session.timeout.ms`",
        least=1,
        default=45_000,
        ours=True,
    )
    heartbeat_interval_ms: int = integer(
        "how often a member asks its coordinator whether the group changed: how soon it hears of it, and so how long a"
        " rebalance takes; the Java consumer's is 3000",
        least=1,
        default=300,
        ours=True,
    )
    max_poll_interval_ms: int = integer(
        "a reader that has not come back to its stream for so long, while there is something to read, makes the member"
        " leave the group until it does (not with `group.migration`); also how long a rebalance waits for this member",
        least=1,
        default=300_000,
        ours=True,
    )
    group_instance_id: str | None = text(
        "a name that stays over restarts: what the member owns is kept for it for `session.timeout.ms`, also when it"
        " shuts down. Brokers from 2.3 on",
        check=not_empty,
        default_text="none",
        ours=True,
    )


def check_coordination(values: Mapping[str, Any], given: Mapping[str, object]) -> None:
    """Raises :class:`ConfigException` for what cannot be meant together."""
    if values["group.coordination"] != BY_BROKERS:
        if given.get("zookeeper.connect") is None:
            reason = (
                "is missing, and has no default: the ZooKeeper servers of the brokers, `host1:2181,host2:2181/chroot`"
            )
            if values["bootstrap.servers"]:
                reason += "; bootstrap.servers alone is enough only with group.coordination=kafka"
            raise ConfigException("zookeeper.connect", reason)
        if values["group.migration"]:
            raise ConfigException("group.migration", "goes with group.coordination=kafka, in both directions")
        return
    if not values["bootstrap.servers"] and not values["zookeeper.connect"]:
        reason = "is missing: with group.coordination=kafka, give it or zookeeper.connect, where brokers can be found"
        raise ConfigException("bootstrap.servers", reason)
    if values["message.model"] != "clustering":
        raise ConfigException(
            "message.model",
            "broadcasting is for group.coordination=zookeeper; with kafka give each member a group.id of its own",
        )
    if values["offsets.storage"] != "kafka":
        raise ConfigException(
            "offsets.storage",
            "must be kafka with group.coordination=kafka: only a commit to the coordinator is fenced by the generation",
        )
    if values["group.migration"]:
        _check_migration(values)
    elif values["dual.commit.enabled"]:
        raise ConfigException(
            "dual.commit.enabled",
            "must be false with group.coordination=kafka: nothing fences what would be written to ZooKeeper",
        )
    beat, session = values["heartbeat.interval.ms"], values["session.timeout.ms"]
    if beat >= session:
        reason = f"must be below session.timeout.ms, at most a third of it is usual: {beat} >= {session}"
        raise ConfigException("heartbeat.interval.ms", reason)
    if beat >= (wait := values["max.poll.interval.ms"]):
        reason = f"must be below max.poll.interval.ms, for which a rebalance waits for us: {beat} >= {wait}"
        raise ConfigException("heartbeat.interval.ms", reason)


def _check_migration(values: Mapping[str, Any]) -> None:
    if not values["zookeeper.connect"]:
        raise ConfigException(
            "zookeeper.connect", "is missing: with group.migration the member is in ZooKeeper as well"
        )
    if not values["dual.commit.enabled"]:
        reason = "must be true with group.migration: whoever comes next reads the one store or the other"
        raise ConfigException("dual.commit.enabled", reason)


def ineffective_properties(given: Mapping[str, object], values: Mapping[str, Any]) -> Iterator[str]:
    """What to say of properties that are given and mean nothing, as ZooKeeper coordinates."""
    if values["group.coordination"] == BY_BROKERS:
        return
    keys = keys_of(CoordinationConfig)
    for name, meant in _ONLY_BY_BROKERS.items():
        if given.get(name) is not None and values[name] != keys[name].default:
            advice = f"; did you mean {meant!r}?" if meant else ""
            yield f"property {name!r} has no effect with group.coordination=zookeeper{advice}"
