"""A query's memory does not grow with its batches. ``python -m tests.spark.many_batches 500`` is the long run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.conftest import NewTopic
from tests.spark.conftest import Reader
from tests.spark.many_batches import PARTITIONS, ROWS, fill, measure
from zkconsumer.devcluster import DevCluster

BATCHES, WARM = 40, 10
VALUE_BYTES = 20_000
BATCH_MB = ROWS * VALUE_BYTES / 1e6


@pytest.mark.parametrize("on_driver", ["false", "true"])
def test_memory_does_not_grow_with_the_batches(
    reader: Callable[[str], Reader], new_topic: NewTopic, cluster: DevCluster, tmp_path: Path, on_driver: str
) -> None:
    """A process that kept the messages of its batches, or every other batch's, would grow by 30 MB or more."""
    topic = new_topic(PARTITIONS)
    fill(cluster, topic, BATCHES, VALUE_BYTES)
    of_topic = reader(topic)
    options = {**of_topic.options, "readOnDriver": on_driver}
    found = measure(of_topic.spark, options, BATCHES, {WARM, BATCHES}, tmp_path)
    grown = found[BATCHES].grown(found[WARM])
    assert max(grown.values()) < (BATCHES - WARM) * BATCH_MB / 2, found
    assert min(found[BATCHES].driver, found[BATCHES].source, found[BATCHES].heap) > 0
