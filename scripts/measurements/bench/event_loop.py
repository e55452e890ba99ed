"""Reading on an event loop: a member with a stream of a topic of 4 partitions. Compared with aiokafka, both ways."""

from __future__ import annotations

from typing import Any

from scripts.measurements.bench.iterate import BROKER, bulk, cases_of
from scripts.measurements.bench.peers import GROUP, OURS, Peer
from scripts.measurements.bench.plan import Plan
from zkconsumer.devcluster import DevCluster

NAME = "asyncio"
HELP = "messages a second through one stream on an event loop, beside aiokafka"

AIOKAFKA = {"auto_offset_reset": "earliest", "auto_commit_interval_ms": 5000}
PEERS = {
    OURS: Peer("async_for", GROUP),
    f"{OURS}, getmany": Peer("async_many", GROUP),
    "aiokafka": Peer("aiokafka_for", AIOKAFKA),
    "aiokafka, getmany": Peer("aiokafka_many", AIOKAFKA),
}


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    with DevCluster(broker_properties=BROKER) as cluster:
        cases = [bulk(cluster, plan, case, sizes, PEERS) for case, sizes in cases_of(plan)]
    print("The first of each pair is async for. Both commit every 5 s and check CRCs.\n")
    return {"scenario": NAME, "cases": cases, "producer_batch_bytes": plan.batch_bytes, "aiokafka_settings": AIOKAFKA}
