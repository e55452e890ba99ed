"""Applications of simulated members: they read streams in all ways, and commit, seek and pause now and then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector
from zkconsumer.errors import ConsumerTimeoutException, FencedInstanceIdError, ZkConsumerError
from zkconsumer.model import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.members import Member

SLOWEST = 15.0
"""Seconds that an application may have a message in hand."""
STREAMS = 2
"""The streams of a member."""
CALL = 5.0
"""Seconds that an application gives a call."""
_PATIENCES = (0.0, 0.01, 0.3, 1.0, 3.0, 3.0)
"""Time limits of reads, in seconds."""
WAITS = 3.0
"""Seconds: ``consumer.timeout.ms`` of the members."""


class StreamsApplication:
    """Reads each stream on a thread of its own, by ``next``, ``get`` and ``take``."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.scenario = member.scenario
        self.world = member.scenario.world
        self.arguments: dict[str, Any] = {}
        """Further arguments of the connector."""
        self.properties: dict[str, Any] = {}
        """Further properties of the connector."""

    def connect(self, config: ConsumerConfig) -> Any:
        return ZookeeperConsumerConnector(config, **self.arguments)

    def begin(self) -> None:
        topic = self.scenario.topic
        streams = self.member.connector.create_message_streams({topic: STREAMS})[topic]
        for number, stream in enumerate(streams):
            self.spawn(f"app-{number}", partial(self._apply, stream, str(number)))

    def spawn(self, name: str, body: Callable[[], object]) -> None:
        """Start a thread of the member."""
        self.world.spawn(f"{self.member.name}-{name}", body, self.member.process)

    def finish(self, held: list[Any]) -> None:
        """Messages in hand count as finished from now on."""
        for one in held:
            self.scenario.observer.finished(TopicPartition(one.topic, one.partition), one.offset)

    def handed(self, held: list[Any], asked: float) -> None:
        """A call that began at ``asked`` returned these messages."""
        for one in held:
            tp = TopicPartition(one.topic, one.partition)
            self.scenario.observer.handed(self.member.consumer, tp, one.offset, asked)

    def _apply(self, stream: Any, thread: str = "") -> None:
        """Read messages in all ways until the stream ends. The next ask finishes what was read."""
        world, observer, member = self.world, self.scenario.observer, self.member
        held: list[Any] = []
        while True:
            asked, stood = world.now, world.stood(member.process)
            self.finish(held)
            try:
                held = self.read(stream)
            except StopIteration:
                return
            except ZkConsumerError as e:
                held = []
                if not isinstance(e, ConsumerTimeoutException):
                    world.note(f"reading: {type(e).__name__}: {e}")
                    if isinstance(e, FencedInstanceIdError):  # nothing but another start helps
                        member.leave()
                    if member.left:
                        return
                    world.sleep(1.0)
            if not held:
                if member.ended:
                    self._look_at_end(stream)
                    return
                if self._is_calm():
                    observer.nothing_came(member.consumer, thread, asked, world.stood(member.process) - stood)
                continue
            self.handed(held, asked)
            slow = world.random.random() < 0.005  # longer than a rebalance waits for it, now and then
            world.sleep(world.random.random() * SLOWEST if slow else world.random.random() ** 4 * 0.3)
            self._sometimes(held, asked)

    def _look_at_end(self, stream: Any) -> None:
        """A stream ends with its connector, or a reader without a time limit would wait for ever."""
        try:
            next(iter(stream), None)
        except ConsumerTimeoutException:
            self.scenario.broken("a stream goes on after the shutdown of its connector")
        except ZkConsumerError as e:
            self.world.note(f"after the shutdown: {type(e).__name__}")

    def read(self, stream: Any) -> list[Any]:
        """Return one message, some, or none, by one of the ways to read."""
        chance = self.world.random
        way, timeout, most = chance.random(), chance.choice(_PATIENCES), chance.randrange(1, 30)
        asked, stood = self.world.now, self.world.stood(self.member.process)
        if way >= 0.8:
            with self.member.limited("take", timeout):
                taken: list[Any] = stream.take(most, timeout=timeout)
            return taken
        if way >= 0.5:
            with self.member.limited("get", timeout):
                message = stream.get(timeout=timeout)
        else:
            with self.member.limited("next", WAITS):
                message = next(iter(stream))
        if message is not None and self._is_calm():
            tp = TopicPartition(message.topic, message.partition)
            self.scenario.observer.waited(tp, message.offset, asked, self.world.stood(self.member.process) - stood)
        return [] if message is None else [message]

    def _sometimes(self, held: list[Any], asked: float) -> None:
        world, member = self.world, self.member
        connector: Any = member.connector
        chance, message = world.random.random(), held[-1]
        tp, patience = TopicPartition(message.topic, message.partition), world.random.choice([CALL, CALL, 0.05, 0.0])
        if chance < 0.04 or chance > 0.98:
            self.finish(held)  # what its own thread holds counts as finished in a commit
        if chance < 0.03:
            if member.call("commit", lambda: connector.commit_offsets(timeout=patience), patience):
                self._look_at_commit(tp, message.offset, asked)
        elif chance < 0.04:
            self.seek(tp, max(0, message.offset - 3), patience)
        elif chance < 0.05:
            self.pause_shortly(world.random.choice(sorted(connector.assignment()) or [tp]))
        elif chance > 0.98:  # what is read while it waits counts as before
            member.call("commit_async", lambda: connector.commit_offsets_async(timeout=patience), 0.0)

    def seek(self, tp: TopicPartition, offset: int, patience: float) -> bool:
        """Seek. Return whether the call raised nothing."""
        connector: Any = self.member.connector
        self.scenario.observer.sought(self.member.consumer, tp, offset)
        return self.member.call("seek", lambda: connector.seek(tp, offset, timeout=patience), patience)

    def pause_shortly(self, tp: TopicPartition) -> None:
        """Pause a partition, and resume it after half a second."""
        connector: Any = self.member.connector
        self.member.call("pause", lambda: connector.pause([tp]), CALL)
        self.world.sleep(0.5)
        self.member.call("resume", lambda: connector.resume([tp]), CALL)

    def _is_calm(self) -> bool:
        return self.scenario.calm and not self.member.connector.paused()

    def _look_at_commit(self, tp: TopicPartition, offset: int, asked: float) -> None:
        """A commit that returned is there, unless the partition was revoked or lost since it was read, or sought."""
        seen, consumer = self.scenario.observer.partitions[tp], self.member.consumer
        mine = seen.owner == consumer and seen.owned[consumer][0] < asked and not seen.back_to
        mine = mine and tp in self.member.connector.assignment()  # else it waits for the next generation
        if mine and self.member.in_contact and seen.start <= offset:
            self.scenario.broken(f"commit_offsets returned, and {tp} is committed up to {seen.start}, not {offset + 1}")


APPLICATIONS: dict[str, Callable[[Member], Any]] = {"streams": StreamsApplication}
"""The applications by the name that a setting gives."""
