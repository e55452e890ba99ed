"""``run(until=...)`` on a cluster in memory: what is handled, what is committed, and that the connector lives on."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.clusters import Join, cluster_with, committed, connectors_with, whole
from zkconsumer import PENDING, Retry, TopicPartition, Whitelist
from zkconsumer.streams import until
from zkconsumer.testing import FakeCluster

PARTITIONS, EACH = 2, 30
WITHIN = 20.0


cluster = cluster_with({"events": [[b"v"] * EACH] * PARTITIONS})
# no read may hang
join = connectors_with({"auto.commit.interval.ms": 60_000, "consumer.timeout.ms": int(scaled(WITHIN) * 1000)})


@pytest.mark.parametrize("order", ["key", "partition", "none"])
def test_the_log_ends_as_of_now_end_the_run(cluster: FakeCluster, join: Join, order: Any) -> None:
    connector, taken = join(), list[tuple[int, int]]()

    def handle(message: Any) -> None:
        if not taken:
            cluster.append("events", 0, [b"behind the end"])
        taken.append((message.partition, message.offset))

    connector.run(handle, "events", concurrency=8, order=order, until="end")

    assert sorted(taken) == whole(EACH, EACH)
    assert committed(cluster) == [EACH, EACH]


def test_offsets_end_a_run_and_the_next_goes_on_there(cluster: FakeCluster, join: Join) -> None:
    connector, taken = join(), list[tuple[int, int]]()

    def handle(message: Any) -> None:
        taken.append((message.partition, message.offset))

    connector.run(handle, "events", concurrency=8, until={("events", 0): 11, ("events", 1): 0})
    assert sorted(taken) == whole(11, 0)
    assert committed(cluster) == [11, 0]
    connector.run(handle, concurrency=8, until="end")

    assert sorted(taken) == whole(EACH, EACH)
    assert committed(cluster) == [EACH, EACH]
    with pytest.raises(ValueError, match="run with concurrency"):
        connector.run(print)


def test_a_run_waits_for_the_answer_to_a_parked_message(cluster: FakeCluster, join: Join) -> None:
    """All before the end was finished or parked. The next run handed the message out again, which was pending still."""
    connector, pending, taken = join(), SimpleQueue[Any](), list[tuple[int, int]]()
    parked = threading.Event()
    options: Any = {"concurrency": 2, "retry": Retry(attempts=9, delays=[0.0], park_after=1), "until": "end"}

    def handle(message: Any) -> object:
        taken.append((message.partition, message.offset))
        if (message.partition, message.offset) == (1, 3):
            if message.attempt == 1:
                raise ValueError("not yet")
            pending.put(message)
            parked.set()
            return PENDING
        if (message.partition, message.offset) == (0, EACH - 1):
            parked.wait(scaled(WITHIN))
        return None

    run = threading.Thread(target=lambda: connector.run(handle, "events", **options), name="run")
    run.start()
    message = pending.get(timeout=scaled(WITHIN))
    run.join(1.0)
    assert run.is_alive()
    message.ack()
    run.join(scaled(WITHIN))
    connector.run(handle, **options)

    assert sorted(taken) == sorted([*whole(EACH, EACH), (1, 3)])
    assert not run.is_alive()


def test_an_undeliverable_dead_letter_holds_up_no_end(cluster: FakeCluster, join: Join) -> None:
    """The run waited for ever for the parked message, which nothing would finish in this run."""
    tried = threading.Event()

    def handle(message: Any) -> None:
        if (message.partition, message.offset) == (1, 3):
            raise ValueError("never")
        if (message.partition, message.offset) == (0, EACH - 1):
            tried.wait(scaled(WITHIN))

    def refuse(*_: Any) -> None:
        tried.set()
        raise ValueError("no room")

    retry = Retry(attempts=2, delays=[0.0], park_after=1)
    summary = join().run(handle, "events", concurrency=2, retry=retry, dead_letter=refuse, until="end")

    assert (summary.ended, summary.handled) == ("until", PARTITIONS * EACH - 1)


def test_a_run_waits_for_answers_in_a_stopped_partition(join: Join) -> None:
    """A dead letter that could not be delivered ended the run. The next run began a message that was pending still."""
    pending, refused, parked = SimpleQueue[Any](), threading.Event(), threading.Event()
    connector, retry = join(), Retry(attempts=2, delays=[0.0], park_after=1)

    def handle(message: Any) -> object:
        place = message.partition, message.offset
        if place == (1, 3):
            if message.attempt == 2:
                parked.wait(scaled(WITHIN))
            raise ValueError("never")
        if place == (1, 5):
            if message.attempt == 1:
                raise ValueError("not yet")
            pending.put(message)
            parked.set()
            return PENDING
        if place == (0, EACH - 1):
            refused.wait(scaled(WITHIN))
        return None

    def refuse(*_: Any) -> None:
        refused.set()
        raise ValueError("no room")

    options: Any = {"concurrency": 4, "retry": retry, "dead_letter": refuse, "until": "end"}
    run = threading.Thread(target=lambda: connector.run(handle, "events", **options), name="run")
    run.start()
    message = pending.get(timeout=scaled(WITHIN))
    assert refused.wait(scaled(WITHIN))
    run.join(1.0)
    assert run.is_alive()
    message.ack()
    run.join(scaled(WITHIN))
    assert not run.is_alive()


@pytest.fixture
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(until, "GROUP_LOOK", 0.02)
    monkeypatch.setattr(until, "DELETED_AFTER", 0.2)


BEYOND = {("events", partition): EACH + 5 for partition in range(PARTITIONS)}
"""Ends that the logs do not reach."""


@pytest.mark.usefixtures("quick_looks")
def test_a_run_ends_if_its_topic_is_deleted(cluster: FakeCluster, join: Join, caplog: pytest.LogCaptureFixture) -> None:
    """The committed offsets of a deleted topic never reach the end, and the run waited for that for ever."""
    connector, taken = join(), list[int]()

    def handle(message: Any) -> None:
        taken.append(message.offset)
        if len(taken) == PARTITIONS * EACH:
            cluster.delete_topic("events")

    connector.run(handle, "events", concurrency=2, until=BEYOND)

    assert len(taken) == PARTITIONS * EACH
    assert "until is not reached, but there is no more to read: deleted are events" in caplog.text


@pytest.mark.usefixtures("quick_looks")
def test_a_stream_ends_if_its_topic_is_deleted(cluster: FakeCluster, join: Join) -> None:
    (stream,) = join().create_message_streams({"events": 1}, until=BEYOND)["events"]
    taken = 0
    for _ in stream:
        taken += 1
        if taken == PARTITIONS * EACH:
            cluster.delete_topic("events")

    assert taken == PARTITIONS * EACH


def test_a_topic_that_brokers_miss_for_a_moment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that has just started knows no topic, and a look may fail."""
    clock, answers = [100.0], list[Future[Any]]()

    def asked(_: object) -> Future[Any]:
        answers.append(Future())
        return answers[-1]

    monkeypatch.setattr(until, "monotonic", lambda: clock[0])
    watch = until.RunEndWatch(until.RunEnd({TopicPartition("t", 0): 5}), asked, asked)

    def look(missing: object) -> bool:
        """Let the group be looked at once: first at its offsets, then at the topics that are left."""
        clock[0] += until.GROUP_LOOK
        assert not watch.reached([])
        answers.pop().set_result({TopicPartition("t", 0): 4})
        over = watch.reached([])
        if not over and isinstance(missing, OSError):
            answers.pop().set_exception(missing)
        elif not over:
            answers.pop().set_result(missing)
        return over

    moment = int(until.DELETED_AFTER / until.GROUP_LOOK) - 1
    for missing in (*[{"t"}] * moment, set(), *[{"t"}] * moment, OSError(), *[{"t"}] * moment):
        assert not look(missing)
    assert [look({"t"}) for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"until": "end", "concurrency": 2, "topics": Whitelist("e.*")}, "topics by name"),
        ({"until": "never", "concurrency": 2}, 'until is "end"'),
    ],
)
def test_a_senseless_run_with_until_is_refused(join: Join, arguments: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        join().run(lambda _: None, **{"topics": "events", **arguments})
