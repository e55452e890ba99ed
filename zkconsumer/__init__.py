"""Kafka's ZooKeeper-based high-level consumer for Python.

>>> from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector
>>> config = ConsumerConfig({"zookeeper.connect": "127.0.0.1:2181", "group.id": "readers"})
>>> with ZookeeperConsumerConnector(config) as connector:  # doctest: +SKIP
...     for message in connector.create_message_streams({"events": 1})["events"][0]:
...         print(message.topic, message.partition, message.offset, message.value)
"""

from __future__ import annotations

import logging

from zkconsumer.balance.balance_state import BalanceState
from zkconsumer.balance.dead_letter_topic import DeadLetterTopic
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.outcomes import PENDING, Later, Reject
from zkconsumer.balance.retry import Retry
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector import ZookeeperConsumerConnector
from zkconsumer.core.topic_filter import Blacklist, TopicFilter, Whitelist
from zkconsumer.decoders import IntDecoder, LongDecoder, StringDecoder
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerRebalanceFailedException,
    ConsumerTimeoutException,
    DecodeError,
    MessageStreamsExistException,
    OffsetCommitError,
    PartitionNotOwnedError,
    ZkConsumerError,
)
from zkconsumer.health import Health
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.signal_shutdown import shutdown_on_signal
from zkconsumer.streams import KafkaStream, MergedStreams, MessageAndMetadata
from zkconsumer.version import VERSION, refuse_free_threaded_builds

refuse_free_threaded_builds()

__version__ = VERSION

__all__ = [
    "PENDING",
    "BalanceState",
    "Blacklist",
    "ConnectorClosedException",
    "ConnectorState",
    "ConsumerConfig",
    "ConsumerRebalanceFailedException",
    "ConsumerRebalanceListener",
    "ConsumerTimeoutException",
    "DeadLetterTopic",
    "DecodeError",
    "FailureLimit",
    "Health",
    "IntDecoder",
    "KafkaStream",
    "Later",
    "LongDecoder",
    "MergedStreams",
    "MessageAndMetadata",
    "MessageStreamsExistException",
    "OffsetCommitError",
    "OffsetRange",
    "OffsetStore",
    "PartitionNotOwnedError",
    "Phase",
    "Reject",
    "Retry",
    "StringDecoder",
    "TopicFilter",
    "TopicPartition",
    "Whitelist",
    "ZkConsumerError",
    "ZookeeperConsumerConnector",
    "__version__",
    "shutdown_on_signal",
]

# a library is silent unless its application says otherwise
logging.getLogger(__name__).addHandler(logging.NullHandler())
