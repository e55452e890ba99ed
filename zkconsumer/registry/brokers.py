"""The brokers that are registered in ZooKeeper. Any thread."""

from __future__ import annotations

import logging

from zkconsumer.deadline import Deadline
from zkconsumer.errors import MalformedNodeError
from zkconsumer.registry import codecs, paths
from zkconsumer.registry.codecs import BrokerNode
from zkconsumer.registry.session import Session

log = logging.getLogger(__name__)


def registered_brokers(session: Session, deadline: Deadline) -> list[BrokerNode]:
    """The brokers under ``/brokers/ids``, by id. One that cannot be read is left out and logged, not a failure for all.

    Raises: RegistryError.
    """
    names = session.children(paths.BROKER_IDS, deadline) or ()
    ids = sorted(int(name) for name in names if name.isascii() and name.isdecimal())
    nodes = session.read([paths.broker(broker_id) for broker_id in ids], deadline)
    found = []
    for broker_id, node in zip(ids, nodes, strict=True):
        if node is None:
            continue  # it left just now (KAFKA-1010: that failed the whole rebalance)
        try:
            found.append(codecs.decode_broker(node.data, paths.broker(broker_id)))
        except MalformedNodeError as e:
            log.warning("%s; this broker is not used", e)
    return found
