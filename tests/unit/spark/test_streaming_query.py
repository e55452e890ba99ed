"""A query's run against a cluster of dictionaries: what is read, when the group's offsets move, what is refused."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from tests.programs import run_python
from tests.unit.spark.dictionary_cluster import HERE, A, B, FakeCluster, Share, member_run, offset, run_on
from tests.unit.streams.bench import elsewhere
from zkconsumer.errors import BrokerUnavailableError, ConfigException, OffsetOutOfRangeError, RegistryUnavailableError
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.spark.options import Selection, parse
from zkconsumer.spark.streaming_query import QueryRun, end_cleanly_on_sigterm


def test_a_query_reads_what_is_there_and_then_what_came() -> None:
    cluster = FakeCluster({A: (0, 10), B: (0, 0)})
    run = run_on(cluster, startingOffsets="earliest")
    first = run.latest({}, None)
    assert first == offset(p0=(0, 10), p1=(0, 0))
    assert [part.ranges for part in run.plan(first)] == [(OffsetRange("t", 0, 0, 10),)]
    assert run.latest(first, None) is first
    cluster.logs[B] = (0, 5)
    assert run.latest(first, None) == offset(p0=(10, 10), p1=(0, 5))
    assert run.log_ends() == {"t": {"0": 10, "1": 5}}


def test_offsets_are_written_for_finished_batches_only_and_once() -> None:
    cluster = FakeCluster({A: (0, 10), B: (0, 4)})
    run = run_on(cluster, startingOffsets="earliest")
    first = run.latest({}, None)
    assert cluster.offsets == {}
    run.settle(first)
    assert cluster.offsets == {A: 10, B: 4}
    for _ in range(3):
        assert run.latest(first, None) is first
        run.settle(first)
    assert cluster.writes == 1


def test_a_query_at_the_end_of_the_log_remembers_it() -> None:
    # Without a first, empty batch the next trigger would start at a later end, and what came between would be missed.
    cluster = FakeCluster({A: (0, 10)})
    run = run_on(cluster, startingOffsets="latest")
    first = run.latest({}, None)
    assert first == offset(p0=(10, 10))
    assert run.plan(first) == []
    cluster.logs[A] = (0, 12)
    assert run.latest(first, None) == offset(p0=(10, 12))


class Clock:
    """A clock that a test turns."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def waiting_run(cluster: FakeCluster, share: Share, clock: Clock, **options: str) -> QueryRun:
    base = {"zookeeper.connect": "zk", "group.id": "g", "subscribe": "t", "startingOffsets": "earliest"}
    given = {**base, "minOffsetsPerTrigger": "10", "maxTriggerDelay": "60s", **options}
    run = QueryRun(parse(given), cluster, share, clock)
    run.open()
    return run


def test_a_small_batch_waits_and_its_partitions_may_leave() -> None:
    cluster, share, clock = FakeCluster({A: (0, 3), B: (0, 0)}), Share(A, B), Clock()
    run = waiting_run(cluster, share, clock)
    first = run.latest({}, None)
    assert first == offset(p0=(0, 3), p1=(0, 0))
    cluster.logs |= {A: (0, 8), B: (0, 4)}
    assert run.latest(first, None) is first
    assert share.planned[-1] == {}  # nothing is reserved
    assert run.log_ends() == {"t": {"0": 8, "1": 4}}
    cluster.logs[B] = (0, 5)
    second = run.latest(first, None)
    assert second == offset(p0=(3, 8), p1=(0, 5))
    cluster.logs[B] = (0, 6)
    assert run.latest(second, None) is second
    clock.now += 60
    assert run.latest(second, None) == offset(p0=(8, 8), p1=(5, 6))


def test_available_now_and_once_wait_for_nothing() -> None:
    for once in (False, True):
        cluster, share = FakeCluster({A: (0, 100)}), Share(A)
        run = waiting_run(cluster, share, Clock(), maxOffsetsPerTrigger="48")
        if not once:
            run.fix_targets()
        done = run.latest({}, 48)
        done = run.latest(done, 48)
        assert run.latest(done, None, at_once=once) == offset(p0=(96, 100))


def test_available_now_stops_at_the_present_ends() -> None:
    """New partitions are left out."""
    cluster = FakeCluster({A: (0, 10)})
    run = run_on(cluster, startingOffsets="earliest")
    run.fix_targets()
    cluster.logs |= {A: (0, 15), B: (0, 5)}
    first = run.latest({}, None)
    assert first == offset(p0=(0, 10))
    assert run.latest(first, None) is first
    assert cluster.offsets == {A: 10}


def test_a_restarted_query_skips_messages_of_other_members() -> None:
    cluster = FakeCluster({A: (0, 10), B: (0, 10)})
    cluster.offsets = {A: 8, B: 1}
    run = run_on(cluster)
    second = run.latest(offset(p0=(0, 5), p1=(0, 5)), None)
    assert second == offset(p0=(8, 10), p1=(5, 10))
    assert cluster.offsets == {A: 8, B: 5}
    cluster.offsets[A] = 30  # while it runs its own place counts
    assert run.latest(second, None) is second


def test_a_partition_that_comes_later_is_read_from_its_beginning() -> None:
    cluster = FakeCluster({A: (0, 10)})
    run = run_on(cluster, startingOffsets="latest")
    first = run.latest({}, None)
    cluster.logs[B] = (3, 9)
    assert run.latest(first, None) == offset(p0=(10, 10), p1=(3, 9))


def test_a_batch_is_planned_from_its_end_offset_alone() -> None:
    run = run_on(FakeCluster({}), minPartitions="3")
    parts = run.plan(offset(p0=(600, 800), p1=(5, 5), p2=(0, 100)))
    assert [part.ranges for part in parts] == [
        (OffsetRange("t", 0, 600, 700),),
        (OffsetRange("t", 0, 700, 800),),
        (OffsetRange("t", 2, 0, 100),),
    ]
    assert parts[0].leaders == {A: HERE}


def test_a_group_with_live_members_is_refused_unless_told() -> None:
    with pytest.raises(ConfigException, match=r"membership: 'none': group 'g' has live members \(m1\)"):
        run_on(FakeCluster({}, members=("m1",)))
    run_on(FakeCluster({}, members=("m1",)), allowLiveMembers="true")


def test_a_member_that_joins_later_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({A: (0, 1)})
    run = run_on(cluster, startingOffsets="earliest")
    cluster.members = ("m1",)
    with caplog.at_level(logging.WARNING):
        first = run.latest({}, None)
        run.latest(first, None)
    assert [record.message.partition(" while")[0] for record in caplog.records] == ["m1 joined group g"]


def test_a_topic_that_does_not_exist_yet_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({})
    run = run_on(cluster, startingOffsets="earliest")
    with caplog.at_level(logging.WARNING):
        assert run.latest({}, None) == {}
        assert run.latest({}, None) == {}
    assert [record.message for record in caplog.records] == ["there is no topic t (yet); waiting for it"]
    cluster.logs[A] = (0, 2)
    assert run.latest({}, None) == offset(p0=(0, 2))


def test_lost_messages_fail_the_query_or_are_passed_over() -> None:
    gone, shorter = FakeCluster({}), FakeCluster({A: (0, 3)})
    with pytest.raises(OffsetOutOfRangeError, match="t-0 is in the checkpoint, but exists no more"):
        run_on(gone).latest(offset(p0=(0, 5)), None)
    with pytest.raises(
        OffsetOutOfRangeError, match="^t-0: the query has come to offset 5, but its log ends at 3; set fail"
    ):
        run_on(shorter).latest(offset(p0=(0, 5)), None)
    start = offset(p0=(0, 5))
    assert run_on(gone, failOnDataLoss="false").latest(start, None) is start
    assert run_on(shorter, failOnDataLoss="false").latest(start, None) == offset(p0=(0, 3))


class Deleting(FakeCluster):
    """One of whose partitions is deleted between two questions."""

    def log_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if len(self.logs) == 2:
            del self.logs[B]
            raise BrokerUnavailableError("t-1 has no leader")
        return super().log_ends(partitions)


def test_a_partition_deleted_while_planning_is_lost_data() -> None:
    logs, done = {A: (0, 10), B: (0, 10)}, offset(p0=(0, 5), p1=(0, 5))
    with pytest.raises(OffsetOutOfRangeError, match="t-1 is in the checkpoint, but exists no more"):
        run_on(Deleting(logs)).latest(done, None)
    assert run_on(Deleting(logs), failOnDataLoss="false").latest(done, None) == offset(p0=(5, 10))


def test_a_partition_without_leader_is_an_error_of_its_own() -> None:
    class Silent(FakeCluster):
        def log_ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
            raise BrokerUnavailableError("t-1 has no leader")

    with pytest.raises(BrokerUnavailableError, match="t-1 has no leader"):
        run_on(Silent({A: (0, 10), B: (0, 10)}), failOnDataLoss="false").latest({}, None)


def test_given_offsets_must_name_every_partition() -> None:
    cluster = FakeCluster({A: (0, 10), B: (0, 10)})
    with pytest.raises(ConfigException, match="startingOffsets: its JSON must name every partition; t-1 is missing"):
        run_on(cluster, startingOffsets='{"t":{"0":5}}').latest({}, None)
    with pytest.raises(ConfigException, match="names t-7, which is not read"):
        run_on(cluster, startingOffsets='{"t":{"0":5,"1":5,"7":5}}').latest({}, None)
    run = run_on(cluster, startingOffsets='{"t":{"0":5,"1":-2}}')
    assert run.latest({}, None) == offset(p0=(5, 10), p1=(0, 10))


def test_a_member_remembers_positions_of_released_partitions() -> None:
    """It reads its share."""
    cluster, share = FakeCluster({A: (0, 10), B: (0, 10)}), Share(A)
    run = member_run(cluster, share, startingOffsets="earliest")
    first = run.latest({}, None)
    assert first == offset(p0=(0, 10))
    assert share.planned[-1] == {A: (0, 10)}
    share.owned = {B}
    share.offsets[B] = 4  # its owner came so far
    second = run.latest(first, None)
    assert second == offset(p0=(10, 10), p1=(4, 10))
    assert run.latest(second, None) is second
    assert share.planned[-1] == {}
    share.owned = {A, B}
    cluster.logs[A] = (0, 30)
    share.offsets[A] = 25
    assert run.latest(second, None) == offset(p0=(25, 30), p1=(10, 10))
    assert share.patient == [False] * 4


def test_a_partition_that_comes_back_goes_on_at_our_position() -> None:
    """Other members repeat its messages meanwhile."""
    cluster, share = FakeCluster({A: (0, 30)}), Share(A)
    run = member_run(cluster, share)
    share.offsets[A] = 5  # they had it since a batch took too long, and did not get as far as that batch
    assert run.latest(offset(p0=(0, 20)), None) == offset(p0=(20, 30))


@pytest.mark.parametrize(
    ("starting", "place"), [("latest", 10), ("earliest", 0), ('{"t":{"0":7,"1":7}}', 7), ('{"t":{"0":-1,"1":-1}}', 10)]
)
def test_a_start_that_cannot_be_stored_is_looked_up_once(starting: str, place: int) -> None:
    cluster, share = FakeCluster({A: (0, 10), B: (0, 10)}), Share(A, B)
    share.not_stored = {B}
    run = member_run(cluster, share, startingOffsets=starting)
    first = run.latest({}, None)
    cluster.logs[B] = (0, 12)
    assert run.latest(first, None) is first
    share.owned = set()  # as while the session is away
    assert run.latest(first, None) is first
    share.owned, share.not_stored = {A, B}, set()
    assert run.latest(first, None) == offset(p0=(10, 10), p1=(place, 12))


@pytest.mark.parametrize(
    ("starting", "log", "span"), [("latest", (0, 3), (0, 3)), ("earliest", (4, 12), (4, 12))], ids=["anew", "shorter"]
)
def test_a_waiting_start_follows_its_log(starting: str, log: tuple[int, int], span: tuple[int, int]) -> None:
    """Its topic was made anew, or the beginning of its log was deleted."""
    cluster, share = FakeCluster({A: (0, 10), B: (0, 10)}), Share(A, B)
    share.not_stored = {B}
    run = member_run(cluster, share, startingOffsets=starting)
    first = run.latest({}, None)
    cluster.logs[B] = log
    share.not_stored = set()
    assert run.latest(first, None) == offset(p0=(10, 10), p1=span)


def test_a_batch_of_the_last_run_is_claimed_and_repeated() -> None:
    share = Share(A)
    run = member_run(FakeCluster({A: (0, 10)}), share)
    end = offset(p0=(0, 10))
    run.plan(end)
    run.plan(end)
    assert share.planned == [("again", {A: (0, 10)})]


def test_available_now_waits_for_the_whole_share() -> None:
    share = Share(A)
    run = member_run(FakeCluster({A: (0, 10)}), share, startingOffsets="earliest")
    run.fix_targets()
    run.latest({}, None)
    assert share.patient == [True]


class Gone(FakeCluster):
    """A ZooKeeper that is away."""

    away = True

    def partitions(self, selection: Selection) -> Any:
        if not self.away:
            return super().partitions(selection)
        raise RegistryUnavailableError("nobody answers")


def test_a_member_waits_for_zookeeper_with_its_next_batch_only(caplog: pytest.LogCaptureFixture) -> None:
    share = Share(A)
    run = member_run(Gone({A: (0, 10)}), share)
    done = offset(p0=(0, 5))
    assert run.latest(done, None) is done
    assert share.planned == [{}]  # what the last batch read may leave
    assert "no new batch for now: nobody answers" in caplog.text


def test_an_absent_zookeeper_is_no_end_for_available_now() -> None:
    cluster = Gone({A: (0, 10)})
    run = member_run(cluster, Share(A))
    cluster.away = False
    run.fix_targets()
    cluster.away = True
    with pytest.raises(RegistryUnavailableError):
        run.latest({}, None)
    with pytest.raises(RegistryUnavailableError):
        run_on(cluster).latest({}, None)


_STOPPED_TWICE = """
import os, signal, threading
from zkconsumer.spark.streaming_query import end_cleanly_on_sigterm
end_cleanly_on_sigterm()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(20)
finally:
    os.kill(os.getpid(), signal.SIGTERM)
    print("stopped", flush=True)
"""


def test_the_driver_process_ends_cleanly_after_two_sigterms() -> None:
    # Spark stops a query so: the default action killed the process before stop() could give anything back.
    assert run_python("-c", _STOPPED_TWICE).stdout == "stopped\n"


_SIGNALLED = """
import os, signal, sys, threading
from zkconsumer.spark import stream_reader
from zkconsumer.spark.options import parse

when = sys.argv[1]

def kill(now):
    if now == when:
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(0.1)

class Run:
    def __init__(self, options, cluster):
        self.left = False
    def open(self):
        kill("opening")
    def plan(self, end):
        kill("planning")
        return []
    def close(self):
        if not self.left:
            self.left = True
            kill("leaving")
            print("left", flush=True)

stream_reader.QueryRun = Run
options = parse({"zookeeper.connect": "zk", "group.id": "g", "subscribe": "t"})
reader = stream_reader.StreamReader(options, None, "frame")
try:
    reader.partitions({}, {})
finally:
    kill("stopping")
    reader.stop()
"""


@pytest.mark.parametrize("when", ["opening", "planning", "stopping", "leaving", "never"])
def test_the_group_is_left_once_whenever_the_signal_comes(when: str) -> None:
    # Spark closes its connection and sends a signal; so the first may come in the middle of stop(), which was cut off.
    done = run_python("-c", _SIGNALLED, when)
    assert (done.stdout, done.stderr) == ("left\n", "")


def test_signals_are_left_alone_on_other_threads() -> None:
    before = signal.getsignal(signal.SIGTERM)
    elsewhere(end_cleanly_on_sigterm)
    assert signal.getsignal(signal.SIGTERM) is before


class Assigned(FakeCluster):
    """Selects partitions."""

    def partitions(self, selection: Selection) -> tuple[tuple[TopicPartition, ...], tuple[str, ...]]:
        return tuple(tp for tp in sorted(self.logs) if tp in selection.partitions), ()


def test_missing_assigned_partitions_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    options = {"zookeeper.connect": "zk", "group.id": "g", "membership": "none", "startingOffsets": "earliest"}
    cluster = Assigned({A: (0, 10)})
    run = QueryRun(parse({**options, "assign": '{"t":[0,9]}'}), cluster)
    run.open()
    with caplog.at_level(logging.WARNING):
        first = run.latest({}, None)
        run.latest(first, None)
    assert [r.message for r in caplog.records] == ["there is no partition t-9 (yet); waiting for it"]
    cluster.logs[TopicPartition("t", 9)] = (0, 3)
    assert run.latest(first, None) == offset(p0=(10, 10), p9=(0, 3))


@pytest.mark.parametrize("membership", ["member", "none"])
def test_available_now_refuses_a_topic_that_is_not_there(membership: str) -> None:
    """It was read as an empty one, and a misspelt name looked like success."""
    for given, missing in (("nowhere,t", "nowhere"), ("b,a,t", "a, b")):
        cluster = FakeCluster({A: (0, 2)})
        run = run_on(cluster, subscribe=given)
        if membership == "member":
            run = member_run(cluster, Share(A), subscribe=given)
        run.fix_targets()
        wanted = f"^subscribe: '{missing}': there is no such topic in this cluster; allowMissingTopics=true reads"
        for _ in range(2):
            with pytest.raises(ConfigException, match=wanted):
                run.latest({}, None)


def test_available_now_may_be_allowed_to_miss_a_topic(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster({A: (0, 2)})
    run = run_on(cluster, subscribe="nowhere,t", allowMissingTopics="true", startingOffsets="earliest")
    run.fix_targets()
    first = run.latest({}, None)
    assert first == offset(p0=(0, 2))
    assert run.latest(first, None) is first
    assert [record.getMessage() for record in caplog.records] == [
        "subscribe: 'nowhere': there is no such topic in this cluster; nothing is read of it"
    ]


def test_available_now_refuses_a_partition_that_is_not_there() -> None:
    options = {"zookeeper.connect": "zk", "group.id": "g", "membership": "none", "assign": '{"t":[0,9]}'}
    run = QueryRun(parse(options), Assigned({A: (0, 2)}))
    run.fix_targets()
    with pytest.raises(ConfigException, match="^assign: 't-9': there is no such partition in this cluster"):
        run.latest({}, None)


def test_available_now_takes_a_deleted_topic_for_lost_data() -> None:
    """It has existed, as the checkpoint says: failOnDataLoss decides."""
    for fails in ("true", "false"):
        cluster = FakeCluster({A: (0, 2)})
        run = run_on(cluster, subscribe="t,other", failOnDataLoss=fails)
        run.fix_targets()
        done = {"v": 1, "topics": {**offset(p0=(0, 2))["topics"], "other": {"0": {"from": 0, "to": 7}}}}
        if fails == "false":
            assert run.latest(done, None) == done
        else:
            with pytest.raises(OffsetOutOfRangeError, match="other-0 is in the checkpoint, but exists no more"):
                run.latest(done, None)
