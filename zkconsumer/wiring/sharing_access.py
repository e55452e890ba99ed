"""What sharing of partitions needs of a member, and what the member advertises. No algorithm, no decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zkconsumer.balance.balanced_run import BalancedOptions
from zkconsumer.balance.lanes import Order
from zkconsumer.balance.sharing.sharing_thread import SharingAccess
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import SHARE_KEY, AdvertisedShare, Registration
from zkconsumer.errors import ConfigException
from zkconsumer.wiring.member_lifecycle import GroupMember
from zkconsumer.wiring.zookeeper_member import ZooKeeperCoordination


def share_keys(config: ConsumerConfig, options: BalancedOptions | None) -> Mapping[str, str]:
    """Return the extra keys of a registration by which a member says that it shares; none if it does not.

    Arguments: ``options`` of the run, None without ``concurrency``. Raises ConfigException if it cannot share.
    """
    if options is None or not config.share_partitions:
        return {}
    if options.order is Order.PARTITION:
        raise ConfigException("share.partitions", "has no meaning with order='partition': a partition is one lane")
    return {SHARE_KEY: str(AdvertisedShare(options.order.value, options.concurrency))}


def sharing_access(
    member: GroupMember, registration: Callable[[], Registration], *, shares: bool
) -> SharingAccess | None:
    """Return what sharing needs of a member, None if its group is not in ZooKeeper.

    Arguments: ``registration`` returns the present one; ``shares``: it advertises that it lends and borrows.
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
        shares=shares,
    )
