"""Spans around handlers, with the SDK of OpenTelemetry and a cluster in memory."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import baggage, trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from tests.timing import scaled
from tests.unit.kafka.record_writer import NewRecord, batch_bytes
from tests.values import present
from zkconsumer import ConsumerConfig, MessageAndMetadata, ZookeeperConsumerConnector
from zkconsumer.errors import MissingExtraError
from zkconsumer.testing import FakeCluster
from zkconsumer.tracing import ProcessSpans, batch_span

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SENT = [("traceparent", f"00-{TRACE}-{PARENT}-01".encode()), ("tracestate", b"a=b"), ("baggage", b"user=7")]
CONFIG = ConsumerConfig(zookeeper_connect="zk", group_id="g", client_id="c")


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("tests")


def message(offset: int = 5, *, topic: str = "t", partition: int = 2, **fields: Any) -> MessageAndMetadata[Any, Any]:
    base = {"key": b"k", "value": b"v", "headers": [], "timestamp": 0, "timestamp_type": 0}
    record = SimpleNamespace(offset=offset, **{**base, **fields})
    return MessageAndMetadata(record, (topic, partition))


def traced(tracer: Tracer, handler: Callable[[MessageAndMetadata[Any, Any]], object], *messages: Any) -> None:
    around = ProcessSpans(tracer, CONFIG).around(handler)
    for each in messages:
        around(each)


def test_a_span_has_the_names_of_the_conventions(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    traced(tracer, lambda _: None, message(headers=SENT))
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.status.status_code) == ("process t", SpanKind.CONSUMER, StatusCode.UNSET)
    assert dict(span.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "t",
        "messaging.destination.partition.id": "2",
        "messaging.consumer.group.name": "g",
        "messaging.client.id": "c",
        "messaging.kafka.offset": 5,
        "messaging.kafka.message.key": "k",
    }
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, PARENT)
    assert span.parent.is_remote
    assert span.parent.trace_state.get("a") == "b"


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("traceparent", None)],
        [("traceparent", b"\xff\xfe")],
        [("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01")],
        [("traceparent", b"x" * 100_000)],
        [("other", b"1")],
    ],
)
def test_bad_headers_give_a_span_without_a_parent(
    tracer: Tracer, exporter: InMemorySpanExporter, headers: Sequence[tuple[str, bytes | None]]
) -> None:
    traced(tracer, lambda _: None, message(headers=headers))
    (span,) = exporter.get_finished_spans()
    assert span.parent is None


@pytest.mark.parametrize(
    ("key", "attribute"),
    [(None, None), (b"", None), (b"order-7", "order-7"), (b"\xff", None), (b"a\nb", None), (b"k" * 1000, None)],
)
def test_a_key_is_told_only_if_it_is_a_text(
    tracer: Tracer, exporter: InMemorySpanExporter, key: bytes | None, attribute: str | None
) -> None:
    traced(tracer, lambda _: None, message(key=key, value=None))
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes.get("messaging.kafka.message.key") == attribute
    assert span.attributes["messaging.kafka.message.tombstone"] is True


@pytest.mark.parametrize(
    ("error", "name"), [(ZeroDivisionError("no"), "ZeroDivisionError"), (KeyboardInterrupt(), "KeyboardInterrupt")]
)
def test_a_handler_that_raises_ends_its_span(
    tracer: Tracer, exporter: InMemorySpanExporter, error: BaseException, name: str
) -> None:
    def handler(_: object) -> None:
        raise error

    with pytest.raises(type(error)):
        traced(tracer, handler, message())
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["error.type"] == name
    assert span.status.status_code is StatusCode.ERROR
    assert [event.name for event in span.events] == ["exception"]
    assert not trace.get_current_span().get_span_context().is_valid


def test_the_handler_runs_within_its_span_and_context(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    inside = []

    def handler(_: object) -> None:
        inside.append(baggage.get_baggage("user"))
        with tracer.start_as_current_span("below"):
            pass

    traced(tracer, handler, message(headers=SENT))
    below, span = exporter.get_finished_spans()
    assert below.parent is not None
    assert below.parent.span_id == span.context.span_id
    assert inside == ["7"]


class Broken(SpanProcessor):
    def on_end(self, span: ReadableSpan) -> None:
        raise RuntimeError("an exporter's mistake")


def test_a_broken_span_does_not_stop_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(Broken())
    handled: list[int] = []
    with caplog.at_level(logging.ERROR, "zkconsumer"):
        traced(provider.get_tracer("tests"), lambda m: handled.append(m.offset), message(1), message(2))
    assert handled == [1, 2]
    assert [record.message for record in caplog.records if record.name == "zkconsumer.tracing"] == [
        "a span of a message failed, which is not said again: an exporter's mistake"
    ]


def test_a_batch_links_to_the_contexts_of_its_messages(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    other = [("traceparent", f"00-{TRACE}-{'c' * 16}-01".encode())]
    messages = [message(5, headers=SENT), message(6, headers=SENT), message(7), message(8, partition=3, headers=other)]
    with batch_span(messages, CONFIG, tracer):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert (span.name, span.parent, span.attributes["messaging.batch.message_count"]) == ("process t", None, 4)
    assert "messaging.destination.partition.id" not in span.attributes
    assert [f"{link.context.span_id:016x}" for link in span.links] == [PARENT, "c" * 16]


def test_a_batch_of_columns_is_linked_too(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    rows = [None, [{"key": name, "value": value} for name, value in SENT]]
    columns = {
        "topic": pa.array(["t", "t"]),
        "partition": pa.array([2, 2], pa.int32()),
        "headers": pa.array(rows, pa.list_(header)),
    }
    with batch_span(pa.RecordBatch.from_pydict(columns), CONFIG, tracer):
        pass
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["messaging.destination.partition.id"] == "2"
    assert [f"{link.context.span_id:016x}" for link in span.links] == [PARENT]


def test_a_batch_without_a_topic_in_common_has_no_name(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    with (
        pytest.raises(ValueError, match="of the application"),
        batch_span([message(), message(topic="u")], CONFIG, tracer),
    ):
        raise ValueError("of the application")
    with batch_span([], CONFIG, tracer):
        pass
    first, second = exporter.get_finished_spans()
    assert (first.name, second.name) == ("process", "process")
    assert first.status.status_code is StatusCode.ERROR


def test_links_of_a_batch_are_limited(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    messages = [message(n, headers=[("traceparent", f"00-{TRACE}-{n + 1:016x}-01".encode())]) for n in range(500)]
    with batch_span(messages, CONFIG, tracer):
        pass
    assert len(exporter.get_finished_spans()[0].links) == 128


def run(tracer: Any, handler: Callable[[MessageAndMetadata[Any, Any]], object]) -> None:
    """Run a handler for the two messages of a topic, the first with a trace context."""
    sent = [NewRecord(0, 1_700_000_000_000, b"k", b"first", SENT), NewRecord(1, 1_700_000_000_000, None, b"second")]
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", 1)
        log = present(cluster.log("t", 0))
        log.append(batch_bytes(sent))
        with ZookeeperConsumerConnector(
            zookeeper_connect=cluster.zookeeper_connect, group_id="g", auto_offset_reset="smallest"
        ) as connector:

            def counted(message: MessageAndMetadata[Any, Any]) -> None:
                handler(message)
                if message.offset == 1:
                    connector.shutdown(scaled(5))

            connector.run(counted, "t", tracer=tracer)


def test_run_makes_a_span_for_each_message(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    run(tracer, lambda _: None)
    first, second = exporter.get_finished_spans()
    assert (first.name, second.name) == ("process t", "process t")
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == PARENT
    assert second.parent is None
    assert second.context.trace_id != first.context.trace_id


def test_run_without_a_tracer_makes_no_span(
    tracer: Tracer, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer", lambda *_: tracer)
    run(None, lambda _: None)
    assert exporter.get_finished_spans() == ()
    run(True, lambda _: None)
    assert len(exporter.get_finished_spans()) == 2


def test_something_else_than_a_tracer_is_refused() -> None:
    with pytest.raises(TypeError, match="tracer must be a tracer of OpenTelemetry or True, not 'yes'"):
        ZookeeperConsumerConnector(zookeeper_connect="zk", group_id="g").run(print, "t", tracer="yes")  # type: ignore[call-overload]


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "zkconsumer.tracing")
    with pytest.raises(MissingExtraError, match=r"pip install 'zkconsumer\[otel\]'"):
        ZookeeperConsumerConnector(zookeeper_connect="zk", group_id="g").run(print, "t", tracer=True)


def test_coroutines_and_lists_have_spans_too(tracer: Tracer, exporter: InMemorySpanExporter) -> None:
    """The span is current within the coroutine, also while another one runs, and ends with it."""
    seen = []

    async def handler(given: Any) -> None:
        await asyncio.sleep(0)
        seen.append(trace.get_current_span().get_span_context().span_id)

    async def both() -> None:
        around: Any = ProcessSpans(tracer, CONFIG).around(handler)
        await asyncio.gather(
            asyncio.create_task(around(message())), asyncio.create_task(around([message(), message(6)]))
        )

    asyncio.run(both())
    traced(tracer, lambda given: None, [message(), message(6)])
    spans = exporter.get_finished_spans()
    assert [(span.attributes or {}).get("messaging.batch.message_count") for span in spans] == [None, 2, 2]
    assert [span.context.span_id for span in spans[:2]] == seen
