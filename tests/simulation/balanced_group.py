"""Groups of balanced members: ``run`` with ``concurrency``, with and without ``share.partitions``.

The handlers run on several threads, end in all ways, and call the connector. Other threads call it from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulation.balanced_promises import BalancedObserver, Handling
from tests.simulation.members import CALL, SLOWEST, Member, StreamsApplication, tp_of
from tests.simulation.scenario import SLOW_FOR, STANDS, Scenario
from zkconsumer import PENDING, Later, Reject, Retry
from zkconsumer.balance.dispatched_work import ReadWork
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException, ZkConsumerError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition

KEYS = 7  # the keys of a partition's messages
PART = 256  # messages that are read at a time: the window may be passed by so many
POISON = 61  # every so many messages, one fails at each attempt
_OUTCOMES = ("raise", "raise", "later", "busy", "reject", "refuse", "pending", "pending", "nack")
"""What a handler does with a message that it does not finish at once."""
_HASHES: dict[type, Callable[[Any], int]] = {
    PartitionPosition: lambda one: hash(one.tp),
    OpenPartition: lambda one: hash(one.position.tp),
    ReadWork: lambda one: int(one.offset),
}
for _class, _hash in _HASHES.items():  # the package has sets of these, whose order would follow from addresses
    setattr(_class, "__hash__", _hash)  # noqa: B010 - it is replaced on purpose


class Busy(Exception):
    """A failure that may pass."""


class Refused(Exception):
    """A failure after which the message is a dead letter."""


class EndOfRun(BaseException):
    """Ends the run of a handler that raises it."""


class BalancedApplication(StreamsApplication):
    """Runs a handler, again after each end of a run, until the connector is shut down."""

    observer: BalancedObserver
    running = 0

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        chance = self.world.random
        self.retry = Retry(
            attempts=chance.choice([2, 3, 5]),
            delays=chance.choice([[0.0, 0.5], [0.3, 1.0, 2.0], [1.0, 4.0]]),
            park_after=chance.choice([1, 2, 3]),
            park_seconds=chance.choice([1.0, 60.0]),
            reject=(Refused,),
        )
        self.options: dict[str, Any] = {
            "retry": self.retry,
            "order": self.observer.order,
            "concurrency": chance.choice([1, 2, 4, 8]),
            "batch": chance.choice([1, 1, 1, 5]),
            "failure_limit": chance.choice([None, FailureLimit(), FailureLimit(consecutive=5, ratio=0.5, window=10)]),
            "dead_letter": chance.choice([None, None, self._bury]),
        }

    def begin(self) -> None:
        self.observer.members.append(self.member)
        self.spawn("run", self._run)
        self.spawn("outside", self._outside)

    # ---- runs

    def _run(self) -> None:
        member = self.member
        topics: Any = {self.scenario.topic: 2}
        while not member.left:
            try:
                summary = member.connector.run(self._handle, topics, until=self._until(), **self.options)
                self.world.note(f"run: {summary}")
            except ConsumerTimeoutException:
                self.world.note("run: nothing came")
            except (ConnectorClosedException, EndOfRun):  # a handler has shut it down
                member.left = member.ended = True
            except (ZkConsumerError, TimeoutError) as e:
                self.world.note(f"run: {type(e).__name__}: {e}")
                self.world.sleep(1.0)
            if self.running:
                self.observer.broke(f"{member.name}: run has returned, and {self.running} handlers have not")
            if member.connector.lifecycle.created:
                topics = None

    def _until(self) -> Any:
        chance, scenario = self.world.random, self.scenario
        way = chance.random()
        if self.observer.calm or way < 0.6:
            return None
        if way < 0.8:
            return "end"
        return {tp: chance.randrange(end + 1) for tp, end in scenario.produced.items()}

    # ---- the handler

    def _handle(self, given: Any) -> Any:
        world, chance, most = self.world, self.world.random, self.options["concurrency"]
        handlings = self.observer.begun(self.member, given if isinstance(given, list) else [given])
        self.running += 1
        if self.running > most:
            self.observer.broke(f"{self.member.name} has {self.running} handlers, of {most}")
        try:
            if self.observer.calm:  # what is left has to be done in time, by one worker perhaps
                world.sleep(0.01)
            elif chance.random() < 0.9:
                slow = chance.random() < 0.01
                world.sleep(chance.random() * SLOWEST if slow else chance.random() ** 4 * 0.5)
            self._inside(handlings)
            if not isinstance(given, list):
                return self._outcome(handlings[0])
            if chance.random() < 0.02 and not self.observer.calm:
                for handling in handlings:
                    self._failed(handling)
                raise Busy
            outcomes: list[Any] = []
            for handling in handlings:
                try:
                    outcomes.append(self._outcome(handling))
                except (Busy, Refused) as e:
                    outcomes.append(e)
            return outcomes
        finally:
            self.running -= 1

    def _outcome(self, handling: Handling) -> Any:
        """Return or raise what the handler tells of a message, once the observer has been told."""
        chance, calm = self.world.random, self.observer.calm
        if handling.offset % POISON == 7 and not calm:
            self._failed(handling)
            raise Busy("poison")
        way = "done" if calm or chance.random() < 0.9 else chance.choice(_OUTCOMES)
        if way == "pending" or way == "nack":
            self.spawn("answer", partial(self._answer, way, handling))
            return PENDING
        if way == "raise":
            self._failed(handling)
            raise Busy
        if way == "busy":
            self._failed(handling)
            return Later(chance.choice([0.0, 0.5, 3.0]), failure="busy")
        outcomes = {"done": "done", "later": "again", "reject": "given up", "refuse": "given up"}
        self.observer.ended(handling, outcomes[way])
        if way == "refuse":
            raise Refused
        return {"done": None, "later": Later(chance.choice([0.0, 0.3, 2.0])), "reject": Reject("bad")}[way]

    def _failed(self, handling: Handling) -> None:
        last = handling.message.attempt >= self.retry.attempts
        self.observer.ended(handling, "given up" if last else "failed")

    def _answer(self, way: str, handling: Handling) -> None:
        """Finish a message elsewhere, before or after its handler has returned."""
        self.world.sleep(self.world.random.choice([0.0, 0.2, 2.0]))
        if way == "nack":
            self._failed(handling)
            handling.message.nack(Busy())
        else:
            self.observer.ended(handling, "done")
            handling.message.ack()

    def _bury(self, message: Any, failure: Any) -> None:
        """Take a dead letter, or fail to."""
        tp = tp_of(message)
        if message.offset not in self.observer.fates[tp].given_up:
            self.observer.broke(f"{tp}: {message.offset} is a dead letter, neither rejected nor tried to the end")
        self.world.sleep(self.world.random.random() * 0.2)
        if not self.observer.calm and self.world.random.random() < 0.3:
            raise Busy("no room for dead letters")
        self.world.note(f"dead letter {tp} {message.offset}: {failure.reason}")
        self.observer.buried(tp, message.offset)

    # ---- calls of the connector

    def _inside(self, handlings: list[Handling]) -> None:
        """Call the connector from the handler, now and then."""
        member, chance, calm = self.member, self.world.random.random(), self.observer.calm
        if chance < 0.01:
            member.call("commit", lambda: member.connector.commit_offsets(timeout=CALL), CALL)
        elif chance < 0.015:
            self.pause_shortly(handlings[-1].tp)
        elif chance < 0.0155 and not calm:
            for one in handlings:
                self.observer.ended(one, "again")
            member.left = True
            raise EndOfRun
        elif chance < 0.016 and not calm and not member.left:
            for one in handlings:  # it counts as finished, because the thread that holds it shuts down
                self.observer.ended(one, "done")
            member.leave()

    def _outside(self) -> None:
        """Call the connector from a thread of its own, until it is shut down."""
        member, chance = self.member, self.world.random
        while not member.left:
            self.world.sleep(chance.random() * 4.0)
            if member.left:
                return
            connector, way = member.connector, chance.random()
            try:
                owned = sorted(connector.assignment())
                if way < 0.3:
                    patience = chance.choice([CALL, 0.05, 0.0])
                    member.call("commit", partial(connector.commit_offsets, timeout=patience), patience)
                elif way < 0.4 and owned:
                    self.pause_shortly(chance.choice(owned))
                elif way < 0.45 and owned and not self.observer.calm:
                    self._seek(chance.choice(owned))
                elif way < 0.8:
                    str(connector.state), connector.health()
            except (ConnectorClosedException, ValueError) as e:
                self.world.note(f"outside: {type(e).__name__}: {e}")

    def _seek(self, tp: TopicPartition) -> None:
        start, end = self.observer.partitions[tp].start, self.scenario.produced[tp]
        self.seek(tp, max(0, min(end, start + self.world.random.choice([-5, 0, 5, 20]))), CALL)
        self.observer.seek_over(tp)


class BalancedGroup(Scenario):
    """Members that call ``run`` with ``concurrency``. All have the same order, which the seed chooses."""

    observer_class = BalancedObserver
    observer: BalancedObserver
    orders: tuple[str, ...] = ("key", "key", "partition", "none")
    shares = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.observer.order = self.world.random.choice(self.orders)
        self.observer.drain = int(self.properties["rebalance.drain.timeout.ms"]) / 1000

    def choose_properties(self) -> dict[str, str | int]:
        chance = self.world.random
        return {
            **super().choose_properties(),
            "rebalance.drain.timeout.ms": chance.choice([1000, 3000]),
            "unfinished.max.offsets": chance.choice([20, 200, 10_000]),
            "handler.timeout.ms": chance.choice([-1, 2000]),
            "consumer.timeout.ms": chance.choice([-1, -1, 15_000]),
            "consumer.timeout.action": chance.choice(["raise", "end"]),
            "share.partitions": str(self.shares).lower(),
        }

    def produce(self, count: int) -> None:
        chance = self.world.random
        tp = self.tp(chance.randrange(self.partitions))
        keys = [None if chance.random() < 0.1 else b"k%d" % chance.randrange(KEYS) for _ in range(count)]
        self.observer.fates[tp].keys += keys  # before: a member may read the batch at once
        self.cluster.append(*tp, [b"v%d" % each for each in range(count)], keys)
        self.produced[tp] += count
        self._check_counts()

    def _check_counts(self) -> None:
        """Look at the parts' own counts."""
        window = int(self.properties["unfinished.max.offsets"])
        for member in self.live():
            run: Any = getattr(getattr(getattr(member, "connector", None), "lifecycle", None), "running", None)
            for partition in () if run is None else run.reader.partitions:
                unfinished, place = partition.ledger.unfinished, f"{member.name}: {partition.position.tp}"
                if unfinished > window + PART:
                    self.observer.broke(f"{place} has {unfinished} unfinished messages, with a window of {window}")
                # a message whose outcome is being settled is in hand still
                if len(partition.failing) > unfinished + partition.ledger.pointer_count + partition.in_hand:
                    self.observer.broke(f"{place} has {len(partition.failing)} failing messages, of {unfinished}")

    def settle(self) -> None:
        self.observer.calm = True
        super().settle()
        self._check_counts()

    def progress(self) -> int:
        """Parked messages are handled one by one, and move no offset."""
        return super().progress() + sum(len(fates.handled) for fates in self.observer.fates.values())

    def _not_done(self) -> str:
        left = super()._not_done()
        for tp, fates in self.observer.fates.items() if not left else ():
            missing = [each for each in range(len(fates.keys)) if not self.observer.partitions[tp].is_finished(each)]
            if fates.parked or missing:
                return f"{tp}: {sorted(fates.parked)} are parked still, and nobody finished {missing}"
        return left


class SharingGroup(BalancedGroup):
    """Members that lend slots to each other: there are more of them than partitions.

    Where statements are slow, a loan may begin later than ``consumer.timeout.ms``. Each run ends before it then, and
    takes the loans back, so nothing is handled before the statements are quick again.
    """

    partitions, stands_slowly = 2, SLOW_FOR + STANDS
    orders = ("key", "key", "none")
    shares = True
