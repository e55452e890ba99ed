"""Hands fetched messages to the application: bounded queues of chunks, and the streams that read them."""

from zkconsumer.streams.byte_budget import QueueBudget
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.merged_streams import MergedStreams
from zkconsumer.streams.message import MessageAndMetadata
from zkconsumer.streams.stream_queue import Chunk, StreamQueue

__all__ = ["Chunk", "KafkaStream", "MergedStreams", "MessageAndMetadata", "QueueBudget", "StreamQueue"]
