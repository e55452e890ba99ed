"""The real thing for the contract suites: one ZooKeeper for the session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from zkconsumer.deadline import Deadline
from zkconsumer.devcluster import EmbeddedZooKeeper, JavaNotFoundError, java


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[str]:
    """The address of a real ZooKeeper with ticks of 500 ms."""
    try:
        java()
    except JavaNotFoundError as missing:
        pytest.skip(f"the real ZooKeeper needs Java: {missing}")
    server = EmbeddedZooKeeper(tick_ms=500)
    server.start(Deadline(60))
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        server.stop()
