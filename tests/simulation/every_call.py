"""An application that reads in every way, makes every request, and leaves calls by time limits and by exceptions.

What a call means is fixed when it is made: ``zkconsumer/docs/offsets.md``, "Calls that end early".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.simulation.members import CALL, LATE, STREAMS, WAITS, Member, StreamsApplication, tp_of
from tests.simulation.scheduler import Interrupted, world
from zkconsumer.core.topic_filter import Whitelist
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import TopicPartition

SECOND = "u"  # the topic that members leave and add again
_PATIENCES = (0.0, 0.01, 0.3, 1.0, 3.0)
LEFT = 1.0  # seconds after which a seek whose call was left has moved the position, or never will


class Move:
    """A seek of the partition whose message is in hand: what it allows from now on, unless it is left unmoved."""

    def __init__(self, application: StreamsApplication, held: list[Any], offset: int) -> None:
        observer, me = application.scenario.observer, application.member.consumer
        self.tp, self._offset, self._me = tp_of(held[-1]), offset, me
        self._seen = seen = observer.partitions[self.tp]
        first = min(one.offset for one in held if (one.topic, one.partition) == self.tp)
        self._skipped = [each for each in range(max(first, seen.below), offset) if each not in seen.finished]
        seen.finished.update(self._skipped)
        self._before = dict(seen.back_to), seen.owned.get(me)
        observer.sought(me, self.tp, offset)
        self._after = dict(seen.back_to), seen.owned.get(me)

    def forbid_if_unmoved(self, connector: Any) -> None:
        """The call was left. If the position is not there now, nothing moves it there later."""
        seen, me = self._seen, self._me
        if (dict(seen.back_to), seen.owned.get(me)) != self._after or self.tp not in connector.assignment():
            return
        if connector.position(self.tp) not in {self._offset, None}:
            world().note(f"{self.tp} did not move to {self._offset}")
            seen.back_to = self._before[0]
            if self._before[1] is not None:
                seen.owned[me] = self._before[1]
            seen.finished.difference_update(self._skipped)


class EveryCall(StreamsApplication):
    """Reads streams in every way, and makes every request."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        chance = self.world.random
        self._automatic = chance.random() < 0.7
        self._kind = chance.choices(["topics", "merged", "filter", "until"], [5, 2, 2, 1])[0]
        self.properties = {"auto.commit.enable": str(self._automatic).lower()}
        self._last_commit = 0.0
        self._paused: dict[TopicPartition, float] = {}
        self._told: list[tuple[float, list[BaseException | None]]] = []
        self._ending: list[Any] = []  # streams that end before the connector does
        self._living: list[Any] = []  # streams whose topic nobody leaves
        self._reading = 0
        self._last: dict[Any, list[Any]] = {}  # what each stream handed out last

    def begin(self) -> None:
        connector, scenario = self.member.connector, self.scenario
        connector.set_consumer_rebalance_listener(Listener(self.member))
        topics = {scenario.topic: STREAMS, SECOND: 1}
        with self.world.interrupts(scenario.setting.interrupts):
            if self._kind == "filter":
                wanted = Whitelist(f"{scenario.topic},{SECOND}")
                made = {"": connector.create_message_streams_by_filter(wanted, STREAMS)}
            else:
                made = connector.create_message_streams(topics, until="end" if self._kind == "until" else None)
        streams = [stream for of_topic in made.values() for stream in of_topic]
        if self._kind == "until":
            self._ending = streams
        elif self._kind != "filter":
            self._ending, self._living = list(made[SECOND]), list(made[SECOND])
            self.spawn("topics", self._change_topics)
        for stream in [connector.messages()] if self._kind == "merged" else streams:
            self.spawn("app", partial(self._to_the_end, stream))

    def _to_the_end(self, stream: Any) -> None:
        self._reading += 1
        self._apply(stream)
        self._reading -= 1
        if self._kind == "until" and not self._reading:
            self.member.leave()

    # ---- reading

    def read(self, stream: Any) -> list[Any]:
        world, asked = self.world, self.world.now
        self._commit_if_manual([], asked)
        try:
            with world.interrupts(self.scenario.setting.interrupts / 2):
                held = self._read_somehow(stream)
        except Interrupted:
            self._may_come_again(stream)
            if world.random.random() < 0.3:  # what did not arrive is not counted
                self._commit([], asked)
                self._may_come_again(stream)
            return []
        except ConnectorClosedException:
            if stream in self._living and not self.member.left:
                self.observer.broke("a stream has ended although its topic was not left")
            if stream in self._ending:
                raise StopIteration from None
            raise
        self._last[stream] = held
        for message in held:
            tp = tp_of(message)
            owned = self.observer.partitions[tp].owned.get(self.member.consumer)
            if (owned.began if owned else 0.0) < self._paused.get(tp, 0.0) < asked:
                self.observer.broke(f"{tp}: {message.offset} was handed out although the partition is paused")
        return held

    def _may_come_again(self, stream: Any) -> None:
        """What the stream gave last comes again, although it may have been committed in hand."""
        lowest = {tp_of(one): one.offset for one in reversed(self._last.get(stream, ()))}
        for tp, offset in lowest.items():
            if (seen := self.observer.partitions[tp]).start > offset:
                seen.may_go_back(offset)

    def _read_somehow(self, stream: Any) -> list[Any]:
        chance = self.world.random
        way, most, timeout = chance.random(), chance.randrange(1, 30), chance.choice(_PATIENCES)
        with self.member.limited("read", WAITS if way < 0.3 else timeout):
            if way < 0.3:
                for message in stream:
                    return [message]
                raise StopIteration
            if way < 0.6 or self._kind == "merged":
                return [stream.get(timeout=timeout)]
            if way < 0.8:
                return list(stream.take(most, timeout=timeout))
            if way < 0.9:
                return _rows(stream.to_arrow(max_messages=most, timeout=timeout))
            for batch in stream.batches(max_rows=most, timeout=timeout):
                return _rows(batch)
            raise StopIteration

    # ---- requests

    def _sometimes(self, held: list[Any], asked: float) -> None:
        chance = self.world.random
        self._look_at_futures()
        self._commit_if_manual(held, asked)
        if chance.random() < 0.06 and not self.scenario.faults.ended:
            chance.choice([
                self._commit, self._commit, self._commit_given, self._commit_async, self._pause, self._look,
                self._seek, self._seek, self._seek_to_time,
            ])(held, asked)  # fmt: skip

    @property
    def _patience(self) -> float:
        return self.world.random.choice([CALL, CALL, 0.3, 0.05, 0.0])

    def _commit_if_manual(self, held: list[Any], asked: float) -> None:
        if not self._automatic and self.world.now - self._last_commit > 1.0 and not self.member.left:
            self._last_commit = self.world.now
            self._commit(held, asked)

    def _commit(self, held: list[Any], asked: float) -> None:
        self.finish(held)  # what its own thread holds counts as finished
        patience = self._patience
        if self.member.call("commit", lambda: self.member.connector.commit_offsets(timeout=patience), patience):
            for one in held[-1:]:
                self._look_at_commit(tp_of(one), one.offset, asked)

    def _commit_given(self, held: list[Any], asked: float) -> None:
        """Give the offsets of the messages in hand. A call that is left must not undo a later commit."""
        given, patience = {}, self._patience
        for one in held:
            seen = self.observer.partitions[tp := tp_of(one)]
            if seen.owned[self.member.consumer].began < asked:
                given[tp] = one.offset + 1
        self.finish(held)
        call = partial(self.member.connector.commit_offsets, given, timeout=patience)
        if self.member.call(f"commit {given}", call, patience):
            for tp, offset in given.items():
                self._look_at_commit(tp, offset - 1, asked)

    def _commit_async(self, held: list[Any], asked: float) -> None:
        self.finish(held)
        told: list[BaseException | None] = []
        patience = self._patience
        call = partial(self.member.connector.commit_offsets_async, callback=told.append, timeout=patience)
        if self.member.call("commit_async", call, 0.0):
            self._told.append((self.world.now + patience + 4 * LATE, told))

    def _look_at_futures(self) -> None:
        now, thawed = self.world.now, self.member.process.frozen_until + CALL
        for due, told in list(self._told):
            if told:
                self._told.remove((due, told))
            elif now > max(due, thawed):
                self.observer.broke(f"commit_offsets_async did not tell its outcome by {due - 1000:.1f}")

    def _seek(self, held: list[Any], asked: float) -> None:
        last = held[-1]
        offset = self.world.random.choice([max(0, last.offset - 3)] * 3 + [last.offset + 1, 0])
        self._move(held, offset, "seek", partial(self.member.connector.seek, (last.topic, last.partition), offset))

    def _seek_to_time(self, held: list[Any], asked: float) -> None:
        connector, last = self.member.connector, held[-1]
        time, tp = getattr(last, "timestamp", 0), tp_of(last)
        look = partial(connector.offsets_for_times, {tp: time}, CALL)
        for found in self.member.call("look", look, CALL) if time else ():
            self._move(held, found[tp], "seek_to_timestamp", partial(connector.seek_to_timestamp, time, [tp]))

    def _move(self, held: list[Any], offset: int, what: str, call: Callable[..., object]) -> None:
        """Seek. If the call is left and the position stays, it stays for good."""
        move, patience = Move(self, held, offset), self._patience
        if self.member.call(f"{what} {move.tp} {offset}", partial(call, timeout=patience), patience):
            return
        self.world.sleep(LEFT)
        move.forbid_if_unmoved(self.member.connector)

    def _pause(self, held: list[Any], asked: float) -> None:
        world, member, connector = self.world, self.member, self.member.connector
        tp = world.random.choice(sorted(connector.assignment()) or [None])
        if tp is None or tp in self._paused:
            return
        if member.call("pause", lambda: connector.pause([tp]), CALL):
            self._paused[tp] = world.now
        world.sleep(world.random.random() * 2.0)
        self._paused.pop(tp, None)
        if not member.call("resume", lambda: connector.resume([tp]), CALL):
            member.call("resume", lambda: connector.resume([tp]), CALL, interrupted=False)

    def _look(self, held: list[Any], asked: float) -> None:
        connector, observer, member = self.member.connector, self.observer, self.member
        tp = self.world.random.choice(list(observer.partitions))
        seen, low, produced = observer.partitions[tp], observer.partitions[tp].start, self.scenario.produced[tp]
        strange = not seen.back_to and tp not in connector.assignment()
        for offset in member.call("look", partial(connector.committed, tp, CALL), CALL):
            if strange and not seen.back_to and not low <= (offset or 0) <= seen.start:
                self.observer.broke(f"committed({tp}) is {offset}, not {low} to {seen.start}")
        for ends in member.call("look", partial(connector.end_offsets, [tp], CALL), CALL):
            if not produced <= ends[tp] <= self.scenario.produced[tp]:
                self.observer.broke(f"end_offsets of {tp} is {ends[tp]}, not {produced}")
        str((connector.state, connector.health(), connector.paused(), connector.metrics()))
        for tp, behind in connector.lag().items():
            if behind is not None and not 0 <= behind <= self.scenario.produced[tp]:
                self.observer.broke(f"{tp} has a lag of {behind}")

    # ---- topics

    def _change_topics(self) -> None:
        world, member, chance = self.world, self.member, self.world.random
        while not self.scenario.faults.ended and not member.left:
            world.sleep(1.0)
            if chance.random() < 0.9:
                continue
            if chance.random() < 0.2:
                member.call("read", self._read_topic, 60.0)
            elif not self.scenario.faults.ended and not member.left:
                patience, streams, self._living = self._patience, self._living, []
                member.call("unsubscribe", partial(member.connector.unsubscribe, [SECOND], patience), patience)
                world.sleep(chance.choice([0.0, 3.0]) * chance.random())
                self._living = self._add_topic(streams)

    def _add_topic(self, streams: list[Any]) -> list[Any]:
        """Add the topic that was left, and return its streams. Another call finds out whether a call was withdrawn."""
        member, made, first = self.member, [], True
        while not member.left:
            patience = self._patience
            add = partial(member.connector.add_topics, {SECOND: 1}, timeout=patience)
            if answer := member.call("add", add, patience):
                made = list(answer[0].get(SECOND, ()))
                break
            if first and isinstance(member.error, ValueError):
                return streams  # the call of unsubscribe was withdrawn
            first = False
            self.world.sleep(1.0)
            leave = partial(member.connector.unsubscribe, [SECOND], CALL)
            member.call("unsubscribe", leave, CALL, interrupted=False)
        for stream in made:
            self._ending.append(stream)
            if self._kind != "merged":
                self.spawn("app", partial(self._to_the_end, stream))
        return made

    def _read_topic(self) -> None:
        """Read the whole topic without the group."""
        topic, began = self.scenario.topic, self.world.now
        ends = {tp: end for tp, end in self.scenario.produced.items() if tp.topic == topic}
        found = dict.fromkeys(ends, 0)
        with self.member.connector.read(topic, timeout=CALL) as stream:
            while self.world.now < began + 50.0:
                try:
                    for message in stream:
                        tp = tp_of(message)
                        if message.offset != found[tp]:
                            self.observer.broke(f"read: {tp} has {message.offset} after {found[tp]}")
                        found[tp] += 1
                    break
                except ConsumerTimeoutException:
                    pass
            else:
                return
        if not self.member.left and any(found[tp] < end for tp, end in ends.items()):
            self.observer.broke(f"read ended at {found}, not at {ends}")


def _rows(columns: Any) -> list[Any]:
    return [SimpleNamespace(**row) for row in columns.select(["topic", "partition", "offset"]).to_pylist()]


class Listener(ConsumerRebalanceListener):
    """A listener that is slow, raises, commits and seeks."""

    def __init__(self, member: Member) -> None:
        self._member, self._observer = member, member.scenario.observer

    def _trouble(self) -> float:
        chance = world().random.random()
        if chance < 0.1:
            world().sleep(world().random.random() * 4.0)
        elif chance < 0.2:
            raise ArithmeticError("the listener of an application")
        return chance

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        if self._trouble() > 0.6:
            self._member.call("commit", lambda: self._member.connector.commit_offsets(timeout=1.0), 1.0)

    def before_starting_fetchers(self, consumer_id: str, assignment: Any) -> Mapping[TopicPartition, int] | None:
        """Sometimes begin partitions that came just now before their committed offset, or move them."""
        chance, me, starts = self._trouble(), self._member.consumer, {}
        for tp, seen in self._observer.partitions.items():
            if chance > 0.7 and seen.owner == me and world().now - 1 < seen.owned[me].began:
                starts[tp] = offset = max(0, seen.start - 2)
                self._observer.sought(me, tp, offset)
                if chance > 0.85:
                    call = partial(self._member.connector.seek, tp, offset, timeout=0.5)
                    self._member.call(f"seek {tp} {offset}", call, 0.5, interrupted=False)
        return starts if chance < 0.85 else None

    def on_partitions_lost(self, partitions: Mapping[str, frozenset[int]]) -> None:
        self._trouble()
