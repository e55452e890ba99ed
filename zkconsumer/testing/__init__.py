"""Fakes for tests: a ZooKeeper in memory whose sessions can be suspended, expired and watched at will."""

from zkconsumer.testing.zookeeper import FakeSession, FakeZooKeeper

__all__ = ["FakeSession", "FakeZooKeeper"]
