"""Kafka's ZooKeeper-based high-level consumer for Python.

>>> from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector
>>> config = ConsumerConfig({"zookeeper.connect": "127.0.0.1:2181", "group.id": "readers"})
>>> with ZookeeperConsumerConnector(config) as connector:  # doctest: +SKIP
...     for message in connector.create_message_streams({"events": 1})["events"][0]:
...         print(message.topic, message.partition, message.offset, message.value)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from zkconsumer.config import ConsumerConfig
from zkconsumer.core.foreign_names import missing_name
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
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.version import VERSION, refuse_free_threaded_builds

if TYPE_CHECKING:
    from zkconsumer.balance.balance_state import BalanceState, RunSummary
    from zkconsumer.balance.balanced_message import BalancedMessage
    from zkconsumer.balance.dead_letter_topic import DeadLetterTopic
    from zkconsumer.balance.failure_limit import FailureLimit
    from zkconsumer.balance.outcomes import PENDING, Later, Reject
    from zkconsumer.balance.retry_policy import Retry
    from zkconsumer.connector.async_connector import AsyncConsumerRebalanceListener, AsyncZookeeperConsumerConnector
    from zkconsumer.connector.health import Health
    from zkconsumer.connector.signal_shutdown import shutdown_on_signal
    from zkconsumer.connector.zookeeper_connector import ZookeeperConsumerConnector
    from zkconsumer.core.topic_filter import Blacklist, TopicFilter, Whitelist
    from zkconsumer.member.connector_state import ConnectorState, Phase
    from zkconsumer.member.listener import ConsumerRebalanceListener
    from zkconsumer.offsets.database_store import DatabaseOffsets
    from zkconsumer.offsets.store import OffsetStore
    from zkconsumer.streams.async_stream import AsyncMessages, AsyncStream
    from zkconsumer.streams.kafka_stream import KafkaStream
    from zkconsumer.streams.merged_streams import MergedStreams
    from zkconsumer.streams.message import IntDecoder, LongDecoder, MessageAndMetadata, StringDecoder
    from zkconsumer.wiring.groupless_reader import PartitionStream

refuse_free_threaded_builds()

__version__ = VERSION

__all__ = [
    "PENDING", "AsyncConsumerRebalanceListener", "AsyncMessages", "AsyncStream", "AsyncZookeeperConsumerConnector",
    "BalanceState", "BalancedMessage", "Blacklist", "ConnectorClosedException", "ConnectorState", "ConsumerConfig",
    "ConsumerRebalanceFailedException", "ConsumerRebalanceListener", "ConsumerTimeoutException", "DatabaseOffsets",
    "DeadLetterTopic", "DecodeError", "FailureLimit", "FencedRecordError", "Health", "IntDecoder", "KafkaStream",
    "Later", "LongDecoder", "MergedStreams", "MessageAndMetadata", "MessageStreamsExistException", "OffsetCommitError",
    "OffsetRange", "OffsetStore", "OffsetStoreConflictError", "PartitionNotOwnedError", "PartitionStream", "Phase",
    "RecordRefusedError", "Reject", "RepeatedRecordError", "Retry", "RunSummary", "SkippedRecordError", "StringDecoder",
    "TopicFilter", "TopicPartition", "UnknownTopicError", "Whitelist", "ZkConsumerError", "ZookeeperConsumerConnector",
    "__version__", "shutdown_on_signal",
]  # fmt: skip

_LATER = {
    "balance.balance_state": "BalanceState RunSummary",
    "balance.balanced_message": "BalancedMessage",
    "balance.dead_letter_topic": "DeadLetterTopic",
    "balance.failure_limit": "FailureLimit",
    "balance.outcomes": "PENDING Later Reject",
    "balance.retry_policy": "Retry",
    "connector.async_connector": "AsyncConsumerRebalanceListener AsyncZookeeperConsumerConnector",
    "connector.health": "Health",
    "connector.signal_shutdown": "shutdown_on_signal",
    "connector.zookeeper_connector": "ZookeeperConsumerConnector",
    "core.topic_filter": "Blacklist TopicFilter Whitelist",
    "member.connector_state": "ConnectorState Phase",
    "member.listener": "ConsumerRebalanceListener",
    "offsets.database_store": "DatabaseOffsets",
    "offsets.store": "OffsetStore",
    "streams.async_stream": "AsyncMessages AsyncStream",
    "streams.kafka_stream": "KafkaStream",
    "streams.merged_streams": "MergedStreams",
    "streams.message": "IntDecoder LongDecoder MessageAndMetadata StringDecoder",
    "wiring.groupless_reader": "PartitionStream",
}
"""The names by their modules. A module is loaded when a name is first used: Spark's workers need no connector."""
_MODULES = {name: module for module, names in _LATER.items() for name in names.split()}
_NEED_A_MEMBER = ("async_connector", "async_stream", "kafka_stream", "merged_streams", "groupless_reader")


if not TYPE_CHECKING:  # else a type checker would believe in every name

    def __getattr__(name: str) -> Any:
        module = _MODULES.get(name)
        if module is None:
            raise missing_name(__name__, name)
        import_module("zkconsumer.connector")  # first, for any name: Python refuses imports that wait for each other
        if module.endswith(_NEED_A_MEMBER):
            import_module("zkconsumer.connector.subscribed_streams")
        return globals().setdefault(name, getattr(import_module(f"zkconsumer.{module}"), name))


def __dir__() -> list[str]:
    return sorted(__all__)
