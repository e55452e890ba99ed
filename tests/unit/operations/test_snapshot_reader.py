"""The snapshot of a group, read from a ZooKeeper and brokers in memory over their real protocols."""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, islice
from time import sleep
from typing import Any, cast

import pytest

from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from tests.values import present
from zkconsumer.cluster.cluster_client import ClusterClient, command_config
from zkconsumer.cluster.offset_lookup import log_spans
from zkconsumer.core.consumer_protocol import (
    MemberAssignment,
    MemberSubscription,
    encode_assignment,
    encode_subscription,
)
from zkconsumer.errors import MemberIdRequiredError, RegistryError, ZkConsumerError
from zkconsumer.kafka import BrokerChannel, error_codes
from zkconsumer.kafka.group_channel import DescribedMember, GroupChannel, Membership, OffsetAndMetadata
from zkconsumer.model import ConsumerId, Endpoint, TopicPartition
from zkconsumer.operations import brokers_reader, snapshot_reader, watched_groups, zookeeper_reader
from zkconsumer.operations.brokers_reader import coordinating_partition, member_of
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.snapshot_file import format_snapshot, parse_snapshot
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.operations.watched_groups import WatchedGroups
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster
from zkconsumer.testing.fake_zookeeper_server import ConnectionRequests
from zkconsumer.testing.wire_types import BYTES, INT32, TEXT
from zkconsumer.zookeeper.node_values import Node, NodeEvent, NodePart, Reading, Wanted, ZooKeeperServer
from zkconsumer.zookeeper.session import Session

STATIC = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
WILDCARD = b'{"version":1,"subscription":{"u.*":1},"pattern":"white_list","timestamp":"1"}'


def soon() -> Deadline:
    return Deadline(scaled(10.0))


cluster = cluster_with({"t": [[b"a", b"b"], []], "u1": [[]]})


@pytest.fixture
def sources() -> Iterator[list[LiveSource]]:
    made: list[LiveSource] = []
    yield made
    for one in made:
        one.close()


def source_of(
    made: list[LiveSource], zookeeper: str | None = None, bootstrap: str | None = None, timeout: float = 10.0
) -> LiveSource:
    source = LiveSource(ClusterClient(command_config(zookeeper, bootstrap)[0], scaled(timeout)))
    made.append(source)
    return source


def a_group(cluster: FakeCluster) -> None:
    zookeeper = cluster.zookeeper
    zookeeper.put("/consumers/g/ids/g_h-1", STATIC, ephemeral_owner=7)
    zookeeper.put("/consumers/g/ids/g_h-2", WILDCARD, ephemeral_owner=8)
    zookeeper.put("/consumers/g/ids/g_h-3", b"{", ephemeral_owner=9)
    zookeeper.put("/consumers/g/owners/t/0", b"g_h-1-0", ephemeral_owner=7)
    zookeeper.put("/consumers/g/owners/gone/5", b"g_h-1-0")
    zookeeper.put("/consumers/g/offsets/t/0", b"1")
    zookeeper.put("/consumers/g/offsets/t/1", b"\x1b[31m")
    zookeeper.put("/consumers/g/offsets/t/x", b"1")
    zookeeper.put("/consumers/g/broadcast/g_h-4", b"", ephemeral_owner=10)


def read_by_zookeeper(cluster: FakeCluster, made: list[LiveSource]) -> GroupSnapshot:
    a_group(cluster)
    return source_of(made, cluster.zookeeper_connect).snapshot("g", message_times=True)


def test_members_owners_and_offsets_are_read(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    found = read_by_zookeeper(cluster, sources)
    first, second, third = (found.members[ConsumerId(f"g_h-{n}")] for n in (1, 2, 3))
    assert first.registration is not None
    node = present(first.stat)
    assert (node.ephemeral_owner, node.length) == (7, len(STATIC))
    assert present(second.registration).is_wildcard
    assert third.registration is None
    assert "not JSON" in third.problem
    assert {str(tp): one.thread for tp, one in found.owners.items()} == {"t-0": "g_h-1-0", "gone-5": "g_h-1-0"}
    owned = present(found.owners[TopicPartition("gone", 5)].stat)
    assert owned.ephemeral_owner == 0
    assert found.offsets[TopicPartition("t", 0)].offset == 1
    bad = found.offsets[TopicPartition("t", 1)]
    assert bad.offset is None
    assert "\x1b" not in bad.problem
    assert [one.what for one in found.problems] == ["/consumers/g/offsets/t"]
    assert found.zxid >= present(third.stat).czxid
    assert set(found.other_nodes) == {"/consumers/g/broadcast", "/consumers/g/broadcast/g_h-4"}
    assert found.acls["/consumers/g/owners"] == "world:anyone=cdrwa"


def test_topics_logs_and_times_are_read(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    found = read_by_zookeeper(cluster, sources)
    assert {name: node.partitions for name, node in found.topics.items()} == {"t": (0, 1), "u1": (0,)}
    assert found.topics["t"].created
    log = found.logs[TopicPartition("t", 0)]
    assert (log.start, log.end, log.leader, log.in_sync) == (0, 2, 0, (0,))
    assert abs(present(log.message_time) - found.taken) < 60_000
    assert found.logs[TopicPartition("t", 1)].message_time is None
    assert found.lag(TopicPartition("t", 0)) == 1
    assert found.brokers[0].protocols == ("PLAINTEXT",)


def test_reading_makes_no_topic_of_offsets(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    found = read_by_zookeeper(cluster, sources)
    assert not cluster.keeps_groups
    assert found.kafka_offsets == {}
    assert present(found.brokers_group).state == "Dead"
    assert found.in_zookeeper
    assert not found.in_kafka


def test_a_group_that_nobody_knows_is_empty(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    found = source_of(sources, cluster.zookeeper_connect).snapshot("unknown")
    assert not found.in_zookeeper
    assert not found.in_kafka
    assert not found.problems


def test_without_brokers_zookeeper_tells_leaders(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    source = source_of(sources, cluster.zookeeper_connect)
    for broker in cluster.brokers.values():
        broker.stop()  # its registration stays, as that of a broker that hangs
    found = source.snapshot("g")
    assert found.members
    assert found.offsets
    log = found.logs[TopicPartition("t", 0)]
    assert log.leader == 0
    assert log.end is None
    assert log.problem
    assert "brokers" in [one.what for one in found.problems]
    assert found.lag(TopicPartition("t", 0)) is None
    assert found.kafka_offsets == {}


def test_without_zookeeper_the_brokers_tell(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    connect = cluster.zookeeper_connect
    present(cluster.zookeeper_server).stop()
    source = source_of(sources, connect, cluster.bootstrap_servers, timeout=3.0)
    found = source.snapshot("g")
    assert found.brokers
    assert found.brokers_group is not None
    assert [one.what for one in found.problems] == [f"ZooKeeper {connect}"]
    assert source.groups() == []


def test_brokers_are_remembered_while_zookeeper_is_away(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    source = source_of(sources, cluster.zookeeper_connect, timeout=4.0)
    assert source.snapshot("g").members
    present(cluster.zookeeper_server).stop()
    found = source.snapshot("g")
    assert not found.members
    assert found.brokers
    assert [one.what for one in found.problems] == [f"ZooKeeper {cluster.zookeeper_connect}"]
    for broker in cluster.brokers.values():
        broker.stop()
    with pytest.raises(RegistryError, match="not connected.*cannot be reached"):
        source.snapshot("g")


def test_a_coordinator_that_is_still_loading_is_asked_again(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    join(cluster, "g").close()
    cluster.fail("DescribeGroups", error_codes.COORDINATOR_LOAD_IN_PROGRESS, times=2)
    found = source_of(sources, cluster.zookeeper_connect).snapshot("g")
    assert not found.problems
    assert present(found.brokers_group).state == "Stable"


def test_if_nothing_answers_it_is_an_error(sources: list[LiveSource]) -> None:
    source = source_of(sources, "127.0.0.1:1", "127.0.0.1:1", timeout=0.5)
    with pytest.raises(ZkConsumerError, match="no ZooKeeper server"):
        source.snapshot("g")
    with pytest.raises(ZkConsumerError, match="no ZooKeeper server"):
        source.groups()


def test_owners_that_cannot_be_are_problems(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    cluster.zookeeper.put("/consumers/g/owners/t/1", b"x" * 5000)
    for number in ("2147483647", "2147483648", "9999999999", "007", "-1"):
        cluster.zookeeper.put(f"/consumers/g/owners/t/{number}", b"g_h-1-0")
    found = source_of(sources, cluster.zookeeper_connect).snapshot("g")
    long = found.owners[TopicPartition("t", 1)]
    assert (long.thread, long.problem) == ("", "5000 bytes are no thread id")
    assert sorted(tp.partition for tp in found.owners if tp.topic == "t") == [0, 1, 2147483647]
    assert sum("is no number of a partition" in one.why for one in found.problems) == 5
    assert parse_snapshot(format_snapshot(found)) == found


def test_a_user_whose_name_no_client_can_decode_harms_nobody(
    cluster: FakeCluster, sources: list[LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper's servers write a character beyond the first 65,536 as two surrogates, which are no UTF-8."""
    a_group(cluster)

    def rights(_: object, reader: Any, body: Any) -> None:
        TEXT.read(reader)
        INT32.write(body, 1)
        INT32.write(body, 31)
        TEXT.write(body, "digest")
        BYTES.write(body, b"\xed\xa0\xbd\xed\xb8\x80:hash")
        body.data += bytes(68)

    monkeypatch.setattr(ConnectionRequests, "get_acl", rights)
    source = source_of(sources, cluster.zookeeper_connect)
    for found in (source.snapshot("g"), dict(chain(*source.snapshots(["g"])))["g"]):
        assert isinstance(found, GroupSnapshot)
        assert found.members
        assert not found.acls


def test_a_forbidden_node_is_a_problem(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    cluster.zookeeper.refuse("/consumers/g/owners", "read")
    cluster.zookeeper.refuse("/consumers/g/offsets/t/0", "read")
    found = source_of(sources, cluster.zookeeper_connect).snapshot("g")
    assert not found.owners
    assert "/consumers/g/owners" in [one.what for one in found.problems]
    assert "ACL" in found.offsets[TopicPartition("t", 0)].problem
    assert found.members


def join(cluster: FakeCluster, group: str) -> GroupChannel:
    """A member of a brokers' group that was assigned partition 1 of ``t`` and has committed offset 1 of partition 0."""
    coordinator = present(cluster.coordinator(group))
    host, port = cluster.address(coordinator)
    channel = GroupChannel(
        BrokerChannel(Endpoint(coordinator, host, port), client_id="reader", socket_timeout=scaled(10))
    )
    channel.connect(soon())
    nobody, metadata = Membership(group), encode_subscription(MemberSubscription(("t",)))
    while True:
        try:
            joined = channel.join(
                nobody, [("range", metadata)], session_timeout=60, rebalance_timeout=60, deadline=soon()
            )
            break
        except MemberIdRequiredError as required:
            nobody = Membership(group, member_id=required.member_id)
    me = Membership(group, joined.generation, joined.member_id)
    assigned = encode_assignment(MemberAssignment((TopicPartition("t", 1),)))
    channel.sync(me, protocol="range", assignments={joined.member_id: assigned}, deadline=soon())
    channel.commit(me, {TopicPartition("t", 0): OffsetAndMetadata(1, 0, "note")}, soon())
    return channel


@pytest.mark.parametrize("version", ["3.9", "1.1"])
def test_a_brokers_group_is_read(version: str, sources: list[LiveSource]) -> None:
    with FakeCluster(brokers=2, zookeeper=True, version=version) as cluster:
        cluster.create_topic("t", 2)
        cluster.append("t", 0, [b"a", b"b"])
        channel = join(cluster, "g")
        for where in ((cluster.zookeeper_connect, None), (None, cluster.bootstrap_servers)):
            source = source_of(sources, *where)
            found = source.snapshot("g", message_times=True)
            assert not found.problems
            group = present(found.brokers_group)
            assert (group.state, group.strategy) == ("Stable", "range")
            (member,) = group.members
            assert (member.client_id, member.assignment, member.topics) == ("reader", (TopicPartition("t", 1),), ("t",))
            stored = present(found.kafka_offsets)[TopicPartition("t", 0)]
            assert (stored.offset, stored.metadata) == (1, "note")
            assert found.lag(TopicPartition("t", 0)) == 1
            assert found.logs[TopicPartition("t", 0)].message_time is not None
            assert source.groups() == ["g"]
        channel.close()


def test_one_broker_that_is_away_costs_its_partitions(sources: list[LiveSource]) -> None:
    with FakeCluster(brokers=2, zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        cluster.zookeeper.put("/consumers/g/offsets/t/0", b"0")
        cluster.brokers[1].stop()
        found = source_of(sources, cluster.zookeeper_connect).snapshot("g")
    ends = {tp.partition: log.end for tp, log in found.logs.items()}
    assert sorted(ends.values(), key=str) == [0, None]
    assert [one.what for one in found.problems] == ["broker 1"]


@contextmanager
def silent_broker(cluster: FakeCluster, broker: int) -> Iterator[None]:
    """Register a port in place of a broker. It takes connections, and nobody answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        at = {"host": "127.0.0.1", "port": port, "endpoints": [f"PLAINTEXT://127.0.0.1:{port}"]}
        fields = {"version": 5, **at, "jmx_port": -1, "timestamp": "1"}
        cluster.zookeeper.put(f"/brokers/ids/{broker}", json.dumps(fields).encode())
        yield


def test_silent_brokers_leave_time_for_leaders_in_zookeeper(cluster: FakeCluster, sources: list[LiveSource]) -> None:
    a_group(cluster)
    join(cluster, "k").close()
    with silent_broker(cluster, 0):
        found = source_of(sources, cluster.zookeeper_connect, timeout=2.0).snapshot("g")
    assert "brokers" in [one.what for one in found.problems]
    assert found.logs[TopicPartition("t", 0)].leader == 0


def test_a_silent_coordinator_leaves_time_for_the_logs(sources: list[LiveSource]) -> None:
    with FakeCluster(brokers=2, zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        cluster.zookeeper.put("/consumers/g/offsets/t/0", b"0")
        cluster.zookeeper.put("/consumers/h/offsets/t/0", b"0")
        join(cluster, "k").close()
        leads = [present(cluster.log("t", number)).leader for number in (0, 1)]
        with silent_broker(cluster, 1):
            found = dict(chain(*source_of(sources, cluster.zookeeper_connect, timeout=3.0).snapshots(["g", "h"])))
    for one in found.values():
        assert isinstance(one, GroupSnapshot)
        assert one.logs[TopicPartition("t", leads.index(0))].end == 0


def test_brokers_are_asked_by_threads_that_no_exit_waits_for(
    sources: list[LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server or command that ended amid a reading waited for the answer of a silent broker, up to its timeout."""
    both, threads = threading.Barrier(2), list[threading.Thread]()

    def seen(*asked: Any) -> Any:
        threads.append(threading.current_thread())
        both.wait(scaled(10))
        return log_spans(*asked)

    monkeypatch.setattr(brokers_reader, "log_spans", seen)
    with FakeCluster(brokers=2, zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        cluster.zookeeper.put("/consumers/g/offsets/t/0", b"0")
        found = source_of(sources, cluster.zookeeper_connect).snapshot("g")
    assert all(log.end == 0 for log in found.logs.values())
    assert [one.daemon for one in threads if one is not threading.current_thread()] == [True]


def test_a_group_without_a_coordinator_is_unknown_not_dead(sources: list[LiveSource]) -> None:
    """The topic of offsets has no leader there, and all brokers that are left answer."""
    with FakeCluster(brokers=2, zookeeper=True) as cluster:
        cluster.create_topic("__consumer_offsets", 50)
        cluster.move_leader("__consumer_offsets", coordinating_partition("g", 50), -1)
        found = dict(chain(*source_of(sources, cluster.zookeeper_connect).snapshots(["g", "h"])))
    unknown, dead = (cast("GroupSnapshot", found[name]) for name in ("g", "h"))
    assert (unknown.brokers_group, unknown.kafka_offsets) == (None, None)
    assert [problem.what for problem in unknown.problems] == ["brokers' group 'g'"]
    assert (present(dead.brokers_group).state, dead.kafka_offsets) == ("Dead", {})


def test_a_held_group_leaves_the_brokers_their_time(
    cluster: FakeCluster, sources: list[LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first reading of a large group may take longer than the timeout."""
    a_group(cluster)
    source, read = source_of(sources, cluster.zookeeper_connect, timeout=0.5), WatchedGroups.read

    def slow(held: WatchedGroups, draft: GroupSnapshot, deadline: Deadline) -> object:
        sleep(scaled(0.6))
        return read(held, draft, deadline)

    monkeypatch.setattr(WatchedGroups, "read", slow)
    (((_, found),),) = source.snapshots(["g"])
    assert cast("GroupSnapshot", found).lag(TopicPartition("t", 0)) == 1


def test_logs_of_many_groups_have_their_own_time(
    cluster: FakeCluster, sources: list[LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The brokers had one timeout for the groups and the logs of a whole batch."""
    a_group(cluster)
    cluster.zookeeper.put("/consumers/h/offsets/t/0", b"0")
    join(cluster, "k").close()

    def slow(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        return lambda *asked: (sleep(scaled(seconds)), call(*asked))[1]

    monkeypatch.setattr(GroupChannel, "offsets_of", slow(GroupChannel.offsets_of, 0.9))
    monkeypatch.setattr(brokers_reader, "log_spans", slow(log_spans, 1.2))
    found = dict(source_of(sources, cluster.zookeeper_connect, timeout=2.0).snapshots_once(["g", "h", "k"]))
    for name in ("g", "h"):
        assert cast("GroupSnapshot", found[name]).logs[TopicPartition("t", 0)].end == 2


@pytest.mark.parametrize("away", [False, True])
def test_many_groups_are_read_as_each_alone(away: bool, sources: list[LiveSource]) -> None:
    """In one batch; the last reading is of held nodes. A broker that is away keeps only its own groups unknown."""
    with FakeCluster(brokers=2, zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        cluster.append("t", 0, [b"a", b"b"])
        cluster.create_topic("u1", 1)
        a_group(cluster)
        cluster.zookeeper.put("/consumers/h/offsets/t/0", b"0")
        join(cluster, "k").close()
        names = ["g", "h", "k", "none"]
        if away:
            cluster.brokers[1 - present(cluster.coordinator("k"))].stop()
        many, alone = (source_of(sources, cluster.zookeeper_connect) for _ in range(2))
        for read in (many.snapshots_once, many.snapshots, many.snapshots):
            told: Any = read(names, message_times=True)
            found = dict(told if read == many.snapshots_once else chain(*told))
            for name in names:
                wanted = alone.snapshot(name, message_times=True)
                one = cast("GroupSnapshot", found[name])
                wanted = replace(wanted, taken=one.taken, zxid=one.zxid, servers=one.servers)
                if one.brokers_group is not None and wanted.brokers_group is not None:
                    assert one.brokers_group.state == wanted.brokers_group.state
                    one.brokers_group = wanted.brokers_group  # for a dead one, only a search tells the coordinator
                assert one == wanted or (away and any("brokers' group" in p.what for p in one.problems))
        assert away or many.differences == 0
    assert [coordinating_partition(name, 50) for name in ("g", "group-1", "\u00e4\U0001f600")] == [3, 49, 7]


@pytest.mark.parametrize(
    ("versions", "together"),
    [(["3.9.5", "3.6.0"], True), (["3.9.5", "3.5.10"], False), (["3.9.5", ""], False), ([], False)],
)
def test_contents_are_read_together_if_all_servers_can(
    versions: list[str],
    together: bool,
    cluster: FakeCluster,
    sources: list[LiveSource],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An older server ends the connection."""
    a_group(cluster)
    source, fresh = (source_of(sources, cluster.zookeeper_connect) for _ in range(2))
    servers = tuple(ZooKeeperServer("h:1", version) for version in versions)
    monkeypatch.setattr(snapshot_reader, "server_statistics", lambda *_: servers)
    first = source.snapshot("g")
    assert source.client.session.multi_read.is_set() is together
    ((_, again),) = source.snapshots_once(["g"])
    for found in (source.snapshot("g"), cast("GroupSnapshot", again), fresh.snapshot("g")):
        assert replace(found, taken=first.taken, zxid=first.zxid) == first


@pytest.mark.parametrize(("slow", "sizes"), [(False, [1, 1, 1]), (True, [1, 2])])
def test_a_batch_has_what_came_before_it(
    slow: bool, sizes: list[int], cluster: FakeCluster, sources: list[LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change waited for the next reading if it came after this one had begun.

    After a slow batch the other groups are one batch: a broker that is away would cost each batch a timeout.
    """
    came = threading.Semaphore(0)

    class Events(deque[NodeEvent]):
        def append(self, event: NodeEvent, /) -> None:
            super().append(event)
            came.release()

    monkeypatch.setattr(watched_groups, "deque", Events)
    monkeypatch.setattr(snapshot_reader, "BATCH", 1)
    source, names = source_of(sources, cluster.zookeeper_connect), ["g", "h", "i"]
    for name in names:
        cluster.zookeeper.put(f"/consumers/{name}/offsets/t/0", b"0")
    assert [len(batch) for batch in source.snapshots(names)] == [1, 1, 1]
    monkeypatch.setattr(snapshot_reader, "SLOW_SHARE", 0.0 if slow else 100.0)
    batches = source.snapshots([*names, "new"])
    found = [next(batches), next(batches)]
    for name in names:
        cluster.zookeeper.put(f"/consumers/{name}/offsets/t/0", b"1")
        assert came.acquire(timeout=scaled(10))
    found += batches
    assert [len(batch) for batch in found] == [1, *sizes]
    offsets = {name: cast("GroupSnapshot", one).committed(TopicPartition("t", 0)) for name, one in chain(*found)}
    assert list(offsets.items()) == [("new", None), ("g", 0), ("h", 1), ("i", 1)]


def test_the_nodes_of_the_next_batch_are_read_meanwhile(
    cluster: FakeCluster, sources: list[LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And of no further one. A caller that goes leaves no thread behind once the source is closed."""
    monkeypatch.setattr(snapshot_reader, "BATCH", 1)
    source, names = source_of(sources, cluster.zookeeper_connect), ["g", "h", "i"]
    for name in names:
        cluster.zookeeper.put(f"/consumers/{name}/offsets/t/0", b"0")
    read: list[str] = []
    prefetch = WatchedGroups.prefetch

    def noted(self: WatchedGroups, groups: Sequence[str], deadline: Deadline) -> None:
        prefetch(self, groups, deadline)
        read.extend(groups)

    monkeypatch.setattr(WatchedGroups, "prefetch", noted)
    looked = source.snapshots_once(names)
    assert next(looked)[0] == "g"
    eventually(lambda: read == ["g", "h"], 10, "the next group's nodes")
    assert [name for name, _ in looked] == ["h", "i"]
    asked, silent, told = threading.Event(), threading.Event(), ConnectionRequests.get_acl

    def rights(self: ConnectionRequests, *arguments: Any) -> Any:
        if read[-1:] == ["g"]:  # those of the next group have no answer
            asked.set()
            silent.wait(scaled(60))
        return told(self, *arguments)

    monkeypatch.setattr(ConnectionRequests, "get_acl", rights)
    source = source_of(sources, cluster.zookeeper_connect)
    looked = source.snapshots_once(names)
    next(looked)
    assert asked.wait(scaled(10))
    cast("Generator[Any]", looked).close()
    source.close()
    try:
        eventually(lambda: not any("zkconsumer-ahead" in one.name for one in threading.enumerate()), 10, "its end")
    finally:
        silent.set()


@pytest.mark.parametrize("data", [b"", b"\xff", b"\0\0\0\0\0\5"])
def test_an_assignment_that_cannot_be_decoded(data: bytes) -> None:
    described = DescribedMember("m", None, "c", "/h", data, data)
    member = member_of(described, "consumer")
    assert member.assignment == (() if not data else None)
    assert member.topics == ()
    assert member_of(described, "connect").assignment is None


class Endless:
    """A session that answers for as many nodes as one likes, and counts the ones that are in memory at a time."""

    hosts = "h:1"
    last_zxid = 5

    def __init__(self, children: int, topics: int = 1) -> None:
        self._children = children
        self._topics = topics
        self.read = 0

    def read_each(self, wanted: Iterable[Wanted], deadline: Deadline) -> Iterator[Reading]:
        for one in wanted:
            self.read += 1
            yield Reading(one, Node(b"7", 1, 1, 1, 0), names=self._names(one) if one.part is NodePart.CHILDREN else ())

    def _names(self, one: Wanted) -> tuple[str, ...]:
        depth = one.path.count("/")
        if one.path == "/consumers/g/offsets":
            return tuple(f"t{n}" for n in range(self._topics))
        return (
            tuple(map(str, range(self._children)))
            if one.path.startswith("/consumers/g/offsets/") and depth == 4
            else ()
        )


def test_too_many_offsets_are_cut_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_reader, "MOST_NODES", 100)
    session, draft = Endless(1000, topics=3), GroupSnapshot("g", 1)
    assert ZooKeeperReader(cast("Session", session), draft, soon()).read()
    assert len(draft.offsets) == 100
    assert session.read < 150
    whys = {one.what: one.why for one in draft.problems}
    assert whys["/consumers/g/offsets/t0"] == "only 100 of 1000 nodes were read, 100 of all topics"
    assert whys["/consumers/g/offsets/t2"] == "only 0 of 1000 nodes were read, 100 of all topics"


def test_registrations_beyond_the_limit_are_not_decoded(
    cluster: FakeCluster, sources: list[LiveSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_reader, "MOST_REGISTERED_BYTES", len(STATIC))
    a_group(cluster)
    found = source_of(sources, cluster.zookeeper_connect).snapshot("g")
    problems = [found.members[ConsumerId(f"g_h-{n}")].problem for n in (1, 2, 3)]
    assert problems[0] == ""
    assert all("not decoded" in problem for problem in problems[1:])


def test_large_answers_are_read_fewer_at_a_time(cluster: FakeCluster) -> None:
    """At 512 reads at a time, a thousand nodes of 1 MB would take half a gigabyte."""
    for number in range(40):
        cluster.zookeeper.put(f"/large/{number}", b"x" * 200_000)
    connection = ClusterClient(command_config(cluster.zookeeper_connect, None)[0], scaled(10))
    with connection:
        taken, under_way = 0, []

        def wanted() -> Iterator[Wanted]:
            for number in itertools.count():
                under_way.append(number - taken)
                yield Wanted(NodePart.CONTENT, f"/large/{number % 40}")

        for reading in connection.session.read_each(islice(wanted(), 600), soon()):
            taken += 1
            assert reading.node is not None
    assert max(under_way[:512]) == 511
    assert max(under_way[-20:]) < 128
