"""The load: produces numbered messages at an even pace to all partitions and logs the acknowledged ones, until SIGTERM.

``python -m tests.faults.producer CONFIG``. CONFIG: ``log``, ``bootstrap``, ``topics`` (name -> partitions), ``rate``
(messages a second in all), ``epoch`` (a word in each value that distinguishes a topic from its successor).
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.faults.events import EventLog

FLUSH_S = 60.0
MESSAGE_TIMEOUT_MS = 60_000


class Load:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.log = EventLog(Path(config["log"]), "producer", role="producer")
        self.stop = threading.Event()
        self.failures = 0
        self.producer = Producer(
            {
                "bootstrap.servers": config["bootstrap"],
                "linger.ms": 2,
                "acks": "all",
                "enable.idempotence": True,  # a repeated send is in the log once
                "message.timeout.ms": MESSAGE_TIMEOUT_MS,
                "topic.metadata.refresh.interval.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "log_level": 0,
                **config.get("producer", {}),
            }
        )

    def delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failures += 1
            self.log("refused", tp=f"{message.topic()}-{message.partition()}", error=str(error))
        else:
            place = {"tp": f"{message.topic()}-{message.partition()}", "o": message.offset()}
            self.log("acked", **place, v=message.value().decode())

    def run(self) -> None:
        places = [(topic, number) for topic, count in self.config["topics"].items() for number in range(count)]
        epoch, pause = self.config.get("epoch", ""), 1 / self.config["rate"]
        begin, number = time.monotonic(), 0
        while not self.stop.is_set():
            topic, partition = places[number % len(places)]
            try:
                self.producer.produce(topic, f"{epoch}{number}", partition=partition, on_delivery=self.delivered)
                number += 1
            except (BufferError, KafkaException):
                self.stop.wait(0.05)
            # messages that a pause of this process left out are not sent later: a burst would be another load
            begin = max(begin, time.monotonic() - number * pause - 1.0)
            while (left := begin + number * pause - time.monotonic()) > 0:
                self.producer.poll(left)  # which also returns when something was delivered
            self.producer.poll(0)
        unacknowledged = self.producer.flush(FLUSH_S)
        self.log("produced", messages=number, unacknowledged=unacknowledged, failures=self.failures)


def main() -> None:
    load = Load(json.loads(Path(sys.argv[1]).read_text()))
    signal.signal(signal.SIGTERM, lambda *_: load.stop.set())
    load.run()


if __name__ == "__main__":
    main()
