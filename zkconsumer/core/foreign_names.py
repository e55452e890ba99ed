"""Names of kafka-python, confluent-kafka and aiokafka that this package lacks, each with its replacement here.

Such a name stays missing: ``hasattr`` is False and ``dir()`` does not list it. Only the text of the error is better.
Pure; any thread may call.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple


class Replacement(NamedTuple):
    """The replacement of another client's method: on the connector for threads, and on the connector for asyncio."""

    threads: str
    asyncio: str


def _both(text: str) -> Replacement:
    return Replacement(text, text)


_SUBSCRIBE = _both(
    'create_message_streams({"topic": 1}) joins the group once and returns streams; add_topics and unsubscribe change'
    " the topics later; a pattern is create_message_streams_by_filter(Whitelist(...))"
)
_POLL = Replacement(
    "read a stream that create_message_streams returned, or connector.messages(): `for message in stream`,"
    " stream.get(timeout=...) for one message, stream.batches(...) for many",
    "read a stream that create_message_streams returned, or connector.messages(): `async for message in stream`,"
    " `await stream.getone(timeout=...)` for one message, `await stream.getmany(...)` for many",
)
_CLOSE = Replacement(
    "shutdown() leaves the group, and so does the end of `with connector:`",
    "`await shutdown()` leaves the group, and so does the end of `async with connector:`",
)
_COMMIT = Replacement(
    "commit_offsets() commits finished messages, commit_offsets({partition: offset}) given offsets;"
    " commit_offsets_async() does not wait",
    "`await commit()` commits finished messages, `await commit({partition: offset})` given offsets",
)
_ASSIGN = Replacement(
    "the group assigns partitions; read(partitions) reads chosen ones without the group",
    "the group assigns partitions; ZookeeperConsumerConnector.read(partitions) reads chosen ones without the group, in"
    " threads",
)
_WATERMARKS = _both("beginning_offsets(partitions) and end_offsets(partitions) return the two ends of a log")
_SUBSCRIPTION = _both("assignment() has the partitions that this member owns, state says what it waits for")

METHODS = {
    "assign": _ASSIGN,
    "bootstrap_connected": _both("state says whether the member is connected"),
    "close": _CLOSE,
    "commit": _COMMIT,
    "commit_async": _COMMIT,
    "commit_offsets": _COMMIT,
    "commit_offsets_async": _COMMIT,
    "consume": _POLL,
    "get_watermark_offsets": _WATERMARKS,
    "getmany": _POLL,
    "getone": _POLL,
    "highwater": _WATERMARKS,
    "incremental_assign": _ASSIGN,
    "incremental_unassign": _ASSIGN,
    "last_stable_offset": _WATERMARKS,
    "list_topics": _both("topics() returns the names, partitions_for(topic) the partitions"),
    "memberid": _both("consumer_id is the member's name"),
    "partitions_for_topic": _both("partitions_for(topic) returns the partitions"),
    "poll": _POLL,
    "read": _ASSIGN,
    "run": _POLL,
    "seek_to_beginning": _both('seek(partition, "earliest") does it, one partition a call'),
    "seek_to_committed": _both("seek(partition, offset) takes the offset that committed(partition) returns"),
    "seek_to_end": _both('seek(partition, "latest") does it, one partition a call'),
    "start": _SUBSCRIBE,
    "stop": _CLOSE,
    "store_offsets": _COMMIT,
    "subscribe": _SUBSCRIBE,
    "subscription": _SUBSCRIPTION,
    "unassign": _ASSIGN,
    "wakeup": _CLOSE,
}
"""By method. A row counts for a connector that lacks the method, so a method that one of the two has may have a row."""

_CONNECTOR = "ZookeeperConsumerConnector is the consumer: make one from zookeeper_connect=... and group_id=..."
_ASYNC_CONNECTOR = (
    "AsyncZookeeperConsumerConnector is the consumer: make one from zookeeper_connect=... and group_id=..."
)
_PRODUCER = "this package only consumes; produce with confluent-kafka, kafka-python or aiokafka"
_CLASSES = {
    "AIOConsumer": _ASYNC_CONNECTOR,
    "AIOKafkaConsumer": _ASYNC_CONNECTOR,
    "AIOKafkaProducer": _PRODUCER,
    "BalancedConsumer": _CONNECTOR,
    "Consumer": _CONNECTOR,
    "ConsumerConnector": _CONNECTOR,
    "ConsumerRecord": "MessageAndMetadata is a message",
    "DeserializingConsumer": f"{_CONNECTOR}; decoders are given to create_message_streams",
    "KafkaConsumer": _CONNECTOR,
    "KafkaProducer": _PRODUCER,
    "Producer": _PRODUCER,
    "SimpleConsumer": _CONNECTOR,
}


class NamesMissingMethods:
    """Base of the connectors: the error for a method of another client says what to call here."""

    _replacements = "threads"
    """The field of :class:`Replacement` that has the texts."""

    if not TYPE_CHECKING:  # else a type checker would believe in every name

        def __getattr__(self, name: str) -> Any:
            row = METHODS.get(name)
            if row is None:
                # Looked up again for its own error: a property may have failed with an AttributeError from inside.
                return object.__getattribute__(self, name)
            # Without name= and obj=, by which Python would add a guess to the text: "Did you mean: 'unsubscribe'?"
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: {getattr(row, self._replacements)}"
            )


class NamesMissingCoroutines(NamesMissingMethods):
    """The same for the connector of asyncio."""

    _replacements = "asyncio"


def missing_name(package: str, name: str) -> ImportError | AttributeError:
    """Return the error for a name that a module lacks; call it in the module's ``__getattr__``.

    ``from package import name`` looks with ``hasattr`` first, and would put a text without our advice in place of an
    AttributeError. So that look alone gets an ImportError.
    """
    advice = _CLASSES.get(name)
    if advice is None:
        return AttributeError(f"module {package!r} has no attribute {name!r}")
    if sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap":
        return ImportError(f"cannot import name {name!r} from {package!r}: {advice}", name=package)
    return AttributeError(f"module {package!r} has no attribute {name!r}: {advice}")
