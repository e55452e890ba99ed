"""The builder of members: from a configuration to all parts of one member, for production, tests and Spark alike.

The parts for the brokers are imported only if the configuration asks for them.
"""

from __future__ import annotations

import socket
import time
import uuid
from functools import partial

from zkconsumer.assignors.group_strategy import assignment_strategy
from zkconsumer.cluster.cluster_client import BrokerChannels, Brokers, bootstrap_brokers, registered_endpoints
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import ConfigException
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import PLACEMENTS, ConsumerId
from zkconsumer.offsets.store import FencedStore, OffsetStore
from zkconsumer.wiring.group_member import GroupMember
from zkconsumer.wiring.member_parts import MemberEnvironment, MemberParts
from zkconsumer.wiring.zookeeper_member import RegisteredBrokers, ZooKeeperCoordination
from zkconsumer.zookeeper.lease import Lease


def consumer_id(config: ConsumerConfig) -> ConsumerId:
    """Return the member's name: ``<group>_<consumer.id>``, or a generated one in the original's form.

    With a strategy that follows a plan, ``group.instance.id`` takes the place of ``consumer.id``.

    The eight hexadecimal digits of a generated name are the first ones of the unpadded upper half of a random UUID.
    """
    lasts = not config.coordinated_by_brokers and config.partition_assignment_strategy in PLACEMENTS
    name = config.group_instance_id if lasts and config.group_instance_id is not None else config.consumer_id
    if name is not None:
        return ConsumerId(f"{config.group_id}_{name}")
    digits = format(uuid.uuid4().int >> 64, "x")[:8]
    return ConsumerId(f"{config.group_id}_{socket.gethostname()}-{time.time_ns() // 1_000_000}-{digits}")


def build_member(
    config: ConsumerConfig,
    consumer: ConsumerId,
    *,
    offset_store: OffsetStore | None = None,
    listener: ConsumerRebalanceListener | None = None,
    environment: MemberEnvironment | None = None,
) -> GroupMember:
    """Return a member that is not open yet.

    Arguments: ``offset_store`` is the user's own; ``environment`` replaces parts of the outside world.
    Raises: UnknownAssignorError; ConfigException for a strategy or a file that cannot be used, or for an
    ``offset_store`` in a group that the brokers coordinate; MissingExtraError for a login that needs a library.
    """
    environment = environment or MemberEnvironment()
    make = partial(MemberParts, consumer=consumer, listener=listener, environment=environment)
    if not config.coordinated_by_brokers:
        return _in_zookeeper(config, offset_store, environment, make)
    if offset_store is not None:
        reason = "kafka keeps the group's offsets with its coordinator, so an offset_store has no place"
        raise ConfigException("group.coordination", reason)
    return (_in_both if config.group_migration else _in_brokers)(config, environment, make)


def coordinator_channels(config: ConsumerConfig) -> BrokerChannels:
    """Return the maker of channels to the brokers that coordinate groups or keep offsets. Raises as its class."""
    return BrokerChannels(config, config.offsets_channel_socket_timeout_ms / 1000)


def _in_zookeeper(
    config: ConsumerConfig, offset_store: OffsetStore | None, environment: MemberEnvironment, make: partial[MemberParts]
) -> GroupMember:
    if isinstance(offset_store, FencedStore):
        # an offset node never moves a member whose database says where it is, and another log than the one that is
        # recorded is never read as if it were that one
        config = config.replace(offset_conflict="overwrite", log_truncation_policy="raise")
    events = environment.events()
    session = environment.session(config, events.put)
    brokers, channels = RegisteredBrokers(session, config), coordinator_channels(config)
    strategy = environment.strategy or assignment_strategy(config)
    parts = make(config, lease=session.lease, brokers=brokers, channels=channels, events=events)
    return GroupMember(parts, ZooKeeperCoordination(parts, session, strategy, offset_store))


def _in_brokers(config: ConsumerConfig, environment: MemberEnvironment, make: partial[MemberParts]) -> GroupMember:
    from zkconsumer.wiring.brokers_member import BrokerCoordination

    channels = coordinator_channels(config)
    session = None if config.bootstrap_servers else environment.session(config, lambda _: None)
    brokers: Brokers = (
        bootstrap_brokers(config, channels) if session is None else partial(registered_endpoints, session, config)
    )
    parts = make(config, lease=Lease(), brokers=brokers, channels=channels, events=environment.events())
    return GroupMember(parts, BrokerCoordination(parts, session))


def _in_both(config: ConsumerConfig, environment: MemberEnvironment, make: partial[MemberParts]) -> GroupMember:
    from zkconsumer.wiring.bridge_member import STRATEGY, BridgeCoordination, zookeepers_strategy

    own = config.replace({STRATEGY: zookeepers_strategy(config)})
    events = environment.events()
    session = environment.session(own, events.put)
    brokers, channels = RegisteredBrokers(session, own), coordinator_channels(own)
    parts = make(own, lease=session.lease, brokers=brokers, channels=channels, events=events)
    return GroupMember(parts, BridgeCoordination(parts, session, assignment_strategy(own), config))
