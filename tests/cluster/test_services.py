"""The program of docs/services.md as real processes: what probes and systemd get, and what a stop costs."""

from __future__ import annotations

import signal
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import TICK_MS, produce_to, unique
from tests.cluster.in_process import client_of
from tests.faults.proxy import Proxy
from tests.service_process import Place, Service, Unit, container
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

SETTLES: dict[str, object] = {
    "zookeeper.session.timeout.ms": 10_000,
    "zookeeper.sync.time.ms": 200,
    "rebalance.backoff.ms": 300,
    "rebalance.max.retries": 100,
    "refresh.leader.backoff.ms": 100,
}
"""Properties in addition to the program's. A group settles within seconds, and no session ends on a busy machine."""

QUICK: dict[str, object] = {"zookeeper.session.timeout.ms": int(scaled(2_500)), "socket.timeout.ms": 2_000}
"""Properties in addition to these, for a member that soon finds out what is away."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[DevCluster]:
    """A cluster of this module's own: a test stops its broker."""
    with DevCluster(tick_ms=TICK_MS, broker_properties={"log.retention.ms": "-1"}) as made:
        yield made


@pytest.fixture
def proxy(cluster: DevCluster) -> Iterator[Proxy]:
    """The way to ZooKeeper, which a test can cut."""
    host, _, port = cluster.zookeeper_connect.partition("/")[0].rpartition(":")
    with Proxy((host, int(port))) as made:
        yield made


class ServiceGroup:
    """A topic, a group, and the processes that were its members."""

    def __init__(self, cluster: DevCluster, folder: Path, partitions: int) -> None:
        self.cluster = cluster
        self.topic, self.name = unique("orders"), unique("services")
        self.partitions = partitions
        self.produced = 0
        self.processes: list[Service] = []
        self._folder = folder
        self._stack = ExitStack()
        cluster.create_topic(self.topic, partitions)

    def produce(self, count: int) -> None:
        """Produce messages, evenly to all partitions."""
        assert count % self.partitions == 0
        values = [b"%d" % n for n in range(count)]
        produce_to(self.cluster.bootstrap_servers, self.topic, values, partitions=self.partitions)
        self.produced += count

    def start(
        self, instance: str, *, zookeeper: str = "", properties: dict[str, object] | None = None, **options: Any
    ) -> Service:
        """Start a process of the program, which ends with the test."""
        process = Service(
            self._folder / f"{len(self.processes)}-{instance}",
            GROUP=self.name,
            TOPIC=self.topic,
            ORDERS_ZOOKEEPER=zookeeper or self.cluster.zookeeper_connect,
            ORDERS_INSTANCE=instance,
            properties={**SETTLES, **(properties or {})},
            **options,
        )
        self.processes.append(process)
        return self._stack.enter_context(process)

    def close(self) -> None:
        """End all processes."""
        self._stack.close()

    @property
    def expected(self) -> set[Place]:
        """The places of all produced messages."""
        each = self.produced // self.partitions
        return {(partition, offset) for partition in range(self.partitions) for offset in range(each)}

    @property
    def finished(self) -> Counter[Place]:
        """How often each message was finished, by all processes together."""
        return Counter(place for process in self.processes for place in process.finished)

    @property
    def begun(self) -> Counter[Place]:
        """How often each message was handed out, by all processes together."""
        return Counter(place for process in self.processes for place in process.begun)

    def logs(self) -> str:
        """Return the ends of all logs, for the message of a failure."""
        return "\n".join(f"{process.pid}:\n{process.log()[-2000:]}" for process in self.processes)

    def wait_all(self) -> None:
        """Wait until every message was finished."""
        eventually(
            lambda: self.finished.keys() >= self.expected,
            60,
            lambda: f"all of {self.produced} messages, {len(self.finished)} are there; the logs:\n{self.logs()}",
        )

    def assert_each_once(self) -> None:
        """Wait for all messages, stop the members, and assert that each message was handed out once."""
        self.wait_all()
        for process in self.processes:
            if process.running:
                process.signal(signal.SIGTERM)
        assert {process.exit_code() for process in self.processes} == {0}, self.logs()
        assert self.begun == Counter(self.expected), "each handed out once"
        assert self.finished == Counter(self.expected), "each finished once"


NewGroup = Callable[..., ServiceGroup]


@pytest.fixture
def new_group(cluster: DevCluster, tmp_path: Path) -> Iterator[NewGroup]:
    """Make groups: ``new_group(partitions)``. Their processes end with the test."""
    with ExitStack() as stack:
        yield lambda partitions: stack.enter_context(closing(ServiceGroup(cluster, tmp_path, partitions)))


@pytest.fixture
def zookeeper(cluster: DevCluster) -> Iterator[KazooClient]:
    with client_of(cluster.zookeeper_connect) as client:
        yield client


def test_probes_tell_each_state_of_the_process(
    cluster: DevCluster, proxy: Proxy, new_group: NewGroup, zookeeper: KazooClient
) -> None:
    """No ZooKeeper yet, ready, no broker, no ZooKeeper, session expired, ready again, draining."""
    group = new_group(2)
    proxy.drop()
    process = group.start("a", zookeeper=proxy.address, properties=QUICK)
    process.becomes(200, 503, "live, not ready: connecting")
    proxy.carry()
    process.becomes(200, 200, "ready")
    group.produce(20)
    group.wait_all()

    cluster.kafka.suspend()
    try:
        eventually(lambda: "fetching from broker 0 failed" in process.log(), 30, process.log)
        process.becomes(200, 200, "ready")
    finally:
        cluster.kafka.resume()
    group.produce(20)
    group.wait_all()

    proxy.drop()
    process.becomes(200, 503, "ZooKeeper: the connection is gone")
    eventually(lambda: not zookeeper.get_children(f"/consumers/{group.name}/ids"), 30, "the end of the session")
    process.becomes(200, 503, "ZooKeeper: the connection is gone")
    proxy.carry()
    process.becomes(200, 200, "ready")

    process.close_gate()
    group.produce(2)
    process.wait_in_hand()
    process.signal(signal.SIGTERM)
    process.becomes(200, 503, "live, not ready: the connector is being shut down")
    process.open_gate()
    assert process.exit_code() == 0
    with pytest.raises(OSError, match="refused"):
        process.ask("/healthz")


def test_a_handler_that_fails_ends_the_process(new_group: NewGroup) -> None:
    """The exit code asks for a restart. The next process gets the same message again, and no other."""
    group = new_group(1)
    group.produce(20)
    failing = group.start("a", fails_at=7)
    code = failing.exit_code()
    assert code == 1
    assert str(code) not in Unit()["Service"]["RestartPreventExitStatus"].split()
    assert f"{group.topic}-0 at offset 7; this message is not committed" in failing.log()
    group.start("a")
    group.wait_all()
    assert group.finished == Counter(group.expected)
    assert group.begun == Counter(group.expected) + Counter([(0, 7)])


def test_a_rolling_restart_under_load_repeats_nothing(new_group: NewGroup) -> None:
    """Two members are restarted one after the other while messages come. Each message is handed out once."""
    group = new_group(4)
    stop = threading.Event()

    def load() -> None:
        while not stop.wait(0.02):
            group.produce(200)

    members = {name: group.start(name) for name in ("a", "b")}
    for process in members.values():
        process.becomes(200, 200)
    producer = threading.Thread(target=load, name="load")
    producer.start()
    try:
        for name in ("a", "b"):
            leaving = members[name]
            wait_finished(leaving, 200)
            leaving.signal(signal.SIGTERM)
            assert leaving.exit_code() == 0, leaving.log()
            members[name] = group.start(name)
            members[name].becomes(200, 200)
    finally:
        stop.set()
        producer.join()
    group.assert_each_once()
    owned = [{partition for partition, _ in process.finished} for process in group.processes]
    assert owned[0] | owned[1] == set(range(4))
    assert owned[2] <= owned[0], "the restart moved nothing"
    assert owned[3] <= owned[1], "the restart moved nothing"


def wait_finished(process: Service, count: int) -> None:
    """Wait until a process has finished so many messages."""
    eventually(lambda: len(process.finished) >= count, 30, lambda: f"{count} messages; the log:\n{process.log()}")


def test_a_handler_beyond_the_shutdown_time_comes_again(new_group: NewGroup) -> None:
    """The member leaves in time, with all else committed. The process waits for its handler until SIGKILL."""
    group = new_group(1)
    process = group.start("a", shutdown_seconds=2.5)
    process.becomes(200, 200)
    group.produce(10)
    group.wait_all()
    process.close_gate()
    group.produce(10)
    held = process.wait_in_hand()
    process.signal(signal.SIGTERM)
    process.becomes(503, 503, "not live: the connector was shut down")
    process.signal(signal.SIGKILL)
    assert process.exit_code() == -signal.SIGKILL
    group.start("a")
    group.wait_all()
    assert group.finished == Counter(group.expected)
    assert group.begun == Counter(group.expected) + Counter([held])


@pytest.mark.parametrize("link", ["refused", "silent", "in use"])
def test_sigterm_during_the_start_ends_it(proxy: Proxy, new_group: NewGroup, link: str) -> None:
    """ZooKeeper refuses connections, or answers nothing, or another live process has the name of this one."""
    group = new_group(1)
    if link == "in use":
        group.start("a").becomes(200, 200)
        process = group.start("a")
        process.becomes(200, 503, "another live member has this consumer.id or group.instance.id")
    else:
        (proxy.drop if link == "refused" else proxy.swallow)()
        process = group.start("a", zookeeper=proxy.address)
        process.becomes(200, 503, "connecting")
    process.signal(signal.SIGTERM)
    assert process.exit_code() == 0, process.log()


def test_systemd_hears_of_a_real_process(tmp_path: Path, proxy: Proxy, new_group: NewGroup) -> None:
    """The command of the unit, with the variables that systemd sets for Type=notify and WatchdogSec."""
    group, address = new_group(1), tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(scaled(30))

        def hear_until(line: str) -> list[str]:
            while True:
                told = systemd.recv(4096).decode().splitlines()
                if line in told:
                    return told

        proxy.drop()
        process = group.start(
            "a",
            zookeeper=proxy.address,
            NOTIFY_SOCKET=str(address),
            WATCHDOG_USEC=f"{Unit().seconds('WatchdogSec') * 1e6:.0f}",
        )
        told = hear_until("STATUS=live, not ready: connecting")
        assert told[1:] == ["WATCHDOG=1", "EXTEND_TIMEOUT_USEC=30000000"]
        proxy.carry()
        assert hear_until("READY=1") == ["STATUS=ready", "WATCHDOG=1", "READY=1"]
        process.signal(signal.SIGTERM)
        hear_until("STOPPING=1")
        assert process.exit_code() == 0


def test_the_signal_of_the_watchdog_writes_all_stacks(new_group: NewGroup) -> None:
    process = new_group(1).start("a")
    process.becomes(200, 200)
    process.signal(signal.SIGABRT)
    assert process.exit_code() == -signal.SIGABRT
    assert "(most recent call first)" in process.log()
    assert " in serve\n" in process.log(), "of the main thread, wherever it is"


def test_the_command_of_the_manifest_runs(new_group: NewGroup) -> None:
    group = new_group(1)
    process = group.start("orders-0", command=container()["command"])
    process.becomes(200, 200, "ready")
    eventually(lambda: "orders-0 is ready" in process.log(), 10, process.log)
