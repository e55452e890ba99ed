"""Members on event loops that are killed and stopped: a sample of ``python -m tests.cluster.async_campaign``."""

from __future__ import annotations

import random

from tests.cluster.async_campaign import EACH, PARTITIONS, Campaign
from zkconsumer.devcluster import DevCluster


def test_members_that_are_killed_and_stopped_lose_nothing(cluster: DevCluster) -> None:
    """One of each way of reading on a loop, and one with threads, in one group."""
    with Campaign(cluster, random.Random(7)) as campaign:
        for how in ("kill", "stop"):
            campaign.end_one(how)
        reported = campaign.finish()

    assert len(reported) == 2 * EACH
    assert {partition for partition, _ in reported} == set(range(PARTITIONS))
