"""A group that leaves ZooKeeper under the strategy ``zkconsumer``: every stream keeps its partitions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from tests.cluster.conftest import NewTopic
from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, ZookeeperConsumerConnector

PARTITIONS = 7
NAMES = ("b", "a")  # not in the order of joining, and the coordinator's own ids are random


@pytest.mark.parametrize(
    ("there", "here"), [("range", "zkconsumer"), ("average-by-circle", "average-by-circle")], ids=lambda name: name
)
def test_every_stream_reads_what_it_read_under_zookeeper(
    there: str,
    here: str,
    connector: Callable[..., ZookeeperConsumerConnector],
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
) -> None:
    topic, group, rounds = new_topic(PARTITIONS), new_group(), count()

    def partitions_of_streams(**properties: str) -> dict[tuple[str, int], set[int]]:
        """Return the partitions of each stream, once each partition is read by one stream."""
        members = {name: connector(group, consumer_id=name, consumer_timeout_ms="300", **properties) for name in NAMES}
        streams = {
            (name, number): stream
            for name, member in members.items()
            for number, stream in enumerate(member.create_message_streams({topic: 2})[topic])
        }

        def read() -> dict[tuple[str, int], set[int]]:
            value = b"%d" % next(rounds)
            produce(topic, [value] * PARTITIONS, partitions=PARTITIONS)
            seen: dict[tuple[str, int], set[int]] = {}
            for which, stream in streams.items():
                seen[which] = set()
                try:
                    while True:
                        message = stream.get(timeout=scaled(0.5))
                        if message.value == value:
                            seen[which].add(message.partition)
                except ConsumerTimeoutException:
                    pass
            return seen

        found: list[dict[tuple[str, int], set[int]]] = []

        def settled() -> bool:
            found.append(read())
            return (
                found[-2:] == [found[-1]] * 2
                and sum(map(len, found[-1].values())) == PARTITIONS
                and all(found[-1].values())
            )

        eventually(settled, 40, f"four streams that read: {found}")
        for member in members.values():
            member.shutdown()
        return found[-1]

    before = partitions_of_streams(partition_assignment_strategy=there)
    after = partitions_of_streams(
        partition_assignment_strategy=here, group_coordination="kafka", heartbeat_interval_ms="300"
    )
    assert after == before
