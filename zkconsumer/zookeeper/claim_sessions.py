"""In which session each partition was claimed, for who must not touch what a later session of ours does not own.

Versions alone do not tell it: the owner nodes of all our members look alike, and where an operator deleted an offset
node, or there never was one, those of the new one begin anew. Its owner's thread only; nothing is guarded.
"""

from __future__ import annotations

from collections.abc import Iterable

from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper.session import Session


class ClaimSessions:
    """The sessions of the claims of one group."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._claimed_in: dict[TopicPartition, int] = {}

    def claiming(self, partitions: Iterable[TopicPartition]) -> None:
        """These are claimed in the present session, whatever was before."""
        self._claimed_in.update(dict.fromkeys(partitions, self._session.session_id))

    def claimed(self, partition: TopicPartition) -> None:
        """Claimed in the present session, unless an earlier claim is known."""
        self._claimed_in.setdefault(partition, self._session.session_id)

    def forget(self, partition: TopicPartition) -> None:
        """It is ours no longer."""
        self._claimed_in.pop(partition, None)

    def ended(self, partition: TopicPartition) -> bool:
        """Whether the session in which it was claimed is no longer ours, as far as both are known: then its owner node
        ended with it.
        """
        now, then = self._session.session_id, self._claimed_in.get(partition)
        return bool(now and then) and now != then
