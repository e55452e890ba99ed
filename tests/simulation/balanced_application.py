"""The application of balanced members: ``run`` with a handler on several threads, and calls from inside and outside."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tests.simulation.applications import APPLICATIONS, CALL, SLOWEST, StreamsApplication
from tests.simulation.balanced_promises import BalancedObserver, Handling
from zkconsumer import PENDING, Later, Reject, Retry
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException, ZkConsumerError
from zkconsumer.model import TopicPartition

if TYPE_CHECKING:
    from tests.simulation.members import Member

POISON = 61
"""Every so many messages, one fails at each attempt."""
_OUTCOMES = ("raise", "raise", "later", "busy", "reject", "refuse", "pending", "pending", "nack")
"""What a handler does with a message that it does not finish at once."""


class Busy(Exception):
    """A failure that may pass."""


class Refused(Exception):
    """A failure after which the message is a dead letter."""


class EndOfRun(BaseException):
    """Ends the run of a handler that raises it."""


class BalancedApplication(StreamsApplication):
    """Runs a handler, again after each end of a run, until the connector is shut down."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        chance = self.world.random
        observer = self.scenario.observer
        assert isinstance(observer, BalancedObserver)
        self.watched = observer
        self.retry = Retry(
            attempts=chance.choice([2, 3, 5]),
            delays=chance.choice([[0.0, 0.5], [0.3, 1.0, 2.0], [1.0, 4.0]]),
            park_after=chance.choice([1, 2, 3]),
            park_seconds=chance.choice([1.0, 60.0]),
            reject=(Refused,),
        )
        self.concurrency = chance.choice([1, 2, 4, 8])
        self.batch = chance.choice([1, 1, 1, 5])
        self.limit = chance.choice([None, FailureLimit(), FailureLimit(consecutive=5, ratio=0.5, window=10)])
        self.dead_letter = chance.choice([None, None, self._bury])
        self.running = 0

    def begin(self) -> None:
        self.watched.members.append(self.member)
        self.spawn("run", self._run)
        self.spawn("outside", self._outside)

    # ---- runs

    def _run(self) -> None:
        member = self.member
        topics: Any = {self.scenario.topic: 2}
        options: dict[str, Any] = {
            "concurrency": self.concurrency, "order": self.watched.order, "batch": self.batch, "retry": self.retry,
            "dead_letter": self.dead_letter, "failure_limit": self.limit,
        }  # fmt: skip
        while not member.left:
            options["until"] = self._until()
            try:
                summary = member.connector.run(self._handle, topics, **options)
                self.world.note(f"run: {summary}")
            except ConsumerTimeoutException:
                self.world.note("run: nothing came")
            except ConnectorClosedException:  # a handler has shut it down
                member.left = member.ended = True
            except (ZkConsumerError, TimeoutError) as e:
                self.world.note(f"run: {type(e).__name__}: {e}")
                self.world.sleep(1.0)
            except EndOfRun:
                member.left = member.ended = True
            if self.running:
                self.scenario.broken(f"{member.name}: run has returned, and {self.running} handlers have not")
            if member.connector.lifecycle.created:
                topics = None

    def _until(self) -> Any:
        chance, scenario = self.world.random, self.scenario
        way = chance.random()
        if self.watched.calm or way < 0.6:
            return None
        if way < 0.8:
            return "end"
        return {tp: chance.randrange(end + 1) for tp, end in scenario.produced.items()}

    # ---- the handler

    def _handle(self, given: Any) -> Any:
        messages = given if isinstance(given, list) else [given]
        world, chance = self.world, self.world.random
        handlings = self.watched.begun(self.member, messages)
        self.running += 1
        if self.running > self.concurrency:
            self.scenario.broken(f"{self.member.name} has {self.running} handlers, of {self.concurrency}")
        try:
            if self.watched.calm:  # what is left has to be done in time, by one worker perhaps
                world.sleep(0.01)
            elif chance.random() < 0.9:
                slow = chance.random() < 0.01
                world.sleep(chance.random() * SLOWEST if slow else chance.random() ** 4 * 0.5)
            pairs = list(zip(messages, handlings, strict=True))
            self._inside(pairs)
            if not isinstance(given, list):
                return self._outcome(*pairs[0])
            if chance.random() < 0.02 and not self.watched.calm:
                for message, handling in pairs:
                    self._failed(message, handling)
                raise Busy
            outcomes: list[Any] = []
            for message, handling in pairs:
                try:
                    outcomes.append(self._outcome(message, handling))
                except (Busy, Refused) as e:
                    outcomes.append(e)
            return outcomes
        finally:
            self.running -= 1

    def _outcome(self, message: Any, handling: Handling) -> Any:
        """Return or raise what the handler tells of a message, once the observer has been told."""
        chance, calm = self.world.random, self.watched.calm
        tp = TopicPartition(message.topic, message.partition)
        if message.offset % POISON == 7 and not calm:
            self._failed(message, handling)
            raise Busy("poison")
        way = "done" if calm or chance.random() < 0.9 else chance.choice(_OUTCOMES)
        if way == "pending" or way == "nack":
            self.spawn("answer", partial(self._answer, way, message, handling))
            return PENDING
        if way == "raise":
            self._failed(message, handling)
            raise Busy
        if way == "busy":
            self._failed(message, handling)
            return Later(chance.choice([0.0, 0.5, 3.0]), failure="busy")
        outcomes = {"done": "done", "later": "again", "reject": "given up", "refuse": "given up"}
        self.watched.ended(handling, tp, outcomes[way])
        if way == "refuse":
            raise Refused
        return {"done": None, "later": Later(chance.choice([0.0, 0.3, 2.0])), "reject": Reject("bad")}[way]

    def _failed(self, message: Any, handling: Handling) -> None:
        last = message.attempt >= self.retry.attempts
        place = TopicPartition(message.topic, message.partition)
        self.watched.ended(handling, place, "given up" if last else "failed")

    def _answer(self, way: str, message: Any, handling: Handling) -> None:
        """Finish a message elsewhere, before or after its handler has returned."""
        self.world.sleep(self.world.random.choice([0.0, 0.2, 2.0]))
        if way == "nack":
            self._failed(message, handling)
            message.nack(Busy())
        else:
            self.watched.ended(handling, TopicPartition(message.topic, message.partition), "done")
            message.ack()

    def _bury(self, message: Any, failure: Any) -> None:
        """Take a dead letter, or fail to."""
        tp = TopicPartition(message.topic, message.partition)
        if message.offset not in self.watched.fates[tp].given_up:
            self.scenario.broken(
                f"{tp}: {message.offset} is a dead letter, and was neither rejected nor tried to the end"
            )
        self.world.sleep(self.world.random.random() * 0.2)
        if not self.watched.calm and self.world.random.random() < 0.3:
            raise Busy("no room for dead letters")
        self.world.note(f"dead letter {tp} {message.offset}: {failure.reason}")
        self.watched.buried(tp, message.offset)

    # ---- calls of the connector

    def _inside(self, pairs: list[tuple[Any, Handling]]) -> None:
        """Call the connector from the handler, now and then."""
        member, connector, chance = self.member, self.member.connector, self.world.random.random()
        places = [(one, TopicPartition(message.topic, message.partition)) for message, one in pairs]
        if chance < 0.01:
            member.call("commit", lambda: connector.commit_offsets(timeout=CALL), CALL)
        elif chance < 0.015:
            self.pause_shortly(places[-1][1])
        elif chance < 0.0155 and not self.watched.calm:
            for one, tp in places:
                self.watched.ended(one, tp, "again")
            member.left = True
            raise EndOfRun
        elif chance < 0.016 and not self.watched.calm and not member.left:
            for one, tp in places:  # it counts as finished, because the thread that holds it shuts down
                self.watched.ended(one, tp, "done")
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
                elif way < 0.45 and owned and not self.watched.calm:
                    self._seek(chance.choice(owned))
                elif way < 0.8:
                    str(connector.state), connector.health()
            except (ConnectorClosedException, ValueError) as e:
                self.world.note(f"outside: {type(e).__name__}: {e}")

    def _seek(self, tp: TopicPartition) -> None:
        chance, end = self.world.random, self.scenario.produced[tp]
        start = self.scenario.observer.partitions[tp].start
        offset = max(0, min(end, start + chance.choice([-5, 0, 5, 20])))
        self.watched.sought(self.member.consumer, tp, offset)
        self.member.call("seek", lambda: self.member.connector.seek(tp, offset, timeout=CALL), CALL)
        self.watched.seek_over(tp)


APPLICATIONS["balanced"] = BalancedApplication
