"""How the parts of a member are put together. ``builder`` makes a member from a configuration; nothing else does.

``group_member`` is what the connector sees, ``member_parts`` has the parts that do not depend on the coordinator,
and ``zookeeper_member``, ``brokers_member`` and ``bridge_member`` have those that do.
"""

from zkconsumer.wiring.builder import build_member, consumer_id
from zkconsumer.wiring.group_member import GroupMember
from zkconsumer.wiring.member_parts import MemberEnvironment

__all__ = ["GroupMember", "MemberEnvironment", "build_member", "consumer_id"]
