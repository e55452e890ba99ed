"""The fake cluster as a user has it: clients that know nothing of it, and the faults that can be staged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.contract.group_client import NEWEST, OLD, Connection, Target
from tests.timing import eventually, scaled
from tests.unit.kafka.sets import WHERE
from tests.values import present
from zkconsumer.errors import SessionLostError
from zkconsumer.kafka import CorruptRecordsError
from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster, FakeZooKeeper, ManualClock
from zkconsumer.testing.group_request_handlers import GROUP_HANDLERS
from zkconsumer.testing.request_schemas import APIS
from zkconsumer.testing.topic_request_handlers import LOG_HANDLERS
from zkconsumer.testing.wire_types import MalformedRequestError

NOT_LEADER, LOADING, NOT_COORDINATOR, UNKNOWN, REBALANCING = 6, 14, 16, 25, 27


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(2) as cluster:
        cluster.create_topic("t", 2)
        yield cluster


@pytest.fixture
def targets(cluster: FakeCluster) -> Iterator[list[Target]]:
    """The brokers, by id."""
    found = [Target(cluster.address(number), True, NEWEST, group="g") for number in range(2)]
    yield found
    for target in found:
        target.close()


def fetch(target: Target, offset: int = 0, wait: int = 0, version: int | None = None) -> Any:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 10_000}
    message = {"max_wait_ms": wait, "min_bytes": 1, "topics": [{"topic": "t", "partitions": [partition]}]}
    (topic,) = target.ask("Fetch", message, version)["responses"]
    return topic["partitions"][0]


def test_every_listed_request_has_a_handler_and_a_refusal() -> None:
    assert {*LOG_HANDLERS, *GROUP_HANDLERS} == set(APIS)


def test_nothing_is_left_of_a_cluster_that_stopped() -> None:
    before = set(threading.enumerate())
    with FakeCluster(2, zookeeper=True) as cluster:
        connection = Connection(cluster.address(0), OLD)
        assert connection.ask("FindCoordinator", {"key": "g"})["error_code"] == 0
        assert set(threading.enumerate()) > before
    connection.close()
    assert set(threading.enumerate()) == before


def test_an_unknown_version_ends_the_connection(cluster: FakeCluster) -> None:
    connection = Connection(cluster.address(0), NEWEST)
    with pytest.raises(AssertionError, match="closed the connection"):
        connection.ask("Heartbeat", {"group_id": "g"}, version=9)
    connection.close()
    connection = Connection(cluster.address(0), NEWEST)
    connection.send("ApiVersions", {}, version=9)
    answer = connection.receive(APIS["ApiVersions"], 0, 1)
    assert answer["error_code"] == 35
    assert {18, 11} <= {api["api_key"] for api in answer["api_keys"]}
    connection.close()


def test_errors_are_answered_so_many_times_and_nothing_is_done(cluster: FakeCluster, targets: list[Target]) -> None:
    target = targets[cluster.coordinator("g") or 0]
    cluster.fail("OffsetCommit", LOADING, times=2)
    cluster.fail("OffsetCommit", UNKNOWN, client_id="somebody else")
    assert [target.commit({("t", 0): n}) for n in range(3)] == [[LOADING], [LOADING], [0]]
    assert cluster.committed("g") == {("t", 0): 2}


def test_every_request_can_be_refused(cluster: FakeCluster) -> None:
    topic = {"name": "t", "topic": "t", "partitions": [{"index": 0, "partition": 0, "partition_index": 0}]}
    bodies = {name: {"topics": [topic], "groups": ["g"], "groups_names": ["g"], "topic_names": ["t"]} for name in APIS}
    bodies["OffsetFetch"]["topics"] = [{"name": "t", "partition_indexes": [0]}]
    bodies["Metadata"]["topics"] = [{"name": "t"}]
    bodies["Produce"]["acks"] = [1]
    connection = Connection(cluster.address(0), NEWEST)
    for name in APIS:
        cluster.fail(name, 58)
        body: dict[str, Any] = {**bodies[name], "acks": 1}
        assert "58" in str(connection.ask(name, body)), name
    connection.close()


def test_a_request_that_stands_still_has_been_done_or_not(cluster: FakeCluster, targets: list[Target]) -> None:
    target = targets[cluster.coordinator("g") or 0]
    message = {
        "group_id": "g",
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7}]}],
    }
    for at, seen in (("request", {}), ("answer", {("t", 0): 7})):
        with cluster.park("OffsetCommit", at=at) as parked:
            pending = target.connect().send("OffsetCommit", message)
            assert parked.wait(scaled(10)).body["topics"][0]["name"] == "t"
            assert cluster.committed("g") == seen
            assert pending.waits()
        assert pending.answer()["topics"][0]["partitions"][0]["error_code"] == 0


def test_a_parked_request_can_lose_its_connection(cluster: FakeCluster, targets: list[Target]) -> None:
    with cluster.park("Heartbeat") as parked:
        pending = targets[0].connect().send("Heartbeat", {"group_id": "g"})
        parked.wait(scaled(10))
        parked.drop()
        with pytest.raises(AssertionError, match="closed the connection"):
            pending.answer()


def test_no_thread_serves_a_client_that_went_away(cluster: FakeCluster, targets: list[Target]) -> None:
    def serving() -> int:
        return sum("-connection-" in thread.name for thread in threading.enumerate())

    target = targets[cluster.coordinator("g") or 0]
    first, second = target.member(), target.member()
    target.stable(first)
    before = serving()
    second.joins()  # is answered once the first one has joined again, which it never does
    eventually(lambda: cluster.group("g").state == "PreparingRebalance", 10, "it to wait")
    assert serving() == before
    second.connection.close()
    eventually(lambda: serving() == before - 1, 10, "its connection to be left")
    assert len(cluster.group("g").members) == 2, "it stays a member until its session ends"


def test_a_moved_leader_is_found_again(cluster: FakeCluster, targets: list[Target]) -> None:
    cluster.append("t", 0, [b"a"])
    assert fetch(targets[0])["error_code"] == 0
    cluster.move_leader("t", 0, to=1)
    assert fetch(targets[0], version=10)["error_code"] == NOT_LEADER
    assert fetch(targets[0])["records"], "a follower answers consumers that may read from followers"
    assert fetch(targets[1])["records"]
    (topic,) = targets[0].ask("Metadata", {"topics": [{"name": "t"}]})["topics"]
    told = next(p for p in topic["partitions"] if p["partition_index"] == 0)
    assert (told["leader_id"], told["leader_epoch"]) == (1, 1)


def test_a_fetch_waits_for_messages(cluster: FakeCluster, targets: list[Target]) -> None:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(fetch(targets[0], wait=60_000)), name="fetching")
    thread.start()
    eventually(lambda: cluster.requests_of("Fetch"), 10, "the fetch")
    cluster.append("t", 0, [b"a", b"b"])
    thread.join(scaled(10))
    assert found[0]["high_watermark"] == 2


def test_a_moved_coordinator_says_so_and_the_new_one_loads(cluster: FakeCluster, targets: list[Target]) -> None:
    before = cluster.coordinator("g") or 0
    after = 1 - before
    first = targets[before].member()
    targets[before].stable(first)
    cluster.move_coordinator("g", after, loading=True)
    assert first.heartbeat() == NOT_COORDINATOR
    assert targets[after].commit({("t", 0): 1}) == [LOADING]
    first.connection = targets[after].connect()
    assert first.heartbeat() == 0
    assert first.syncs().answer()["error_code"] == REBALANCING
    cluster.finish_loading("g")
    assert first.heartbeat() == 0
    assert first.syncs().answer()["assignment"] == b"0"


def test_what_a_stopped_broker_led_others_lead(cluster: FakeCluster, targets: list[Target]) -> None:
    cluster.append("t", 0, [b"a"])
    port = cluster.brokers[0].port
    cluster.stop_broker(0)
    assert fetch(targets[1])["records"]
    assert cluster.coordinator("g") == 1
    cluster.start_broker(0)
    assert cluster.brokers[0].port == port
    assert fetch(targets[0], version=10)["error_code"] == NOT_LEADER


def test_a_session_that_ends_as_a_request_waits_makes_no_node() -> None:
    """The node was ephemeral and had no owner, so it stayed for ever."""

    class Busy(FakeZooKeeper):
        waiting: Any = None

        @contextmanager
        def at_once(self) -> Iterator[None]:
            ended, self.waiting = self.waiting, None
            if ended is not None:
                ended.expire_unnoticed()
            with super().at_once():
                yield

    server = Busy()
    session = server.session()
    session.open(Deadline(1.0))
    server.waiting = session
    with pytest.raises(SessionLostError, match="expired"):
        session.transact(lambda changes: changes.create("/member", b"", ephemeral=True), Deadline(1.0))
    assert server.node("/member") is None


def test_no_session_ends_while_all_brokers_are_stopped() -> None:
    """A coordinator that comes back loads its groups, and counts their members' sessions from then on."""
    clock = ManualClock()
    with FakeCluster(2, clock=clock) as cluster:
        port = cluster.brokers[cluster.coordinator("g") or 0].port
        target = Target(("127.0.0.1", port), True, NEWEST, group="g")
        first = target.member(session=30.0)
        target.stable(first)
        for broker in cluster.brokers:
            cluster.stop_broker(broker)
        clock.advance(31.0)
        cluster.start_broker(1)
        assert cluster.coordinator("g") == 1
        clock.advance(29.0)
        assert cluster.group("g").state == "Stable"
        clock.advance(2.0)
        assert cluster.group("g").state == "Empty"
        target.close()


@pytest.mark.tier("standard")
@pytest.mark.parametrize("version", ["3.9", "1.1"])
def test_librdkafka_works_on_it(version: str) -> None:
    client = pytest.importorskip("confluent_kafka", reason="no wheel for this Python")

    with FakeCluster(2, version=version) as cluster:
        cluster.create_topic("t", 4)
        quiet = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
        producer = client.Producer({**quiet, "enable.idempotence": True, "compression.type": "lz4"})
        for number in range(100):
            producer.produce("t", b"%d" % number)
        assert producer.flush(scaled(20)) == 0
        assert {value for n in range(4) for value in cluster.values("t", n)} == {b"%d" % n for n in range(100)}
        consumer = client.Consumer({**quiet, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["t"])
        seen: list[bytes | None] = []

        def all_came() -> bool:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None
                seen.append(message.value())
            return len(seen) == 100

        eventually(all_came, 30, "all messages")
        assert cluster.group("g").state == "Stable"
        consumer.close()
        assert sum(cluster.committed("g").values()) == 100
        assert cluster.group("g").state == "Empty"


def epoch_end(target: Target, epoch: int, current: int = -1) -> tuple[int, int, int]:
    """(error, epoch, end offset) of partition 0."""
    partition = {"partition": 0, "current_leader_epoch": current, "leader_epoch": epoch}
    (topic,) = target.ask("OffsetForLeaderEpoch", {"topics": [{"topic": "t", "partitions": [partition]}]})["topics"]
    (told,) = topic["partitions"]
    return told["error_code"], told["leader_epoch"], told["end_offset"]


def test_a_truncated_log_is_shorter_and_of_the_next_epoch(cluster: FakeCluster, targets: list[Target]) -> None:
    for value in (b"a", b"b", b"c"):
        cluster.append("t", 0, [value])
    cluster.truncate("t", 0, 1)
    assert (cluster.values("t", 0), cluster.end_offset("t", 0)) == ([b"a"], 1)
    assert fetch(targets[0], 3)["error_code"] == 1
    assert cluster.append("t", 0, [b"B"]) == 1
    assert epoch_end(targets[0], 0) == (0, 0, 1)
    assert epoch_end(targets[0], 1) == (0, 1, 2)
    assert epoch_end(targets[0], 2) == (0, -1, -1), "nobody knows a later one"
    assert epoch_end(targets[0], 0, current=0) == (74, -1, -1), "the one that asks is behind"
    batch = fetch(targets[0], 1)["records"]
    assert int.from_bytes(batch[12:16], "big") == 1, "the batch says in which epoch it came"
    for _ in range(2):
        cluster.truncate("t", 0, 0)
    assert epoch_end(targets[0], 2) == (0, 2, 0), "no batch of this epoch is left"


def test_a_corrupt_batch_has_a_wrong_checksum(cluster: FakeCluster, targets: list[Target]) -> None:
    cluster.append("t", 0, [b"a", b"b"])
    cluster.append("t", 0, [b"c"])
    cluster.corrupt("t", 0, 1)
    records = fetch(targets[0])["records"]
    with pytest.raises(CorruptRecordsError):
        list(batches(records, check_crc=True, where=WHERE, fetch_offset=0))
    assert [r.value for b in batches(records, check_crc=True, where=WHERE, fetch_offset=2) for r in b] == [b"c"]
    with pytest.raises(KeyError, match="no batch with offset 3"):
        cluster.corrupt("t", 0, 3)


def test_a_compacted_batch_leaves_a_gap(cluster: FakeCluster, targets: list[Target]) -> None:
    for values in ([b"a"], [b"b", b"c"], [b"d"]):
        cluster.append("t", 0, values)
    cluster.compact("t", 0, 2)
    records = fetch(targets[0], 1)["records"]
    assert [r.offset for b in batches(records, check_crc=True, where=WHERE, fetch_offset=1) for r in b] == [3]
    assert (cluster.values("t", 0), cluster.end_offset("t", 0)) == ([b"a", b"d"], 4)
    with pytest.raises(KeyError, match="no batch with offset 2"):
        cluster.compact("t", 0, 2)


def test_a_recreated_topic_is_empty_and_another_node() -> None:
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        cluster.append("t", 1, [b"a"])
        before = cluster.zookeeper.node("/brokers/topics/t")
        cluster.recreate("t")
        after = cluster.zookeeper.node("/brokers/topics/t")
        assert present(after).czxid > present(before).czxid
        assert (cluster.end_offset("t", 1), len(cluster.logs("t") or ())) == (0, 2)
        cluster.recreate("t", 3)
        assert len(cluster.logs("t") or ()) == 3
        with pytest.raises(KeyError, match="nope"):
            cluster.recreate("nope")


def test_the_next_answer_is_of_chosen_bytes(cluster: FakeCluster, targets: list[Target]) -> None:
    """They come behind the header, may be made of the honest answer, or are everything that is sent."""
    (target, _) = targets
    cluster.append("t", 0, [b"honest"])
    cluster.answer("Fetch", lambda honest: honest.replace(b"honest", b"forged"), client_id="contract")
    assert b"forged" in fetch(target)["records"]
    assert b"honest" in fetch(target)["records"], "only the next one"
    cluster.answer("Fetch", b"\x00\x00", broker=1)
    assert fetch(target)["error_code"] == 0, "another broker's"
    cluster.answer("Fetch", b"\x00\x00")
    with pytest.raises(MalformedRequestError):
        fetch(target)
    cluster.answer("Heartbeat", (2**31 - 1).to_bytes(4, "big"), whole=True)
    with closing(Connection(cluster.address(0), NEWEST)) as connection:
        connection.send("Heartbeat", {"group_id": "g", "generation_id": 1, "member_id": "m"})
        assert connection.exactly(4) == b"\x7f\xff\xff\xff"
