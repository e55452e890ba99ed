"""Stepped members of a group that follows a plan."""

from __future__ import annotations

from tests.concurrency.group import GROUP, SteppedMember
from zkconsumer.assignors.group_strategy import GroupStrategy, assignment_strategy
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import INSTANCE_KEY, PLAN_KEY, PLAN_VERSION
from zkconsumer.testing import FakeZooKeeper


def planned_strategy(name: str) -> GroupStrategy:
    config = ConsumerConfig(zookeeper_connect="z", group_id=GROUP, partition_assignment_strategy=name)
    return assignment_strategy(config)


def placed_member(
    server: FakeZooKeeper, name: str, *, lasts: bool = True, strategy: str = "sticky", streams: int = 1
) -> SteppedMember:
    """A member with a strategy that follows a plan; ``lasts``: it has a ``group.instance.id``."""
    extra = {"strategy": strategy, PLAN_KEY: str(PLAN_VERSION)} | ({INSTANCE_KEY: name} if lasts else {})
    return SteppedMember(server, name, strategy=planned_strategy(strategy), extra=extra, streams=streams)
