"""Holds groups by watches: a node is read again only after its watch has fired, or after the connection was lost.

A :class:`WatchedGroups` stands in the place of the session for a :class:`ZooKeeperReader`, and answers what it knows. A
look at a group that has not changed costs no request. After a lost connection every node is read again, because
kazoo drops all watches then. That is on purpose: to send 40,000 paths in one SetWatches packet would exceed the 1 MB
that a server accepts (``jute.maxbuffer``), and the server would close the connection again.

Not every change has an event. Rights have no watches. A server since 3.8.4 keeps the event from a session that may not
read the node any more. So each node is read once more every :data:`COMPARED_WITHIN` seconds, in small parts, and a
difference is counted and mended. A node that we may not read has no watch, and is asked for again each minute.

One thread at a time calls. Kazoo's callback thread only appends events to a queue.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from sys import intern
from time import monotonic
from typing import Protocol, TypeAlias, runtime_checkable

from zkconsumer.core.names import name_problem
from zkconsumer.errors import RegistryError
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_cache import WatchedReadings
from zkconsumer.zookeeper.node_values import NodeEvent, NodePart, Reading, Wanted
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

COMPARED_WITHIN = 600.0
"""Seconds in which every node is read once more, to find a change without an event."""
FORBIDDEN_AGAIN = 60.0
"""Seconds after which nodes are asked for again that we were not allowed to read."""
MOST_PREFETCHED = 50_000
"""The most nodes of one level that are read in advance."""
_GROUPS = paths.CONSUMERS + "/"
_LISTED = Wanted(NodePart.CHILDREN, paths.CONSUMERS)
SnapshotOf: TypeAlias = "tuple[str, GroupSnapshot | Exception]"
"""A group's name, and its snapshot or the error in place of it."""


@runtime_checkable
class ManyGroups(Protocol):
    """A source that reads many groups together, at the cost of what has changed since its last reading."""

    @property
    def differences(self) -> int:
        """The number of nodes that had changed without an event."""

    def snapshots(self, groups: Sequence[str], *, message_times: bool = False) -> Iterator[Sequence[SnapshotOf]]:
        """Yield the snapshots of batches of groups, or the errors in place of them."""

    def snapshots_once(self, groups: Sequence[str], *, message_times: bool = False) -> Iterator[SnapshotOf]:
        """Yield the same one by one, for a caller that looks once. Nothing is kept for a later reading."""


def group_of(path: str) -> str | None:
    """Return the group that a node belongs to, None for a node that groups share. An empty name is one of a group."""
    return path[len(_GROUPS) :].partition("/")[0] if path.startswith(_GROUPS) else None


class WatchedGroups:
    """The groups of one ZooKeeper.

    ``differences`` counts the nodes that had changed without an event, ``comparisons`` how often all were compared.

    Arguments: with ``watching`` False no watch is set, so each group can be read once only.
    """

    def __init__(self, session: Session, *, watching: bool = True) -> None:
        self._session = session
        self._nodes = WatchedReadings(group_of)
        self._events: deque[NodeEvent] = deque()
        self._watch = self._events.append if watching else None
        self._epoch = session.lease.epoch
        self._readers: dict[str, tuple[ZooKeeperReader, GroupSnapshot]] = {}
        self._forbidden: dict[Wanted, float] = {}
        self._came = False  # whether a node came or was seen to be gone, since the reading of a group began
        self._compare_all()
        self._suspects: list[tuple[Reading, Reading]] = []
        self.differences = 0
        self.comparisons = 0

    # ---- in place of the session

    @property
    def hosts(self) -> str:
        """The servers."""
        return self._session.hosts

    @property
    def last_zxid(self) -> int:
        """The last transaction that an answer told us of."""
        return self._session.last_zxid

    def read_each(self, wanted: Iterable[Wanted], deadline: Deadline) -> Iterator[Reading]:
        """Yield the kept reading of each node or, if there is none, read the node and arm its watch.

        Raises RegistryError as the session does.
        """
        asked = [(one, self._nodes.current(one)) for one in wanted]
        answers = self._session.read_each([one for one, known in asked if known is None], deadline, self._watch)
        absent: list[Reading] = []
        for one, known in asked:
            reading = known or next(answers)
            if known is None:
                if self._watch and reading.node is None and not reading.forbidden and one.part is not NodePart.STAT:
                    absent.append(reading)
                    self._forget_rights(one.path)
                else:
                    self._keep(reading)
            yield reading
        # a missing node takes a watch only with its stat; one that has just come is not kept, but read again next time
        there = [Wanted(NodePart.STAT, one.wanted.path) for one in absent]
        for missing, seen in zip(absent, self._session.read_each(there, deadline, self._watch), strict=True):
            if seen.node is None and not seen.forbidden:
                self._keep(missing)
            else:
                self._came = True

    def _forget_rights(self, path: str) -> None:
        """Forget the rights of a node that is gone: after the event of its last child's end, its own end has none."""
        rights = self._nodes.current(Wanted(NodePart.RIGHTS, path))
        if rights is not None and rights.rights:
            self._nodes.forget(rights.wanted)
            self._came = True

    def _keep(self, reading: Reading) -> None:
        if reading.forbidden:
            self._forbidden[reading.wanted] = monotonic() + FORBIDDEN_AGAIN
        if reading.wanted.part is NodePart.RIGHTS:
            reading = replace(reading, node=None, rights=intern(reading.rights))  # one text for thousands of nodes
        self._nodes.keep(reading)

    # ---- a look at all groups

    def begin(self) -> None:
        """Take in what happened since the last look. Call this before the groups are read."""
        epoch = self._session.lease.epoch
        if epoch != self._epoch:
            self._epoch = epoch
            self._events.clear()  # of the connection before
            self._nodes.lost()
            self._readers.clear()
            self._suspects.clear()
            self._compare_all()  # a server whose data was set back counts transactions anew
        while self._events:
            self._nodes.fired(self._events.popleft())
        for one in [one for one, until in self._forbidden.items() if until < monotonic()]:
            del self._forbidden[one]
            self._nodes.forget(one)
        for kept, found in self._suspects:
            if self._nodes.holds(kept):  # no event has come until now
                self.differences += kept.wanted.part is not NodePart.RIGHTS
                log.log(
                    logging.DEBUG if kept.wanted.part is NodePart.RIGHTS else logging.WARNING,
                    "%a changed without an event: %a, and now %a",
                    *(kept.wanted.path, _told(kept), _told(found)),
                )
                self._nodes.forget(kept.wanted)
        self._suspects.clear()

    @property
    def groups(self) -> Collection[str]:
        """The groups that were read to the end since the connection began."""
        return set(self._readers)

    def names(self, deadline: Deadline) -> Sequence[str]:
        """Return the names of the groups. Raises RegistryError."""
        (listed,) = self.read_each([_LISTED], deadline)
        return listed.names

    def prefetch(self, groups: Iterable[str], deadline: Deadline) -> None:
        """Read what has changed, and the nodes of new groups, of all groups together.

        A level of the tree takes one round trip then, and not one a group. :meth:`read` reads what is missing after it.
        """
        again = [one for one in self._nodes.written if one not in self._nodes]
        self._nodes.written.clear()
        new = [group for group in groups if group not in self._readers and name_problem(group) is None]
        try:
            self._exhaust(again, deadline)
            tops = [path for group in new for path in (paths.ids(group), paths.owners(group), paths.offsets(group))]
            found = self._exhaust((Wanted(NodePart.CHILDREN, path) for path in tops), deadline)
            members = [f"{path}/{name}" for path, names in found[::3] for name in names]
            topics = [f"{path}/{name}" for at in (1, 2) for path, names in found[at::3] for name in names]
            tops += map(paths.consumers_group, new)
            level = [
                *(Wanted(NodePart.RIGHTS, path) for path in tops),
                *(Wanted(NodePart.CHILDREN, paths.consumers_group(group)) for group in new),
                *(Wanted(NodePart.CONTENT, one) for one in members),
            ]
            self._exhaust(level[:MOST_PREFETCHED], deadline)
            listed = self._exhaust((Wanted(NodePart.CHILDREN, path) for path in topics[:MOST_PREFETCHED]), deadline)
            level = [Wanted(NodePart.RIGHTS, path) for path in topics]
            level += [Wanted(NodePart.CONTENT, f"{path}/{name}") for path, names in listed for name in names]
            self._exhaust(level[:MOST_PREFETCHED], deadline)
        except Exception as error:  # noqa: BLE001 (hostile content may raise anything; the reading of its group tells)
            log.info("nodes could not be read in advance: %r", error)

    def _exhaust(self, wanted: Iterable[Wanted], deadline: Deadline) -> list[tuple[str, tuple[str, ...]]]:
        """Read these nodes. Return their paths and the names of their children, if these were read."""
        return [(one.wanted.path, one.names) for one in self.read_each(wanted, deadline)]

    def read(self, draft: GroupSnapshot, deadline: Deadline) -> tuple[ZooKeeperReader, GroupSnapshot, bool]:
        """Return the group's reader, its snapshot so far, and whether all of it was read.

        ``draft`` is filled if anything changed; otherwise the snapshot is the one before as of the time of ``draft``.
        Raises RegistryError.
        """
        group = draft.group
        held = self._readers.get(group)
        if held is None or group in self._nodes.changed:
            reader = ZooKeeperReader(self, draft, deadline)
            complete = self._came = False
            self._nodes.begin(group)
            try:
                complete = reader.read()
            finally:  # a node that just came has no reading that an event could forget
                self._nodes.end(group, complete=complete and not self._came)
            if complete:
                if held is not None:
                    _share(draft, held[1])
                self._readers[group] = reader, _copied(draft)
            return reader, draft, complete
        reader, before = held
        found = replace(_copied(before), taken=draft.taken, zxid=self.last_zxid)
        reader.go_on(found, deadline)
        return reader, found, True

    def leave(self, groups: Collection[str]) -> None:
        """Forget all groups but these."""
        for gone in self._readers.keys() - set(groups):
            del self._readers[gone]
        self._nodes.leave(groups)
        self._forbidden = {one: until for one, until in self._forbidden.items() if one in self._nodes}

    def _compare_all(self) -> None:
        """Begin to compare all nodes."""
        self._compared, self._since = self._nodes.readings(), self._session.last_zxid

    def compare(self, seconds: float, deadline: Deadline) -> None:
        """Read a part of all nodes once more, as many as are due after so many seconds since the last call."""
        count = int(len(self._nodes) * seconds / COMPARED_WITHIN) + 1
        taken = list(islice(self._compared, count))
        part = [one for one in taken if not _written_after(one, self._since)]  # others were read anew since then
        if len(taken) < count:
            self.comparisons += bool(taken)
            self._compare_all()
        try:
            again = self._session.read_each([one.wanted for one in part], deadline)
            for kept, found in zip(part, again, strict=True):
                if _told(kept) != _told(found):
                    self._suspects.append((kept, found))
        except RegistryError as error:
            log.info("nodes could not be compared: %s", error)


def _copied(draft: GroupSnapshot) -> GroupSnapshot:
    """Return the snapshot with its own copies of what the brokers' answers are added to."""
    return replace(draft, topics=dict(draft.topics), brokers=dict(draft.brokers), logs={})


def _share(draft: GroupSnapshot, before: GroupSnapshot) -> None:
    """Take what has not changed from an earlier snapshot. Otherwise it is twice in memory: timelines keep it."""
    for part in ("members", "owners", "acls"):
        if (known := getattr(before, part)) == getattr(draft, part):
            setattr(draft, part, known)
    if before.topics == draft.topics:
        draft.topics = dict(before.topics)  # the brokers' answers are added to it


def _written_after(reading: Reading, transaction: int) -> bool:
    """Return whether the reading tells of a later transaction, and so was made after it."""
    node = reading.node
    return node is not None and (node.pzxid if reading.wanted.part is NodePart.CHILDREN else node.mzxid) > transaction


def _told(reading: Reading) -> object:
    """Return what an event must tell of. The stat of a read of children has other numbers of the node itself."""
    node = reading.node
    if node is None or reading.wanted.part is NodePart.RIGHTS:
        return reading.forbidden, reading.rights
    if reading.wanted.part is NodePart.CHILDREN:
        return node.czxid, sorted(reading.names)
    return node.czxid, node.mzxid, node.data
