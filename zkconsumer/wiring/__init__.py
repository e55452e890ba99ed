"""One member's parts, made from a configuration and put together. No algorithm, no decision.

``parts`` is what every member has, ``zookeeper`` and ``coordinated`` what it has by who coordinates its group; the
latter is imported only where it is asked for. Threads: see ``parts``.
"""

from __future__ import annotations

from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConfigException
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import ConsumerId
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.wiring.member_parts import MemberParts, fetch_settings
from zkconsumer.wiring.zookeeper_member import Member, own_group, rebalance_settings

__all__ = ["Member", "MemberParts", "fetch_settings", "new_member", "own_group", "rebalance_settings"]


def new_member(
    config: ConsumerConfig,
    consumer: ConsumerId,
    offset_store: OffsetStore | None = None,
    listener: ConsumerRebalanceListener | None = None,
) -> MemberParts:
    """A member, not yet open. Raises as :class:`MemberParts`, ConfigException for what brokers' groups do not know."""
    if config.coordinated_by_brokers:
        from zkconsumer.wiring.coordinator_member import KafkaMember

        if offset_store is not None:
            reason = "kafka keeps the group's offsets with its coordinator, so an offset_store has no place"
            raise ConfigException("group.coordination", reason)
        if config.group_migration:
            from zkconsumer.wiring.bridge_member import BridgeMember

            return BridgeMember(config, consumer, listener)
        return KafkaMember(config, consumer, listener)
    return Member(config, consumer, offset_store, listener)
