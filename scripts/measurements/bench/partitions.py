"""Many partitions: the cost of an idle member, and the speed of a stream that reads all partitions.

Idle, a member owns 100 partitions of which each has had a message, and waits at its default settings; the CPU time of
its process and of the broker is taken over some seconds. Bulk reading is that of ``iterate``, from 200 partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event
from typing import Any

from scripts.measurements.bench import machine
from scripts.measurements.bench.contest import Column, Measures, in_turns
from scripts.measurements.bench.iterate import BROKER, bulk
from scripts.measurements.bench.peers import GROUP, OURS, READY_S, SCALA, TUNED, Peer, Task
from scripts.measurements.bench.plan import Plan
from scripts.measurements.bench.producing import LARGEST, SMALLEST, fill
from zkconsumer.devcluster import DevCluster

NAME = "many-partitions"
HELP = "an idle member of 100 partitions, and one stream that reads 200"

IDLE, BUSY = 100, 200
_SETTLED_S = 2.0
_DEFAULTS = {"auto.offset.reset": "smallest"}
IDLERS = {
    OURS: Peer("idle", _DEFAULTS),
    f"Scala {SCALA}": Peer("scala", {"auto.offset.reset": "smallest"}),
    "confluent poll()": Peer("confluent_idle", {"auto.offset.reset": "earliest"}),
}
READERS = {
    OURS: Peer("iterated", GROUP),
    f"Scala {SCALA}": Peer("scala", GROUP),
    "confluent poll()": Peer("confluent_poll", TUNED),
}
IDLE_COLUMNS = (
    Column("percent_of_a_core", "% core"),
    Column("broker_percent_of_a_core", "broker %"),
    Column("resident_mib", "MiB", digits=0),
)


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    with DevCluster(broker_properties=BROKER) as cluster:
        idle = _idle(cluster, plan, IDLERS)
        smaller = Plan(plan.messages // 2, plan.turns, plan.batch_bytes, plan.quick)
        case = f"{BUSY} partitions"
        busy = bulk(cluster, smaller, case, (SMALLEST, LARGEST), READERS, partitions=BUSY)
    return {"scenario": NAME, "cases": [idle, busy]}


def _idle(cluster: DevCluster, plan: Plan, peers: Mapping[str, Peer]) -> dict[str, Any]:
    cluster.create_topic("idle", IDLE)
    fill(cluster.bootstrap_servers, "idle", IDLE, partitions=IDLE)
    seconds = plan.seconds(6.0, 3.0)

    def contestant(number: int, peer: Peer) -> Callable[[int], Measures]:
        def wait(turn: int) -> Measures:
            group = f"idle-{number}-{turn}"
            # one message more than the topic has: the Scala peer would end with the last message
            total = IDLE if peer.kind != "scala" else IDLE + 1
            task = Task(
                cluster.zookeeper_connect,
                cluster.bootstrap_servers,
                group,
                "idle",
                total,
            )
            with peer.open(task) as process:
                process.wait_ready(READY_S)
                pid, broker_pid = process.pid, cluster.kafka.pid
                assert pid is not None
                assert broker_pid is not None
                Event().wait(_SETTLED_S)
                before = (
                    machine.cpu_seconds(pid) or 0.0,
                    machine.cpu_seconds(broker_pid) or 0.0,
                )
                Event().wait(seconds)
                after = (
                    machine.cpu_seconds(pid) or 0.0,
                    machine.cpu_seconds(broker_pid) or 0.0,
                )
                resident = machine.resident_mib(pid) or 0.0
            ours, broker = ((late - early) / seconds * 100 for early, late in zip(before, after, strict=True))
            return {
                "percent_of_a_core": ours,
                "broker_percent_of_a_core": broker,
                "resident_mib": resident,
            }

        return wait

    contestants = {name: contestant(number, peer) for number, (name, peer) in enumerate(peers.items())}
    return in_turns(
        f"{IDLE} idle partitions",
        contestants,
        plan.turns,
        IDLE_COLUMNS,
        more_is_better=False,
    )
