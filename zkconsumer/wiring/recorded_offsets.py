"""The parts that a member has if its offsets are recorded in the user's database. No algorithm, no decision."""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.errors import BrokerUnavailableError, ConfigException, OffsetStoreConflictError
from zkconsumer.fetch.message_lookup import MessageLookup
from zkconsumer.member.zookeeper.claim_plan import Assign
from zkconsumer.member.zookeeper.store_agreement import StoreAgreement, refuse_to_join
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.store import FencedStore, StoreMember
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.wiring.member_parts import MemberParts
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
