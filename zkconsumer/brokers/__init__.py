"""Everything between us and a Kafka broker; the only importer of the Kafka client library (aiokafka, pinned).

Responsible for: one blocking channel a broker, the versions of requests and message formats of every broker that ever
registered in ZooKeeper (0.8 to 3.9), and turning the bytes of an answer into records. What to ask and when is decided
elsewhere. Threads: see ``channel.py``; everything else here is pure.
"""

from zkconsumer.brokers import errors
from zkconsumer.brokers.channel import BrokerChannel, Security
from zkconsumer.brokers.coordination import CoordinatorChannel, StoredOffset
from zkconsumer.brokers.endpoints import choose_endpoint
from zkconsumer.brokers.fetch_answer import FetchAnswer, FetchedPartition
from zkconsumer.brokers.leader_epochs import AnsweredEpoch
from zkconsumer.brokers.protocol import ClusterMetadata, FetchPosition, FetchRequest, ListedOffset
from zkconsumer.brokers.records import CorruptRecordsError, RecordBatch, batches
from zkconsumer.brokers.security import channel_security

__all__ = [
    "AnsweredEpoch",
    "BrokerChannel",
    "ClusterMetadata",
    "CoordinatorChannel",
    "CorruptRecordsError",
    "FetchAnswer",
    "FetchPosition",
    "FetchRequest",
    "FetchedPartition",
    "ListedOffset",
    "RecordBatch",
    "Security",
    "StoredOffset",
    "batches",
    "channel_security",
    "choose_endpoint",
    "errors",
]
