"""Members of the package in a simulated group: a process with a connector, and the threads of its application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.scheduler import Interrupted, Process
from tests.simulation.settings import load
from tests.simulation.zookeeper import SimulatedSession
from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector
from zkconsumer.errors import ConsumerTimeoutException, FencedInstanceIdError, ZkConsumerError
from zkconsumer.model import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

LATE = 1.5  # seconds by which a call may be late: the margin of its last request
SLOWEST = 15.0  # seconds that an application may have a message in hand
STREAMS = 2  # the streams of a member
CALL = 5.0  # seconds that an application gives a call
WAITS = 3.0  # seconds: `consumer.timeout.ms` of the members
_PATIENCES = (0.0, 0.01, 0.3, 1.0, 3.0, 3.0)  # time limits of reads, in seconds


def tp_of(message: Any) -> TopicPartition:
    return TopicPartition(message.topic, message.partition)


class MemberProcess:
    """The process of a member, of the package or of a model, as the scenario and its faults use it."""

    kind_of_name = "m"
    kind = "old"  # the kind of member in a group that migrates

    def __init__(self, scenario: Scenario, number: int) -> None:
        self.scenario = scenario
        self.name = f"{self.kind_of_name}{number}"
        self.process = Process(self.name)
        self.consumer = f"{scenario.group}_{self.name}"
        self.left = False

    @property
    def usable(self) -> bool:
        """Whether the process lives and has not been asked to leave."""
        return self.process.alive and not self.left

    def start(self) -> None:
        """Begin the process."""
        self.scenario.world.spawn(f"{self.name}-main", self._main, self.process)

    def _main(self) -> None:
        raise NotImplementedError

    def consume(self, positions: dict[TopicPartition, int]) -> None:
        """Finish one message at these positions if there is one, as members of other clients do, and wait a while."""
        here = self.scenario.world
        ready = [tp for tp, offset in positions.items() if offset < self.scenario.produced[tp]]
        if ready:
            tp = here.random.choice(ready)
            here.note(f"handed {tp} {positions[tp]}")
            self.scenario.observer.finished(tp, positions[tp])
            positions[tp] += 1
        here.sleep(here.random.random() ** 4 * 0.3 if ready else 0.1)


class Member(MemberProcess):
    """A process with a connector and the threads of its application."""

    connector: Any = None
    ended = False
    error: BaseException | None = None  # what the last call raised

    def __init__(self, scenario: Scenario, number: int) -> None:
        super().__init__(scenario, number)
        self.consumer = ""

    @property
    def session(self) -> SimulatedSession | None:
        return next((one for one in self.scenario.zookeeper.sessions if one.process is self.process), None)

    @property
    def in_contact(self) -> bool:
        """Whether the member hears of changes in its group now."""
        session = self.session
        return session is not None and session.connected

    @property
    def properties(self) -> dict[str, Any]:
        return {**self.scenario.properties, "consumer.id": self.name}

    def _main(self) -> None:
        scenario = self.scenario
        application = load(scenario.setting.application)(self)
        self.connector = application.connect(ConsumerConfig({**self.properties, **application.properties}))
        self.consumer = self.connector.consumer_id
        try:
            application.begin()
        except (ZkConsumerError, Interrupted) as e:
            scenario.world.note(f"cannot join: {type(e).__name__}")
            self.leave()

    def leave(self) -> None:
        """Shut the connector down, on the present task, within its time limit."""
        if self.left:
            return
        self.left = True
        while self.connector is None:
            self.scenario.world.sleep(0.05)
        for left in (0, 1, 2):  # a call goes on where the one before was left
            done = self.call("shutdown", lambda: self.connector.shutdown(CALL), CALL, interrupted=left < 2)
            if done or not self.scenario.setting.interrupts:
                break
        self.ended = True
        self.scenario.world.note("has left")

    def call(self, what: str, call: Callable[[], Any], patience: float, *, interrupted: bool = True) -> list[Any]:
        """Do a call of the application within ``patience`` seconds. Return its result, or nothing if it raised.

        Arguments: ``interrupted`` says that an exception may leave it.
        """
        world = self.scenario.world
        with self.limited(what, patience):
            try:
                with world.interrupts(self.scenario.setting.interrupts * interrupted):
                    found = [call()]
                world.note(f"{what}: done")
                return found
            except (ZkConsumerError, ValueError, KeyError, TimeoutError, Interrupted) as e:
                world.note(f"{what}: {type(e).__name__}")
                self.error = e
                return []

    @contextmanager
    def limited(self, what: str, patience: float) -> Iterator[None]:
        """Let the block take ``patience`` seconds, and the time in which the process is frozen."""
        world, frozen = self.scenario.world, self.process.frozen_until
        began, stood = world.now, world.stood(self.process)
        try:
            yield
        finally:
            took, limit = world.now - began, patience + LATE + world.stood(self.process) - stood
            if took > limit and frozen == self.process.frozen_until:
                self.scenario.observer.broke(f"{what} with a time limit of {patience:g} s took {took:.1f} s")


class StreamsApplication:
    """Reads each stream on a thread of its own, by ``next``, ``get`` and ``take``."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.scenario = member.scenario
        self.world = member.scenario.world
        self.observer: Any = member.scenario.observer
        self.arguments: dict[str, Any] = {}
        self.properties: dict[str, Any] = {}  # further arguments and properties of the connector

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
            self.observer.finished(tp_of(one), one.offset)

    def handed(self, held: list[Any], asked: float) -> None:
        """A call that began at ``asked`` returned these messages."""
        for one in held:
            self.observer.handed(self.member.consumer, tp_of(one), one.offset, asked)

    def _apply(self, stream: Any, thread: str = "") -> None:
        """Read messages in all ways until the stream ends. The next ask finishes what was read."""
        world, member = self.world, self.member
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
                    self.observer.nothing_came(member.consumer, thread, asked, world.stood(member.process) - stood)
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
            self.observer.broke("a stream goes on after the shutdown of its connector")
        except ZkConsumerError as e:
            self.world.note(f"after the shutdown: {type(e).__name__}")

    def read(self, stream: Any) -> list[Any]:
        """Return one message, some, or none, by one of the ways to read."""
        chance = self.world.random
        way, timeout, most = chance.random(), chance.choice(_PATIENCES), chance.randrange(1, 30)
        asked, stood = self.world.now, self.world.stood(self.member.process)
        if way >= 0.8:
            with self.member.limited("take", timeout):
                return list(stream.take(most, timeout=timeout))
        if way >= 0.5:
            with self.member.limited("get", timeout):
                message = stream.get(timeout=timeout)
        else:
            with self.member.limited("next", WAITS):
                message = next(iter(stream))
        if message is not None and self._is_calm():
            stood = self.world.stood(self.member.process) - stood
            self.observer.waited(tp_of(message), message.offset, asked, stood)
        return [] if message is None else [message]

    def _sometimes(self, held: list[Any], asked: float) -> None:
        world, member, connector = self.world, self.member, self.member.connector
        chance, message = world.random.random(), held[-1]
        tp, patience = tp_of(message), world.random.choice([CALL, CALL, 0.05, 0.0])
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

    def seek(self, tp: TopicPartition, offset: int, patience: float) -> list[Any]:
        """Seek. Return nothing if the call raised."""
        self.observer.sought(self.member.consumer, tp, offset)
        return self.member.call("seek", lambda: self.member.connector.seek(tp, offset, timeout=patience), patience)

    def pause_shortly(self, tp: TopicPartition) -> None:
        """Pause a partition, and resume it after half a second."""
        connector = self.member.connector
        self.member.call("pause", lambda: connector.pause([tp]), CALL)
        self.world.sleep(0.5)
        self.member.call("resume", lambda: connector.resume([tp]), CALL)

    def _is_calm(self) -> bool:
        return self.scenario.calm and not self.member.connector.paused()

    def _look_at_commit(self, tp: TopicPartition, offset: int, asked: float) -> None:
        """A commit that returned is there, unless the partition was revoked or lost since it was read, or sought."""
        seen, consumer = self.observer.partitions[tp], self.member.consumer
        mine = seen.owner == consumer and seen.owned[consumer].began < asked and not seen.back_to
        mine = mine and tp in self.member.connector.assignment()  # else it waits for the next generation
        if mine and self.member.in_contact and seen.start <= offset:
            self.observer.broke(f"commit_offsets returned, and {tp} is committed up to {seen.start}, not {offset + 1}")
