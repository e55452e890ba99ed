"""Small batches on a real broker that expand to a large size: refused at their offset, and skipped only on request."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa  # at the top, because its first use takes more memory than these tests measure
import pytest

from tests.cluster.conftest import NewTopic
from tests.cluster.memory import MEGABYTE, growth
from tests.timing import scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.errors import InvalidMessageException

EXPANDED = 100 * MEGABYTE
LIMIT = 2 * MEGABYTE
BESIDE = 80 * MEGABYTE
"""Bytes that a hostile answer may cost beside the budget and the limit of one batch."""


@pytest.fixture
def bomb(cluster: DevCluster, new_topic: NewTopic, produce: Callable[..., int]) -> Callable[[str], str]:
    """Make a topic of three messages, where the second expands to a large size: ``bomb(codec)``."""

    def make(codec: str) -> str:
        topic = new_topic(config={"max.message.bytes": str(EXPANDED // 10)})
        large = {"message_max_bytes": 2 * EXPANDED, "queue_buffering_max_kbytes": EXPANDED // 512}
        produce(topic, [b"before"])
        produce(topic, [bytes(EXPANDED)], compression_codec=codec, **large)
        produce(topic, [b"after"])
        return topic

    return make


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_a_bomb_costs_no_memory_and_is_named(
    codec: str,
    bomb: Callable[[str], str],
    connector: Callable[..., ZookeeperConsumerConnector],
    new_group: Callable[[], str],
) -> None:
    topic = bomb(codec)
    pa.array([b""])
    member = connector(new_group(), queued_max_bytes=LIMIT)
    with growth() as messages:
        stream = member.create_message_streams({topic: 1})[topic][0]
        assert stream.get(timeout=scaled(20)).value == b"before"
        for _ in range(2):
            with pytest.raises(InvalidMessageException, match=r"batch\.expanded\.max\.bytes") as caught:
                stream.get(timeout=scaled(20))
            assert caught.value.offset == 1
        assert stream.skip() == 2
        assert stream.get(timeout=scaled(20)).value == b"after"
    member = connector(new_group(), queued_max_bytes=LIMIT)
    with growth() as columns:
        stream = member.create_message_streams({topic: 1})[topic][0]
        assert next(stream.batches(timeout=scaled(20)))["value"].to_pylist() == [b"before"]
        with pytest.raises(InvalidMessageException, match=r"batch\.expanded\.max\.bytes") as caught:
            next(stream.batches(timeout=scaled(20)))
        assert caught.value.offset == 1
    assert max(messages.peak, columns.peak) < LIMIT + LIMIT + BESIDE


def test_a_large_batch_is_read_where_the_limit_allows_it(
    bomb: Callable[[str], str], connector: Callable[..., ZookeeperConsumerConnector], new_group: Callable[[], str]
) -> None:
    topic = bomb("zstd")
    member = connector(new_group(), queued_max_bytes=LIMIT, batch_expanded_max_bytes=2 * EXPANDED)
    stream = member.create_message_streams({topic: 1})[topic][0]
    assert [len(stream.get(timeout=scaled(20)).value or b"") for _ in range(3)] == [6, EXPANDED, 5]
