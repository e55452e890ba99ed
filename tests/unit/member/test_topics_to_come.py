"""The state of a coordinated member whose topic does not exist yet."""

from __future__ import annotations

from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.testing import FakeCluster


def test_a_topic_that_does_not_exist_is_named_until_it_does() -> None:
    with (
        FakeCluster() as cluster,
        ZookeeperConsumerConnector(
            group_coordination="kafka", bootstrap_servers=cluster.bootstrap_servers, group_id="g"
        ) as connector,
    ):
        connector.create_message_streams({"misspelt": 1})
        eventually(
            lambda: str(connector.state) == "owning 0 of 0 partitions; waiting for topic misspelt to exist",
            20,
            "the topic's name",
        )
        cluster.create_topic("misspelt", partitions=2)
        eventually(lambda: str(connector.state) == "owning 2 of 2 partitions", 20, "the topic")
