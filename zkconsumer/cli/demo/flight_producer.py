"""The producer: a thread that writes the flights at an even pace, so that all of the play happens to a running stream.

The thread ``demo-producer`` owns the Kafka producer; ``start``, ``let_finish`` and ``stop`` are called by the main
thread. A failure ends the thread and is raised by ``check``.
"""

from __future__ import annotations

from threading import Event, Thread
from time import monotonic
from zlib import crc32

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from zkconsumer.cli.demo.flights import Flight, Totals, flights
from zkconsumer.cli.demo.message_account import Ledger
from zkconsumer.errors import ZkConsumerError

_SLICE_S = 0.02
_FLUSH_S = 30.0
_ANSWER_S = 20.0
_POLL_EVERY = 100
_HELD_BACK = 0.1  # of all flights: kept until the last step is done, so that every step happens to a running stream


class FlightProducer:
    """Writes flights, keyed by carrier, as JSON."""

    def __init__(self, bootstrap_servers: str, topic: str, limit: int | None, total: int, seconds: float) -> None:
        """Arguments: ``limit`` of flights (None: all), which are ``total``; ``seconds`` to spread them over."""
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "log_level": 0})
        self._topic = topic
        self._limit = limit
        self._total = total
        self._pace = total / seconds
        self._ledger: Ledger | None = None
        self._may_finish = Event()
        self._stop = Event()
        self._failure: str | None = None
        self._thread = Thread(target=self._run, name="demo-producer", daemon=True)
        self.totals = Totals()

    def start(self, ledger: Ledger) -> None:
        """Begins; what the broker acknowledges goes to the books."""
        self._ledger = ledger
        self._thread.start()

    def let_finish(self) -> None:
        """Also the last flights may be written now."""
        self._may_finish.set()

    @property
    def finished(self) -> bool:
        """Whether everything is written and acknowledged."""
        return self._ledger is not None and not self._thread.is_alive() and self._failure is None

    def check(self) -> None:
        """Raises: ZkConsumerError when producing failed."""
        if self._failure is not None:
            raise ZkConsumerError(f"producing the flights failed: {self._failure}")

    def stop(self) -> None:
        """Ends the thread, wherever it is."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_FLUSH_S)

    def _run(self) -> None:
        try:
            self._produce_all()
            if not self._stop.is_set() and self._producer.flush(_FLUSH_S):
                self._failure = self._failure or "the broker did not acknowledge everything in time"
        except Exception as error:  # noqa: BLE001 - whatever it is, the main thread shall say it
            self._failure = repr(error)

    def _produce_all(self) -> None:
        began = monotonic()
        allowed = 0
        for number, flight in enumerate(flights(self._limit)):
            while number >= allowed:
                if self._stop.is_set() or self._failure is not None:
                    return
                allowed = int((monotonic() - began) * self._pace)
                if not self._may_finish.is_set():
                    allowed = min(allowed, int(self._total * (1 - _HELD_BACK)))
                if number >= allowed:
                    self._producer.poll(_SLICE_S)
            self._produce(flight)
            self.totals.add(flight)
            if number % _POLL_EVERY == 0:
                self._producer.poll(0)  # or what was acknowledged long ago would be told late

    def _produce(self, flight: Flight) -> None:
        while not self._stop.is_set():
            try:
                self._producer.produce(self._topic, flight.json, flight.carrier, on_delivery=self._delivered)
                return
            except BufferError:
                self._producer.poll(_SLICE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = str(error)
            return
        partition, offset = message.partition(), message.offset()
        assert self._ledger is not None
        assert partition is not None
        assert offset is not None
        self._ledger.produced((partition, offset), crc32(message.value() or b""))


def log_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Partition -> the end of its log, as another client than ours is told by the broker."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo-ends", "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, _ANSWER_S).topics[topic].partitions
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_S)[1]
            for number in partitions
        }
    finally:
        consumer.close()
