"""Our connector inside the test's own process: readers of streams, and looking at ZooKeeper's nodes from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from time import time
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.cluster.member_process import Consumed
from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, KafkaStream


class Reader:
    """Reads one stream on a thread of its own and keeps what it got.

    It keeps the message at offset ``hold_at`` in its hands until ``go_on()``; ``got`` contains a message from the
    moment it was handed out. It ends with its stream; ``error`` is what ended it otherwise. A timeout of the stream is
    counted in ``timeouts`` and read over.
    """

    def __init__(self, stream: KafkaStream[Any, Any], *, hold_at: int | None = None) -> None:
        self.stream = stream
        self._hold_at = hold_at
        self.error: BaseException | None = None
        self.timeouts = 0
        self._got: list[Consumed] = []
        self._whole: list[Any] = []
        self._may_go_on = threading.Event()
        self._commands: list[Any] = []
        self.thread = threading.Thread(target=self._run, name=f"reader-{stream.name}", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._read()
        except BaseException as error:
            self.error = error

    def _read(self) -> None:
        while True:
            try:
                for m in self.stream:
                    self._whole.append(m)
                    self._got.append(Consumed(m.topic, m.partition, m.offset, m.key, m.value, time()))
                    while m.offset == self._hold_at and not self._may_go_on.wait(0.01):
                        while self._commands:
                            self._commands.pop(0)()
                return
            except ConsumerTimeoutException:
                self.timeouts += 1

    @property
    def got(self) -> list[Consumed]:
        """A copy of what was handed out so far."""
        return self._got.copy()

    @property
    def places(self) -> list[tuple[int, int]]:
        """(partition, offset) of what was handed out, in that order."""
        return [(m.partition, m.offset) for m in self._got]

    def go_on(self) -> None:
        """Finish the message in hand and read on."""
        self._may_go_on.set()

    def run(self, action: Any) -> None:
        """Have the reading thread do something while it holds a message, and wait for that."""
        done = threading.Event()
        failure: list[BaseException] = []

        def command() -> None:
            try:
                action()
            except BaseException as error:
                failure.append(error)
            finally:
                done.set()

        self._commands.append(command)
        assert done.wait(scaled(20)), "the reader does not hold a message"
        if failure:
            raise failure[0]

    def wait_for(self, count: int, seconds: float = 20) -> list[Consumed]:
        """Wait until at least so many messages were handed out."""
        eventually(lambda: self.error or len(self._got) >= count, seconds, f"{count} messages: {len(self._got)} so far")
        assert self.error is None, repr(self.error)
        return self.got

    def wait_messages(self, count: int) -> list[Any]:
        """As ``wait_for``; returns the messages themselves."""
        self.wait_for(count)
        return self._whole.copy()

    def join(self, seconds: float = 10) -> None:
        """Wait for the end of the stream and raise what ended it otherwise."""
        self.thread.join(scaled(seconds))
        assert not self.thread.is_alive(), "the stream did not end"
        if self.error is not None:
            raise self.error


def offsets_of(client: KazooClient, group: str, topic: str) -> dict[int, int]:
    """Partition -> committed offset as written in ZooKeeper."""
    try:
        names = client.get_children(f"/consumers/{group}/offsets/{topic}")
    except NoNodeError:
        return {}
    return {int(name): int(client.get(f"/consumers/{group}/offsets/{topic}/{name}")[0]) for name in names}


def by_range(threads: Iterable[str], partitions: Iterable[int]) -> dict[int, str]:
    """What the original's range strategy gives each thread, worked out here anew: whole threads in the order of
    Java's strings take runs of the partitions, the first ones one more where it does not divide.
    """
    order = sorted(threads, key=lambda thread: thread.encode("utf-16-be"))
    left = sorted(partitions)
    owners: dict[int, str] = {}
    for number, thread in enumerate(order):
        share = -(-len(left) // (len(order) - number))
        for _ in range(share):
            owners[left.pop(0)] = thread
    return owners
