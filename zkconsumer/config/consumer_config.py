"""The declared properties of a consumer, and the object with their values in effect.

Each field declares one property. Its key is the field's name with dots for underscores; the rest is type, default,
limits and note. The tables in the docs are rendered from it. Immutable, so any thread may read it.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, cast

from zkconsumer.config.addresses import (
    format_address_map,
    format_connect,
    parse_address_map,
    parse_connect,
    parse_servers,
)
from zkconsumer.config.config_definition import (
    HIDDEN,
    ConfigKey,
    Value,
    boolean,
    choice,
    integer,
    is_secret,
    keys_of,
    legal_name,
    looks_secret,
    node_name,
    not_empty,
    same_as,
    text,
)
from zkconsumer.config.coordination_properties import (
    BY_BROKERS,
    CoordinationConfig,
    check_coordination,
    ineffective_properties,
)
from zkconsumer.config.extension_properties import AssignmentConfig, check_placement
from zkconsumer.config.java_properties import parse_properties
from zkconsumer.config.security_properties import SecurityConfig, check_security
from zkconsumer.config.unknown_properties import ALIASES, advice_on_unknown, is_unused, unknown_property_text
from zkconsumer.errors import ConfigException, UnknownKeywordError

_PACKAGE = __name__.partition(".")[0]


class UnknownPropertyWarning(UserWarning):
    """A property is unknown and has no effect; the message names the most similar one."""


class SuspectConfigWarning(UserWarning):
    """Each property is valid, but together they hardly do what the user intends."""


@dataclass(frozen=True, init=False, repr=False)
class OriginalConfig:
    """The part of :class:`ConsumerConfig` with the properties of the original."""

    zookeeper_connect: str = text(
        "`host1:port1,host2:port2/chroot`; the port may be left out (2181)",
        default="",
        default_text="required unless `group.coordination` is `kafka`",
    )
    group_id: str = text("the group whose members share the partitions", check=node_name, required=True)
    zookeeper_session_timeout_ms: int = integer(
        "how long a vanished member keeps its partitions; the ZooKeeper servers may bound it", least=1, default=6000
    )
    zookeeper_connection_timeout_ms: int = integer(
        "how long to wait for ZooKeeper at start", least=1, **same_as("zookeeper.session.timeout.ms")
    )
    zookeeper_sync_time_ms: int = integer("used only as the default of `rebalance.backoff.ms`", least=0, default=2000)
    consumer_id: str | None = text(
        "the member's name after `<group.id>_`; must differ between the members of a group",
        check=node_name,
        default_text="`<host>-<ms>-<8 hex digits>`",
    )
    client_id: str = text("names the client in the brokers' logs and quotas", check=legal_name, **same_as("group.id"))
    socket_timeout_ms: int = integer(
        "limit of one request to a broker and its answer; at least `fetch.wait.max.ms`", least=1, default=30_000
    )
    socket_receive_buffer_bytes: int = integer(
        "receive buffer of a connection to a broker; 0 or -1 leaves the size to the system",
        least=-1,
        default=256 * 1024,
    )
    fetch_message_max_bytes: int = integer(
        "size of one fetch of one partition; must hold the largest message", least=1, default=1024 * 1024
    )
    num_consumer_fetchers: int = integer("fetcher threads per broker", least=1, default=1)
    fetch_min_bytes: int = integer("a broker answers a fetch as soon as it has this much", least=0, default=1)
    fetch_max_bytes: int = integer(
        "size of a whole fetch answer; the original never used it", least=1, default=50 * 1024 * 1024
    )
    fetch_wait_max_ms: int = integer(
        "a broker answers a fetch after this time at the latest; three times it, at most 300 ms, after a second without"
        " messages if `fetch.min.bytes` is 1",
        least=0,
        default=100,
    )
    queued_max_message_chunks: int = integer(
        "fetched chunks that wait in each stream; more if they take less than 4 MB each", least=1, default=2
    )
    auto_commit_enable: bool = boolean(
        "commit consumed offsets in the background; may also be written `enable.auto.commit`", default=True
    )
    auto_commit_interval_ms: int = integer("time between two automatic commits", least=1, default=60_000)
    auto_offset_reset: str = choice(
        "the start without a valid offset: `smallest` (also `earliest`) or `largest` (also `latest`)",
        {"smallest": "smallest", "largest": "largest", "earliest": "smallest", "latest": "largest"},
        default="largest",
    )
    consumer_timeout_ms: int = integer(
        "a stream without a message for this long raises ConsumerTimeoutException; negative waits for ever", default=-1
    )
    rebalance_max_retries: int = integer(
        "times `rebalance.backoff.ms`: how long joining may take at the start. Later the member tries for ever",
        least=1,
        advice="it counts all attempts, also the first",
        default=4,
    )
    rebalance_backoff_ms: int = integer(
        "the longest pause between two attempts", least=0, **same_as("zookeeper.sync.time.ms")
    )
    refresh_leader_backoff_ms: int = integer(
        "pause before leaders are asked for again, and after a failed fetch", least=0, default=200
    )
    partition_assignment_strategy: str = text(
        "`range`, `roundrobin`, `sticky`, `lag-aware`, or a strategy of a plug-in; the same in the whole group. With"
        " `group.coordination=kafka` one or several of `range`, `roundrobin`, `sticky`, `cooperative-sticky` and"
        " `zkconsumer`, the preferred one first: `a,b`",
        check=not_empty,
        default="range",
    )
    exclude_internal_topics: bool = boolean("a filter never matches Kafka's own topics", default=True)
    offsets_storage: str = choice(
        "the store of offsets: `zookeeper` or `kafka`, in upper or lower case",
        {"zookeeper": "zookeeper", "kafka": "kafka"},
        any_case=True,
        derive=lambda values: values["group.coordination"],
        default_text="`group.coordination`",
    )
    dual_commit_enabled: bool = boolean(
        "with `offsets.storage=kafka`: commit to ZooKeeper too",
        derive=lambda values: (
            values["offsets.storage"] == "kafka"
            and (values["group.coordination"] != BY_BROKERS or values["group.migration"])
        ),
        default_text="`true` if `offsets.storage` is `kafka` and `group.coordination` is not; with `group.migration`",
    )
    offsets_channel_backoff_ms: int = integer(
        "pause between tries to reach the offset coordinator", least=0, default=1000
    )
    offsets_channel_socket_timeout_ms: int = integer(
        "limit of one request to the offset coordinator and its answer", least=1, default=10_000
    )
    offsets_commit_max_retries: int = integer("further tries of a failed commit", least=0, default=5)


@dataclass(frozen=True, init=False, repr=False)
class ConsumerConfig(OriginalConfig, SecurityConfig, AssignmentConfig, CoordinationConfig):
    """The configuration of one consumer, by dotted names, by keywords with underscores, or both::

        config = ConsumerConfig({"zookeeper.connect": "127.0.0.1:2181"}, group_id="readers", consumer_timeout_ms=5000)
        config = ConsumerConfig.from_file("consumer.properties")

    Values are texts, as in a properties file, or Python's int and bool; None means "not given". Attributes hold the
    values in effect, in milliseconds and bytes. Raises :class:`ConfigException`, which names the property, for a
    missing or bad value; :class:`UnknownKeywordError` for a keyword that is no property. Warns with
    :class:`UnknownPropertyWarning` of unknown names in a mapping or file, and with :class:`SuspectConfigWarning` of
    legal values that do not fit each other.
    """

    consumed_on: str = choice(
        "when a message counts as consumed. `next`: when the next one is asked for. `return`: when it is handed"
        " out, as in the original, which loses messages in a crash",
        {"next": "next", "return": "return"},
        default="next",
    )
    message_model: str = choice(
        "`clustering`: the members of a group share the partitions. `broadcasting`: each takes all of them, with"
        " its own offsets under its `consumer.id`. Upper or lower case",
        {"clustering": "clustering", "broadcasting": "broadcasting"},
        any_case=True,
        default="clustering",
    )
    rebalance_quiet_ms: int = integer(
        "a rebalance begins 0.5 to 1 times this after the last change, at most 4 times after the first",
        least=0,
        default=50,
    )
    rebalance_drain_timeout_ms: int = integer(
        "how long a rebalance waits for the message in a reader's hands", least=0, default=1000
    )
    rebalance_interval_ms: int = integer(
        "how often a member looks at the group although no watch reported a change", least=1, default=20_000
    )
    offset_conflict: str = choice(
        "what to do about an offset that another process wrote for a partition of this member. `adopt`: go on"
        " from there. `overwrite`: commit over it. `raise`: the stream raises OffsetConflictError until a seek."
        " With offsets in Kafka, which refuses no write, a reset is found before the timer's commit and within"
        " `rebalance.interval.ms`; an explicit commit, or the last one, overwrites it unseen",
        {"adopt": "adopt", "overwrite": "overwrite", "raise": "raise"},
        default="adopt",
    )
    offsets_refresh_interval_ms: int = integer(
        "write a committed offset again if it is unchanged for this long, so that monitors can tell an idle"
        " member from a stopped one; -1: never. Offsets in Kafka are written again at least every ten minutes,"
        " also without `auto.commit.enable`, because brokers forget them. An offset that another process wrote is"
        " not overwritten",
        least=-1,
        default=-1,
    )
    queued_max_bytes: int = integer(
        "memory for fetched and waiting data of all streams together", least=1, default=64 * 1024 * 1024
    )
    batch_expanded_max_bytes: int = integer(
        "size of one compressed batch after decompression; a larger one counts as corrupt, at its offset",
        least=1,
        **same_as("queued.max.bytes"),
    )
    handler_timeout_ms: int = integer(
        "with `run(concurrency=)`: how long a handler may take; -1 or 0: for ever. Then a worker process is killed and"
        " a coroutine cancelled, which counts as a failed attempt. A thread cannot be ended: its key stays blocked, and"
        " `connector.state` says so",
        least=-1,
        advice="-1 sets no limit",
        default=-1,
    )
    check_crcs: bool = boolean("verify the checksum of fetched data", default=True)
    isolation_level: str = choice(
        "`read_committed` leaves out messages of aborted transactions",
        {"read_uncommitted": "read_uncommitted", "read_committed": "read_committed"},
        default="read_uncommitted",
    )
    broker_address_map: str = text(
        "reachable addresses of brokers that registered addresses of another network: `registered=reachable`,"
        " separated by commas, each `host:port` or a `host` for any port",
        check=lambda value: format_address_map(parse_address_map(value)),
        default="",
        default_text="none",
    )
    corrupt_message_policy: str = choice(
        "what a stream does about unreadable messages. `raise`: raises each time until `stream.skip()`. `skip`:"
        " logs and counts them",
        {"raise": "raise", "skip": "skip"},
        default="raise",
    )
    log_truncation_policy: str = choice(
        "what to do if a log lost messages that were read, or its topic was created anew. `rewind`: go back to"
        " the first offset that differs (if unknown: to the log's start). `raise`: the stream raises"
        " LogTruncatedError until a seek. `auto.offset.reset` does not matter here",
        {"rewind": "rewind", "raise": "raise"},
        default="rewind",
    )
    share_partitions: bool = boolean(
        "members with `concurrency` lend messages of their partitions to other members of the group that share, so"
        " that members without partitions work as well",
        default=False,
    )
    scala_compat_version: str = choice(
        "the release of the original to agree with, if releases differ, as in `roundrobin`",
        {version: version for version in ("0.8.2", "0.9", "0.10", "0.11", "1.0", "1.1")},
        default="1.1",
    )

    def __init__(self, mapping: Mapping[str, Value] | None = None, /, **keywords: Value) -> None:
        self._set_values(_merged_arguments({} if mapping is None else mapping, keywords))

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        r"""Read a Java .properties file, in ISO-8859-1 with ``\uXXXX`` escapes as Java has them.

        Raises OSError if it cannot be read, and :class:`ConfigException` as the constructor does. The error for a
        broken escape names the file in place of a property.
        """
        content = Path(path).read_bytes().decode("iso-8859-1")
        try:
            properties = parse_properties(content)
        except ValueError as error:
            raise ConfigException(str(path), str(error)) from None
        config = cls.__new__(cls)
        config._set_values(_merged_arguments(cast("Mapping[str, Value]", properties), {}))
        return config

    def replace(self, mapping: Mapping[str, Value] | None = None, /, **keywords: Value) -> Self:
        """Return a copy with other values; None restores a default. Derived defaults are derived again.

        Raises and warns as the constructor does.
        """
        config = type(self).__new__(type(self))
        config._set_values(
            {**self.__dict__["_given"], **_merged_arguments({} if mapping is None else mapping, keywords)}
        )
        return config

    def as_dict(self) -> dict[str, str | int | bool]:
        """Return the values in effect by dotted name, without those that are unset.

        The result holds passwords and other secrets as they are, because ``ConsumerConfig`` accepts the result. Do not
        log it; :meth:`masked` is for logs. Properties without effect are not in it; :attr:`unused` has them.
        """
        values = ((name, getattr(self, name.replace(".", "_"))) for name in keys_of(type(self)))
        return {name: value for name, value in values if value is not None}

    def masked(self) -> dict[str, str | int | bool]:
        """Return the values as :meth:`as_dict` does, for logs: with ``***`` for secrets."""
        return {name: HIDDEN if is_secret(name) else value for name, value in self.as_dict().items()}

    @property
    def unused(self) -> Mapping[str, Value]:
        """Given properties without effect: unknown ones, and those of the original without a use here.

        The values are as given, so a misspelt password is among them.
        """
        known = keys_of(type(self))
        given: dict[str, Value] = self.__dict__["_given"]
        return MappingProxyType({n: v for n, v in given.items() if n not in known and v is not None})

    @property
    def zookeeper_hosts(self) -> tuple[tuple[str, int], ...]:
        """The servers of ``zookeeper.connect`` as (host, port), IPv6 addresses without brackets; empty without it."""
        return parse_connect(self.zookeeper_connect)[0] if self.zookeeper_connect else ()

    @property
    def bootstrap_addresses(self) -> tuple[tuple[str, int], ...]:
        """The servers of ``bootstrap.servers`` as (host, port), IPv6 addresses without brackets; empty without it."""
        return parse_servers(self.bootstrap_servers) if self.bootstrap_servers else ()

    @property
    def coordinated_by_brokers(self) -> bool:
        """Whether ``group.coordination`` is ``kafka``."""
        return self.group_coordination == BY_BROKERS

    @property
    def broker_addresses(self) -> Mapping[str, str]:
        """``broker.address.map`` as a mapping from registered to reachable addresses."""
        return MappingProxyType(parse_address_map(self.broker_address_map))

    @property
    def zookeeper_chroot(self) -> str:
        """The chroot of ``zookeeper.connect``: empty, or a path that begins with ``/`` and does not end with it."""
        return parse_connect(self.zookeeper_connect)[1] if self.zookeeper_connect else ""

    def __repr__(self) -> str:
        # only the given values, so that users can read it
        given = ((name, value) for name, value in self.__dict__["_given"].items() if value is not None)
        shown = (f"{name!r}: {(HIDDEN if self._hides(name, value) else value)!r}" for name, value in given)
        return f"{type(self).__name__}({{{', '.join(shown)}}})"

    def _hides(self, name: str, value: Value) -> bool:
        """Return whether a value must not be shown. For an unknown property its value counts too."""
        keys = keys_of(type(self))
        return is_secret(name) or (name not in keys and looks_secret(name, value, keys))

    def _set_values(self, given: dict[str, Value]) -> None:
        level = _callers_stack_level()
        keys = keys_of(type(self))
        for name, value in given.items():
            if name not in keys and value is not None and not is_unused(name):
                warnings.warn(unknown_property_text(name, keys), UnknownPropertyWarning, stacklevel=level)
        values = _effective_values(given)
        _check_together(values)
        for useless in ineffective_properties(given, values):
            warnings.warn(useless, UnknownPropertyWarning, stacklevel=level)
        suspicion = _suspect_timing(values)
        if suspicion:
            warnings.warn(suspicion, SuspectConfigWarning, stacklevel=level)
        for name, value in values.items():  # frozen: no other place sets fields
            object.__setattr__(self, name.replace(".", "_"), value)
        object.__setattr__(self, "_given", {name: values.get(name, value) for name, value in given.items()})


def _merged_arguments(mapping: Mapping[str, Value], keywords: Mapping[str, Value]) -> dict[str, Value]:
    """Return dotted names and keywords as one mapping.

    Raises :class:`ConfigException` if they contradict, :class:`UnknownKeywordError` for an unknown keyword.
    """
    if not isinstance(mapping, Mapping):
        raise TypeError(f"the properties must be a mapping, not {type(mapping).__name__}")
    keys = keys_of(ConsumerConfig)
    given = dict(mapping)
    for name in given:
        if not isinstance(name, str):
            raise ConfigException(repr(name), "the name of a property must be a text")
    for keyword, value in keywords.items():
        name = keyword.replace("_", ".")
        if name not in keys and name not in ALIASES and not is_unused(name):
            raise UnknownKeywordError(keyword, advice_on_unknown(name, keys, as_keyword=True))
        if value is not None and given.get(name) is not None:
            key = keys.get(name)
            same = key.convert(name, given[name]) == key.convert(name, value) if key else given[name] == value
            if not same:
                raise ConfigException(name, f"given twice, in the mapping and as {keyword}=, with different values")
        if value is not None or name not in given:
            given[name] = value
    return _without_aliases(given, keys)


def _without_aliases(given: dict[str, Value], keys: Mapping[str, ConfigKey]) -> dict[str, Value]:
    """Return the values under their proper names. Raises :class:`ConfigException` as :func:`_merged_arguments`."""
    for alias, name in ALIASES.items():
        if alias not in given:
            continue
        value = given.pop(alias)
        if value is not None and given.get(name) is not None:
            key = keys[name]
            if key.convert(alias, value) != key.convert(name, given[name]):
                raise ConfigException(name, f"given twice, also as {alias}, with different values")
        if value is not None or name not in given:
            given[name] = value
    return given


def _effective_values(given: Mapping[str, Value]) -> dict[str, Value]:
    """Return the values in effect, in the order of declaration."""
    values: dict[str, Value] = {}
    for name, key in keys_of(ConsumerConfig).items():
        value = given.get(name)
        if value is not None:
            values[name] = key.convert(name, value)
        elif key.required:
            raise ConfigException(name, f"is missing, and has no default: {key.note}")
        else:
            values[name] = key.derive(values) if key.derive else key.default
    check_security(values)
    check_coordination(values, given)
    if values["zookeeper.connect"] or values["group.coordination"] != BY_BROKERS:
        values["zookeeper.connect"] = format_connect(*parse_connect(str(values["zookeeper.connect"])))
    return values


def _check_together(values: Mapping[str, Any]) -> None:
    timeout, wait = values["socket.timeout.ms"], values["fetch.wait.max.ms"]
    if timeout < wait:
        reason = f"must not be below fetch.wait.max.ms, or every idle fetch would time out: {timeout} < {wait}"
        raise ConfigException("socket.timeout.ms", reason)
    if values["message.model"] == "broadcasting":
        _check_broadcasting(values)
    check_placement(values)
    if values["share.partitions"]:
        _check_sharing(values)


def _check_broadcasting(values: Mapping[str, Any]) -> None:
    if values["consumer.id"] is None:
        raise ConfigException(
            "consumer.id",
            "is needed with message.model=broadcasting: the member's offsets are kept under it, and found by it after a"
            " restart; give each member one that stays its own, such as the name of its host",
        )
    strategy = values["partition.assignment.strategy"]
    if strategy not in ("range", "roundrobin"):
        raise ConfigException(
            "partition.assignment.strategy",
            f"{strategy!r} has no meaning with message.model=broadcasting, whose members share nothing; 'range' and"
            " 'roundrobin' say how a member's partitions are spread over its own streams",
        )


def _check_sharing(values: Mapping[str, Any]) -> None:
    if values["message.model"] == "broadcasting":
        raise ConfigException(
            "share.partitions", "has no meaning with message.model=broadcasting, whose members share nothing"
        )
    if values["group.coordination"] == BY_BROKERS and not values["group.migration"]:
        raise ConfigException(
            "share.partitions",
            "needs a group in ZooKeeper, where loans are written; with group.coordination=kafka leave it false",
        )


def _suspect_timing(values: Mapping[str, Any]) -> str | None:
    attempts, pause = values["rebalance.max.retries"], values["rebalance.backoff.ms"]
    session = values["zookeeper.session.timeout.ms"]
    if attempts * pause > session or values["group.coordination"] == BY_BROKERS:
        return None
    return (
        f"rebalance.max.retries x rebalance.backoff.ms is {attempts} x {pause} ms, not more than "
        f"zookeeper.session.timeout.ms ({session} ms): what a crashed member owned becomes free only after that time, "
        "which these attempts do not outlast"
    )


def _callers_stack_level() -> int:
    """Return the stack level with which a warning of the caller names the user's line, not one of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back
    return level
