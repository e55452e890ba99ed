"""Queries go on from every checkpoint that is recorded, of versions before this one as well: see ``recorded``.

``tests/unit/spark/test_recorded.py`` looks at the contents of the checkpoints without Spark.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Sink, offsets_of
from tests.spark.recorded import EACH, FOLDER, KINDS, TOPIC, expected, fill, options_of, recordings
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

NOW_EACH = 280
# Each recording with its own membership. The recording from before membership is also tried as a member, the default.
CASES = [(path, path.name) for path in recordings()] + [(FOLDER / "before-membership" / "none", "member")]


@pytest.fixture(scope="module")
def grown(cluster: DevCluster) -> None:
    """The topic of the recordings, with 30 messages more in each partition."""
    fill(cluster, 0, 2 * NOW_EACH)


def coordinated_offsets(cluster: DevCluster, group: str) -> dict[int, int]:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    (asked,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {place.partition: place.offset for place in asked.result(scaled(20)).topic_partitions}


@pytest.mark.usefixtures("grown")
@pytest.mark.parametrize(
    ("recorded", "kind"), [pytest.param(*case, id=f"{case[0].relative_to(FOLDER)}-as-{case[1]}") for case in CASES]
)
def test_a_query_goes_on_from_a_recorded_checkpoint(
    recorded: Path,
    kind: str,
    spark: Any,
    cluster: DevCluster,
    zookeeper: Any,
    new_group: Callable[[], str],
    tmp_path: Path,
) -> None:
    group, checkpoint, sink = new_group(), tmp_path / "checkpoint", Sink()
    shutil.copytree(recorded, checkpoint)
    options = options_of(kind, cluster, group)
    sink.drain(spark.readStream.format("zkconsumer").options(**options).load(), checkpoint)
    assert {number: sorted(rows) for number, rows in sink.batches.items()} == {
        2: [row for partition in (0, 1) for row in expected(partition, 200, EACH)],  # planned before, not finished
        3: [row for partition in (0, 1) for row in expected(partition, EACH, NOW_EACH)],
    }
    written = {0: NOW_EACH, 1: NOW_EACH}
    if "group.coordination" in KINDS[kind]:
        eventually(lambda: coordinated_offsets(cluster, group) == written, 30, "the last batch's offsets")
    else:
        assert offsets_of(zookeeper, group, TOPIC) == written
