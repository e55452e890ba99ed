"""Kafka's ZooKeeper-based high-level consumer for Python.

>>> from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector
>>> config = ConsumerConfig({"zookeeper.connect": "127.0.0.1:2181", "group.id": "readers"})
>>> with ZookeeperConsumerConnector(config) as connector:  # doctest: +SKIP
...     for message in connector.create_message_streams({"events": 1})["events"][0]:
...         print(message.topic, message.partition, message.offset, message.value)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zkconsumer.balance.balance_state import BalanceState, RunSummary
from zkconsumer.balance.balanced_message import BalancedMessage
from zkconsumer.balance.dead_letter_topic import DeadLetterTopic
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.outcomes import PENDING, Later, Reject
from zkconsumer.balance.retry_policy import Retry
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector.health import Health
from zkconsumer.connector.signal_shutdown import shutdown_on_signal
from zkconsumer.connector.zookeeper_connector import ZookeeperConsumerConnector
from zkconsumer.core.foreign_names import missing_name
from zkconsumer.core.topic_filter import Blacklist, TopicFilter, Whitelist
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerRebalanceFailedException,
    ConsumerTimeoutException,
    DecodeError,
    FencedRecordError,
    MessageStreamsExistException,
    OffsetCommitError,
    OffsetStoreConflictError,
    PartitionNotOwnedError,
    RecordRefusedError,
    RepeatedRecordError,
    SkippedRecordError,
    UnknownTopicError,
    ZkConsumerError,
)
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.offsets.database_store import DatabaseOffsets
from zkconsumer.offsets.store import OffsetStore
from zkconsumer.streams import KafkaStream, MergedStreams, MessageAndMetadata
from zkconsumer.streams.message import IntDecoder, LongDecoder, StringDecoder
from zkconsumer.version import VERSION, refuse_free_threaded_builds
from zkconsumer.wiring.groupless_reader import PartitionStream

if TYPE_CHECKING:
    from zkconsumer.connector.async_connector import AsyncConsumerRebalanceListener, AsyncZookeeperConsumerConnector
    from zkconsumer.streams.async_stream import AsyncMessages, AsyncStream

refuse_free_threaded_builds()

__version__ = VERSION

__all__ = [
    "PENDING",
    "AsyncConsumerRebalanceListener",
    "AsyncMessages",
    "AsyncStream",
    "AsyncZookeeperConsumerConnector",
    "BalanceState",
    "BalancedMessage",
    "Blacklist",
    "ConnectorClosedException",
    "ConnectorState",
    "ConsumerConfig",
    "ConsumerRebalanceFailedException",
    "ConsumerRebalanceListener",
    "ConsumerTimeoutException",
    "DatabaseOffsets",
    "DeadLetterTopic",
    "DecodeError",
    "FailureLimit",
    "FencedRecordError",
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
    "OffsetStoreConflictError",
    "PartitionNotOwnedError",
    "PartitionStream",
    "Phase",
    "RecordRefusedError",
    "Reject",
    "RepeatedRecordError",
    "Retry",
    "RunSummary",
    "SkippedRecordError",
    "StringDecoder",
    "TopicFilter",
    "TopicPartition",
    "UnknownTopicError",
    "Whitelist",
    "ZkConsumerError",
    "ZookeeperConsumerConnector",
    "__version__",
    "shutdown_on_signal",
]

# Loaded at the first use: a program that reads in threads has no use for asyncio.
_MODULES_OF_ASYNCIO = {
    "AsyncConsumerRebalanceListener": "zkconsumer.connector.async_connector",
    "AsyncMessages": "zkconsumer.streams.async_stream",
    "AsyncStream": "zkconsumer.streams.async_stream",
    "AsyncZookeeperConsumerConnector": "zkconsumer.connector.async_connector",
}


if not TYPE_CHECKING:  # else a type checker would believe in every name

    def __getattr__(name: str) -> Any:
        module = _MODULES_OF_ASYNCIO.get(name)
        if module is None:
            raise missing_name(__name__, name)
        return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
