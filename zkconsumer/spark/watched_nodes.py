"""The nodes of ZooKeeper that a query knows between its triggers.

A query may have hundreds of triggers a second, and hardly ever has a node changed in between. So each node is read
once, with a watch, and again only when the watch fires, the connection breaks, or a broker's answer contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Event
from time import monotonic
from typing import Final

from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryUnavailableError
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import Look, Seen
from zkconsumer.zookeeper.session import Session

BELIEVED: Final = 300.0
"""Seconds after which all nodes are read again although no watch fired, in case a watch was lost."""


class WatchedNodes:
    """The nodes that a query has read, on one session.

    Threads: one thread at a time looks and forgets; any thread may call ``doubt``.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._cache = NodeCache(session, lambda _: None)
        self._doubtful = Event()
        self._until = monotonic() + BELIEVED

    def doubt(self) -> None:
        """Read all nodes again at the next look: the connection broke, and its watches with it. Returns at once."""
        self._doubtful.set()

    def look(self, wanted: Look, deadline: Deadline) -> Seen:
        """Return the wanted nodes; only nodes that are unknown or have changed are read.

        Raises RegistryUnavailableError also where all are known but no watch could tell a change now; RegistryError.
        """
        if not self._session.connected:
            raise RegistryUnavailableError(
                f"not connected to ZooKeeper ({self._session.hosts}); the client keeps trying"
            )
        if self._doubtful.is_set() or monotonic() >= self._until:
            self._doubtful.clear()  # before the reading: a connection that breaks meanwhile makes all doubtful again
            self._cache.refresh()
            self._until = monotonic() + BELIEVED
        return self._cache.look(wanted, deadline)

    def forget(self, paths: Iterable[str]) -> None:
        """Read these again at the next look: an answer contradicts what they said."""
        self._cache.forget(paths)
