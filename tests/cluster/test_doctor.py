"""The doctor on a real ZooKeeper and broker: illnesses that need real servers, and a healthy mixed group.

Most illnesses are written by a plain ZooKeeper client. Those of Scala members are made by Scala members.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl, make_digest_acl

from tests.cluster.chroot import Chroot
from tests.cluster.conftest import NewTopic, owners_of, produce_to, unique
from tests.cluster.in_process import client_of, live_source
from tests.cluster.kafka_tools import zookeeper_shell
from tests.cluster.legacy_member import LegacyMember
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.cli import main
from zkconsumer.devcluster import DevCluster
from zkconsumer.operations.doctor import CHECKS, Finding, Level, examine
from zkconsumer.operations.doctor import cluster as cluster_checks
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_reader import LiveSource

SCALA = '{"version":1,"subscription":%s,"pattern":"static","timestamp":"%s"}'


class Staged:
    """A group whose nodes a plain client writes."""

    def __init__(self, client: KazooClient, group: str) -> None:
        self.client = client
        self.group = group
        self.base = f"/consumers/{group}"

    def member(self, name: str, topics: Mapping[str, int], *, shift_ms: int = 0, **extra: object) -> str:
        """Register a member in this client's session, as a Scala member does or with extra keys."""
        now = str(time.time_ns() // 1_000_000 + shift_ms)
        document = {**json.loads(SCALA % (json.dumps(topics), now)), **extra}
        consumer = f"{self.group}_{name}"
        self.put(f"ids/{consumer}", json.dumps(document).encode(), ephemeral=True)
        return consumer

    def owner(self, topic: str, partition: int, thread: str, *, ephemeral: bool = True) -> None:
        self.put(f"owners/{topic}/{partition}", thread.encode(), ephemeral=ephemeral)

    def offset(self, topic: str, partition: int, content: object) -> None:
        self.put(f"offsets/{topic}/{partition}", str(content).encode())

    def put(self, path: str, data: bytes = b"", **options: Any) -> str:
        made: str = self.client.create(f"{self.base}/{path}", data, makepath=True, **options)
        return made


class Doctor:
    """Examines groups of one ZooKeeper."""

    def __init__(self, connect: str, source: LiveSource) -> None:
        self.connect = connect
        self.source = source

    def look(self, group: str) -> GroupSnapshot:
        return self.source.snapshot(group)

    def check(
        self, name: str, group: str, config: Mapping[str, str] | None = None, earlier: Sequence[GroupSnapshot] = ()
    ) -> list[Finding]:
        """Return what one check finds."""
        assert name in {check.name for check in CHECKS}
        return [one for one in examine([*earlier, self.look(group)], config) if one.check == name]

    def until(
        self, name: str, group: str, expected: Sequence[str], config: Mapping[str, str] | None = None
    ) -> list[Finding]:
        """Return the findings of a check as soon as they have the expected levels.

        Each look asks ZooKeeper's server for its sessions anew, since a busy server may answer too late.
        """

        def look() -> list[Finding]:
            with doctor_at(self.connect) as fresh:
                found = fresh.check(name, group, config)
            assert levels(found) == expected, found
            return found

        return eventually(look, 40, f"{name}: {expected}")


@contextmanager
def doctor_at(connect: str) -> Iterator[Doctor]:
    with live_source(connect) as source:
        yield Doctor(connect, source)


@pytest.fixture
def doctor(cluster: DevCluster) -> Iterator[Doctor]:
    with doctor_at(cluster.zookeeper_connect) as made:
        yield made


@pytest.fixture
def staged(zookeeper: KazooClient, new_group: Callable[[], str]) -> Staged:
    return Staged(zookeeper, new_group())


@pytest.fixture
def other_session(cluster: DevCluster) -> Iterator[KazooClient]:
    """A second plain client, with a session of its own."""
    with client_of(cluster.zookeeper_connect) as client:
        yield client


@pytest.fixture(scope="module")
def topic(cluster: DevCluster) -> str:
    """A topic of four partitions that tests only read."""
    name = unique("doctor")
    cluster.create_topic(name, 4)
    return name


def levels(found: Sequence[Finding]) -> list[str]:
    return ["unknown" if one.unknown else str(one.level) for one in found]


def type_command(remedy: str) -> None:
    """Type the command of a remedy, which is all behind its first colon."""
    _, _, command = remedy.partition(": ")
    name, *words = shlex.split(command)
    assert name == "zookeeper-shell.sh"
    zookeeper_shell(*words)


# ---- one group with many illnesses

SICK = {
    "persistent-owner": (["error"], "evil"),
    "unknown-owner": (["error", "error"], "{group}_former"),
    "unreadable-registration": (["error"], "{group}_bad"),
    "double-registration": (["warn"], "{group}_a, {group}_b"),
    "idle-threads": (["note"], "3 of 7 threads get nothing"),
    "mixed-coordination": (["error", "note"], "the migration stands half way"),
    "member-clock": (["warn"], "ahead of ZooKeeper's"),
    "dead-offsets": (["warn", "warn"], "no-such-topic:0"),
    "offset-outside-log": (["error"], "log 0..0"),
    "offset-not-a-number": (["error", "note"], "12 "),
}
"""What the doctor finds in the group: for each check the levels, and words of its findings."""


def make_sick(staged: Staged, topic: str) -> None:
    first = staged.member("a", {topic: 6}, shift_ms=3_600_000)
    staged.member("b", {topic: 1}, zkconsumer="1", strategy="range", coordination="kafka")
    staged.put(f"ids/{staged.group}_bad", b'{"version":1,"subscription":{"t":0}}', ephemeral=True)
    staged.put(f"broadcast/{staged.group}_c", b"", ephemeral=True)
    staged.owner(topic, 0, "\x1b[2J\x07evil-0", ephemeral=False)
    staged.owner(topic, 1, f"{staged.group}_former-0")
    staged.owner(topic, 2, f"{first}-0")
    for number, content in enumerate((1_000_000, "12 ", "-1")):
        staged.offset(topic, number, content)
    staged.offset(topic, 4, 3)
    staged.offset("no-such-topic", 0, 3)


def test_a_group_with_many_illnesses(
    doctor: Doctor, staged: Staged, cluster: DevCluster, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of remedies mend what they should, and a hostile thread id is printed as text."""
    make_sick(staged, topic)
    for check, (expected, words) in SICK.items():
        found = doctor.until(check, staged.group, expected)
        said = " ".join(f"{one.text} {one.evidence} {one.node}" for one in found)
        assert words.format(group=staged.group) in said, check
    assert main(["doctor", staged.group, "--zookeeper", cluster.zookeeper_connect]) == 1
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\\x1b[2J" in printed

    (owner,) = doctor.check("persistent-owner", staged.group)
    type_command(owner.remedy)
    prune, reset = (
        shlex.split(doctor.check(check, staged.group)[0].remedy)[1:] for check in ("dead-offsets", "offset-outside-log")
    )
    assert main(prune) == main(reset) == 0
    assert main([*(word for word in prune if word != "--dry-run"), "--execute"]) == 0
    for check in ("persistent-owner", "dead-offsets"):
        assert levels(doctor.check(check, staged.group)) == ["ok"]


# ---- owners


def test_orphan_owner_of_a_live_client(doctor: Doctor, staged: Staged, topic: str, other_session: KazooClient) -> None:
    staged.member("a", {topic: 1})
    Staged(other_session, staged.group).owner(topic, 0, f"{staged.group}_b-0")
    (found,) = doctor.until("orphan-owner", staged.group, ["error"])
    assert "connected from 127.0.0.1:" in found.evidence


def test_scala_member_that_gave_up_is_woken_as_told(
    doctor: Doctor,
    staged: Staged,
    topic: str,
    legacy_member: Callable[..., LegacyMember],
    other_session: KazooClient,
    zookeeper: KazooClient,
) -> None:
    """A partition's owner node stays although its member left. The Scala member tries twice, then owns nothing."""
    leaving = staged.member("z", {topic: 1})
    for partition in (2, 3):
        Staged(other_session, staged.group).owner(topic, partition, f"{leaving}-0")
    impatient = {"rebalance.max.retries": 2, "rebalance.backoff.ms": 100}
    scala = legacy_member("1.1.1", staged.group, {topic: 1}, properties={"consumer.id": "a", **impatient})
    scala.wait_ready()
    assert owners_of(zookeeper, staged.group, topic)[0] == f"{scala.consumer_id}-0"
    zookeeper.delete(f"{staged.base}/ids/{leaving}")
    eventually(lambda: "can't rebalance after 2 retries" in scala.log_text(), 40, scala.log_text)
    for partition in (2, 3):
        zookeeper.delete(f"{staged.base}/owners/{topic}/{partition}")
    config = {key: str(value) for key, value in impatient.items()}
    first = doctor.look(staged.group)
    assert levels(doctor.check("scala-patience", staged.group, config)) == ["error"]
    assert levels(doctor.check("scala-patience", staged.group)) == ["unknown"]

    def found() -> Finding:
        (one,) = doctor.check("unowned-partition", staged.group, config, [first])
        return one

    eventually(lambda: found().level is Level.ERROR, 30, "the end of its patience")
    assert f"nobody owns 4 partitions, which {scala.consumer_id} should own; it gave up" in found().text
    assert doctor.check("unowned-partition", staged.group)[0].level >= Level.NOTE
    type_command(found().remedy)
    eventually(lambda: len(owners_of(zookeeper, staged.group, topic)) == 4, 40, scala.log_text)
    assert levels(doctor.check("unowned-partition", staged.group, config)) == ["ok"]


def test_healthy_mixed_group_then_one_that_lost_its_node(
    doctor: Doctor,
    cluster: DevCluster,
    new_group: Callable[[], str],
    new_topic: NewTopic,
    legacy_member: Callable[..., LegacyMember],
    connector: Callable[..., ZookeeperConsumerConnector],
    zookeeper: KazooClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A Scala member whose registration is deleted keeps what it owns and never registers again."""
    group, topic = new_group(), new_topic(4)
    produce_to(cluster.bootstrap_servers, topic, [b"x"] * 40, partitions=4)
    timeouts = {"zookeeper.session.timeout.ms": 9000, "rebalance.max.retries": 10, "rebalance.backoff.ms": 1500}
    scala = legacy_member("1.1.1", group, {topic: 1}, properties={"consumer.id": "scala", **timeouts})
    ours = connector(group, consumer_id="ours", zookeeper_session_timeout_ms=9000, rebalance_backoff_ms=1500)
    streams = ours.create_message_streams({topic: 1})
    assert streams
    scala.wait_ready()
    expected = {0: "ours", 1: "ours", 2: "scala", 3: "scala"}
    owners = {number: f"{group}_{name}-0" for number, name in expected.items()}
    eventually(lambda: owners_of(zookeeper, group, topic) == owners, 30, "a share of each")
    config = tmp_path / "consumer.properties"
    lines = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": group, **timeouts}
    config.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    where = ["--zookeeper", cluster.zookeeper_connect, "--timeout", str(int(scaled(10_000)))]
    capsys.readouterr()

    def healthy() -> bool:
        """A busy machine may need a second look, because a server did not answer in time."""
        code = main(["doctor", group, *where, "--write-probe", "--member-config", str(config), "--format", "json"])
        (said,) = json.loads(capsys.readouterr().out)
        assert [one for one in said["findings"] if one["level"] in ("warn", "error")] == []
        judged = {one["check"] for one in said["findings"] if not one["unknown"]}
        assert judged >= {check.name for check in CHECKS} - {"flapping"}
        return (code, said["level"]) == (0, "ok")

    eventually(healthy, 40, "a group without findings")
    assert [name for name in zookeeper.get_children(f"/consumers/{group}") if "clock" in name] == []

    zookeeper.delete(f"/consumers/{group}/ids/{group}_scala")
    assert doctor.until("orphan-owner", group, ["error"]), "its owner nodes stay"
    assert main(["doctor", group, *where]) in (0, 1)
    assert "orphan-owner" in capsys.readouterr().out
    scala.kill()

    def not_live() -> list[Finding]:
        """Ask the server anew. A finding is no error any more once the server has noticed the end of the connection."""
        with doctor_at(cluster.zookeeper_connect) as again:
            return [one for one in again.check("orphan-owner", group) if one.level is not Level.ERROR]

    orphans = eventually(not_live, 30, "the end of its connection")
    if orphans[0].level is Level.OK:
        pytest.skip("this machine stood still for longer than the session of the killed JVM")
    assert "Either the session ends within" in orphans[0].text


# ---- times


def test_session_timeout_beyond_the_servers_bounds(doctor: Doctor, staged: Staged, topic: str) -> None:
    """The shared ZooKeeper has ticks of 500 ms, so that sessions have 10 s at most."""
    staged.member("a", {topic: 1})
    wanted = {"zookeeper.session.timeout.ms": "30000"}
    found = doctor.until("session-timeout", staged.group, ["warn", "note"], wanted)
    assert "it gets 10000" in found[0].text


def test_our_clock(
    doctor: Doctor, staged: Staged, topic: str, monkeypatch: pytest.MonkeyPatch, zookeeper: KazooClient
) -> None:
    staged.member("a", {topic: 1})
    snapshot = doctor.look(staged.group)

    def probed() -> list[Finding]:
        probe = cluster_checks.probe_clock(doctor.source.client, staged.group)
        return [one for one in examine([snapshot], probe=probe) if one.check == "our-clock"]

    assert levels(probed()) == ["ok"]
    real = time.time_ns
    monkeypatch.setattr(cluster_checks, "now_ms", lambda: real() // 1_000_000 - 3_600_000)
    (found,) = probed()
    assert levels([found]) == ["warn"]
    assert "60 min behind ZooKeeper's" in found.text
    assert zookeeper.get_children(staged.base) == ["ids"], "the probe leaves nothing"


# ---- rights, chroots, brokers


def test_mixed_rights(
    doctor: Doctor, staged: Staged, topic: str, cluster: DevCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A member with a login and a member without a login made offset nodes in the same parent."""
    staged.client.add_auth("digest", "alice:secret")
    for partition in (0, 1):
        staged.offset(topic, partition, 0)
    mine = [make_digest_acl("alice", "secret", all=True), make_acl("world", "anyone", read=True)]
    staged.client.set_acls(f"{staged.base}/offsets/{topic}/1", mine)
    assert levels(doctor.check("acl", staged.group)) == ["ok"], "the parents are alike"
    main(["doctor", staged.group, "--zookeeper", cluster.zookeeper_connect, "--format", "json"])
    printed = capsys.readouterr().out
    (found,) = [one for one in json.loads(printed)[0]["findings"] if one["check"] == "acl"]
    assert found["level"] == "warn"
    assert f"digest:alice: {staged.base}/offsets/{topic}/1" in found["evidence"]
    assert found["node"] == f"{staged.base}/offsets/{topic}/1"
    assert "secret" not in printed


def test_chroot_mistakes(zookeeper: KazooClient, cluster: DevCluster, new_group: Callable[[], str]) -> None:
    """The same group stands in a chroot with brokers and in the doubled one; members were told the wrong one."""
    group, chroot = new_group(), Chroot(zookeeper, cluster.zookeeper_connect)
    _, _, path = chroot.connect.partition("/")
    chroot.put(f"/consumers/{group}/ids", b"")
    chroot.put(f"/{path}/consumers/{group}/ids", b"")
    with live_source(chroot.connect) as source:
        beside = cluster_checks.chroots_beside(source.client, [group])
        assert beside is not None
        found = examine([source.snapshot(group)], chroots=beside[group])
    (one,) = [one for one in found if one.check == "chroot"]
    assert levels([one]) == ["warn"]
    assert "(the chroot is doubled)" in one.text
    assert one.remedy.endswith(f"should be {chroot.connect}")
