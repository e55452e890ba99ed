"""``commit_offsets_async``: the messages that count as finished, and the reports of the end."""

from __future__ import annotations

from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread, get_ident
from unittest.mock import Mock

import pytest

from tests.internals import member_of
from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from zkconsumer import KafkaStream, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.errors import ConnectorClosedException, OffsetCommitError
from zkconsumer.model import ThreadId
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.testing import FakeCluster

TP = TopicPartition("events", 0)
WITHIN = 20.0
Stream = KafkaStream[bytes | None, bytes | None]
cluster = cluster_with({"events": [[b"v"] * 10]})


@pytest.fixture
def connector(cluster: FakeCluster) -> Iterator[ZookeeperConsumerConnector]:
    with ZookeeperConsumerConnector(
        zookeeper_connect=cluster.zookeeper_connect,
        group_id="g",
        auto_offset_reset="smallest",
        auto_commit_enable=False,
    ) as made:
        yield made


@pytest.fixture
def stream(connector: ZookeeperConsumerConnector) -> Stream:
    (made,) = connector.create_message_streams({"events": 1})["events"]
    return made


def test_the_message_in_hand_counts_as_finished(connector: ZookeeperConsumerConnector, stream: Stream) -> None:
    stream.take(3, timeout=scaled(WITHIN))
    told: SimpleQueue[tuple[BaseException | None, int]] = SimpleQueue()
    done = connector.commit_offsets_async(callback=lambda error: told.put((error, get_ident())))

    assert done.result(scaled(WITHIN)) is None
    error, thread = told.get(timeout=scaled(WITHIN))
    assert error is None
    assert thread != get_ident()
    assert connector.committed(TP) == 3


@pytest.mark.parametrize(
    ("consumed", "held_until", "committed", "counting", "offset"),
    [
        (5, 10, 5, 6, 6),  # still in hand
        (5, 10, 6, 6, None),  # written already
        (6, 10, 5, 6, 6),  # the next one is in hand
        (8, 10, 5, 6, 8),  # others are finished since
        (6, -1, 5, 6, 6),
    ],
)
def test_a_number_counts_what_was_in_hand(
    consumed: int, held_until: int, committed: int, counting: int, offset: int | None
) -> None:
    position = PartitionPosition(TP, ThreadId("g_c-0"), consumed)
    position.held_until, position.stored.committed = held_until, committed

    assert position.stored.due_offset(counting_held=False, caller_held=range(5, counting)) == offset


def test_an_error_is_told(
    connector: ZookeeperConsumerConnector, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.get(timeout=scaled(WITHIN))
    committer = member_of(connector).committer
    monkeypatch.setattr(committer.tracker, "commit", Mock(side_effect=OffsetCommitError("refused")))
    told: SimpleQueue[BaseException | None] = SimpleQueue()
    done = connector.commit_offsets_async(callback=told.put)

    with pytest.raises(OffsetCommitError, match="refused"):
        done.result(scaled(WITHIN))
    assert isinstance(told.get(timeout=scaled(WITHIN)), OffsetCommitError)


def test_a_cancelled_future_harms_no_commit(connector: ZookeeperConsumerConnector, stream: Stream) -> None:
    stream.get(timeout=scaled(WITHIN))
    connector.commit_offsets_async().cancel()
    stream.get(timeout=scaled(WITHIN))
    connector.commit_offsets()

    assert connector.committed(TP) == 2


def test_a_time_limit_holds_during_a_shutdown_too(
    connector: ZookeeperConsumerConnector, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit of what is in hand took as long as the shutdown had left, whatever its own limit was."""
    stream.get(timeout=scaled(WITHIN))
    given: list[float] = []
    commit = Mock(side_effect=lambda held, deadline, offsets: given.append(deadline.remaining()))
    monkeypatch.setattr(member_of(connector).committer, "commit", commit)
    closing = Thread(target=connector.shutdown, args=(scaled(WITHIN),))
    closing.start()
    eventually(lambda: connector.lifecycle.end.begun, WITHIN, "the shutdown")
    for timeout in (0.5, None):
        connector.commit_offsets({TP: 1}, timeout)
    assert given[0] <= 0.5 < given[1]
    with pytest.raises(ConnectorClosedException):
        stream.get()
    closing.join(scaled(WITHIN))


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_callback_that_raises_harms_no_commit(
    connector: ZookeeperConsumerConnector, stream: Stream, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """A ``sys.exit()`` ended the thread that does all commits, and nothing was committed any more."""
    stream.get(timeout=scaled(WITHIN))
    connector.commit_offsets_async(callback=Mock(side_effect=error("mine"))).result(scaled(WITHIN))
    stream.get(timeout=scaled(WITHIN))
    connector.commit_offsets(timeout=scaled(WITHIN))

    assert connector.committed(TP) == 2
    assert "the callback of a commit failed" in caplog.text


def test_a_callback_may_begin_another_commit(connector: ZookeeperConsumerConnector, stream: Stream) -> None:
    stream.get(timeout=scaled(WITHIN))
    told: SimpleQueue[BaseException | None] = SimpleQueue()
    connector.commit_offsets_async(callback=lambda _: connector.commit_offsets_async({TP: 5}, told.put))

    assert told.get(timeout=scaled(WITHIN)) is None
    assert connector.committed(TP) == 5


@pytest.mark.usefixtures("stream")
def test_after_the_end_it_raises_at_once(connector: ZookeeperConsumerConnector) -> None:
    committer = member_of(connector).committer
    connector.shutdown()

    with pytest.raises(ConnectorClosedException):
        connector.commit_offsets_async()
    with pytest.raises(OffsetCommitError, match="shut down"):
        committer.submit(lambda: None).result(scaled(WITHIN))
