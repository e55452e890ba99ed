"""Stream iteration: one member, one stream, one topic of 4 partitions, the value read for each message.

Compared with the original Scala connector and with confluent-kafka in both ways of using it, in turns and in one run,
because the machine's speed varies more from hour to hour than the peers differ. The time is each peer's own, from its
first message to its last; CPU time and memory are read from outside.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.bench import machine
from tests.bench.peers import Cost, Task, measure, python_peer, scala_peer
from tests.cluster.member_process import MemberProcess
from zkconsumer.devcluster import DevCluster

NAME = "iteration"
HELP = "messages a second through a stream, against the Scala connector and confluent-kafka"

SCALA = "1.1.1"
PARTITIONS = 4
SMALLEST, LARGEST = 20, 300
_OURS = "zkconsumer"
# Each peer commits every 5 s; all else is its default but for what is named here.
_ZOOKEEPER_GROUP = {"auto.offset.reset": "smallest", "auto.commit.interval.ms": "5000"}
_TUNED = {
    "auto.offset.reset": "earliest",
    "auto.commit.interval.ms": 5000,
    "fetch.queue.backoff.ms": 2,  # 1000 by default, which stalls it whenever its queue is full
    "queued.min.messages": 100000,
}
_SCALA_HEAP_MB = 512


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    messages: int
    turns: int
    batch_bytes: int


Opener = Callable[[Task], AbstractContextManager[MemberProcess]]


def _openers() -> dict[str, Opener]:
    return {
        _OURS: lambda task: python_peer(_OURS, task, {**_ZOOKEEPER_GROUP, "auto.commit.interval.ms": 5000}),
        f"Scala {SCALA}": lambda task: scala_peer(SCALA, task, dict(_ZOOKEEPER_GROUP), _SCALA_HEAP_MB),
        "confluent poll()": lambda task: python_peer("confluent poll()", task, _TUNED),
        "confluent consume(500)": lambda task: python_peer("confluent consume(500)", task, _TUNED),
    }


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    openers = _openers()
    costs: dict[str, list[Cost]] = {name: [] for name in openers}
    loads = []
    with DevCluster(broker_properties={"num.network.threads": 3}) as cluster:
        cluster.create_topic("bench", PARTITIONS)
        print(f"Producing {plan.messages:,} messages of {SMALLEST}-{LARGEST} bytes to {PARTITIONS} partitions ...")
        size = produce(cluster.bootstrap_servers, "bench", plan)
        broker = cluster.kafka.pid
        assert broker is not None
        for turn in range(plan.turns):
            names = list(openers)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                group = f"{name.split()[0].lower()}-{name.count('consume')}-{turn}"
                task = Task(cluster.zookeeper_connect, cluster.bootstrap_servers, group, "bench", plan.messages)
                loads.append(machine.load())
                with openers[name](task) as peer:
                    cost = measure(peer, broker)
                if (cost.messages, cost.bytes) != (plan.messages, size):
                    raise RuntimeError(f"{name} consumed {cost.messages} messages, {cost.bytes} bytes, not all")
                costs[name].append(cost)
                print(
                    f"  turn {turn + 1}  {name:<24} {cost.messages / cost.seconds / 1e6:5.2f}M messages/s", flush=True
                )
        idle = _idle(cluster)
    return _report(plan, size, costs, loads, idle)


def produce(bootstrap: str, topic: str, plan: Plan) -> int:
    """Writes the messages, the same ones each time. Returns: how many bytes of values."""
    from confluent_kafka import KafkaError, Message, Producer

    failures: list[str] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    settings = {"bootstrap.servers": bootstrap, "linger.ms": 20, "batch.size": plan.batch_bytes, "acks": 1}
    producer = Producer({**settings, "queue.buffering.max.messages": 500_000})
    chance = random.Random(13)
    filler = chance.randbytes(LARGEST * 64)
    size = 0
    for number in range(plan.messages):
        start, length = chance.randrange(LARGEST * 63), chance.randint(SMALLEST, LARGEST)
        value = filler[start : start + length]
        size += length
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(60.0) or failures:
        raise RuntimeError(f"not everything was produced: {failures[:3]}")
    return size


def _idle(cluster: DevCluster) -> dict[str, float | None]:
    """Resident memory of a member that owns the partitions, has read a few messages and waits."""
    cluster.create_topic("quiet", PARTITIONS)
    produce(cluster.bootstrap_servers, "quiet", Plan(1000, 1, 65536))
    task = Task(cluster.zookeeper_connect, cluster.bootstrap_servers, "idle", "quiet", 1000)
    with python_peer("idle", task, {"auto.offset.reset": "smallest"}) as peer:
        peer.wait_ready(60.0)
        pid = peer.pid
        assert pid is not None
        found = {"idle_mib": machine.resident_mib(pid), "idle_peak_mib": machine.resident_mib(pid, peak=True)}
        peer.stop()
        peer.wait_end(30.0)
    return found


def _report(
    plan: Plan, size: int, costs: dict[str, list[Cost]], loads: list[float], idle: dict[str, float | None]
) -> dict[str, Any]:
    rates = {name: [cost.messages / cost.seconds for cost in of] for name, of in costs.items()}
    ours = median(rates[_OURS])
    million = plan.messages / 1e6
    rows: dict[str, dict[str, Any]] = {}
    for name, of in costs.items():
        rows[name] = {
            "messages_per_second": round(median(rates[name])),
            "lowest": round(min(rates[name])),
            "highest": round(max(rates[name])),
            "ours_to_this": round(ours / median(rates[name]), 2),
            "cpu_seconds_per_million": round(median(cost.cpu for cost in of) / million, 2),
            "broker_cpu_seconds_per_million": round(median(cost.broker_cpu for cost in of) / million, 2),
            "peak_mib": median(cost.peak_mib for cost in of),
            "turns": [cost._asdict() for cost in of],
        }
    _print_table(plan, rows, loads, idle)
    return {
        "scenario": NAME,
        "messages": plan.messages,
        "value_bytes": size,
        "turns": plan.turns,
        "partitions": PARTITIONS,
        "producer_batch_bytes": plan.batch_bytes,
        "scala_heap_mb": _SCALA_HEAP_MB,
        "confluent_settings": _TUNED,
        "load_average_before_each": loads,
        "peers": rows,
        **idle,
    }


def _print_table(
    plan: Plan, rows: dict[str, dict[str, Any]], loads: list[float], idle: dict[str, float | None]
) -> None:
    print(f"\nMedians of {plan.turns} turns (lowest - highest); CPU seconds a million messages; peak resident memory\n")
    print(f"{'':<24}{'messages/s':>11}  {'range':<13}{'ours is':>8}{'CPU':>7}{'broker':>8}{'MiB':>7}")
    for name, row in rows.items():
        spread = f"{row['lowest'] / 1e6:.2f} - {row['highest'] / 1e6:.2f}"
        print(
            f"{name:<24}{row['messages_per_second'] / 1e6:>10.2f}M  {spread:<13}{row['ours_to_this']:>7.2f}x"
            f"{row['cpu_seconds_per_million']:>7.2f}{row['broker_cpu_seconds_per_million']:>8.2f}{row['peak_mib']:>7.0f}"
        )
    print("\nRates are each peer's own, from its first message to its last, a JVM's warming up included. zkconsumer")
    print("checks CRCs. Brokers convert messages to an older format for the Scala connector, hence their CPU time.")
    print(f"An idle member of zkconsumer: {idle['idle_mib']} MiB resident (peak {idle['idle_peak_mib']}).")
    print(f"Load average of the machine before each turn: {min(loads)} to {max(loads)}.")
