"""The properties of groups that the brokers coordinate, and their contradictions. Immutable; any thread.

Names and defaults are those of the Java consumer (3.x), except for ``heartbeat.interval.ms``. A member that hears of a
leave three seconds late lets the partitions of the left member lie for three seconds. Ten times as many heartbeats cost
a sixth of a percent of a core.

These properties have no effect while ZooKeeper coordinates the group. Then a warning names the properties, because a
file for one consumer may end up with the other consumer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.config.addresses import parse_servers
from zkconsumer.config.config_definition import boolean, choice, integer, keys_of, not_empty, text
from zkconsumer.errors import ConfigException
from zkconsumer.model import PLACEMENTS

BY_BROKERS = "kafka"
_ONLY_BY_BROKERS = {
    "bootstrap.servers": "zookeeper.connect",
    "session.timeout.ms": "zookeeper.session.timeout.ms",
    "heartbeat.interval.ms": None,
    "max.poll.interval.ms": None,
    "group.instance.id": "partition.assignment.strategy=sticky",
}
"""The properties of brokers' groups, each with the nearest one of groups in ZooKeeper."""


def _servers(value: str) -> str:
    parse_servers(value)
    return value


@dataclass(frozen=True, init=False, repr=False)
class CoordinationConfig:
    """The part of :class:`~zkconsumer.config.ConsumerConfig` for the group's coordinator."""

    group_coordination: str = choice(
        "the coordinator of the group. `zookeeper`: with Scala members. `kafka`: the brokers' own coordinator,"
        " with the Java consumer and librdkafka. Upper or lower case",
        {"zookeeper": "zookeeper", "kafka": BY_BROKERS},
        any_case=True,
        default="zookeeper",
    )
    group_migration: bool = boolean(
        "with `group.coordination=kafka`, while a group moves from ZooKeeper or back: the member is in both."
        " ZooKeeper coordinates while any member lacks this property, else the brokers; offsets are kept in both",
        default=False,
    )
    bootstrap_servers: str | None = text(
        "`host1:port1,host2:port2`: the first brokers to ask for all others; without it the member reads them"
        " from ZooKeeper",
        check=_servers,
        default_text="none",
    )
    session_timeout_ms: int = integer(
        "how long a vanished member keeps its partitions; brokers bound it by `group.min.session.timeout.ms` and"
        " `group.max.session.timeout.ms`",
        least=1,
        default=45_000,
    )
    heartbeat_interval_ms: int = integer(
        "time between two heartbeats. A member hears of a change with its next heartbeat, so this decides how"
        " long a rebalance takes; the Java consumer's is 3000",
        least=1,
        default=300,
    )
    max_poll_interval_ms: int = integer(
        "if a reader stays away from its stream for this long, while there is something to read, the member"
        " leaves the group until the reader is back (not with `group.migration`). Also how long a rebalance waits"
        " for this member",
        least=1,
        default=300_000,
    )
    group_instance_id: str | None = text(
        "a name that stays the same over restarts. The member's partitions are kept for it for"
        " `session.timeout.ms`, also when it shuts down. Brokers from 2.3 on. In ZooKeeper, with `sticky` or"
        " `lag-aware`, they are kept for `group.instance.grace.ms`",
        check=not_empty,
        default_text="none",
    )


def check_coordination(values: Mapping[str, Any], given: Mapping[str, object]) -> None:
    """Check the properties of coordination against each other. Raises :class:`ConfigException`."""
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
    """Return warnings for given properties that have no effect, because ZooKeeper coordinates the group."""
    if values["group.coordination"] == BY_BROKERS:
        return
    keys = keys_of(CoordinationConfig)
    for name, meant in _ONLY_BY_BROKERS.items():
        if name == "group.instance.id" and values["partition.assignment.strategy"] in PLACEMENTS:
            continue
        if given.get(name) is not None and values[name] != keys[name].default:
            advice = f"; did you mean {meant!r}?" if meant else ""
            yield f"property {name!r} has no effect with group.coordination=zookeeper{advice}"
