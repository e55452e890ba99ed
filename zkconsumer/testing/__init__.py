"""The test kit: Kafka and ZooKeeper in memory. The test controls time, faults and the order of events."""

from zkconsumer.testing.clock import ManualClock
from zkconsumer.testing.fake_broker import FakeBroker
from zkconsumer.testing.fake_cluster import FakeCluster
from zkconsumer.testing.fake_zookeeper import FakeSession, FakeZooKeeper
from zkconsumer.testing.faults import Parked, Recorded
from zkconsumer.testing.group_members import GroupView, MemberView
from zkconsumer.testing.thread_sequencer import Sequencer
from zkconsumer.testing.zookeeper_server import FakeZooKeeperServer

__all__ = [
    "FakeBroker",
    "FakeCluster",
    "FakeSession",
    "FakeZooKeeper",
    "FakeZooKeeperServer",
    "GroupView",
    "ManualClock",
    "MemberView",
    "Parked",
    "Recorded",
    "Sequencer",
]
