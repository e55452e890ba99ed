"""The observer of a simulated group: it sees all members, and checks each hand-out and each write of an offset.

- A committed offset never passes a message that nobody finished, unless somebody skipped it by name.
- A message is handed out only in a call during which its member owned the partition.
- No message below the offset that was committed when its member became the owner, or where it sought to, is handed out.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.scheduler import world
from tests.simulation.settings import STORES
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario
    from zkconsumer.testing.committed_offsets import CommittedOffset

_ARRIVES = 1.2  # seconds from the writing of a message until a reader that waits has it
_FETCH = 1.0
"""Seconds that a fetch waits at the broker at most. A place that was sought is fetched afterwards."""
_NOTICES = 1.5
"""Seconds after which a member has seen the event of a node that was deleted; its threads may stand still meanwhile."""


class BrokenPromise(AssertionError):
    """A promise of the package does not hold."""


class Ownership(NamedTuple):
    """The time at which an ownership began and ended, and the lowest offset that its member may hand out."""

    began: float
    ended: float
    lowest: int


@dataclass
class Watched:
    """One partition, as the observer saw it. Times are the world's."""

    finished: set[int] = field(default_factory=set)
    below: int = 0
    committed: dict[str, int | None] = field(default_factory=dict)  # the committed offset in each store
    owner: str | None = None
    thread: str = ""  # the thread of the owner that has the partition
    appended: list[tuple[int, float]] = field(default_factory=list)  # the ends of the log, and since when
    moved: float = 0.0  # when a seek, or a generation of the brokers, moved it last
    following: dict[str, int] = field(default_factory=dict)
    """By member: the offset that is handed out next, where that is known."""
    owned: dict[str, Ownership] = field(default_factory=dict)  # by member: its last ownership
    back_to: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """By store: the lowest offset to which a seek may take the commits back, once."""
    handed: int = 0

    @property
    def start(self) -> int:
        """The offset at which an owner begins."""
        return max((each or 0 for each in self.committed.values()), default=0)

    def is_finished(self, offset: int) -> bool:
        """Return whether a message was finished, or given up for good."""
        return offset < self.below or offset in self.finished

    def change(self, member: str | None, **values: Any) -> None:
        """Change the last ownership of a member, if there is one."""
        if member is not None and member in self.owned:
            self.owned[member] = self.owned[member]._replace(**values)

    def reopen(self, member: str | None, offset: int) -> None:
        """A member may hand out messages from ``offset`` on, too, if it has owned the partition."""
        if member is not None and member in self.owned:
            self.change(member, lowest=min(self.owned[member].lowest, offset))

    def may_go_back(self, offset: int) -> None:
        """A seek may take the commits back to ``offset``. A commit of the place before may come as the seek begins."""
        for store in self.committed:
            self.back_to[store] = (*self.back_to.get(store, ())[-1:], offset)


class Observer:
    """What all members of one group did."""

    commits = 0
    broken = ""  # the promise that was broken first, in whichever task that was

    def __init__(self, scenario: Scenario) -> None:
        self._zookeeper, self._group = scenario.zookeeper, scenario.group
        stores = STORES[scenario.setting.storage]
        where = [TopicPartition(topic, each) for topic, count in scenario.topics.items() for each in range(count)]
        self.partitions = {tp: Watched(committed=dict.fromkeys(stores)) for tp in where}
        self._leases: dict[str, float] = {}
        self._zookeeper.changed = self.look
        self._journal = scenario.cluster.journal_of_all
        self._journal_write = self._journal.write_offset
        vars(self._journal)["write_offset"] = self._written_in_kafka

    def broke(self, promise: str) -> None:
        """Note a broken promise."""
        world().note(f"BROKEN {promise}")
        self.broken = self.broken or promise

    def look(self) -> None:
        """Compare the nodes with those of the last look. Called at each change, before any other task runs."""
        for tp, seen in self.partitions.items():
            node = self._zookeeper.node(paths.offset(self._group, tp))
            if node is not None and int(node.data) != seen.committed.get("zookeeper"):
                self.committed("zookeeper", tp, int(node.data))
            owner = self._zookeeper.node(paths.owner(self._group, tp))
            name, _, seen.thread = (None, "", "") if owner is None else owner.data.decode().rpartition("-")
            if name != seen.owner:
                self.note_owner(tp, seen, name)

    def note_owner(self, tp: TopicPartition, seen: Watched, name: str | None) -> None:
        """A partition has another owner."""
        now = world().now
        world().note(f"owner of {tp}: {name}")
        if seen.owner is not None:
            seen.change(seen.owner, ended=max(now + self._until_seen(seen.owner), self._leases.get(seen.owner, now)))
        seen.owner = name
        if name is not None:
            seen.owned[name] = Ownership(now, float("inf"), seen.start)
            seen.following[name] = seen.start

    @staticmethod
    def _until_seen(owner: str) -> float:
        """Return the seconds in which an owner may hand out after a Scala member has deleted its node."""
        process = world().current.process.name
        return _NOTICES if process.startswith("s") and not owner.endswith(f"_{process}") else 0.0

    def _written_in_kafka(self, group: str, place: tuple[str, int], committed: CommittedOffset | None) -> None:
        self._journal_write(group, place, committed)
        if group == self._group and committed is not None:
            self.committed("kafka", TopicPartition(*place), committed.offset)

    def committed(self, store: str, tp: TopicPartition, offset: int) -> None:
        """An offset was written to a store."""
        seen = self.partitions[tp]
        if store not in seen.committed:  # a copy for monitors
            return
        before = seen.committed.get(store)
        world().note(f"committed {tp} {offset} in {store}, was {before}")
        self.commits += 1
        seen.committed[store] = offset
        while seen.below in seen.finished:
            seen.finished.discard(seen.below)
            seen.below += 1
        passed = self.passed(tp)
        missing = next((o for o in range(seen.below, offset) if o not in seen.finished and o not in passed), None)
        if missing is not None:
            self.broke(f"{tp}: offset {offset} was committed, but nobody finished message {missing}")
        elif before is not None and offset < before:
            allowed = seen.back_to.pop(store, ())
            used = next((number for number, lowest in enumerate(allowed, 1) if lowest <= offset), 0)
            if used < len(allowed):
                seen.back_to[store] = allowed[used:]
            if not used:
                self.broke(f"{tp}: the committed offset went back from {before} to {offset} in {store}")

    def passed(self, tp: TopicPartition) -> Collection[int]:
        """Return the messages that a committed offset may pass although nobody finished them."""
        return ()

    def session_closed(self, member: str, lease: float) -> None:
        """Somebody is about to close a member's session. Until its lease ends, the member cannot know that."""
        self._leases[member] = lease

    def session_noticed(self, member: str) -> None:
        """A member knows from now on that its former session has ended."""
        if self._leases.pop(member, 0.0) > (now := world().now):
            for seen in self.partitions.values():
                if seen.owner != member:
                    seen.change(member, ended=now)

    def handed(self, member: str, tp: TopicPartition, offset: int, asked: float) -> None:
        """A member's call, which began at ``asked``, returned a message."""
        seen = self.partitions[tp]
        seen.handed += 1
        seen.following[member] = offset + 1
        world().note(f"handed {tp} {offset}")
        began, ended, lowest = seen.owned.get(member, Ownership(float("inf"), 0.0, 0))
        if began > world().now or ended < asked:
            self.broke(f"{tp}: {member} handed out {offset}, and did not own the partition during the call")
        elif offset < lowest and offset not in self.passed(tp):
            self.broke(f"{tp}: {member} handed out {offset}, below {lowest}, where it began")

    def appended(self, tp: TopicPartition, end: int) -> None:
        """The log of a partition ends at ``end`` from now on."""
        self.partitions[tp].appended.append((end, world().now))

    def waited(self, tp: TopicPartition, position: int, asked: float, stood: float) -> None:
        """A read that began at ``asked`` waited until now for ``position``, or in vain, and there was no fault.

        Tasks that it needs stood still for ``stood`` seconds meanwhile, one after the other.
        """
        seen, now = self.partitions[tp], world().now
        since = next((at for end, at in seen.appended if end > position), now)
        waited = now - max(since, asked, seen.moved + _FETCH)
        if waited > _ARRIVES + stood:
            self.broke(f"{tp}: a reader waited for {position} for {waited:.1f} s")

    def nothing_came(self, member: str, thread: str, asked: float, stood: float) -> None:
        """A read of a thread got nothing until its time was over; see :meth:`waited`."""
        for tp, seen in self.partitions.items():
            position = seen.following.get(member)
            mine = (seen.owner, seen.thread) == (member, thread) and seen.owned[member].began < asked - _ARRIVES
            if mine and position is not None:
                self.waited(tp, position, asked, stood)

    def finished(self, tp: TopicPartition, offset: int) -> None:
        seen = self.partitions[tp]
        if offset >= seen.below:
            seen.finished.add(offset)

    def unfenced(self, tp: TopicPartition, offset: int) -> None:
        """A Scala member is about to write an offset, which may be older than what is there. Owners adopt it."""
        seen = self.partitions[tp]
        if offset >= seen.start:
            return
        seen.may_go_back(offset)
        seen.following.clear()
        seen.reopen(seen.owner, offset)

    def sought(self, member: str, tp: TopicPartition, offset: int) -> None:
        """A member is about to read from an earlier offset again."""
        seen = self.partitions[tp]
        seen.may_go_back(offset)
        seen.following.pop(member, None)
        seen.moved = world().now
        seen.reopen(member, offset)
