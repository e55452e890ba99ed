"""Reads the brokers that are registered in ZooKeeper. Any thread.

The original reads all brokers for each search for a leader. Over a slow link this read takes longer than all other
steps from the claim of a partition to the first message.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import monotonic

from zkconsumer.errors import MalformedNodeError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.node_codecs import RegisteredBroker
from zkconsumer.zookeeper.node_values import Node, NodeEvent, Watch
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

BELIEVED = 30.0
"""Seconds after which the brokers are read again without any notice: a watch may be lost."""


class BrokerDirectory:
    """The registered brokers, read again only after a notice of a watch or a change of the connection."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._changes = 0  # counted by kazoo's callback thread alone
        self._known: tuple[int, int, float, Sequence[RegisteredBroker]] | None = None

    def brokers(self, deadline: Deadline) -> Sequence[RegisteredBroker]:
        """Return the brokers as :func:`registered_brokers` does."""
        # as of before the reading: a change while we read makes the result old at once
        changes, epoch = self._changes, self._session.lease.epoch
        known = self._known
        if known is not None and known[:2] == (changes, epoch) and monotonic() < known[2]:
            return known[3]
        found = registered_brokers(self._session, deadline, self._changed)
        self._known = changes, epoch, monotonic() + BELIEVED, found
        return found

    def _changed(self, event: NodeEvent) -> None:
        del event
        self._changes += 1


def registered_brokers(session: Session, deadline: Deadline, watch: Watch | None = None) -> list[RegisteredBroker]:
    """Return the brokers under ``/brokers/ids``, by id. A broker whose node cannot be read is left out and logged.

    Arguments: ``watch`` is told when another look may show other brokers. Raises RegistryError.
    """
    ids = broker_ids(session.children(paths.BROKER_IDS, deadline, watch))
    nodes = session.read([paths.broker(broker_id) for broker_id in ids], deadline, watch, watch_missing=False)
    return decode_brokers(ids, nodes)


def broker_ids(names: Sequence[str] | None) -> list[int]:
    """Return the ids of the registered brokers, from the names of their nodes."""
    return sorted(int(name) for name in names or () if name.isascii() and name.isdecimal())


def decode_brokers(ids: Sequence[int], nodes: Sequence[Node | None]) -> list[RegisteredBroker]:
    """Return the brokers with these ids. A broker whose node cannot be read is left out and logged."""
    found = []
    for broker_id, node in zip(ids, nodes, strict=True):
        if node is None:
            continue  # it left just now (KAFKA-1010: that failed the whole rebalance)
        try:
            found.append(node_codecs.decode_broker(node.data, paths.broker(broker_id)))
        except MalformedNodeError as e:
            log.warning("%s; this broker is not used", e)
    return found
