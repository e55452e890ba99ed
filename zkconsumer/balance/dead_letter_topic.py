"""Dead letters to a topic, through a producer that the application gives.

Threads: the thread of :class:`~zkconsumer.balance.dead_letters.DeadLetters` alone calls it.

Source: KIP-1191 for the names of the headers, spring-kafka's ``DeadLetterPublishingRecoverer`` for the other ones. Both
put a copy into the partition of the same number.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from zkconsumer.errors import ZkConsumerError

Headers = list[tuple[str, bytes | None]]

KAFKA, SPRING = "kafka", "spring"
STYLES = (KAFKA, SPRING)
MOST_TRACE = 8 * 1024
"""Bytes of a stack trace that are kept. A whole one can make the dead letter too large for its topic."""
MOST_TEXT = 1024
"""Bytes of any other text in a header."""
_COUNTED_FOR = 60.0
"""Seconds for which the number of partitions is taken as known."""
_TIMESTAMP_TYPES = {0: "CreateTime", 1: "LogAppendTime"}


class DeadLetterError(ZkConsumerError):
    """A dead letter could not be delivered. Its partition stops until it is."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message became a dead letter.

    * ``reason``: its last failure in one line
    * ``attempts``: number of attempts that have failed
    * ``first_ms``: time of the first one in milliseconds since 1970; 0 if it is unknown
    * ``group``: the ``group.id``
    * ``error``: the exception of the last attempt, None if there is none
    """

    reason: str
    attempts: int
    first_ms: int
    group: str
    error: BaseException | None = None


class _Letter(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: Headers
    source_partition: int


# ---- the headers


def letter_headers(message: Any, failure: Failure, style: str, *, copy: bool = True) -> Headers:
    """Return the headers of a dead letter.

    Headers of these names that the message has already are replaced. If they were added to, a message that fails in
    each of several groups would become too large.

    Arguments: ``message`` is a ``MessageAndMetadata``; ``style`` is one of :data:`STYLES`; ``copy`` keeps the message's
    own headers.
    """
    own = _kafka_headers(message, failure) if style == KAFKA else _spring_headers(message, failure)
    names = {name for name, _ in own}
    kept = [(name, value) for name, value in message.headers if name not in names] if copy else []
    return [*kept, *own]


def _kafka_headers(message: Any, failure: Failure) -> Headers:
    values = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "group": failure.group,
        "delivery.count": failure.attempts,
        "message": failure.reason,
    }
    return [(f"__dlq.errors.{name}", _text(str(value))) for name, value in values.items()]


def _spring_headers(message: Any, failure: Failure) -> Headers:
    kind = _TIMESTAMP_TYPES.get(message.timestamp_type, "NoTimestampType")
    values: dict[str, bytes] = {
        "original-topic": _text(message.topic),
        "original-partition": message.partition.to_bytes(4, "big"),
        "original-offset": message.offset.to_bytes(8, "big"),
        "original-timestamp": message.timestamp.to_bytes(8, "big", signed=True),
        "original-timestamp-type": _text(kind),
        "original-consumer-group": _text(failure.group),
        "exception-message": _text(failure.reason),
    }
    error = failure.error
    if error is not None:
        values["exception-fqcn"] = _text(_class_name(error))
        if error.__cause__ is not None:
            values["exception-cause-fqcn"] = _text(_class_name(error.__cause__))
        values["exception-stacktrace"] = _trace(error)
    return [(f"kafka_dlt-{name}", value) for name, value in values.items()]


def _text(text: str, most: int = MOST_TEXT) -> bytes:
    data = text.encode("utf-8", "replace")
    # a cut character at the end is left out
    return data if len(data) <= most else data[:most].decode("utf-8", "ignore").encode()


def _class_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _trace(error: BaseException) -> bytes:
    """Return the end of the stack trace, which names the error and the place where it was raised."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 (an exception of the application may fail to say what it is)
        text = _class_name(error)
    data = text.encode("utf-8", "replace")
    return data if len(data) <= MOST_TRACE else data[-MOST_TRACE:].decode("utf-8", "ignore").encode()


# ---- the topic


class DeadLetterTopic:
    """A topic for dead letters: ``run(handle, concurrency=64, dead_letter=DeadLetterTopic(producer, "events-dlq"))``.

    Arguments:
    * ``producer``: a ``confluent_kafka.Producer`` or a ``kafka.KafkaProducer`` of the application, without serializers.
      It must wait for acknowledgements (``acks`` of 1 or ``all``). It is not closed.
    * ``topic``: its name
    * ``headers``: ``"kafka"`` writes the names of Kafka's share groups as text, ``"spring"`` those of spring-kafka
    * ``copy``: take over key, value and headers; otherwise the dead letter only names its message
    * ``timeout``: seconds to wait for the acknowledgement

    A dead letter goes to the partition of the message's number, modulo the topic's number of partitions. After a
    timeout it is sent again, so it may be there twice. Raises: TypeError, ValueError for a wrong argument.
    """

    def __init__(
        self, producer: Any, topic: str, *, headers: str = KAFKA, copy: bool = True, timeout: float = 30.0
    ) -> None:
        if headers not in STYLES:
            raise ValueError(f"DeadLetterTopic(headers=) is one of {', '.join(STYLES)}, not {headers!r}")
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"DeadLetterTopic takes the name of a topic, not {topic!r}")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 3600:
            raise ValueError(f"DeadLetterTopic(timeout=) takes seconds from above 0 to 3600, not {timeout!r}")
        self.topic = topic
        self.timeout = float(timeout)
        self._headers = headers
        self._copy = copy
        self._deliver = _delivery(producer)
        self._count = 0
        self._counted_at = 0.0
        self._partitions = _partition_count(producer)

    def __repr__(self) -> str:
        return f"DeadLetterTopic({self.topic!r})"

    def __call__(self, message: Any, failure: Failure) -> None:
        """Deliver one dead letter. Raises DeadLetterError if it is not acknowledged."""
        (error,) = self.send_all([(message, failure)])
        if error is not None:
            raise error

    def send_all(self, letters: Sequence[tuple[Any, Failure]]) -> list[DeadLetterError | None]:
        """Deliver dead letters, and wait until each is acknowledged or has failed. Returns the error of each."""
        until = monotonic() + self.timeout
        try:
            count = self._partition_count(until)
            made = [self._letter(message, failure) for message, failure in letters]
            outgoing = [(one, one.source_partition % count if count else None) for one in made]
            errors = self._deliver(self.topic, outgoing, until)
        except Exception as error:  # noqa: BLE001 (the producer's library is the application's)
            errors = [_error_text(error)] * len(letters)
        return [self._error(error) if error else None for error in errors]

    def _error(self, text: str) -> DeadLetterError:
        return DeadLetterError(f"the dead letter could not be delivered to topic {self.topic}: {text}")

    def _letter(self, message: Any, failure: Failure) -> _Letter:
        headers = letter_headers(message, failure, self._headers, copy=self._copy)
        record = message.record  # key and value as they were fetched, not as a decoder makes them
        key, value = (record.key, record.value) if self._copy else (None, None)
        return _Letter(key, value, headers, message.partition)

    def _partition_count(self, until: float) -> int:
        """Return the number of partitions, 0 if the topic does not exist and the producer may create it."""
        now = monotonic()
        if not self._count or now - self._counted_at >= _COUNTED_FOR:
            self._count, self._counted_at = self._partitions(self.topic, until - now), now
        return self._count


# ---- the producers, told apart by their methods: none of the libraries is needed


_Outgoing = Sequence[tuple[_Letter, int | None]]
_Deliver = Callable[[str, _Outgoing, float], list[str]]
_UNCONFIRMED = "the producer got no offset: with acks=0 nothing is acknowledged; use acks=all"
_LATE = "no acknowledgement came in time"


def _delivery(producer: Any) -> _Deliver:
    """Return the function that sends with this producer. Raises TypeError if it cannot be used."""
    name = f"{type(producer).__module__}.{type(producer).__qualname__}"
    for method in ("produce", "send", "send_and_wait"):
        if inspect.iscoroutinefunction(getattr(producer, method, None)):
            raise TypeError(
                f"{name} is an asyncio producer, and dead letters are sent from a thread:"
                " give a confluent_kafka.Producer or a kafka.KafkaProducer, or a function as dead_letter"
            )
    if any(kind.__name__ == "SerializingProducer" for kind in type(producer).__mro__):
        raise TypeError(f"{name} would serialize bytes once more: give a confluent_kafka.Producer")
    if all(callable(getattr(producer, method, None)) for method in ("produce", "flush", "list_topics")):
        return partial(_send_confluent, producer)
    if all(callable(getattr(producer, method, None)) for method in ("send", "flush", "partitions_for")):
        config = getattr(producer, "config", None) or {}
        for key in ("key_serializer", "value_serializer"):
            if config.get(key) is not None:
                raise TypeError(f"{name} has a {key}, which would serialize bytes once more: give one without")
        if config.get("acks") == 0:  # such a producer reports an offset all the same
            raise TypeError(f"{name} has acks=0, so nothing is acknowledged: give one with acks='all'")
        return partial(_send_kafka_python, producer)
    raise TypeError(
        f"{name} is no producer that is known here: give a confluent_kafka.Producer or a kafka.KafkaProducer,"
        " or a function as dead_letter"
    )


def _partition_count(producer: Any) -> Callable[[str, float], int]:
    if not hasattr(producer, "list_topics"):
        return lambda topic, _: len(producer.partitions_for(topic) or ())

    def listed(topic: str, seconds: float) -> int:
        found = producer.list_topics(topic, timeout=max(0.1, seconds)).topics.get(topic)
        return len(found.partitions) if found is not None and found.error is None else 0

    return listed


def _send_confluent(producer: Any, topic: str, letters: _Outgoing, until: float) -> list[str]:
    """Send with ``confluent_kafka.Producer``."""
    errors = [_LATE] * len(letters)

    def delivered(at: int, error: Any, message: Any) -> None:
        offset = None if error is not None else message.offset()
        errors[at] = str(error) if error is not None else "" if offset is not None and offset >= 0 else _UNCONFIRMED

    for at, (letter, partition) in enumerate(letters):
        place = {} if partition is None else {"partition": partition}
        report = partial(delivered, at)
        try:
            producer.produce(topic, letter.value, letter.key, on_delivery=report, headers=letter.headers, **place)
        except Exception as error:  # noqa: BLE001 (a full queue, or a message that is too large)
            errors[at] = _error_text(error)
    producer.flush(max(0.1, until - monotonic()))
    return errors


def _send_kafka_python(producer: Any, topic: str, letters: _Outgoing, until: float) -> list[str]:
    """Send with ``kafka.KafkaProducer``, which knows no headers without a value."""
    sent: list[Any] = []
    for letter, partition in letters:
        headers = [(name, b"" if value is None else value) for name, value in letter.headers]
        try:
            sent.append(producer.send(topic, value=letter.value, key=letter.key, headers=headers, partition=partition))
        except Exception as error:  # noqa: BLE001 (no metadata, or a message that is too large)
            sent.append(error)
    return [_error_text(one) if isinstance(one, Exception) else _awaited(one, until) for one in sent]


def _awaited(future: Any, until: float) -> str:
    try:
        offset = future.get(timeout=max(0.1, until - monotonic())).offset
    except Exception as error:  # noqa: BLE001 (the library has its own timeout error)
        return _error_text(error)
    return "" if offset is not None and offset >= 0 else _UNCONFIRMED


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
