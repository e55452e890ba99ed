"""What sharing of partitions needs of a member, and what the member advertises. No algorithm, no decision."""

from __future__ import annotations

from collections.abc import Callable

from zkconsumer.balance.lanes import Order
from zkconsumer.balance.sharing.sharing_thread import SharingAccess
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import AdvertisedShare, Registration
from zkconsumer.errors import ConfigException
from zkconsumer.wiring.member_lifecycle import GroupMember
from zkconsumer.wiring.zookeeper_member import ZooKeeperCoordination


def share_to_advertise(config: ConsumerConfig, order: Order, concurrency: int) -> AdvertisedShare | None:
    """Return what a member with ``concurrency`` advertises, None if it does not share.

    Raises ConfigException if it cannot share.
    """
    if not config.share_partitions:
        return None
    if order is Order.PARTITION:
        raise ConfigException("share.partitions", "has no meaning with order='partition': a partition is one lane")
    return AdvertisedShare(order.value, concurrency)


def sharing_access(member: GroupMember, registration: Callable[[], Registration]) -> SharingAccess | None:
    """Return what sharing needs of a member, None if its group is not in ZooKeeper.

    Arguments: ``registration`` returns the present one.
    """
    coordination, fetching = member.coordination, member.fetching
    if not isinstance(coordination, ZooKeeperCoordination):
        return None
    return SharingAccess(
        session=coordination.session,
        group=coordination.group,
        consumer=member.consumer,
        topics=lambda: None if registration().is_wildcard else registration().subscription,
        positions=member.positions,
        stream=member.parts.borrowing_stream,
        fetch=lambda position, sink: fetching.start([(position, sink)]),
        forget=fetching.forget,
    )
