"""Follows a group by watches on its members, its owners and their topics.

Each burst of changes costs a read of the changed nodes only (see ``zookeeper.node_cache``). The result is a snapshot
with the members and owners, and the events are the difference from the snapshot before. One thread calls. Kazoo's
threads only note that something changed. Nothing waits longer than :data:`TICK` or the timeout of a read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from threading import Event
from time import time
from typing import Self

from zkconsumer.core.names import name_problem
from zkconsumer.errors import NotPermittedError, RegistryError
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot, MemberNode, Problem, node_stat
from zkconsumer.operations.group_timeline import EventKind, Rebalance, TimelineEvent, events, rebalances
from zkconsumer.operations.zookeeper_reader import member_node, owner_node, topic_node
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import Look, NodePart, Wanted
from zkconsumer.zookeeper.session import Session, SessionChanged, SessionState

TICK = 0.25
"""Seconds between two returns to the caller, which looks whether it is to end."""
MOST_WATCHED = 20_000
"""The most members and the most owners that are watched."""
SETTLED = 3.0
"""Seconds without a change after which a rebalance is over, if every released partition has an owner again."""
GIVEN_UP = 60.0
"""Seconds without a change after which a rebalance is over in any case."""

_PARTITION = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)


class GroupWatch:
    """Watches one group of ZooKeeper.

    Arguments: ``open_session`` returns a session, not open, that calls the given function on changes; ``timeout`` of a
    read in seconds; ``clock`` returns seconds since 1970.
    """

    def __init__(
        self,
        open_session: Callable[[Callable[[SessionChanged], None]], Session],
        group: str,
        *,
        timeout: float,
        clock: Callable[[], float] = time,
    ) -> None:
        self.group = paths.element(group)
        self._timeout = timeout
        self._clock = clock
        self._wake = Event()
        self._fired_at: int | None = None
        self._connection: list[tuple[SessionState, int]] = []
        self._session = open_session(self._session_changed)
        self._cache = NodeCache(self._session, self._node_changed)
        self._lost = False
        self.snapshot: GroupSnapshot | None = None
        """The group as it was last read."""

    # ---- kazoo's threads: note it, decide nothing

    def _node_changed(self, _: str) -> None:
        if self._fired_at is None:
            self._fired_at = self._now()
        self._wake.set()

    def _session_changed(self, change: SessionChanged) -> None:
        self._connection.append((change.state, self._now()))
        self._wake.set()

    def _now(self) -> int:
        return int(self._clock() * 1000)

    # ---- the caller's thread

    def __enter__(self) -> Self:
        """Connect. Raises RegistryError."""
        self._session.open(Deadline(self._timeout))
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close(Deadline(2.0))

    def changes(self) -> Iterator[tuple[TimelineEvent, ...]]:
        """Yield the new events, at least each :data:`TICK` seconds, for ever; most are empty.

        The first are those of everything that stands. A lost connection is an event, and the watch goes on.
        Raises: NotPermittedError if ZooKeeper does not let us see the group.
        """
        self._connection.clear()
        while True:
            yield (*self._connection_events(), *self._look())
            if not self._wake.wait(TICK) and not self._session.connected:
                self._session.look_for_replacement()
            self._wake.clear()

    def _connection_events(self) -> Iterator[TimelineEvent]:
        while self._connection:
            state, at = self._connection.pop(0)
            if state is SessionState.CONNECTED:
                self._cache.refresh()
                self._fired_at = self._fired_at or at
                if self._lost:
                    yield TimelineEvent(EventKind.SESSION_BACK, seen=at, detail="what happened meanwhile follows")
                self._lost = False
            elif not self._lost:
                self._lost = True
                yield TimelineEvent(EventKind.SESSION_LOST, seen=at, detail="with ZooKeeper; the watch goes on")

    def _look(self) -> Sequence[TimelineEvent]:
        before = self.snapshot
        if self._lost or (before is not None and self._fired_at is None):
            return ()
        fired, self._fired_at = self._fired_at, None
        try:
            now = self._read()
        except NotPermittedError:
            raise
        except RegistryError:  # the next tick reads again, once there is a connection
            self._fired_at = fired or self._now()
            return ()
        self.snapshot = now
        if before is None:
            return events([now])
        # what stood before stood until the first watch fired
        known = frozenset(events([before]))
        before = replace(before, taken=max(before.taken, fired or 0))
        return [event for event in events([before, now]) if event not in known]

    def _read(self) -> GroupSnapshot:
        """Read what changed, level by level. Raises RegistryError."""
        deadline, group, cache = Deadline(self._timeout), self.group, self._cache
        problems: list[Problem] = []
        whole, ids, owners = paths.consumers_group(group), paths.ids(group), paths.owners(group)
        top = cache.look(Look(children=[ids, owners], stats=[whole]), deadline)
        # once more, for names and stat that belong together: else a join between two requests looks like a leave
        (registered,) = self._session.read_each([Wanted(NodePart.CHILDREN, ids)], deadline)
        names = self._names(registered.names, ids, problems)
        topics = self._names(top.children[owners], owners, problems)
        owned_topics = {paths.owner_topic(group, topic): topic for topic in topics}
        wanted = Look(existing=[paths.member(group, name) for name in names], children=list(owned_topics))
        second = cache.look(wanted, deadline)
        found = {path: node for path, node in second.nodes.items() if node is not None}
        members = {ConsumerId(path.rpartition("/")[2]): member_node(node, path) for path, node in found.items()}
        partitions = sorted(
            TopicPartition(topic, int(name))
            for path, topic in owned_topics.items()
            for name in second.children[path] or ()
            if _PARTITION.fullmatch(name)
        )
        if len(partitions) > MOST_WATCHED:
            problems.append(Problem(owners, f"only the first {MOST_WATCHED} of {len(partitions)} owners are watched"))
        owned = {paths.owner(group, tp): tp for tp in partitions[:MOST_WATCHED]}
        known = {paths.topic(name): name for name in _topics_of(members, topics)}
        third = cache.look(Look(nodes=list(known), existing=list(owned)), deadline).nodes
        claims = {tp: owner_node(node, path) for path, tp in owned.items() if (node := third[path]) is not None}
        stats = [*(one.stat for one in members.values()), *(one.stat for one in claims.values())]
        return GroupSnapshot(
            group,
            self._now(),
            zookeeper=self._session.hosts,
            zxid=max(self._session.last_zxid, *(stat.mzxid for stat in stats if stat is not None), 0),
            group_node=None if (node := top.nodes[whole]) is None else node_stat(node),
            ids_node=None if registered.node is None else node_stat(registered.node),
            members=members,
            owners=claims,
            topics={name: topic_node(node, path) for path, name in known.items() if (node := third[path]) is not None},
            problems=tuple(problems),
        )

    @staticmethod
    def _names(found: Sequence[str] | None, path: str, problems: list[Problem]) -> list[str]:
        names = sorted(name for name in found or () if name_problem(name) is None)
        if len(names) > MOST_WATCHED:
            problems.append(Problem(path, f"only the first {MOST_WATCHED} of {len(names)} nodes are watched"))
        return names[:MOST_WATCHED]


def _topics_of(members: Mapping[ConsumerId, MemberNode], owned: Sequence[str]) -> list[str]:
    """Return the topics to watch: those that are owned, and those that a registration names."""
    registrations = [one.registration for one in members.values() if one.registration is not None]
    named = {topic for one in registrations if not one.is_wildcard for topic in one.subscription}
    return [name for name in sorted(named | set(owned)) if name_problem(name) is None][:MOST_WATCHED]


class OpenRebalance:
    """Collects followed events, and tells each rebalance once it is over. Pure but for the given times."""

    def __init__(self) -> None:
        self._events: list[TimelineEvent] = []
        self._changed = 0.0

    def add(self, found: Sequence[TimelineEvent], now: float, snapshot: GroupSnapshot | None) -> tuple[Rebalance, ...]:
        """Take new events, and return the rebalances that are over.

        Arguments: ``now`` in seconds on any clock that never goes back; ``snapshot`` is the group after the events.
        """
        if found:
            self._events += found
            self._changed = now
        formed = list(rebalances(self._events))
        # releases after claims belong to the last rebalance or to the next one: the next event tells
        undecided = 2 if len(formed) > 1 and not formed[-1].causes and not formed[-1].claims else 1
        under_way = formed[-undecided:]
        if under_way and self._is_over(under_way, now - self._changed, snapshot):
            self._events.clear()
            return tuple(formed)
        self._events = [event for one in under_way for event in one.events]
        return tuple(formed[:-undecided])

    @staticmethod
    def _is_over(under_way: Sequence[Rebalance], quiet: float, snapshot: GroupSnapshot | None) -> bool:
        if quiet >= GIVEN_UP:
            return True
        owners = snapshot.owners if snapshot is not None else {}
        released = {event.partition for one in under_way for event in one.releases}
        return quiet >= SETTLED and bool(under_way[0].claims) and released <= set(owners)
