"""A member whose offsets are recorded in the user's database, beside members of the group that do not use it.

Rows stay right beside such members: they cannot write the table. But a partition that they consume never reaches the
database. So a member that uses the store joins no group with such members. If one joins later, for example a Scala
member, the members that use the store hand nothing out, record nothing and raise. The Scala member gets nothing from
them either: they keep their partitions until it has left, or until their shutdown.

Called by the group thread, and by the application's thread before there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from zkconsumer.core.names import first_of
from zkconsumer.core.registration import STORE_KEY
from zkconsumer.errors import BrokerUnavailableError, ConfigException, MalformedNodeError, OffsetStoreConflictError
from zkconsumer.fetch.message_lookup import MessageLookup
from zkconsumer.member.zookeeper.claim_plan import Assign, GroupView, Threads
from zkconsumer.model import Assignment, ConsumerId, TopicPartition
from zkconsumer.offsets.store import FencedStore, StoreMember
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.wiring.member_parts import MemberParts
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.session import Session

LOOK = 10.0
"""Seconds that a look into the log for missing offsets may take; the user's transaction is open meanwhile."""


class RecordedOffsets:
    """A fenced store in one member."""

    def __init__(self, parts: MemberParts, session: Session, store: FencedStore) -> None:
        self._parts = parts
        self._session = session
        self._store = store
        self._log = LogLooks(parts.message_lookup)
        self.name = ""
        """What all members of the group must advertise, once the store is open."""

    def open(self, group: str, timeout: float) -> None:
        """Open the store, and look who is in the group. ``timeout`` in seconds.

        Raises: ConfigException for a run that finishes messages in any order; OffsetStoreConflictError, RegistryError;
        the store's errors.
        """
        if self._parts.balanced:
            raise ConfigException(
                "offset_store", "messages must be recorded in order, so run() cannot hand out several of a partition"
            )
        self.name = self._store.open(StoreMember(group, self._parts.consumer, self._log.missing), timeout)
        refuse_to_join(self._session, group, self._parts.consumer, self.name, Deadline(timeout))

    def agreed(self, strategy: Assign, group: str) -> Assign:
        """Return the strategy, which assigns nothing while a member of the group does not use the store."""

        def tell(error: OffsetStoreConflictError | None) -> None:
            self._store.suspend(error)
            self._parts.delivery.refuse(error)

        return StoreAgreement(strategy, group, self.name, tell)

    def close(self) -> None:
        """Close the connections of looks into the log, and the store if this member has opened it."""
        self._log.close()
        if self.name:  # else another connector may use the same object
            self._store.close()


class LogLooks:
    """Looks into the log by several threads at once, each with connections of its own.

    Arguments: ``make`` returns a lookup for one thread at a time. The lock guards the lists of them.
    """

    def __init__(self, make: Callable[[], MessageLookup]) -> None:
        self._make = make
        self._lock = InterruptibleLock()
        self._all: list[MessageLookup] = []
        self._idle: list[MessageLookup] = []
        self._closed = False

    def missing(self, tp: TopicPartition, start: int, end: int) -> str:
        """Say why messages between these offsets are missing in a store; empty if the log has none. Any thread.

        Raises BrokerError.
        """
        lookup = self._take()
        try:
            found = lookup.first_between(tp, start, end, Deadline(LOOK))
        finally:
            with self._lock:
                self._idle.append(lookup)
        if found is None:
            return ""
        return found.problem or f"the log has a message at offset {found.offset}"

    def _take(self) -> MessageLookup:
        with self._lock:
            if self._closed:
                raise BrokerUnavailableError("the connector is shut down")
            if self._idle:
                return self._idle.pop()
            self._all.append(self._make())
            return self._all[-1]

    def close(self) -> None:
        """Close all connections; a look that waits raises."""
        with self._lock:
            self._closed = True
            lookups = list(self._all)
        for lookup in lookups:
            lookup.close()


def without_store(view: GroupView, group: str, store: str) -> list[str]:
    """Return the members that do not advertise this store, also those whose registration cannot be read."""
    readable = [name for name, registration in view.members.items() if registration.extra.get(STORE_KEY) != store]
    ids = paths.ids(group) + "/"
    return readable + [path.removeprefix(ids) for path in view.unreadable if path.startswith(ids)]


class StoreAgreement:
    """The strategy of a member that uses a store: it assigns nothing while a member of the group does not.

    Arguments: ``assign`` is the strategy; ``store`` is what all members must advertise; ``tell`` gets the error, and
    None when all members agree again.
    """

    def __init__(
        self, assign: Assign, group: str, store: str, tell: Callable[[OffsetStoreConflictError | None], None]
    ) -> None:
        self._assign = assign
        self._group = group
        self._store = store
        self._tell = tell
        self._told = False

    def __call__(self, view: GroupView, threads: Threads) -> Assignment:
        """Return the assignment. Raises OffsetStoreConflictError; the assignment before it stays in force then."""
        others = without_store(view, self._group, self._store)
        if others:
            error = _conflict(self._group, others)
            self._told = True
            self._tell(error)
            raise error
        if self._told:
            self._told = False
            self._tell(None)
        return self._assign(view, threads)


def refuse_to_join(session: Session, group: str, consumer: ConsumerId, store: str, deadline: Deadline) -> None:
    """Raise OffsetStoreConflictError if the group has members that do not advertise this store; RegistryError."""
    names = [name for name in session.children(paths.ids(group), deadline) or () if name != consumer]
    where = [paths.member(group, name) for name in names]
    others = []
    for name, path, node in zip(names, where, session.read(where, deadline), strict=True):
        try:
            if node is not None and node_codecs.decode_registration(node.data, path).extra.get(STORE_KEY) != store:
                others.append(name)
        except MalformedNodeError:
            others.append(name)
    if others:
        raise _conflict(group, others)


def _conflict(group: str, others: Collection[str]) -> OffsetStoreConflictError:
    return OffsetStoreConflictError(
        f"members of the group {group!r} do not keep their offsets in our database, so what they consume would be "
        f"missing there: {first_of(others, 3)}; stop them, or give them the same database as offset_store"
    )
