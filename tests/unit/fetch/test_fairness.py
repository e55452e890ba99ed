"""Where an answer has room for one partition only, all have their turn (KIP-74), also without fetch sessions."""

from __future__ import annotations

from itertools import islice

import pytest

from tests.timing import scaled
from zkconsumer import Whitelist, ZookeeperConsumerConnector
from zkconsumer.testing import FakeCluster

BATCHES = 40


@pytest.mark.parametrize("topics", [{"events": 4}, {"a": 1, "b": 1, "c": 1, "d": 1}], ids=["one topic", "several"])
def test_a_response_too_small_for_all_starves_no_partition(topics: dict[str, int]) -> None:
    with FakeCluster(zookeeper=True) as cluster:
        for topic, partitions in topics.items():
            cluster.create_topic(topic, partitions)
            for partition in range(partitions):
                for number in range(BATCHES):
                    cluster.append(topic, partition, [b"%d" % number * 1000])
        config = {
            "zookeeper.connect": cluster.zookeeper_connect,
            "group.id": "g",
            "auto.offset.reset": "smallest",
            "consumer.timeout.ms": int(scaled(20) * 1000),
            "fetch.max.bytes": 1500,
        }
        with ZookeeperConsumerConnector(config) as connector:
            (stream,) = connector.create_message_streams_by_filter(Whitelist(".*"), 1)
            came = [(m.topic, m.partition) for m in islice(stream, 4 * BATCHES)]
    places = set(came)
    assert len(places) == 4
    ends = {place: len(came) - 1 - came[::-1].index(place) for place in places}
    # whose start is known first has some of its messages before the others are fetched at all
    for at in range(max(map(came.index, places)), len(came) - 12):
        unfinished = {place for place in places if ends[place] >= at + 12}
        assert unfinished <= set(came[at : at + 12]), f"starved: {came[at : at + 12]}"
