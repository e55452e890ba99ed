"""Property names without a use in this package, and the known name that the user probably means.

Pure; any thread.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_UNUSED = re.compile(
    r"kafka\.metrics\..*|kafka\.csv\.metrics\..*|mirror\.topics\..*|mirror\.consumer\.numthreads"
    r"|zookeeper\.clientCnxnSocket"
)
"""Correct names in files of the original without a use here: its metric reporters, its mirror tool, and the class by
which Java speaks TLS to ZooKeeper."""

ALIASES = {"enable.auto.commit": "auto.commit.enable"}
"""Names of Kafka's newer consumer that this package accepts, with its own names."""

GIVEN_OTHERWISE = {
    "key.deserializer": "give key_decoder=... to the method that creates streams",
    "value.deserializer": "give value_decoder=... to the method that creates streams",
    "max.poll.records": "a stream hands out one message at a time, or batches(max_rows=...)",
}
"""Properties of Kafka's newer consumer, with their replacement here."""

# the names of the same properties in Kafka's newer consumer, and in the connector before 0.8
_OTHER_NAMES = {
    "autocommit.enable": "auto.commit.enable",
    "autocommit.interval.ms": "auto.commit.interval.ms",
    "autooffset.reset": "auto.offset.reset",
    "backoff.increment.ms": "rebalance.backoff.ms",
    "enable.auto.commit": "auto.commit.enable",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "fetch.size": "fetch.message.max.bytes",
    "groupid": "group.id",
    "max.partition.fetch.bytes": "fetch.message.max.bytes",
    "metadata.broker.list": "zookeeper.connect",
    "queuedchunks.max": "queued.max.message.chunks",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "rebalance.retries.max": "rebalance.max.retries",
    "request.timeout.ms": "socket.timeout.ms",
    "retry.backoff.ms": "refresh.leader.backoff.ms",
    "zk.connect": "zookeeper.connect",
    "zk.connectiontimeout.ms": "zookeeper.connection.timeout.ms",
    "zk.sessiontimeout.ms": "zookeeper.session.timeout.ms",
    "zk.synctime.ms": "zookeeper.sync.time.ms",
}


def is_unused(name: str) -> bool:
    """Return whether the original knows the property ``name``, and this package has no use for it."""
    return _UNUSED.fullmatch(name) is not None


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known property that the user probably means by ``name``, or None."""
    dotted = name.strip().lower().replace("_", ".").replace("-", ".")
    names = {key.lower(): key for key in known}
    if dotted in names:
        return names[dotted]
    if dotted in _OTHER_NAMES:
        return _OTHER_NAMES[dotted]
    close = difflib.get_close_matches(dotted, names, n=1, cutoff=0.6)
    return names[close[0]] if close else None


def unknown_property_text(name: str, known: Iterable[str]) -> str:
    """Return the warning of an unknown property in a mapping or file."""
    return f"unknown property {name!r} has no effect{advice_on_unknown(name, known)}"


def advice_on_unknown(name: str, known: Iterable[str], *, as_keyword: bool = False) -> str:
    """Return what to write in place of an unknown property, as the end of a sentence; empty if that is unclear."""
    if name in GIVEN_OTHERWISE:
        return f": {GIVEN_OTHERWISE[name]}"
    meant = closest_name(name, known)
    if not meant:
        return ""
    return f"; did you mean {(meant.replace('.', '_') if as_keyword else meant)!r}?"
