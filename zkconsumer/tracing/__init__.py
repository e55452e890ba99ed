"""OpenTelemetry spans around the processing of messages: ``process`` spans, by the conventions for messaging.

:meth:`ZookeeperConsumerConnector.run` makes one around each call of the handler if a ``tracer`` is given. The trace
context in the message's headers (``traceparent``, ``tracestate``) is its parent. So a trace goes on from the producer
into the handler. :func:`batch_span` is for code that processes several messages at once; it links to their contexts.

A span that cannot be made, or a processor of spans that raises, is logged once and does not disturb the consuming.

Threads: any; a span belongs to the thread that began it. Needs the extra ``otel``, which is the API alone. The
application brings the SDK and its exporter. ``import zkconsumer`` does not import this module.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from zkconsumer.balance.handler_check import is_coroutine_function
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import MissingExtraError
from zkconsumer.streams.message import MessageAndMetadata
from zkconsumer.version import VERSION

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer
except ImportError as error:
    raise MissingExtraError("spans around handlers", "otel") from error

__all__ = ["ProcessSpans", "batch_span"]

log = logging.getLogger(__name__)

Handler = Callable[[MessageAndMetadata[Any, Any]], object]
Headers = Iterable[tuple[str, bytes | None]]
Attributes = dict[str, str | bool | int]
_Begun = tuple[Span, Context | None]
"""A span, and the context around it; None for the thread's."""

MOST_LINKS = 128
"""Links of one span at the most, the SDK's own limit."""
LONGEST_KEY = 256
"""Characters of the longest message key that becomes an attribute."""


class ProcessSpans:
    """Makes the spans of one connector.

    Arguments: ``tracer`` makes spans; True takes that of the global tracer provider. ``config`` is the connector's.
    Raises: TypeError for anything that is no tracer.
    """

    def __init__(self, tracer: Tracer | bool, config: ConsumerConfig) -> None:
        if tracer is True:
            tracer = trace.get_tracer("zkconsumer", VERSION)
        if not isinstance(tracer, Tracer):
            raise TypeError(f"tracer must be a tracer of OpenTelemetry or True, not {tracer!r}")
        self._tracer = tracer
        self._common: Attributes = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": config.group_id,
            "messaging.client.id": config.client_id,
        }
        self._reported = False

    def around(self, handler: Handler) -> Handler:
        """Return a handler that does the same within a span: of a message, or of a list of them."""

        def traced(given: Any) -> object:
            with self._of(given):
                return handler(given)

        async def traced_coroutine(given: Any) -> object:
            with self._of(given):
                return await handler(given)  # type: ignore[misc]

        return traced_coroutine if is_coroutine_function(handler) else traced

    def _of(self, given: Any) -> _OpenSpan:
        return self.of_batch(given) if isinstance(given, list) else self.of_message(given)

    def of_message(self, message: MessageAndMetadata[Any, Any]) -> _OpenSpan:
        """Return a context manager with the span of one message; its trace context is the parent."""
        return _OpenSpan(self, lambda: self._begin_message(message))

    def of_batch(self, messages: Any) -> _OpenSpan:
        """Return a context manager with the span of several messages; see :func:`batch_span`."""
        return _OpenSpan(self, lambda: self._begin_batch(messages))

    def _begin_message(self, message: MessageAndMetadata[Any, Any]) -> _Begun:
        record = message.record
        attributes: Attributes = {
            **self._common,
            "messaging.destination.name": message.topic,
            "messaging.destination.partition.id": str(message.partition),
            "messaging.kafka.offset": record.offset,
        }
        key = _text(record.key)
        if key is not None:
            attributes["messaging.kafka.message.key"] = key
        if record.value is None:
            attributes["messaging.kafka.message.tombstone"] = True
        return self._begin(f"process {message.topic}", attributes, parent=_context(message.headers))

    def _begin_batch(self, messages: Any) -> _Begun:
        places, headers, count = _columns(messages) if hasattr(messages, "schema") else _messages(messages)
        topics, partitions = {topic for topic, _ in places}, {str(partition) for _, partition in places}
        attributes: Attributes = {**self._common, "messaging.batch.message_count": count}
        name = "process"
        if len(topics) == 1:
            (attributes["messaging.destination.name"],) = topics
            name = f"process {attributes['messaging.destination.name']}"
        if len(places) == 1:
            (attributes["messaging.destination.partition.id"],) = partitions
        return self._begin(name, attributes, links=list(islice(_links(headers), MOST_LINKS)))

    def _begin(
        self, name: str, attributes: Attributes, *, parent: Context | None = None, links: Sequence[Link] = ()
    ) -> _Begun:
        start = self._tracer.start_span
        return start(name, context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links), parent

    def report(self, error: Exception) -> None:
        """Log what went wrong with a span, the first time."""
        if not self._reported:
            self._reported = True
            log.error("a span of a message failed, which is not said again: %s", error, exc_info=error)


class _OpenSpan:
    """A span that is current within a ``with`` block, and always ends with it."""

    def __init__(self, spans: ProcessSpans, begin: Callable[[], _Begun]) -> None:
        self._spans = spans
        self._begin = begin
        self._span: Span | None = None
        self._token: Any = None

    def __enter__(self) -> Span:
        try:
            self._span, around = self._begin()
            self._token = contexts.attach(trace.set_span_in_context(self._span, around))
        except Exception as e:  # noqa: BLE001 (logged; spans must not stop the consuming)
            self._spans.report(e)
        except BaseException:  # an interrupt: nobody will call __exit__
            self.__exit__(None, None, None)
            raise
        return trace.INVALID_SPAN if self._span is None else self._span

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        span, token = self._span, self._token
        self._span = self._token = None
        if span is None:
            return
        try:
            if token is not None:
                contexts.detach(token)
            if error is not None:
                span.set_attribute("error.type", _type_name(error))
                span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
                span.record_exception(error)
        except Exception as e:  # noqa: BLE001 (as above)
            self._spans.report(e)
        finally:
            try:
                span.end()
            except Exception as e:  # noqa: BLE001 (as above)
                self._spans.report(e)


@contextmanager
def batch_span(messages: Any, config: ConsumerConfig, tracer: Tracer | bool = True) -> Iterator[Span]:
    """Make a span around the processing of several messages::

        with batch_span(messages, connector.config):
            store(messages)

    Arguments: ``messages`` is a sequence of messages, or a ``pyarrow.RecordBatch`` of a stream; its contexts need
    ``batches(headers=True)``. ``config`` is the connector's. ``tracer``: True takes that of the global provider.
    The span links to at most 128 trace contexts of the messages, and has no parent among them.
    Raises: TypeError for anything that is no tracer.
    """
    with ProcessSpans(tracer, config).of_batch(messages) as span:
        yield span


_Batch = tuple[set[tuple[str, int]], Iterable[Headers], int]
"""The partitions of a batch, the headers of its messages, and their number."""


def _messages(messages: Iterable[MessageAndMetadata[Any, Any]]) -> _Batch:
    known = list(messages)
    return {(each.topic, each.partition) for each in known}, (each.headers for each in known), len(known)


def _columns(batch: Any) -> _Batch:
    """Take a record batch of one partition."""
    names = batch.schema.names
    places = set()
    if batch.num_rows and "topic" in names and "partition" in names:
        places.add((batch["topic"][0].as_py(), batch["partition"][0].as_py()))
    rows = (row.as_py() for row in batch["headers"]) if "headers" in names else ()
    headers = ([(header["key"], header["value"]) for header in row or ()] for row in rows)
    return places, headers, batch.num_rows


def _links(headers: Iterable[Headers]) -> Iterator[Link]:
    """Yield a link to each valid trace context, once."""
    seen = set()
    for each in headers:
        context = _context(each)
        if context is None:
            continue
        found = trace.get_current_span(context).get_span_context()
        place = (found.trace_id, found.span_id)
        if found.is_valid and place not in seen:
            seen.add(place)
            yield Link(found)


def _context(headers: Headers) -> Context | None:
    """Return the context that a message's headers carry; None if there are no headers."""
    carrier: Mapping[str, str] = {
        name: value.decode("utf-8", "replace") for name, value in headers if value is not None
    }
    return propagate.extract(carrier, context=Context()) if carrier else None


def _text(key: bytes | None) -> str | None:
    """Return a message's key if it is a text beyond doubt."""
    try:
        text = None if key is None else bytes(key).decode()
    except UnicodeDecodeError:
        return None
    return text if text and len(text) <= LONGEST_KEY and text.isprintable() else None


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
