"""Everything between the member and a Kafka broker, without any other Kafka client.

Responsible for one blocking channel a broker, and for turning the bytes of a response into records. It knows the
versions of requests and message formats of every broker that ever registered in ZooKeeper (0.8 to 3.9). Other packages
decide what to ask and when. Threads: see ``broker_channel.py``; everything else here is pure.
"""

from zkconsumer.data_plane.fetch_response import FetchResponse, PartitionResponse
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.broker_channel import BrokerChannel, Security
from zkconsumer.kafka.connection import choose_endpoint
from zkconsumer.kafka.fetched_batches import CorruptRecordsError, RecordBatch, batches
from zkconsumer.kafka.requests import ClusterMetadata, EpochEndResponse, FetchPosition, FetchRequest, ListedOffset

__all__ = [
    "BrokerChannel", "ClusterMetadata", "CorruptRecordsError", "EpochEndResponse", "FetchPosition", "FetchRequest",
    "FetchResponse", "ListedOffset", "PartitionResponse", "RecordBatch", "Security", "batches", "choose_endpoint",
    "error_codes",
]  # fmt: skip
