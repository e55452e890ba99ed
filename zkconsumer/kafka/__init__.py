"""Everything between us and a Kafka broker; the only importer of the Kafka client library (aiokafka, pinned).

Responsible for: one blocking channel a broker, the versions of requests and message formats of every broker that ever
registered in ZooKeeper (0.8 to 3.9), and turning the bytes of an answer into records. What to ask and when is decided
elsewhere. Threads: see ``broker_channel.py``; everything else here is pure.
"""

from zkconsumer.kafka import error_codes
from zkconsumer.kafka.broker_channel import BrokerChannel, Security
from zkconsumer.kafka.endpoints import choose_endpoint
from zkconsumer.kafka.fetch_response import FetchAnswer, FetchedPartition
from zkconsumer.kafka.leader_epoch_request import AnsweredEpoch
from zkconsumer.kafka.message_set import CorruptRecordsError, RecordBatch, batches
from zkconsumer.kafka.requests import ClusterMetadata, FetchPosition, FetchRequest, ListedOffset
from zkconsumer.kafka.security import channel_security

__all__ = [
    "AnsweredEpoch",
    "BrokerChannel",
    "ClusterMetadata",
    "CorruptRecordsError",
    "FetchAnswer",
    "FetchPosition",
    "FetchRequest",
    "FetchedPartition",
    "ListedOffset",
    "RecordBatch",
    "Security",
    "batches",
    "channel_security",
    "choose_endpoint",
    "error_codes",
]
