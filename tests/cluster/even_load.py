"""Messages for all partitions of a topic, written by a thread until it is stopped."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Self

from tests.cluster.conftest import produce_to
from tests.timing import scaled


class EvenLoad:
    """The load. Each round writes ``each`` messages to every partition; ``sent`` are those of each partition so far."""

    def __init__(
        self, bootstrap_servers: str, topic: str, partitions: int, *, each: int = 5, pause_s: float = 0.05
    ) -> None:
        self._where = (bootstrap_servers, topic)
        self._each, self._pause_s = each, pause_s
        self.sent = [0] * partitions
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        partitions = len(self.sent)
        try:
            while not self._stop.wait(self._pause_s):
                produce_to(*self._where, [b"x"] * (self._each * partitions), partitions=partitions)
                self.sent = [count + self._each for count in self.sent]
        except BaseException as error:
            self._error = error

    def stop(self) -> Counter[tuple[int, int]]:
        """End the load. Return the (partition, offset) of all messages. May be called again."""
        self._stop.set()
        self._thread.join(scaled(60))
        assert not self._thread.is_alive()
        assert self._error is None, repr(self._error)
        return Counter((partition, offset) for partition, count in enumerate(self.sent) for offset in range(count))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
