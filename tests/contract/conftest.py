"""The real things for the contract suites, and those in memory: a ZooKeeper and group coordinators, for the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache

import pytest

from tests.contract.group_client import NEWEST, OLD, PLAIN, Target
from tests.timing import eventually, scaled
from zkconsumer.devcluster import EmbeddedKafka, EmbeddedZooKeeper, JavaNotFoundError, java
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper.cluster_admin import Admin


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


@contextmanager
def _real_coordinator(zookeeper: str, version: str, **properties: object) -> Iterator[Target]:
    connect = f"{zookeeper}/groups-on-{version}{'-'.join(properties)}"
    # one partition of offsets, or that of another group may still be loaded when the warm-up's is
    quick: dict[str, object] = {"group.min.session.timeout.ms": 100, "offsets.topic.num.partitions": 1}
    quick |= {name.replace("_", "."): value for name, value in properties.items()}
    with EmbeddedKafka(connect, version=version, properties=quick) as broker:
        with Admin(connect) as admin:
            for topic in ("t", "u"):
                admin.create_topic(topic, 3, deadline=Deadline(scaled(30)))
        target = Target(("127.0.0.1", broker.port), version.startswith("3"), OLD, group="warm-up")

        def ready() -> bool:  # the first question makes the cluster create its topic of offsets
            found = target.ask("FindCoordinator", {"key": "warm-up"})["error_code"] == 0
            return found and target.commit({("t", 0): 0}) == [0]

        eventually(ready, 60, f"a coordinator on {version}")
        target.close()
        yield target


@contextmanager
def _fake_coordinator(version: str, retention_check: float) -> Iterator[Target]:
    with FakeCluster(
        version=version, min_session_timeout=0.1, max_session_timeout=300.0, offsets_retention_check=retention_check
    ) as cluster:
        for topic in ("t", "u"):
            cluster.create_topic(topic, 3)
        yield Target(cluster.address(0), version.startswith("3"), OLD)


@pytest.fixture(scope="session")
def started(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Target]]:
    """Starts a coordinator when it is first asked for by its name: ``fake-3.9``, or ``3.9.1`` for a real broker.

    After ``forgetful-`` it looks for old offsets all the time. So it also forgets any group that is empty and has no
    offsets, such as that of a member which was only given an id.
    """
    with ExitStack() as stack:

        @cache
        def start(name: str) -> Target:
            kind, _, version = name.rpartition("-")
            forgetful = kind.startswith("forgetful")
            if kind.endswith("fake"):
                return stack.enter_context(_fake_coordinator(version, 0.2 if forgetful else 600.0))
            often = {"offsets_retention_check_interval_ms": 200} if forgetful else {}
            zookeeper = request.getfixturevalue("zookeeper_server")
            return stack.enter_context(_real_coordinator(zookeeper, version, **often))

        yield start


_REAL = [pytest.mark.cluster, pytest.mark.java]


@pytest.fixture(
    params=[
        pytest.param(("fake-3.9", NEWEST), id="fake-3.9-newest"),
        pytest.param(("fake-3.9", PLAIN), id="fake-3.9-plain"),
        pytest.param(("fake-1.1", OLD), id="fake-1.1"),
        pytest.param(("3.9.1", NEWEST), id="real-3.9.1-newest", marks=_REAL),
        pytest.param(("3.9.1", PLAIN), id="real-3.9.1-plain", marks=_REAL),
        pytest.param(("1.1.1", OLD), id="real-1.1.1", marks=_REAL),
    ]
)
def coordinator(request: pytest.FixtureRequest, started: Callable[[str], Target]) -> Iterator[Target]:
    """A coordinator, with a group of the test's own."""
    name, versions = request.param
    target = replace(started(name), versions=versions).fresh()
    yield target
    target.close()


@pytest.fixture(
    params=[
        "forgetful-fake-3.9",
        "forgetful-fake-1.1",
        pytest.param("forgetful-3.9.1", marks=_REAL),
        pytest.param("forgetful-1.1.1", marks=_REAL),
    ]
)
def forgetful(request: pytest.FixtureRequest, started: Callable[[str], Target]) -> Iterator[Target]:
    """A coordinator that soon forgets what it need not keep, with a group of the test's own."""
    target = replace(started(request.param), versions=OLD).fresh()
    yield target
    target.close()
