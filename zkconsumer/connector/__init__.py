"""The API of applications: the connector, also for asyncio, with its runs, queries, health and shutdown."""

from zkconsumer.connector.zookeeper_connector import ZookeeperConsumerConnector

__all__ = ["ZookeeperConsumerConnector"]
