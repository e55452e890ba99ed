"""What the application iterates: bounded queues of fetched chunks, and the streams that hand their messages out."""

from zkconsumer.streams.budget import QueueBudget
from zkconsumer.streams.merged import MergedStreams
from zkconsumer.streams.messages import MessageAndMetadata
from zkconsumer.streams.pace import PacedLease
from zkconsumer.streams.queue import Chunk, StreamQueue
from zkconsumer.streams.stream import KafkaStream

__all__ = ["Chunk", "KafkaStream", "MergedStreams", "MessageAndMetadata", "PacedLease", "QueueBudget", "StreamQueue"]
