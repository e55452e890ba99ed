"""The embedded cluster: it starts quickly, survives faults that tests inject, and leaves nothing behind."""

from __future__ import annotations

import hashlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import produce_to
from tests.cluster.in_process import client_of
from tests.programs import exists
from tests.timing import eventually, scaled
from zkconsumer.devcluster import (
    DevCluster,
    EmbeddedKafka,
    EmbeddedZooKeeper,
    JarResolutionError,
    ServerStartError,
    ZooKeeperEnsemble,
    resolve,
)
from zkconsumer.devcluster.server_process import is_free
from zkconsumer.errors import RegistryError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.cluster_admin import Admin

_OWNER = """
import sys
from zkconsumer.devcluster import DevCluster
with DevCluster(tick_ms=500) as cluster:
    both = cluster.zookeeper, cluster.kafka
    print(cluster.directory, *(s.pid for s in both), *(s.port for s in both), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: number.name)
def test_nothing_is_left_of_a_cluster_whose_owner_is_ended(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        directory, *numbers = owner.stdout.readline().split()
        assert numbers, owner.stderr and owner.stderr.read()
        processes, ports = map(int, numbers[:2]), list(map(int, numbers[2:]))
        pids = list(processes)
        assert all(map(exists, pids))
        owner.send_signal(number)
        owner.communicate(timeout=scaled(30))
        eventually(lambda: not any(map(exists, pids)), 20, "the end of both servers")
        eventually(lambda: not Path(directory).exists(), 20, "the removal of the directory")
        eventually(lambda: all(map(is_free, ports)), 20, "free ports")


@pytest.fixture(scope="module")
def own() -> Iterator[DevCluster]:
    """A cluster to mistreat: short sessions, so that a killed broker is soon forgotten."""
    with DevCluster(
        tick_ms=250, chroot="/kafka", broker_properties={"zookeeper.session.timeout.ms": 1500, "broker.rack": "r1"}
    ) as cluster:
        yield cluster


def test_topics_can_be_made_enlarged_and_deleted_under_a_chroot(own: DevCluster) -> None:
    own.create_topic("t.1", 3, {"retention.ms": "12345"})
    with Admin(own.zookeeper_connect) as admin:
        assert admin.brokers() == (0,)
        assert "t.1" in admin.topics()
        own.add_partitions("t.1", 5)
        assert admin.assignment("t.1") == {p: [0] for p in range(5)}
        assert [admin.leader("t.1", p) for p in range(5)] == [0] * 5
        produce_to(own.bootstrap_servers, "t.1", [b"x"] * 10, partitions=5)
        with pytest.raises(RegistryError, match="exists"):
            own.create_topic("t.1", 3)
        with pytest.raises(ValueError, match="already"):
            own.add_partitions("t.1", 5)
        own.delete_topic("t.1")
        assert "t.1" not in admin.topics()
        with pytest.raises(RegistryError, match="no topic"):
            own.delete_topic("t.1")
    with pytest.raises(ValueError, match="topic name"):
        own.create_topic("a/b")
    with pytest.raises(ValueError, match="brokers registered"):
        own.create_topic("t.2", 1, replication=2)
    own.create_topic("t.1")  # the name is free again
    own.delete_topic("t.1")


def test_zookeeper_can_be_frozen_and_restarted(own: DevCluster) -> None:
    with client_of(own.zookeeper.connect) as client:
        client.create("/mark", b"kept")
    own.zookeeper.suspend()
    try:
        assert own.zookeeper.ask("srvr", 0.3) == ""
    finally:
        own.zookeeper.resume()  # otherwise later tests have no server
    eventually(lambda: "Mode: standalone" in own.zookeeper.ask("srvr"), 10, "an answer")
    own.zookeeper.kill()
    own.zookeeper.start()
    with client_of(own.zookeeper.connect) as client:
        assert client.get("/mark")[0] == b"kept"
    with Admin(own.zookeeper_connect) as admin:
        eventually(lambda: admin.registered_port(0) == own.kafka.port, 20, "the broker's return")


def test_a_second_broker_of_the_same_id_is_refused(own: DevCluster) -> None:
    """The first one is a node of a session that does not end meanwhile, as the short one of a broker may."""
    first = KazooClient(own.zookeeper_connect)
    first.start()
    first.create("/brokers/ids/7", b"{}", ephemeral=True)
    twin = EmbeddedKafka(own.zookeeper_connect, 7)
    with pytest.raises(ServerStartError, match="registered by another"):
        twin.start(1.0)
    twin.close()
    first.stop()
    first.close()


def test_brokers_can_join_and_lead(own: DevCluster) -> None:
    with EmbeddedKafka(own.zookeeper_connect, 1, properties={"zookeeper.session.timeout.ms": 1500}) as second:
        own.create_topic("both", 2, replication=2)
        with Admin(own.zookeeper_connect) as admin:
            assert admin.brokers() == (0, 1)
            assert admin.leader("both", 1) == 1
            assert admin.registered_port(1) == second.port
            second.stop()
            assert admin.wait_until_unregistered(1, Deadline(scaled(10)))
            eventually(lambda: admin.leader("both", 1) == 0, 20, "another leader")


def test_a_zookeeper_that_cannot_start_says_why() -> None:
    broken = EmbeddedZooKeeper(properties={"tickTime": "soon"})
    with pytest.raises(ServerStartError, match='"soon"'):
        broken.start()
    broken.close()


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache with the resolver and nothing else, and the variable that names it."""
    (ivy,) = resolve("org.apache.ivy:ivy:2.5.3")
    shutil.copytree(ivy.parent, tmp_path / "cache" / "jars" / ivy.parent.name)
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def new_in(cache: Path) -> list[str]:
    return [entry.name for entry in (cache / "jars").iterdir() if not entry.name.startswith("ivy-")]


def test_what_maven_does_not_have_is_an_error_and_leaves_nothing(cache: Path) -> None:
    with pytest.raises(JarResolutionError, match="zookeeper"):
        resolve("org.apache.zookeeper:zookeeper:0.0.0", progress=lambda text: None, deadline=scaled(120))
    assert new_in(cache) == [".lock"]


def test_two_processes_do_not_fetch_the_same_jars_at_once(cache: Path) -> None:
    code = "from zkconsumer.devcluster import resolve; print(*resolve('org.slf4j:slf4j-api:1.7.36'))"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=scaled(120)) for process in both]
    assert [out.endswith("slf4j-api-1.7.36.jar\n") for out, _ in said] == [True, True], said
    assert sorted("fetched 1 jars" in progress for _, progress in said) == [False, True]


def test_a_forged_or_unpublished_jar_is_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A repository that serves another jar, with a checksum that agrees, and one without any checksum."""
    monkeypatch.setenv("ZKCONSUMER_MAVEN_REPOSITORY", (tmp_path / "repository").as_uri() + "/")
    for group, artifact, version in (("org.slf4j", "slf4j-api", "1.7.36"), ("org.x", "y", "1")):
        place = tmp_path.joinpath("repository", *group.split("."), artifact, version)
        place.mkdir(parents=True)
        name = f"{artifact}-{version}"
        identity = f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
        (place / f"{name}.pom").write_text(f"<project><modelVersion>4.0.0</modelVersion>{identity}</project>")
        (place / f"{name}.jar").write_bytes(b"forged")
        if group == "org.slf4j":
            (place / f"{name}.jar.sha1").write_text(hashlib.sha1(b"forged", usedforsecurity=False).hexdigest())
    for coordinate, reason in (
        ("org.slf4j:slf4j-api:1.7.36", "is not the published file"),
        ("org.x:y:1", "no published checksum"),
    ):
        with pytest.raises(JarResolutionError, match=reason):
            resolve(coordinate, progress=lambda text: None, deadline=scaled(60))
    assert new_in(cache) == [".lock"]


def test_an_ensemble_survives_its_leader_and_takes_it_back() -> None:
    """An ensemble goes on without its leader and takes it back. Without a quorum nobody leads."""
    with ZooKeeperEnsemble(tick_ms=200) as ensemble:
        assert sorted(server.mode for server in ensemble.servers) == ["follower", "follower", "leader"]
        assert len(ensemble.connect.split(",")) == 3
        first = ensemble.leader
        client = KazooClient(ensemble.connect, timeout=4.0)
        client.start(timeout=scaled(20))
        try:
            client.create("/before", b"1")
            first.kill()
            second = ensemble.wait_for_leader()
            assert second is not first
            eventually(lambda: client.connected, 20, "another server")
            assert client.get("/before")[0] == b"1"
            client.create("/after", b"2")
            first.start()
            eventually(lambda: first.mode == "follower", 20, "the old leader as a follower")
            assert set(ensemble.followers) == set(ensemble.servers) - {second}
        finally:
            client.stop()
            client.close()
        for server in ensemble.servers[:2]:
            server.kill()
        eventually(lambda: not ensemble.servers[2].mode, 20, "a server alone that serves no more")
        with pytest.raises(RuntimeError, match="quorum"):
            _ = ensemble.leader
        ensemble.start()
        assert ensemble.leader in ensemble.servers
    assert ensemble.servers == ()
    with pytest.raises(RuntimeError, match="not started"):
        _ = ensemble.connect
