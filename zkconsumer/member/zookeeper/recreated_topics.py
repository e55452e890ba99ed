"""Owned partitions whose topic was deleted and made again, so that their offsets belong to deleted messages.

Called by the group thread only. The brokers make a topic's node in ZooKeeper once, so the node's creation tells two
topics of the same name apart. Reading on at the offset would leave out the start of the new log. So the new log is read
from its start, or the stream raises (``log.truncation.policy``). A claim finds that before it writes the offset node
(``owner_nodes``), and each round finds it for partitions that are owned already.

The original reads on at the old offset, or goes by ``auto.offset.reset`` where the new log is shorter.
"""

from __future__ import annotations

import logging

from zkconsumer.errors import LogTruncatedError
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.member.zookeeper.owner_nodes import Claimed, OwnerNodes
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline

log = logging.getLogger(__name__)

LOG_START = 0
"""Offset of a topic's first message. If it is deleted already, the fetcher looks the start up."""
_REASON = "its topic was deleted and made anew"


class RecreatedTopics:
    """The topics of owned partitions, and when their nodes were made.

    Arguments: ``raises`` is ``log.truncation.policy=raise``.
    """

    def __init__(self, owned: OwnedPartitions, owner_nodes: OwnerNodes, *, raises: bool) -> None:
        self._owned = owned
        self._owner_nodes = owner_nodes
        self._raises = raises
        self._made: dict[TopicPartition, int] = {}
        self._stopped: dict[TopicPartition, tuple[object, str]] = {}

    @property
    def trouble(self) -> str:
        """The stream that raises since its topic was made anew, in words for the user; empty if none does."""
        owned = self._owned.positions
        return next((said for tp, (position, said) in self._stopped.items() if owned.get(tp) is position), "")

    def claimed(self, claimed: Claimed) -> None:
        """Check claimed partitions before they are started."""
        self._made.update(self._owner_nodes.topics_made(claimed.ours))
        for tp, reached in claimed.recreated.items():
            position = self._owned.positions[tp]
            if self._raises:
                error = self._error(tp, reached)
                self._stopped[tp] = self._owned.stop_at(position, claimed.ours[tp], error), str(error)
            else:
                self._say(tp, reached)
                position.from_start = True

    def check(self, deadline: Deadline) -> None:
        """Check owned partitions whose topics were made anew since the claim. Raises RegistryError."""
        owned = self._owned.positions
        self._made = {tp: made for tp, made in self._made.items() if tp in owned}
        now = self._owner_nodes.topics_made(self._made)
        anew = [tp for tp, made in now.items() if made != self._made[tp]]
        if not anew:
            return
        for tp, known in self._owner_nodes.reread(anew, deadline, recreated=True).items():
            self._made[tp] = now[tp]
            position, reached = owned[tp], owned[tp].consumed
            if reached is None:
                continue  # nothing was stored of it: ``auto.offset.reset`` has yet to decide
            if self._raises:
                error = self._error(tp, reached)
                self._stopped[tp] = self._owned.stop_at(position, known, error), str(error)
            else:
                self._say(tp, reached)
                self._owned.begin_other_log(position, known, LOG_START)

    def _say(self, tp: TopicPartition, reached: int) -> None:
        log.warning("%s: %s; it was read up to offset %d, going back to its start", tp, _REASON, reached)

    def _error(self, tp: TopicPartition, reached: int) -> LogTruncatedError:
        error = LogTruncatedError(tp, reached, LOG_START, _REASON)
        log.error("%s", error)
        return error
