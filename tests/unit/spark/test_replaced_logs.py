"""A log that ends before the offset where a query would go on: the query reads the log from its beginning, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.timing import eventually
from tests.unit.spark.dictionary_cluster import FakeCluster as Dictionaries
from tests.unit.spark.dictionary_cluster import Query, Share, member_run, offset, run_on
from zkconsumer.errors import OffsetCommitError, OffsetOutOfRangeError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.spark import membership
from zkconsumer.spark.batch_reader import make_snapshot
from zkconsumer.spark.checkpoint import Checkpoint
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.membership import LiveMembership
from zkconsumer.spark.offset_ranges import Span
from zkconsumer.spark.options import parse
from zkconsumer.spark.query_cluster import QueryCluster
from zkconsumer.spark.streaming_query import QueryRun
from zkconsumer.testing import FakeCluster

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
BEFORE = 40
GOES_ON = {"failOnDataLoss": "false", "startingOffsets": "earliest"}


# ---- on dictionaries


def started(membership: str, cluster: Dictionaries, share: Share, **more: str) -> Query:
    """A query on dictionaries: with ``membership=none``, or as a member that owns this share."""
    given = {**GOES_ON, **more}
    return Query(run_on(cluster, **given) if membership == "none" else member_run(cluster, share, **given))


def test_a_restarted_query_goes_on_in_the_shorter_log(caplog: pytest.LogCaptureFixture) -> None:
    """The group's offset is set back in time, or a restarted query would go on at the old one, or begin again."""
    cluster = Dictionaries({A: (0, BEFORE)})
    query = Query(run_on(cluster, **GOES_ON))
    query.trigger()
    query.trigger()
    cluster.logs[A] = (5, 30)
    assert query.trigger() == [(5, 30)]
    assert cluster.offsets == {A: 5}
    cluster.logs[A] = (5, 60)
    restarted = Query(run_on(cluster, **GOES_ON), query.done)
    assert restarted.trigger() == [(30, 60)]
    assert [r.getMessage() for r in caplog.records] == [
        "t-0: the query has come to offset 40, but its log ends at 30; its topic was made anew, or its log was cut: "
        "it is read from its beginning, offset 5"
    ]


@pytest.mark.parametrize("membership", ["none", "member"])
def test_a_new_query_of_a_group_beyond_the_log_begins_it(membership: str) -> None:
    """The checkpoint knows nothing, but the group's offset is of the topic that was there before."""
    cluster, share = Dictionaries({A: (3, 30)}), Share(A)
    cluster.offsets[A] = share.offsets[A] = 1000
    query = started(membership, cluster, share)
    assert query.trigger() == [(3, 30)]
    cluster.logs[A] = (3, 50)
    assert query.trigger() == [(30, 50)]


def test_a_log_grown_beyond_the_old_offset_is_read_whole() -> None:
    """The place in the shorter log could not be stored at first; meanwhile the log grew beyond the old offset."""
    cluster, share = Dictionaries({A: (0, BEFORE)}), Share(A)
    query = Query(member_run(cluster, share, **GOES_ON))
    query.trigger()
    query.trigger()
    cluster.logs[A] = (0, 30)
    share.not_stored = {A}
    assert query.trigger() == []
    cluster.logs[A] = (0, 500)
    assert query.trigger() == []
    assert share.offsets[A] == BEFORE
    share.not_stored = set()
    assert query.trigger() == [(0, 500)]
    query.trigger()
    assert share.offsets[A] == 500


def test_a_place_that_another_member_went_back_to_counts() -> None:
    """While the place could not be stored, another member owned the partition, and read the new log up to 20."""
    cluster, share = Dictionaries({A: (0, BEFORE), B: (0, 0)}), Share(A, B)
    query = Query(member_run(cluster, share, **GOES_ON))
    query.trigger()
    cluster.logs[A] = (0, 30)
    share.not_stored = {A}
    assert query.trigger() == []
    share.owned = {B}
    query.trigger()
    share.offsets[A], share.owned, share.not_stored = 20, {A, B}, set()
    assert query.trigger() == [(20, 30)]


def test_a_log_made_anew_twice_is_read_twice() -> None:
    cluster = Dictionaries({A: (0, BEFORE)})
    query = Query(run_on(cluster, **GOES_ON))
    query.trigger()
    for log in ((0, 30), (0, 20), (0, 0), (0, 25)):
        cluster.logs[A] = log
        query.trigger()
    assert query.read == [(0, BEFORE), (0, 30), (0, 20), (0, 25)]


def test_an_end_that_consumers_see_later_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A new leader tells consumers an older end for a while; with read_committed an open transaction hides the end."""

    class Behind(Dictionaries):
        seen = 30

        def log_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, self.seen)

    cluster = Behind({A: (0, BEFORE)})
    for options in ({}, GOES_ON):
        run = run_on(cluster, **options)
        done = offset(p0=(0, BEFORE))
        cluster.seen = 30
        assert run.latest(done, None) == done
        cluster.logs[A], cluster.seen = (0, BEFORE + 5), BEFORE + 5
        assert run.latest(done, None) == offset(p0=(BEFORE, BEFORE + 5))
        cluster.logs[A] = (0, BEFORE)
    assert not caplog.records


def test_the_error_of_a_shorter_log_says_who_is_beyond_it() -> None:
    cluster = Dictionaries({A: (0, 30)})
    cluster.offsets[A] = 1000
    with pytest.raises(OffsetOutOfRangeError, match="^t-0: group 'g' has come to offset 1000, but its log ends at 30"):
        run_on(cluster).latest({}, None)


def test_a_starting_offset_beyond_the_log_was_never_read(caplog: pytest.LogCaptureFixture) -> None:
    given = {"startingOffsets": '{"t":{"0":50}}'}
    cluster = Dictionaries({A: (0, 30)})
    with pytest.raises(OffsetOutOfRangeError, match="^t-0: startingOffsets names offset 50, but its log ends at 30"):
        run_on(cluster, **given).latest({}, None)
    query = Query(run_on(cluster, **given, failOnDataLoss="false"))
    query.trigger()
    cluster.logs[A] = (0, 33)
    assert query.trigger() == [(30, 33)]
    assert "it is read from its end, offset 30" in caplog.text


def test_a_partition_without_a_log_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    run = run_on(Dictionaries({B: (0, 5)}), failOnDataLoss="false")
    done = offset(p0=(0, 5), p1=(0, 5))
    for _ in range(3):
        assert run.latest(done, None) == done
    assert [r.getMessage() for r in caplog.records] == [
        "t-0 is in the checkpoint, but exists no more or is not selected any more; going on without"
    ]


# ---- topics that are made anew and grow beyond the old offset


class Anew(Dictionaries):
    """A cluster of which ZooKeeper tells that the topic was made anew."""

    topics: frozenset[str] = frozenset()

    def made_anew(self) -> frozenset[str]:
        told, self.topics = self.topics, frozenset()
        return told


@pytest.mark.parametrize("membership", ["none", "member"])
def test_a_topic_made_anew_that_is_longer_is_read_whole(membership: str, caplog: pytest.LogCaptureFixture) -> None:
    """By its length alone the log looks as if it had only grown, and 0 to 39 were never read."""
    cluster, share = Anew({A: (0, BEFORE)}), Share(A)
    query = started(membership, cluster, share)
    query.trigger()
    query.trigger()
    cluster.logs[A], cluster.topics = (0, 90), frozenset("t")
    assert query.trigger() == [(0, 90)]
    cluster.logs[A] = (0, 95)
    assert query.trigger() == [(90, 95)]
    assert query.trigger() == []
    assert (cluster.offsets if membership == "none" else share.offsets)[A] == 95
    assert [r.getMessage() for r in caplog.records] == [
        "t-0: the topic was deleted and made anew; it is read from its beginning"
    ]


@pytest.mark.parametrize("membership", ["none", "member"])
@pytest.mark.parametrize("count", [1, BEFORE])
def test_a_topic_made_anew_with_as_many_messages_is_read(membership: str, count: int) -> None:
    """The batch from 0 had the same offsets as the one before it, so Spark saw nothing new, and nothing was read."""
    cluster, share = Anew({A: (0, count)}), Share(A)
    query = started(membership, cluster, share)
    assert query.trigger() == [(0, count)]
    query.trigger()
    cluster.topics = frozenset("t")
    query.trigger()
    query.trigger()
    assert query.read == [(0, count)] * 2
    assert query.trigger() == []
    assert (cluster.offsets if membership == "none" else share.offsets)[A] == count


@pytest.mark.parametrize("membership", ["none", "member"])
def test_a_topic_that_was_gone_for_a_while_is_read_whole(membership: str) -> None:
    """A batch of another topic was read meanwhile, so the checkpoint has forgotten the partition; its group has not."""
    other = TopicPartition("u", 0)
    cluster, share = Anew({A: (0, BEFORE), other: (0, 5)}), Share(A, other)
    query = started(membership, cluster, share, subscribe="t,u")
    query.trigger()
    query.trigger()
    del cluster.logs[A]
    query.trigger()
    cluster.logs[other] = (0, 7)
    query.trigger()
    assert "t" not in query.done["topics"]
    cluster.logs[A], cluster.topics = (0, 90), frozenset("t")
    assert (0, 90) in query.trigger()
    cluster.logs[A] = (0, 95)
    assert query.trigger() == [(90, 95)]
    query.trigger()
    assert (cluster.offsets if membership == "none" else share.offsets)[A] == 95


@pytest.mark.parametrize(("offset_of_others", "wanted"), [(20, [(20, 90)]), (70, [(70, 90)]), (BEFORE, [(0, 90)])])
def test_a_new_topic_that_others_read_goes_on_at_their_place(
    offset_of_others: int, wanted: list[tuple[int, int]]
) -> None:
    """The partition is another member's when its topic is made anew, and comes back with the group's offset."""
    cluster, share = Anew({A: (0, BEFORE), B: (0, 0)}), Share(A, B)
    query = Query(member_run(cluster, share, **GOES_ON))
    query.trigger()
    query.trigger()
    share.owned = {B}
    query.trigger()
    cluster.logs[A], cluster.topics = (0, 90), frozenset("t")
    assert query.trigger() == []
    share.offsets[A], share.owned = offset_of_others, {A, B}
    assert query.trigger() == wanted


# ---- on the kit, with a live member and without


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("t", 2)
        fill(made, BEFORE)
        yield made


def make_anew(cluster: FakeCluster, count: int) -> None:
    cluster.delete_topic("t")
    cluster.create_topic("t", 2)
    fill(cluster, count)


def fill(cluster: FakeCluster, count: int) -> None:
    for number in range(2):
        cluster.append("t", number, [b"x"] * count)


def options(cluster: FakeCluster, coordination: str, **more: str) -> dict[str, str]:
    servers = (
        {"zookeeper.connect": cluster.zookeeper_connect}
        if coordination == "zookeeper"
        else {"bootstrap.servers": cluster.bootstrap_servers, "heartbeat.interval.ms": "50"}
    )
    if more.get("membership") == "none":
        servers.pop("heartbeat.interval.ms", None)
    return {"group.coordination": coordination, "group.id": "g", "subscribe": "t", **servers, **GOES_ON, **more}


def stored(cluster: FakeCluster, coordination: str) -> list[int]:
    if coordination == "kafka":
        return [cluster.committed("g").get(("t", number), -1) for number in range(2)]
    return [int(cluster.zookeeper.tree().get(f"/consumers/g/offsets/t/{number}", b"-1")) for number in range(2)]


@pytest.fixture
def new_query() -> Iterator[Any]:
    made: list[QueryRun] = []

    def make(given: dict[str, str], done: dict[str, Any] | None = None) -> Query:
        parsed = parse(given)
        made.append(QueryRun(parsed, cluster_of(parsed)))
        made[-1].open()
        return Query(made[-1], done)

    yield make
    for run in made:
        run.close()


@pytest.mark.parametrize("available_now", [False, True])
@pytest.mark.parametrize("membership", ["member", "none"])
@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_a_topic_made_anew_is_read_whole(
    coordination: str, membership: str, available_now: bool, cluster: FakeCluster, new_query: Any
) -> None:
    given = options(cluster, coordination, membership=membership)
    query = new_query(given)
    eventually(lambda: query.trigger() or query.read, 20, "the first batch")
    query.trigger()
    assert query.read == [(0, BEFORE)]
    if available_now:
        query.run.close()
    make_anew(cluster, 30)
    if available_now:
        query = new_query(given, query.done)
        query.run.fix_targets()
        query.read = [(0, BEFORE)]
    read = [(0, BEFORE), (0, 30)]
    eventually(lambda: query.trigger() or query.read == read, 20, "the first messages of the new topic")
    # The member's own thread may see the new topic only now, and go back to its start. The next trigger tells it again.
    eventually(lambda: query.trigger() or stored(cluster, coordination) == [30, 30], 20, "the group's offsets")
    for number in range(1, 11):
        fill(cluster, 10)
        if available_now:
            query.run.fix_targets()
        read.append((20 + 10 * number, 30 + 10 * number))
        eventually(lambda: query.trigger() or query.read == read, 20, "the next messages")
    eventually(lambda: query.trigger() or stored(cluster, coordination) == [130, 130], 20, "the last offsets")
    assert query.read == read


@pytest.mark.parametrize("loses", [False, True])
def test_a_longer_topic_made_anew_between_two_runs(loses: bool, cluster: FakeCluster, new_query: Any) -> None:
    """The member said that it went back to the start, but the query went on at its checkpoint."""
    given = options(cluster, "zookeeper")
    query = new_query(given)
    eventually(lambda: query.trigger() or query.read, 20, "the first batch")
    eventually(lambda: query.trigger() or stored(cluster, "zookeeper") == [BEFORE, BEFORE], 20, "the group's offsets")
    query.run.close()
    make_anew(cluster, BEFORE + 50)
    query = new_query({**given, "failOnDataLoss": str(not loses).lower()}, query.done)
    if not loses:
        error = "made anew, and the query has come to offset 40; set failOnDataLoss=false"
        with pytest.raises(OffsetOutOfRangeError, match=error):
            eventually(query.trigger, 20, "the first batch")
        return
    eventually(lambda: query.trigger() or query.read, 20, "all of the new topic")
    eventually(lambda: query.trigger() or stored(cluster, "zookeeper") == [90, 90], 20, "the group's offsets")
    fill(cluster, 1)
    eventually(lambda: query.trigger() or query.read[1:], 20, "the next message")
    assert query.read == [(0, 90), (90, 91)]


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_who_sets_back_is_not_overruled_by_the_checkpoint(
    coordination: str, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The attendant saw in the checkpoint that the last batch has ended, and marks that after the offset is set back.

    The race is staged: the place is set back while the attendant looks at the checkpoint.
    """
    member = LiveMembership(parse(options(cluster, coordination, checkpointLocation=str(tmp_path))))
    member.join()
    try:
        everything = (A, B)
        assert member.claim(everything, patient=True) == set(everything)
        assert member.begin(dict.fromkeys(everything, 0)) == set(everything)
        batch = dict.fromkeys(everything, Span(0, BEFORE))
        member.settle(batch)
        looked: list[object] = []

        def has_ended(_: Checkpoint, progress: object) -> bool:
            assert member.set_back({A: 3}) == {A}
            looked.append(progress)
            return True

        monkeypatch.setattr(Checkpoint, "has_ended", has_ended)
        member.reserve(batch)
        eventually(lambda: looked, 10, "the attendant's look at the checkpoint")
        assert stored(cluster, coordination) == [3, BEFORE]
        member.settle({B: Span(0, BEFORE)})
        assert stored(cluster, coordination) == [3, BEFORE]
    finally:
        member.leave()


def test_a_group_that_cannot_be_set_back_waits(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is read of a place that is not stored."""
    member = LiveMembership(parse(options(cluster, "zookeeper")))
    member.join()
    try:
        member.claim((A, B), patient=True)
        assert member.begin({A: 30, B: 30}) == {A, B}

        tries: list[object] = []
        now = [100.0]
        monkeypatch.setattr(membership, "monotonic", lambda: now[0])

        def refuse(*given: object) -> None:
            tries.append(given)
            raise OffsetCommitError("not now")

        with monkeypatch.context() as patch:
            patch.setattr(Committer, "commit", refuse)
            assert member.set_back({A: 3}) == frozenset()
            for _ in range(20):
                assert member.set_back({A: 3}) == frozenset()
            assert len(tries) == 1, "triggers come hundreds of times a second, and each would try"
            now[0] += membership.RETRY
            assert member.set_back({A: 3}) == frozenset()
            assert len(tries) == 2
        assert caplog.text.count("the group's offsets do not follow") == 1
        now[0] += membership.RETRY
        assert member.set_back({A: 3}) == {A}
        assert stored(cluster, "zookeeper") == [3, 30]
    finally:
        member.leave()


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_a_snapshot_of_a_topic_made_anew_reads_it_whole(
    coordination: str, cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Each snapshot was empty until the log had grown beyond the group's old offset, and then began there."""
    given = {**options(cluster, coordination, membership="none"), "startingOffsets": "group"}
    make_snapshot(given).commit()
    assert stored(cluster, coordination) == [BEFORE, BEFORE]
    make_anew(cluster, 30)
    if coordination == "kafka":  # the cluster in memory deletes them with the topic, brokers by and by
        with cluster_of(parse(given)) as beside:
            beside.commit("g", {A: BEFORE, B: BEFORE})
    with pytest.raises(OffsetOutOfRangeError, match="t-0: group 'g' has come to offset 40, but its log ends at 30"):
        make_snapshot({**given, "failOnDataLoss": True})
    assert not caplog.records
    part = make_snapshot(given)
    assert [tuple(range_) for range_ in part.ranges] == [("t", 0, 0, 30), ("t", 1, 0, 30)]
    assert "t-1: group 'g' has come to offset 40, but its log ends at 30; its topic was made anew" in caplog.text
    fill(cluster, 5)
    part.commit()
    assert stored(cluster, coordination) == [30, 30]
    assert [range_.size for range_ in make_snapshot(given).ranges] == [5, 5]


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_a_snapshot_sets_nobody_back(coordination: str, cluster: FakeCluster) -> None:
    """Somebody else went on in the new log since the ranges were fixed."""
    given = {**options(cluster, coordination, membership="none"), "startingOffsets": "group"}
    with cluster_of(parse(given)) as beside:
        beside.commit("g", {A: 1000, B: 1000})
        part = make_snapshot(given)
        beside.commit("g", {A: 900}, also_back=True)
        part.commit()
        assert stored(cluster, coordination) == [900, BEFORE]


def test_a_snapshot_beyond_what_consumers_see_is_empty(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """With read_committed an open transaction hides what the group has read."""
    monkeypatch.setattr(QueryCluster, "written_ends", lambda _, partitions: dict.fromkeys(partitions, BEFORE + 10))
    given = {**options(cluster, "zookeeper", membership="none"), "startingOffsets": "group", "failOnDataLoss": "true"}
    with cluster_of(parse(given)) as beside:
        beside.commit("g", {A: BEFORE + 10, B: BEFORE - 1})
    assert [tuple(range_) for range_ in make_snapshot(given).ranges] == [("t", 0, 50, 50), ("t", 1, 39, 40)]
