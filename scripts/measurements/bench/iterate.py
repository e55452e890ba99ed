"""Stream iteration: a member with a stream of a topic of 4 partitions, which reads the value of each message.

Compared with the original Scala connector, with today's Java consumer, and with confluent-kafka, the latter two in both
ways of using them. The time is each peer's
own, from its first message to its last; CPU time and memory are read from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scripts.measurements.bench import machine
from scripts.measurements.bench.contest import RATE_COLUMNS, Measures, in_turns, rated
from scripts.measurements.bench.peers import (
    GROUP,
    HEAP_MB,
    JAVA,
    MANY_POLLED,
    OURS,
    POLLED,
    READY_S,
    SCALA,
    TUNED,
    WARM_UP,
    Peer,
    Task,
    measure,
)
from scripts.measurements.bench.plan import Plan
from scripts.measurements.bench.producing import LARGEST, SMALLEST, fill
from zkconsumer.devcluster import DevCluster

NAME = "iterate"
HELP = "messages a second through one stream, of 20-300 and of equal 100 bytes"

PARTITIONS = 4
CASES = {"20-300 B": (SMALLEST, LARGEST), "100 B": (100, 100)}
BROKER = {"num.network.threads": 3}
PEERS = {
    OURS: Peer("iterated", GROUP),
    f"Scala {SCALA}": Peer("scala", GROUP),
    f"Java {JAVA}, 500 a poll": Peer("java", POLLED, warm_up=WARM_UP),
    f"Java {JAVA}, 10,000 a poll": Peer("java", MANY_POLLED, warm_up=WARM_UP),
    "confluent poll()": Peer("confluent_poll", TUNED),
    "confluent consume(500)": Peer("confluent_consume", TUNED),
}


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    with DevCluster(broker_properties=BROKER) as cluster:
        cases = [bulk(cluster, plan, case, sizes, PEERS) for case, sizes in cases_of(plan)]
        idle = _idle(cluster)
    print(
        "Rates are each peer's own, from its first message to its last. Java's consumer has read all messages twice by"
    )
    print("then, without being measured. The Scala connector's warming up counts, and its second half is without it.")
    print("zkconsumer and Java check CRCs. Brokers convert messages to an older format for the Scala connector.")
    print(f"An idle member of zkconsumer: {idle['idle_mib']} MiB resident.\n")
    settings = {
        "partitions": PARTITIONS,
        "producer_batch_bytes": plan.batch_bytes,
        "scala_heap_mb": HEAP_MB,
    }
    return {
        "scenario": NAME,
        "cases": cases,
        **settings,
        "confluent_settings": TUNED,
        **idle,
    }


def cases_of(plan: Plan) -> list[tuple[str, tuple[int, int]]]:
    """The kinds of messages to read: name and bounds of their lengths."""
    return list(CASES.items())[: 1 if plan.quick else None]


def bulk(
    cluster: DevCluster,
    plan: Plan,
    case: str,
    sizes: tuple[int, int],
    peers: Mapping[str, Peer],
    *,
    partitions: int = PARTITIONS,
    streams: int = 1,
) -> dict[str, Any]:
    """Fills a topic and lets peers read all of it in turns. Returns: an entry of "cases"."""
    topic = "bench-" + "".join(letter for letter in f"{case}-{partitions}" if letter.isalnum())
    cluster.create_topic(topic, partitions)
    print(f"Producing {plan.messages:,} messages of {sizes[0]}-{sizes[1]} bytes to {partitions} partitions ...")
    settings: dict[str, Any] = {
        "sizes": sizes,
        "partitions": partitions,
        "batch_bytes": plan.batch_bytes,
    }
    size = fill(cluster.bootstrap_servers, topic, plan.messages, **settings)

    def contestant(number: int, peer: Peer) -> Callable[[int], Measures]:
        def read(turn: int) -> Measures:
            group = f"{topic}-{number}-{turn}"
            task = Task(
                cluster.zookeeper_connect,
                cluster.bootstrap_servers,
                group,
                topic,
                plan.messages,
                streams,
            )
            cost = measure(peer, task, cluster)
            if cost.bytes != size:
                raise RuntimeError(f"{peer.kind} consumed {cost.bytes} bytes of {size}")
            return rated(cost)

        return read

    contestants = {name: contestant(number, peer) for number, (name, peer) in enumerate(peers.items())}
    result = in_turns(case, contestants, plan.turns, RATE_COLUMNS)
    return {**result, "messages": plan.messages, "value_bytes": size}


def _idle(cluster: DevCluster) -> dict[str, float | None]:
    """Resident memory of a member that owns the partitions, has read a few messages and waits."""
    cluster.create_topic("quiet", PARTITIONS)
    fill(cluster.bootstrap_servers, "quiet", 1000, partitions=PARTITIONS)
    task = Task(cluster.zookeeper_connect, cluster.bootstrap_servers, "idle", "quiet", 1000)
    with Peer("idle", GROUP).open(task) as process:
        process.wait_ready(READY_S)
        pid = process.pid
        assert pid is not None
        found = {
            "idle_mib": machine.resident_mib(pid),
            "idle_peak_mib": machine.resident_mib(pid, peak=True),
        }
        process.stop()
    return found
