"""A streaming query as a live member beside other members: a test for each case of docs/spark-guarantees.md.

Two things are asked everywhere: no message is missing in the group, and none is twice in the query.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import TICK_MS, NewTopic, owners_of, produce_to
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.member_process import MemberProcess
from tests.cluster.our_member import OurMember
from tests.spark.conftest import Reader, Sink, offsets_of, runners
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import TopicPartition
from zkconsumer.spark import membership
from zkconsumer.spark.membership import LiveMembership
from zkconsumer.spark.offset_ranges import Span, encode_progress
from zkconsumer.spark.options import parse

MakeReader = Callable[[str], Reader]
QUICK = {"processingTime": "50 milliseconds"}


class Query:
    """A query with a sink, on one topic, as a member of a group of its own."""

    def __init__(self, reader: Reader, topic: str, zookeeper: Any, checkpoint: Path) -> None:
        self.reader, self.topic, self.zookeeper, self.checkpoint = reader, topic, zookeeper, checkpoint
        self.group = reader.options["group.id"]
        self.sink = Sink()
        self.query: Any = None

    def start(self, trigger: dict[str, Any] | None = None, **options: Any) -> None:
        given = {"membership": "member", "zookeeper.session.timeout.ms": "4000", **options}
        self.query = self.sink.start(self.reader.stream(**given), self.checkpoint, **trigger or QUICK)

    def stop(self) -> None:
        self.sink.go_on.set()
        if self.query is not None:
            self.query.stop()

    @property
    def ids(self) -> list[str]:
        path = f"/consumers/{self.group}/ids"
        return sorted(self.zookeeper.get_children(path)) if self.zookeeper.exists(path) else []

    @property
    def member(self) -> str:
        """The query's own name in the group; it is the only member now."""
        (name,) = eventually(lambda: self.ids, 60, "the query to join")
        return name

    def owned_by(self, member: str) -> set[int]:
        owners = owners_of(self.zookeeper, self.group, self.topic)
        return {partition for partition, owner in owners.items() if owner.startswith(member)}

    def offsets(self) -> dict[int, int]:
        return offsets_of(self.zookeeper, self.group, self.topic)

    def at(self, partitions: int, offset: int) -> bool:
        return self.offsets() == dict.fromkeys(range(partitions), offset)


@pytest.fixture
def query(reader: MakeReader, zookeeper: Any, tmp_path: Path) -> Iterator[Callable[[str], Query]]:
    """``query(topic)``: not started yet; stopped at the end."""
    made: list[Query] = []

    def make(topic: str) -> Query:
        made.append(Query(reader(topic), topic, zookeeper, tmp_path / f"checkpoint-{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def values(first: int, end: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, end)]


def everything(partitions: int, each: int) -> set[tuple[int, int]]:
    return {(partition, offset) for partition in range(partitions) for offset in range(each)}


def places(member: MemberProcess) -> list[tuple[int, int]]:
    return [(message.partition, message.offset) for message in member.messages]


def assert_once(rows: Iterable[tuple[int, int]]) -> None:
    seen = list(rows)
    assert len(seen) == len(set(seen)), "some messages are twice in the query"


def test_what_is_there_now_is_read_as_a_member_that_leaves_then(
    query: Callable[[str], Query], new_topic: NewTopic, produce: Callable[..., int]
) -> None:
    topic = new_topic(4)
    produce(topic, values(0, 4000), partitions=4)
    one = query(topic)
    one.sink.hold_at = 1
    one.start({"availableNow": True}, maxOffsetsPerTrigger="1500")
    assert one.sink.holding.wait(scaled(120))
    assert one.owned_by(one.member) == {0, 1, 2, 3}
    assert sum(one.offsets().values()) == 1500  # what is finished, not what runs
    one.sink.go_on.set()
    assert one.query.awaitTermination(scaled(120))
    eventually(lambda: one.ids == [], 60, "the query to leave")
    assert owners_of(one.zookeeper, one.group, topic) == {}
    assert one.at(4, 1000)  # the last batch, too
    assert len(one.sink.places) == 4000
    assert set(one.sink.places) == everything(4, 1000)


def test_a_joining_member_gets_its_share_after_the_batch(
    query: Callable[[str], Query],
    new_topic: NewTopic,
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
) -> None:
    """Nothing is read twice."""
    topic = new_topic(4)
    produce(topic, values(0, 2000), partitions=4)
    one = query(topic)
    one.sink.hold_at = 0
    one.start()
    assert one.sink.holding.wait(scaled(120))
    me = one.member
    other = our_member(one.group, {topic: 1}).wait_ready()
    produce(topic, values(2000, 4000), partitions=4)
    assert one.owned_by(me) == {0, 1, 2, 3}
    assert other.messages == []
    one.sink.go_on.set()
    eventually(lambda: len(one.owned_by(me)) == 2 == len(one.owned_by(other.group)) - 2, 60, "both to have a half")
    other.wait_messages(1000)
    eventually(lambda: len(one.sink.places) == 3000, 60, "the query to read its half")
    assert {offset for _, offset in places(other)} == set(range(500, 1000))
    other.stop()  # its half comes back while the query runs
    produce(topic, values(4000, 5000), partitions=4)
    eventually(lambda: one.at(4, 1250), 60, "the query to read everything")
    assert_once([*one.sink.places, *places(other)])
    assert {*one.sink.places, *places(other)} == everything(4, 1250)


def test_a_batch_that_takes_too_long_is_never_twice_in_the_query(
    query: Callable[[str], Query],
    new_topic: NewTopic,
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
) -> None:
    """Other members read its messages as well."""
    topic = new_topic(2)
    produce(topic, values(0, 1000), partitions=2)
    one = query(topic)
    one.sink.hold_at = 0
    one.start(releaseAfter="1")
    assert one.sink.holding.wait(scaled(120))
    other = our_member(one.group, {topic: 1}, commit_each=True)
    first = other.wait_messages(500)
    assert {(message.offset, message.partition) for message in first[:1]} <= {(0, 0), (0, 1)}
    one.sink.go_on.set()
    other.stop()
    produce(topic, values(1000, 1200), partitions=2)
    eventually(lambda: one.at(2, 600), 60, "the query to read everything")
    assert_once(one.sink.places)
    assert set(one.sink.places) == everything(2, 600)


def test_an_idle_partition_leaves_at_once(
    query: Callable[[str], Query],
    new_topic: NewTopic,
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
) -> None:
    """However long the trigger waits."""
    topic = new_topic(2)
    produce(topic, values(0, 100), partitions=2)
    one = query(topic)
    one.start({"processingTime": "10 hours"}, checkpointLocation=str(one.checkpoint))
    eventually(lambda: one.at(2, 50), 60, "the offsets of a batch, long before the next trigger")
    other = our_member(one.group, {topic: 1})
    produce(topic, values(100, 200), partitions=2)
    assert {offset for _, offset in [(m.partition, m.offset) for m in other.wait_messages(50)]} == set(range(50, 100))
    assert len(one.sink.places) == 100


def test_a_session_lost_during_a_batch_costs_nothing(
    query: Callable[[str], Query],
    new_topic: NewTopic,
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
) -> None:
    topic = new_topic(2)
    produce(topic, values(0, 1000), partitions=2)
    one = query(topic)
    one.sink.hold_at = 0
    one.start(None, **{"zookeeper.session.timeout.ms": "2000"})
    assert one.sink.holding.wait(scaled(120))
    me = one.member
    (runner,) = runners(os.getpid())
    os.kill(runner, signal.SIGSTOP)
    try:
        eventually(lambda: one.ids == [], 60, "the session to end")
        other = our_member(one.group, {topic: 1}, commit_each=True)
        other.wait_messages(1000)  # what the batch reads, for it was never committed
    finally:
        os.kill(runner, signal.SIGCONT)
    eventually(lambda: me in one.ids, 60, "the query to join again")
    one.sink.go_on.set()
    eventually(lambda: len(one.owned_by(me)) == 1, 60, "the query to get its share")
    produce(topic, values(1000, 1400), partitions=2)
    eventually(lambda: one.at(2, 700), 60, "all to be read")
    other.stop()
    assert_once(one.sink.places)
    assert {*one.sink.places, *places(other)} == everything(2, 700)


def test_a_batch_is_repeated_exactly_even_if_others_own_it(
    query: Callable[[str], Query],
    new_topic: NewTopic,
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
) -> None:
    topic = new_topic(2)
    produce(topic, values(0, 1000), partitions=2)
    one = query(topic)
    one.sink.fail_at = 0
    one.start()
    eventually(lambda: one.query.exception() is not None, 60, "the query to fail in the middle of a batch")
    planned = sorted(one.sink.batches.pop(0))
    eventually(lambda: one.ids == [], 60, "the query to leave")
    other = our_member(one.group, {topic: 1}, commit_each=True)
    other.wait_messages(1000)  # the same, for the batch was not finished
    one.sink.fail_at = None
    one.start()
    eventually(lambda: one.sink.batches, 60, "the batch to be repeated")
    assert sorted(one.sink.batches[0]) == planned
    produce(topic, values(1000, 1400), partitions=2)
    eventually(lambda: one.at(2, 700), 60, "all to be read")
    assert_once(one.sink.places)
    assert {*one.sink.places, *places(other)} == everything(2, 700)
    assert len(one.sink.places) + len(places(other)) == 1400 + 1000  # only the batch itself twice


def test_a_query_and_a_scala_member_share_a_group(
    query: Callable[[str], Query],
    new_topic: NewTopic,
    produce: Callable[..., int],
    legacy_member: Callable[..., LegacyMember],
) -> None:
    topic = new_topic(4)
    one = query(topic)
    one.start()
    me = one.member
    produce(topic, values(0, 2000), partitions=4)
    eventually(lambda: one.at(4, 500), 60, "the query to read all alone")
    scala = legacy_member("1.1.1", one.group, {topic: 1}).wait_ready()
    eventually(lambda: len(one.owned_by(me)) == 2, 60, "the query to give up a half")
    eventually(lambda: len(owners_of(one.zookeeper, one.group, topic)) == 4, 60, "the Scala member to take it")
    produce(topic, values(2000, 4000), partitions=4)
    scala.wait_messages(1000)
    eventually(lambda: len(one.sink.places) == 3000, 60, "the query to read its part")
    scala.stop()
    produce(topic, values(4000, 4400), partitions=4)
    eventually(lambda: one.at(4, 1100), 60, "the query to have all again")
    assert_once(one.sink.places)
    assert len(scala.messages) >= 1000
    assert {*one.sink.places, *places(scala)} == everything(4, 1100)


def test_the_end_of_a_long_batch_wakes_a_stuck_scala_member(
    query: Callable[[str], Query],
    new_topic: NewTopic,
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
    legacy_member: Callable[..., LegacyMember],
) -> None:
    # A Scala member tries for 8 s by default, here for 3 s. The member is there before the batch, because a member that
    # starts during the batch would fail to start.
    """A Scala member that has used up its retries during the batch."""
    tries = {"rebalance.max.retries": "10", "rebalance.backoff.ms": "300"}
    topic = new_topic(7)
    one = query(topic)
    one.start(None, **tries)
    me = one.member
    eventually(lambda: one.sink.batches, 60, "the first batch, which stores the starts")
    first = our_member(one.group, {topic: 1}, properties={"consumer.id": "0"}).wait_ready()
    eventually(lambda: len(one.owned_by(me)) == 3, 60, "two members")
    scala = legacy_member("1.1.1", one.group, {topic: 1}, properties={"consumer.id": "zzzz", **tries}).wait_ready()

    def by_range(*parts: set[int]) -> bool:
        owned = [one.owned_by(member) for member in (f"{one.group}_0-", me, f"{one.group}_zzzz-")]
        return owned == list(parts)

    eventually(lambda: by_range({0, 1, 2}, {3, 4}, {5, 6}), 60, "three members")
    one.sink.hold_with = 4  # what the range gives to the other when the first has left
    produce(topic, values(0, 700), partitions=7)
    assert one.sink.holding.wait(scaled(120))
    first.wait_messages(300)
    first.stop()
    eventually(lambda: "can't rebalance after 10 retries" in scala.log_text(), 60, "a member that gave up")
    assert one.owned_by(me) >= {3, 4}
    # Members wake a member that gave up, which owns a part of its share for a moment in each attempt.
    eventually(lambda: one.owned_by(f"{one.group}_zzzz-") == set(), 60, "a member that owns nothing")
    one.sink.go_on.set()
    eventually(lambda: by_range(set(), {0, 1, 2, 3}, {4, 5, 6}), 60, "everything to be owned")
    produce(topic, values(700, 1400), partitions=7)
    eventually(lambda: one.at(7, 200), 60, "all to be read")
    rows = [*one.sink.places, *places(first), *places(scala)]
    assert_once(one.sink.places)
    assert set(rows) == everything(7, 200)


def wait_claimed(member: OurMember, topic: str) -> None:
    """Wait until the member has a share of the topic."""
    eventually(lambda: f"claimed {topic}" in member.log_text(), 60, f"a share of {topic}")


def test_two_queries_and_a_third_member_share_a_group(
    query: Callable[[str], Query],
    new_topic: NewTopic,
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
) -> None:
    """The third member comes and goes while all read."""
    topic = new_topic(4)
    one, two = query(topic), query(topic)
    two.group = two.reader.options["group.id"] = one.group
    one.start(maxOffsetsPerTrigger="400")
    eventually(lambda: one.ids, 60, "one query to join")
    two.start(maxOffsetsPerTrigger="400")
    eventually(lambda: len(one.ids) == 2, 60, "both to join")
    for round_ in range(4):
        if round_ == 1:  # it has its share before there are messages, which the queries may read at once
            other = our_member(one.group, {topic: 1}).wait_ready()
            wait_claimed(other, topic)
        produce(topic, values(0, 1000), partitions=4)
        if round_ == 1:
            other.wait_messages(50)
        if round_ == 2:
            other.stop()
    eventually(lambda: one.at(4, 1000), 60, "all to be read")
    rows = [*one.sink.places, *two.sink.places, *places(other)]
    assert_once(rows)
    assert set(rows) == everything(4, 1000)
    assert one.sink.places
    assert two.sink.places


@pytest.mark.parametrize(
    "options", [{}, {"readOnDriver": "true", "maxOffsetsPerTrigger": "100"}], ids=["tasks", "driver"]
)
@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_query_that_ends_leaves_the_group_at_once(
    query: Callable[[str], Query], new_topic: NewTopic, produce: Callable[..., int], how: str, options: dict[str, str]
) -> None:
    """Spark calls no ``stop`` of a reader on the driver."""
    topic = new_topic(2)
    one = query(topic)
    one.sink.fail_at = 1 if how == "failed" else None
    one.start(None, **{"zookeeper.session.timeout.ms": "20000", **options})
    eventually(lambda: len(one.owned_by(one.member)) == 2, 60, "the query to own its topic")
    eventually(lambda: one.at(2, 0), 60, "the starts to be stored")
    if how == "failed":
        produce(topic, values(0, 10), partitions=2)
        eventually(lambda: one.query.exception() is not None, 60, "the query to fail")
    else:
        one.query.stop()
    eventually(lambda: one.ids == [], 10, "the query to leave, before its session ends")
    assert owners_of(one.zookeeper, one.group, topic) == {}
    assert one.at(2, 0)


def test_a_query_at_the_end_of_its_topic_misses_nothing(
    query: Callable[[str], Query], new_topic: NewTopic, produce: Callable[..., int]
) -> None:
    topic = new_topic(2)
    produce(topic, values(0, 100), partitions=2)
    one = query(topic)
    one.start(startingOffsets="latest")
    eventually(lambda: one.at(2, 50), 60, "the start to be stored")
    produce(topic, values(100, 140), partitions=2)
    eventually(lambda: one.at(2, 70), 60, "all to be read")
    assert set(one.sink.places) == everything(2, 70) - everything(2, 50)


def test_the_group_goes_on_from_the_further_place(
    query: Callable[[str], Query], new_topic: NewTopic, produce: Callable[..., int]
) -> None:
    """Either the group or the checkpoint is further; it never goes back."""
    topic = new_topic(2)
    produce(topic, values(0, 200), partitions=2)
    one = query(topic)
    one.sink.drain(one.reader.stream(membership="member"), one.checkpoint)
    eventually(lambda: one.ids == [], 60, "the query to leave")
    assert one.at(2, 100)
    produce(topic, values(200, 400), partitions=2)
    base = f"/consumers/{one.group}/offsets/{topic}"
    one.zookeeper.set(f"{base}/0", b"150")  # others of the group went on
    one.zookeeper.set(f"{base}/1", b"30")  # somebody set it back: that takes a new checkpoint
    one.sink.drain(one.reader.stream(membership="member"), one.checkpoint)
    assert set(one.sink.places) == everything(2, 200) - {(0, offset) for offset in range(100, 150)}
    assert_once(one.sink.places)
    assert one.at(2, 200)


def test_a_member_without_its_spark_leaves(
    cluster: DevCluster, zookeeper: Any, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    # As while its main thread waits for a broker: the end of Spark's connection is not seen then.
    topic, group = new_topic(2), new_group()
    parents = [1000]
    member = LiveMembership(
        parse({"zookeeper.connect": cluster.zookeeper_connect, "group.id": group, "subscribe": topic}),
        parent=lambda: parents[0],
    )
    try:
        member.join()
        assert len(owners_of(zookeeper, group, topic)) == 2
        parents[0] = 1
        eventually(lambda: zookeeper.get_children(f"/consumers/{group}/ids") == [], 10, "the member to leave")
        assert member.claim([], patient=True) == frozenset()
    finally:
        member.leave()


def test_a_batch_that_ends_with_its_query_is_committed(
    cluster: DevCluster,
    zookeeper: Any,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checkpoint tells that it has ended."""
    monkeypatch.setattr(membership, "ATTEND", 3600.0)  # the attendant looks only when all ends
    topic, group = new_topic(1), new_group()
    given = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": group, "subscribe": topic}
    member = LiveMembership(parse({**given, "checkpointLocation": str(tmp_path)}))
    where = TopicPartition(topic, 0)
    try:
        member.join()
        assert member.claim([where], patient=True) == {where}
        assert member.begin({where: 0}) == {where}
        batch = {where: Span(0, 7)}
        member.reserve(batch)
        for folder, content in (("offsets", f"v1\n{{}}\n{json.dumps(encode_progress(batch))}"), ("commits", "v1\n{}")):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "0").write_text(content)
    finally:
        member.leave()
    assert offsets_of(zookeeper, group, topic) == {0: 7}


def test_available_now_waits_once_for_a_foreign_owner(
    cluster: DevCluster,
    zookeeper: Any,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The owner never gives up its partition."""
    monkeypatch.setattr(membership, "SETTLE_WITHIN", 0.5)
    topic, group = new_topic(2), new_group()
    zookeeper.create(f"/consumers/{group}/owners/{topic}/1", b"somebody-0", ephemeral=True, makepath=True)
    member = LiveMembership(
        parse({"zookeeper.connect": cluster.zookeeper_connect, "group.id": group, "subscribe": topic})
    )
    try:
        member.join()
        both = [TopicPartition(topic, number) for number in (0, 1)]
        for _ in range(3):
            assert member.claim(both, patient=True) == {both[0]}
    finally:
        member.leave()
    assert caplog.text.count("going on without all of our share of the group") == 1


def test_a_running_batch_goes_on_without_zookeeper(spark: Any, tmp_path: Path) -> None:
    # A cluster of its own: in so long a time the broker's session ends as well.
    """No other batch begins meanwhile."""
    with DevCluster(tick_ms=TICK_MS) as own:
        own.create_topic("t", 2)
        produce_to(own.bootstrap_servers, "t", values(0, 1000), partitions=2)
        one = Query(Reader(spark, own.zookeeper_connect, "g", "t"), "t", None, tmp_path / "checkpoint")
        one.sink.hold_at = 0
        try:
            one.start()
            assert one.sink.holding.wait(scaled(120))
            produce_to(own.bootstrap_servers, "t", values(1000, 1400), partitions=2)
            own.zookeeper.suspend()
            try:
                one.sink.go_on.set()
                eventually(lambda: (one.checkpoint / "commits" / "0").exists(), 60, "the end of the running batch")
                Event().wait(20.0)  # longer than the session, and than any question to ZooKeeper is repeated
                assert one.query.exception() is None
                assert len(one.sink.places) == 1000
            finally:
                own.zookeeper.resume()
            one.zookeeper = KazooClient(own.zookeeper_connect, timeout=scaled(10))
            one.zookeeper.start(timeout=scaled(20))
            try:
                eventually(lambda: one.at(2, 700), 60, "all to be read, and the offsets to follow")
            finally:
                one.zookeeper.stop()
                one.zookeeper.close()
        finally:
            one.stop()
    assert_once(one.sink.places)
    assert set(one.sink.places) == everything(2, 700)
