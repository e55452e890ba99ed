"""Members whose offsets are in the user's database, and members of the group that do not use it.

Rows stay right beside such members: they cannot write the table. But a partition that they consume never reaches the
database. So a member that uses the store joins no group with such members. If one joins later, for example a Scala
member, the members that use the store hand nothing out, record nothing and raise. The Scala member gets nothing from
them either: they keep their partitions until it has left, or until their shutdown.

Called by the group thread, and :func:`refuse_to_join` by the application's thread before there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from zkconsumer.core.names import first_of
from zkconsumer.core.registration import STORE_KEY
from zkconsumer.errors import MalformedNodeError, OffsetStoreConflictError
from zkconsumer.member.zookeeper.claim_plan import Assign, GroupView, Threads
from zkconsumer.model import Assignment, ConsumerId
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.session import Session


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
