"""The headers of dead letters, and the producers that may carry them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from zkconsumer import MessageAndMetadata
from zkconsumer.balance.dead_letter_topic import MOST_TRACE, DeadLetterError, DeadLetterTopic, Failure, letter_headers


def message(partition: int = 5, headers: Any = ()) -> Any:
    record = SimpleNamespace(
        offset=1234, key=b"k", value=b"v", timestamp=1_700_000_000_000, timestamp_type=0, headers=list(headers)
    )
    return MessageAndMetadata(record, ("orders", partition))


def raised(text: str = "bad") -> Exception:
    try:
        try:
            raise KeyError("deep")
        except KeyError as cause:
            raise ValueError(text) from cause
    except ValueError as error:
        return error


FAILURE = Failure("ValueError: bad", 16, 1, "g", raised())


class Confluent:
    """As ``confluent_kafka.Producer``: reports come in ``flush``."""

    def __init__(self, partitions: int = 3) -> None:
        self.sent: list[dict[str, Any]] = []
        self.reports: list[Any] = []
        self.error: Any = None
        self.offset = 7
        self.partitions = partitions
        self.silent = False

    def list_topics(self, topic: str, timeout: float) -> Any:
        one = SimpleNamespace(partitions=dict.fromkeys(range(self.partitions)), error=None)
        return SimpleNamespace(topics={topic: one} if self.partitions else {})

    def produce(self, topic: str, value: Any = None, key: Any = None, **more: Any) -> None:
        if value == b"huge":
            raise BufferError("Local: Queue full")
        self.reports.append(more.pop("on_delivery"))
        self.sent.append({"topic": topic, "value": value, "key": key, **more})

    def flush(self, timeout: float) -> int:
        reports, self.reports = self.reports, []
        for report in [] if self.silent else reports:
            report(self.error, SimpleNamespace(offset=lambda: self.offset))
        return 0


class KafkaPython:
    """As ``kafka.KafkaProducer``: a future for each message."""

    def __init__(self, **config: Any) -> None:
        self.config = {"key_serializer": None, "value_serializer": None, **config}
        self.sent: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def partitions_for(self, topic: str) -> set[int]:
        return {0, 1}

    def flush(self, timeout: float | None = None) -> None:
        raise AssertionError("a future tells more")

    def send(self, topic: str, **fields: Any) -> Any:
        assert all(isinstance(value, bytes) for _, value in fields["headers"])
        self.sent.append({"topic": topic, **fields})
        return self

    def get(self, timeout: float) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(offset=3)


def test_headers_of_share_groups_are_text() -> None:
    assert letter_headers(message(), FAILURE, "kafka") == [
        ("__dlq.errors.topic", b"orders"),
        ("__dlq.errors.partition", b"5"),
        ("__dlq.errors.offset", b"1234"),
        ("__dlq.errors.group", b"g"),
        ("__dlq.errors.delivery.count", b"16"),
        ("__dlq.errors.message", b"ValueError: bad"),
    ]


def test_headers_of_spring_are_binary_numbers() -> None:
    found = dict(letter_headers(message(), FAILURE, "spring"))
    trace = found.pop("kafka_dlt-exception-stacktrace") or b""
    assert found == {
        "kafka_dlt-original-topic": b"orders",
        "kafka_dlt-original-partition": (5).to_bytes(4, "big"),
        "kafka_dlt-original-offset": (1234).to_bytes(8, "big"),
        "kafka_dlt-original-timestamp": (1_700_000_000_000).to_bytes(8, "big"),
        "kafka_dlt-original-timestamp-type": b"CreateTime",
        "kafka_dlt-original-consumer-group": b"g",
        "kafka_dlt-exception-message": b"ValueError: bad",
        "kafka_dlt-exception-fqcn": b"ValueError",
        "kafka_dlt-exception-cause-fqcn": b"KeyError",
    }
    assert trace.endswith(b"ValueError: bad\n")
    assert b"KeyError: 'deep'" in trace


def test_headers_are_replaced_and_not_added_to() -> None:
    had = [("trace", b"1"), ("__dlq.errors.topic", b"old"), ("none", None)]
    found = letter_headers(message(headers=had), FAILURE, "kafka")
    assert found[:2] == [("trace", b"1"), ("none", None)]
    assert [name for name, _ in found].count("__dlq.errors.topic") == 1
    assert len(letter_headers(message(headers=had), FAILURE, "kafka", copy=False)) == 6


def test_long_texts_are_cut_at_a_character() -> None:
    failure = Failure("ä" * 3000, 1, 1, "g", raised("ä" * 20_000))
    found = dict(letter_headers(message(), failure, "spring"))
    for name in ("kafka_dlt-exception-message", "kafka_dlt-exception-stacktrace"):
        data = found[name] or b""
        assert len(data) <= MOST_TRACE
        assert data.decode().strip("ä\n") == ""


def test_confluent_producer_gets_key_value_and_partition() -> None:
    producer = Confluent()
    DeadLetterTopic(producer, "dlq")(message(), FAILURE)
    (sent,) = producer.sent
    assert (sent["topic"], sent["key"], sent["value"], sent["partition"]) == ("dlq", b"k", b"v", 5 % 3)
    DeadLetterTopic(producer, "dlq", copy=False)(message(), FAILURE)
    assert (producer.sent[1]["key"], producer.sent[1]["value"]) == (None, None)


def test_topic_that_does_not_exist_is_left_to_the_producer() -> None:
    producer = Confluent(partitions=0)
    DeadLetterTopic(producer, "dlq")(message(), FAILURE)
    assert "partition" not in producer.sent[0]


def test_kafka_python_producer_gets_bytes_in_headers() -> None:
    producer = KafkaPython()
    DeadLetterTopic(producer, "dlq", headers="spring")(message(headers=[("none", None)]), FAILURE)
    (sent,) = producer.sent
    assert (sent["topic"], sent["key"], sent["value"], sent["partition"]) == ("dlq", b"k", b"v", 1)
    assert sent["headers"][0] == ("none", b"")


def test_each_letter_has_its_own_outcome() -> None:
    producer = Confluent()
    huge = message()
    huge.record.value = b"huge"
    errors = DeadLetterTopic(producer, "dlq").send_all([(message(), FAILURE), (huge, FAILURE), (message(), FAILURE)])
    assert [error is None for error in errors] == [True, False, True]
    assert "Queue full" in str(errors[1])


@pytest.mark.parametrize("trouble", ["refused", "silent", "unconfirmed"])
def test_confluent_letter_without_acknowledgement_fails(trouble: str) -> None:
    producer = Confluent()
    producer.error = "Broker: Topic authorization failed" if trouble == "refused" else None
    producer.silent = trouble == "silent"
    producer.offset = -1001
    text = {"refused": "authorization failed", "silent": "no acknowledgement", "unconfirmed": "acks=0"}[trouble]
    with pytest.raises(DeadLetterError, match=f"could not be delivered to topic dlq: .*{text}"):
        DeadLetterTopic(producer, "dlq", timeout=0.1)(message(), FAILURE)


def test_kafka_python_letter_without_acknowledgement_fails() -> None:
    producer = KafkaPython()
    producer.error = TimeoutError("Batch expired")
    with pytest.raises(DeadLetterError, match="TimeoutError: Batch expired"):
        DeadLetterTopic(producer, "dlq")(message(), FAILURE)


class SerializingProducer(Confluent):
    """As ``confluent_kafka.SerializingProducer``."""


class AIOKafkaProducer:
    """As aiokafka's."""

    async def send(self, topic: str) -> None: ...

    async def flush(self) -> None: ...

    async def partitions_for(self, topic: str) -> None: ...


@pytest.mark.parametrize(
    ("producer", "text"),
    [
        (AIOKafkaProducer(), "AIOKafkaProducer is an asyncio producer"),
        (SerializingProducer(), "would serialize bytes once more"),
        (KafkaPython(value_serializer=str.encode), "has a value_serializer"),
        (KafkaPython(acks=0), "has acks=0"),
        (object(), "no producer that is known here"),
    ],
)
def test_unusable_producer_is_refused(producer: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        DeadLetterTopic(producer, "dlq")


@pytest.mark.parametrize("options", [{"headers": "x"}, {"timeout": 0}, {"timeout": True}, {"topic": ""}])
def test_unusable_option_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="DeadLetterTopic"):
        DeadLetterTopic(Confluent(), **{"topic": "dlq", **options})
