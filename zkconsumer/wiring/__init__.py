"""One member's parts, made from a configuration and put together. No algorithm, no decision.

``parts`` is what every member has, ``zookeeper`` what it has where ZooKeeper coordinates its group. Threads: see
``parts``.
"""

from __future__ import annotations

from zkconsumer.config import ConsumerConfig
from zkconsumer.group.listener import ConsumerRebalanceListener
from zkconsumer.model import ConsumerId
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.wiring.parts import MemberParts, fetch_settings
from zkconsumer.wiring.zookeeper import Member, own_group, rebalance_settings

__all__ = ["Member", "MemberParts", "fetch_settings", "new_member", "own_group", "rebalance_settings"]


def new_member(
    config: ConsumerConfig,
    consumer: ConsumerId,
    offset_store: OffsetStore | None = None,
    listener: ConsumerRebalanceListener | None = None,
) -> MemberParts:
    """A member, not yet open. Raises as :class:`MemberParts`."""
    return Member(config, consumer, offset_store, listener)
