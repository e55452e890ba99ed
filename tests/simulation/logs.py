"""The scenario ``logs``: brokers lose, delete, compact and spoil messages, and topics grow and are made anew.

- Each message that is in a log at the end was finished by somebody, unless the documents name it as skipped.
- A committed offset passes no message, but for that of a log that its owner has read and that is gone since.
- A member that has handed out messages of a newer log hands out none of an older one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from tests.simulation.members import StreamsApplication, tp_of
from tests.simulation.promises import Observer, Watched
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import world
from zkconsumer.errors import UnreadableMessageError
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

HEARS_WITHIN = 5.0
"""Seconds after its claim in which a member may not know yet that the topic was made anew.

If it dies then, its claim has made the node of the offset younger than the topic, and the next owner cannot see it.
"""


@dataclass
class FormerLog:
    """A log that lost its messages from ``kept`` on, which reached up to ``end``.

    ``told`` says whether an owner without an epoch can see that: its offset lies beyond the log, or its node is older
    than the topic.
    """

    kept: int
    end: int
    told: bool
    young: bool = False  # whether an offset was written since, so that its node is younger than the topic


class LogObserver(Observer):
    """Knows the value at each offset. The values of all messages count upwards."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.values: dict[TopicPartition, dict[int, int]] = {tp: {} for tp in self.partitions}
        self.former: dict[TopicPartition, FormerLog] = {}
        self._last_values: dict[tuple[str, TopicPartition, int], int] = {}
        self._first: dict[TopicPartition, int] = {}  # the first value of the present log that follows a former one
        self._newest: dict[tuple[str, TopicPartition], int] = {}
        self._written: dict[TopicPartition, int] = {}  # the transaction that wrote the offset's node last
        self._last_read: dict[TopicPartition, float] = {}
        self._claimed: dict[TopicPartition, float] = {}
        self._cut: dict[TopicPartition, FormerLog] = {}  # the last cut of the log of the present topic
        self._sought: dict[TopicPartition, int] = {}
        """The offset of a seek whose owner has read nothing since, and so knows no epoch."""
        self._anew_at: dict[TopicPartition, float] = {}
        self._made_anew: dict[TopicPartition, int] = {}
        """How often the owner of a partition may yet hear that its topic was made anew.

        The owner goes back when it hears of that, also if the log itself has shown it before. A commit that is under
        way may still write an offset of the log before.
        """

    def read(self, member: str, tp: TopicPartition, offset: int, value: int) -> None:
        """A member's application has a message."""
        self._last_values[member, tp, offset] = value
        self._last_read[tp] = world().now
        self._sought.pop(tp, None)
        former = self.values[tp].get(offset) != value
        if former and self._first.get(tp, sys.maxsize) <= self._newest.get((member, tp), 0):
            self.broke(f"{tp}: {member} handed out {offset} of a former log after messages of the present one")
        self._newest[member, tp] = max(value, self._newest.get((member, tp), 0))

    def finished(self, tp: TopicPartition, offset: int) -> None:
        """A message is finished from now on, if it is the one that the log has."""
        if self._last_values.get((world().current.process.name, tp, offset)) == self.values[tp].get(offset):
            super().finished(tp, offset)

    def lost(self, tp: TopicPartition, kept: int, end: int, *, told: bool) -> None:
        """The messages from ``kept`` on are gone; others will come at their offsets."""
        seen, values = self.partitions[tp], self.values[tp]
        # a log that was cut twice has lost its newest values before
        self._first[tp] = max(self._first.get(tp, 0), 1 + max(values.values(), default=0))
        self.values[tp] = {offset: value for offset, value in values.items() if offset < kept}
        seen.finished = {each for each in seen.finished if each < kept}
        seen.below = min(seen.below, kept)
        seen.may_go_back(0)
        before = self.former.get(tp)
        self._cut[tp] = FormerLog(kept, end, told)
        if before is not None:
            kept, end = min(kept, before.kept), max(end, before.end)
        self.former[tp] = FormerLog(kept, end, told)
        if tp in self._sought:
            self.gone(tp, kept, self._sought[tp])
        seen.change(seen.owner, lowest=0)
        if self._has_read_nothing(tp, seen):
            self._unknown(tp, seen)

    def made_anew(self, tp: TopicPartition) -> None:
        """The topic of a partition is made anew."""
        self.lost(tp, 0, sys.maxsize, told=True)
        del self._cut[tp]
        self._anew_at[tp] = world().now
        if self.partitions[tp].owner is not None:
            self._made_anew[tp] = self._made_anew.get(tp, 0) + 1

    def gone(self, tp: TopicPartition, first: int, end: int) -> None:
        """Messages are gone or cannot be read. That counts as if they were finished."""
        self.partitions[tp].finished.update(range(max(first, self.partitions[tp].below), end))

    def _has_read_nothing(self, tp: TopicPartition, seen: Watched) -> bool:
        """Return whether there is an owner, which has read nothing since its claim. Such an owner knows no epoch."""
        return seen.owner is not None and self._last_read.get(tp, 0.0) < seen.owned[seen.owner].began

    def _unknown(self, tp: TopicPartition, seen: Watched) -> None:
        """An owner begins at an offset of a log that is gone, and cannot see that."""
        former = self.former.get(tp)
        if former is not None and not former.told:
            self.gone(tp, former.kept, seen.start)

    def note_owner(self, tp: TopicPartition, seen: Watched, name: str | None) -> None:
        former, began = self.former.get(tp), self._claimed.get(tp, 0.0)
        if former is not None and self._anew_at.get(tp, began) < began and world().now - began < HEARS_WITHIN:
            former.told, former.young = former.told and seen.start > self.end(tp), True
        self._claimed[tp] = world().now
        super().note_owner(tp, seen, name)
        self._sought.pop(tp, None)
        self._made_anew.pop(tp, None)
        if name is not None:
            if world().now - self._anew_at.get(tp, 0.0) < HEARS_WITHIN:
                self._made_anew[tp] = 1
            self._unknown(tp, seen)
            if tp in self.former:
                seen.change(name, lowest=0)

    def look(self) -> None:
        """Look also for offsets that were written once more, which makes the node younger than the topic."""
        for tp, seen in self.partitions.items():
            node = self._zookeeper.node(paths.offset(self._group, tp))
            if tp in self.former and node is not None and node.mzxid != self._written.get(tp):
                owner = self._zookeeper.node(paths.owner(self._group, tp))
                claimed = owner is not None and owner.data.decode().rpartition("-")[0] != seen.owner
                if int(node.data) == seen.committed["zookeeper"] and not claimed:
                    self.committed("zookeeper", tp, int(node.data))
            self._written[tp] = 0 if node is None else node.mzxid
        super().look()

    def committed(self, store: str, tp: TopicPartition, offset: int) -> None:
        """An offset was written to a store."""
        seen, former = self.partitions[tp], self.former.get(tp)
        if former is not None and former.kept < offset <= former.end:
            world().note(f"committed {tp} {offset}, perhaps of the former log")
            self.commits += 1
            seen.committed[store] = offset
            seen.may_go_back(0 if 0 in seen.back_to.get(store, ()) else former.kept)
            former.told, former.young = former.told and offset > self.end(tp), True
            return
        if offset < (seen.committed.get(store) or 0):
            if tp in self._made_anew and offset == 0:
                seen.may_go_back(0)
                self._made_anew[tp] = max(0, self._made_anew[tp] - 1)
                self._heard(tp)
            else:
                self.former.pop(tp, None)
            seen.change(seen.owner, began=world().now)  # what was finished before is not committed
        super().committed(store, tp, offset)

    def _heard(self, tp: TopicPartition) -> None:
        """Forget the logs before the present topic: the owner has heard of the topic, but perhaps of no later cut."""
        if not self._made_anew[tp] and tp not in self._sought:
            self.former.pop(tp, None)
            if tp in self._cut:
                self.former[tp] = self._cut.pop(tp)

    def grew(self, tp: TopicPartition) -> None:
        """A log is longer now: perhaps the offset of a former log no longer lies beyond it."""
        seen, former = self.partitions[tp], self.former.get(tp)
        if former is None or not former.young or not former.told or seen.start > self.end(tp):
            return
        former.told = False
        if self._has_read_nothing(tp, seen):
            self._unknown(tp, seen)

    def end(self, tp: TopicPartition) -> int:
        """Return the end of the log."""
        return 1 + max(self.values[tp], default=-1)

    def sought(self, member: str, tp: TopicPartition, offset: int) -> None:
        """A member is about to read from an offset, which has no epoch. In a new log it may be a later one."""
        self.partitions[tp].finished.update(range(self.partitions[tp].below, offset))  # skipped by name
        super().sought(member, tp, offset)
        if offset > self.end(tp):  # a place of a former log: the reset leads to the beginning
            self.partitions[tp].may_go_back(0)
        self._sought[tp] = offset
        if (former := self.former.get(tp)) is not None:
            former.told = False
            self.gone(tp, former.kept, offset)

    def unfinished(self, tp: TopicPartition) -> int | None:
        """Return a message in the log that nobody finished."""
        seen = self.partitions[tp]
        return next((each for each in self.values[tp] if not seen.is_finished(each)), None)


class LogApplication(StreamsApplication):
    """Skips what cannot be read, and tells the observer the values."""

    def read(self, stream: Any) -> list[Any]:
        try:
            messages = super().read(stream)
        except UnreadableMessageError:
            self.member.call("skip", stream.skip, 0.0)
            return []
        for one in messages:
            self.observer.read(self.member.name, tp_of(one), one.offset, int(one.value))
        return messages


class LogScenario(Scenario):
    """A group whose brokers do things to the logs."""

    observer_class = LogObserver
    observer: LogObserver

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._counter = 0
        self._held: dict[int, bool] = {}
        """Partitions to which nothing is written until the group's offset is in the log again."""
        self._went_on: set[TopicPartition] = set()
        """Partitions whose log got one more message at the end, since its last cut."""

    def choose_properties(self) -> dict[str, str | int]:
        policy = self.world.random.choice(["raise", "skip"])
        return {**super().choose_properties(), "rebalance.interval.ms": 20_000, "corrupt.message.policy": policy}

    def produce(self, count: int) -> None:
        if self.world.random.random() < 0.12:
            self._lose()
        self._held = {number: True for number in self._held if not self._back(number)}
        free = [number for number in range(self.partitions) if number not in self._held]
        if free:
            self.write(self.world.random.choice(free), count)

    def _back(self, number: int) -> bool:
        committed = self.observer.partitions[self.tp(number)].committed.values()
        return all((each or 0) <= self.produced[self.tp(number)] for each in committed)

    def write(self, number: int, count: int) -> None:
        """Append messages of new values to a partition."""
        tp, first, offset = self.tp(number), self._counter + 1, self.cluster.end_offset(self.topic, number)
        self._counter += count
        values = self.observer.values[tp]  # a reader may have them at once
        values.update((offset + each, first + each) for each in range(count))
        self.cluster.append(*tp, [b"%d" % each for each in range(first, first + count)])
        self.produced[tp] = offset + count
        self.observer.grew(tp)

    def _lose(self) -> None:
        chance = self.world.random
        what = chance.choice(["retention", "truncate", "truncate", "corrupt", "compact", "longer", "anew", "delete"])
        number = chance.randrange(self.partitions)
        tp, end = self.tp(number), self.produced[self.tp(number)]
        log: Any = self.cluster.log(self.topic, number)
        offset = chance.randrange(log.start, end + 1)
        self.world.note(f"log: {what} {tp} at {offset} of {end}")
        self.faults.count += 1
        batch = next((one for one in log._batches[:-1] if one.last >= offset), None)
        if what == "retention":
            self.observer.gone(tp, 0, offset)
            self.cluster.truncate_before(self.topic, number, offset)
        elif what == "truncate":
            self.cluster.truncate(self.topic, number, offset)
            self._held.pop(number, None)
            self._went_on.discard(tp)
            if chance.random() < 0.5:
                self._held[number] = True
            self.observer.lost(tp, log.end, end, told=number in self._held)
            self.produced[tp] = log.end
            if number not in self._held:  # the owner may see a log that has grown again
                self.write(number, chance.randrange(1, 2 * (end - log.end) + 2))
        elif what == "longer" and self.partitions < 10:
            self._grow()
        elif what in ("anew", "delete"):
            self._make_anew(what)
        elif batch is not None:
            self.observer.gone(tp, batch.first, batch.last + 1)
            if what == "corrupt":
                self.cluster.corrupt(self.topic, number, batch.first)
            elif what == "compact":
                self.cluster.compact(self.topic, number, batch.first)

    def _grow(self) -> None:
        tp = self.tp(self.partitions)
        self.observer.partitions[tp] = Watched(committed={"zookeeper": None})
        self.observer.values[tp] = {}
        self.produced[tp] = 0
        self.partitions += 1
        self.cluster.add_partitions(self.topic, self.partitions)

    def _make_anew(self, what: str) -> None:
        for tp in map(self.tp, range(self.partitions)):
            # the owner may read on in the new log until it hears of the topic
            self.observer.made_anew(tp)
            self.produced[tp] = 0
        if what == "delete":
            self.cluster.delete_topic(self.topic)
            self.world.sleep(self.world.random.choice([0.5, 3.0, 15.0]))
            self.cluster.create_topic(self.topic, self.partitions)
        else:
            self.cluster.recreate(self.topic)
        for number in range(self.partitions):
            self.write(number, self.world.random.randrange(1, 60))
        self._held.clear()

    def _not_done(self) -> str:
        for tp, seen in self.observer.partitions.items():
            missing = self.observer.unfinished(tp)
            if missing is not None and seen.start == self.produced[tp] and tp not in self._went_on:
                self._went_on.add(tp)  # a log that grew again up to exactly the offset shows it with its next message
                self.write(tp.partition, 1)
            if missing is not None:
                return f"{tp}: nobody has finished message {missing}, the committed offset is {seen.start}"
            if seen.start != self.produced[tp]:
                return f"{tp} is committed up to {seen.start}, and ends at {self.produced[tp]}"
        return super()._not_done()
