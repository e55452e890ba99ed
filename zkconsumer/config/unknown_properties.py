"""Names of properties that are not in the table: accepted without use, or meant to be one that is. Pure; any thread."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_UNUSED = re.compile(
    r"kafka\.metrics\..*|kafka\.csv\.metrics\..*|mirror\.topics\..*|mirror\.consumer\.numthreads"
    r"|zookeeper\.clientCnxnSocket"
)
"""Names that files of the original carry rightly and that mean nothing here: its metric reporters, its mirror tool, the
class by which Java speaks TLS to ZooKeeper."""

ALIASES = {"enable.auto.commit": "auto.commit.enable"}
"""Names of Kafka's newer consumer that are taken for ours."""

GIVEN_OTHERWISE = {
    "key.deserializer": "give key_decoder=... to the method that creates streams",
    "value.deserializer": "give value_decoder=... to the method that creates streams",
    "max.poll.records": "a stream hands out one message at a time, or batches(max_rows=...)",
}
"""What Kafka's newer consumer has as properties and this one otherwise: where to say it here."""

# How Kafka's newer consumer, and the connector before 0.8, call the same thing.
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
    """Whether the original knows the property ``name`` and a consumer here has no use for it."""
    return _UNUSED.fullmatch(name) is not None


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """The property that ``name`` was most likely meant to be, or None."""
    dotted = name.strip().lower().replace("_", ".").replace("-", ".")
    names = {key.lower(): key for key in known}
    if dotted in names:
        return names[dotted]
    if dotted in _OTHER_NAMES:
        return _OTHER_NAMES[dotted]
    close = difflib.get_close_matches(dotted, names, n=1, cutoff=0.6)
    return names[close[0]] if close else None
