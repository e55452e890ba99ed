"""The embedded cluster: a real ZooKeeper and real Kafka brokers in ZooKeeper mode, started from Python.

It serves tests, the demo and ``zkconsumer dev``. It needs Java 17, which the extra ``cluster`` brings. ZooKeeper and
Kafka are fetched from Maven Central once. All servers listen on 127.0.0.1 only and end with the process that started
them. No thread here outlives a call.
"""

from zkconsumer.devcluster.cluster_errors import (
    DevClusterError,
    JarResolutionError,
    JavaNotFoundError,
    ServerStartError,
    ServerStopError,
)
from zkconsumer.devcluster.dev_cluster import DevCluster
from zkconsumer.devcluster.download_cache import cache_directory
from zkconsumer.devcluster.jars import resolve
from zkconsumer.devcluster.java_home import java, java_home_for_spark
from zkconsumer.devcluster.kafka_server import EmbeddedKafka, kafka_coordinates, kafka_jars
from zkconsumer.devcluster.server_process import ServerProcess
from zkconsumer.devcluster.zookeeper_server import EmbeddedZooKeeper, EnsembleServer, ZooKeeperEnsemble

__all__ = [
    "DevCluster",
    "DevClusterError",
    "EmbeddedKafka",
    "EmbeddedZooKeeper",
    "EnsembleServer",
    "JarResolutionError",
    "JavaNotFoundError",
    "ServerProcess",
    "ServerStartError",
    "ServerStopError",
    "ZooKeeperEnsemble",
    "cache_directory",
    "java",
    "java_home_for_spark",
    "kafka_coordinates",
    "kafka_jars",
    "resolve",
]
