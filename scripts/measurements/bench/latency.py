"""Latency: the age of a message when it is handed out, at 1,000 messages a second.

A separate process produces messages of 100 bytes, one at a time, evenly, to 4 partitions. The process stamps a message
right before the hand-over to the producer. Producer and consumers read the same clock of the same machine
(CLOCK_MONOTONIC). So the age includes the producer and the broker, which are the same for all peers. Messages of the
first seconds, while a JVM is cold, do not count.

At this rate one stall of 80 ms makes 80 messages late. That is the p99 of the 8,000 messages in a turn, whether the
broker's garbage collector stalled, the producer or another process. So turns are long, and each peer has three of them.
Beside the p99 of all messages stands the p99 of the median second, which a single stall does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from scripts.measurements.bench.contest import Column, Measures, in_turns
from scripts.measurements.bench.iterate import BROKER
from scripts.measurements.bench.peers import GROUP, JAVA, OURS, POLLED, SCALA, TUNED, Peer, Task, measure, percentile
from scripts.measurements.bench.plan import Plan
from scripts.measurements.bench.producing import PACED_BYTES, paced
from zkconsumer.devcluster import DevCluster

NAME = "latency"
HELP = "produced to handed out at 1,000 messages a second"

PARTITIONS = 4
PER_SECOND = 1000
WARM_UP_S = 3.0
BROKER_WARM_UP_S = 8.0
"""With each peer before the first turn: after 3 s the p99 of whoever came first was 6 ms, that of its later turns 3."""
GATHERED = {**GROUP, "fetch.min.bytes": "100000", "fetch.wait.max.ms": "3"}
"""The broker gathers messages for 3 ms, so that fewer fetches bring them."""
PEERS = {
    OURS: Peer("latency", GROUP),
    f"{OURS}, 3 ms gathered": Peer("latency", GATHERED),
    f"Scala {SCALA}": Peer("scala", GROUP, mode="latency"),
    f"Java {JAVA}": Peer("java", POLLED, mode="latency"),
    "confluent poll()": Peer("confluent_latency", TUNED),
}
COLUMNS = (
    Column("p99_ms", "p99 ms"),
    Column("second_p99_ms", "a second"),
    Column("p50_ms", "p50 ms"),
    Column("p999_ms", "p99.9 ms"),
    Column("cpu_percent_of_a_core", "% core", digits=1),
)


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    seconds = plan.seconds(11.0, 2.0)
    with DevCluster(broker_properties=BROKER) as cluster:
        if not plan.quick:
            _warm_up(cluster)
        contestants = {
            name: _contestant(cluster, number, peer, seconds) for number, (name, peer) in enumerate(PEERS.items())
        }
        case = in_turns(
            f"{PER_SECOND} messages/s",
            contestants,
            plan.turns,
            COLUMNS,
            more_is_better=False,
        )
    told = {
        "per_second": PER_SECOND,
        "seconds": seconds,
        "warm_up_seconds": WARM_UP_S,
        "value_bytes": PACED_BYTES,
    }
    clock = "CLOCK_MONOTONIC of one machine, stamped before the producer gets the message"
    return {
        "scenario": NAME,
        **told,
        "partitions": PARTITIONS,
        "clock": clock,
        "cases": [case],
    }


def _warm_up(cluster: DevCluster) -> None:
    """A cold broker would be held against whoever comes first."""
    for number, peer in enumerate(PEERS.values()):
        _contestant(cluster, number, peer, BROKER_WARM_UP_S)(-1)


def _contestant(cluster: DevCluster, number: int, peer: Peer, seconds: float) -> Callable[[int], Measures]:
    def listen(turn: int) -> Measures:
        topic = f"latency-{number}-{turn + 1}"
        cluster.create_topic(topic, PARTITIONS)
        total = int(seconds * PER_SECOND)
        task = Task(cluster.zookeeper_connect, cluster.bootstrap_servers, topic, topic, total)
        pace = {"partitions": PARTITIONS, "per_second": PER_SECOND}
        cost = measure(
            peer,
            task,
            cluster,
            lambda: paced(cluster.bootstrap_servers, topic, total, **pace),
        )
        first = min(stamp for stamp, _ in cost.ages)
        cold = min(WARM_UP_S, seconds / 3) * 1e9
        counted = [(stamp - first - cold, age) for stamp, age in cost.ages if stamp - first >= cold]
        ages = [age for _, age in counted]
        return {
            "p50_ms": percentile(ages, 0.5) / 1e6,
            "p99_ms": percentile(ages, 0.99) / 1e6,
            "second_p99_ms": _of_the_median_second(counted) / 1e6,
            "p999_ms": percentile(ages, 0.999) / 1e6,
            "highest_ms": max(ages) / 1e6,
            "cpu_percent_of_a_core": cost.cpu / seconds * 100,
            "peak_mib": cost.peak_mib,
        }

    return listen


def _of_the_median_second(counted: list[tuple[float, int]]) -> float:
    """The median of the p99 of each second: (ns since the first that counts, age in ns)."""
    seconds: dict[int, list[int]] = {}
    for since, age in counted:
        seconds.setdefault(int(since / 1e9), []).append(age)
    return median(percentile(ages, 0.99) for ages in seconds.values())
