"""Queries go on from checkpoints that versions before this one wrote.

``checkpoints/before-membership`` was written by the version that had only ``membership=none``: a query of 2 partitions
with 250 messages each, of whose three batches the last one was planned and not finished.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import Reader, Sink, offsets_of
from zkconsumer.devcluster import DevCluster

RECORDED = Path(__file__).parent / "checkpoints"
TOPIC = "recorded-checkpoint"


@pytest.mark.parametrize("membership", ["member", "none"])
def test_a_query_goes_on_from_the_checkpoint_of_the_version_before(
    reader: Callable[[str], Reader],
    cluster: DevCluster,
    produce: Callable[..., int],
    zookeeper: Any,
    tmp_path: Path,
    membership: str,
) -> None:
    if zookeeper.exists(f"/brokers/topics/{TOPIC}") is None:  # its name stands in the checkpoint
        cluster.create_topic(TOPIC, 2)
        produce(TOPIC, [b"%d" % n for n in range(560)], partitions=2)
    checkpoint, sink, of_topic = tmp_path / "checkpoint", Sink(), reader(TOPIC)
    shutil.copytree(RECORDED / "before-membership", checkpoint)
    sink.drain(of_topic.stream(membership=membership), checkpoint)
    assert sorted(sink.batches) == [2, 3]
    assert sorted(row[:2] for row in sink.batches[2]) == [(p, offset) for p in (0, 1) for offset in range(200, 250)]
    assert sink.places == [(partition, offset) for partition in (0, 1) for offset in range(200, 280)]
    assert offsets_of(zookeeper, of_topic.options["group.id"], TOPIC) == {0: 280, 1: 280}
