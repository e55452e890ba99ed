"""The ZooKeeper that most tests of this folder use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.concurrency.group import new_server
from tests.simulated_clock import Simulation
from zkconsumer.testing import FakeZooKeeper


@pytest.fixture
def server() -> FakeZooKeeper:
    """A ZooKeeper with a topic of four partitions, without offsets."""
    return new_server(4)


@pytest.fixture
def clock() -> Iterator[Simulation]:
    """The clock of all members, which a test sets forward."""
    simulation = Simulation()
    with simulation.clocks():
        yield simulation
