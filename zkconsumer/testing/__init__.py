"""The test kit: Kafka and ZooKeeper in memory. The test controls time, faults and the order of events."""

from zkconsumer.testing.fake_broker import FakeBroker
from zkconsumer.testing.fake_clock import ManualClock
from zkconsumer.testing.fake_cluster import FakeCluster
from zkconsumer.testing.fake_zookeeper import FakeSession, FakeZooKeeper
from zkconsumer.testing.fake_zookeeper_server import FakeZooKeeperServer
from zkconsumer.testing.faults import Parked, Recorded
from zkconsumer.testing.group_states import FakeGroupView, MemberView
from zkconsumer.testing.thread_sequencer import Sequencer

__all__ = [
    "FakeBroker",
    "FakeCluster",
    "FakeGroupView",
    "FakeSession",
    "FakeZooKeeper",
    "FakeZooKeeperServer",
    "ManualClock",
    "MemberView",
    "Parked",
    "Recorded",
    "Sequencer",
]
