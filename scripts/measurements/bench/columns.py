"""Columns: ``stream.batches()``, the lengths of the values added up by Arrow, beside peers that hand out objects.

No peer has columns. The peers are peers of ``iterate``, and our own iteration.
"""

from __future__ import annotations

from typing import Any

from scripts.measurements.bench.iterate import BROKER, PARTITIONS, bulk, cases_of
from scripts.measurements.bench.peers import GROUP, JAVA, MANY_POLLED, OURS, SCALA, TUNED, WARM_UP, Peer
from scripts.measurements.bench.plan import Plan
from zkconsumer.devcluster import DevCluster

NAME = "columns"
HELP = "rows a second as Arrow batches of one stream, of 20-300 and of equal 100 bytes"

PEERS = {
    OURS: Peer("batches", GROUP),
    f"{OURS}, iterated": Peer("iterated", GROUP),
    f"Scala {SCALA}": Peer("scala", GROUP),
    f"Java {JAVA}, 10,000 a poll": Peer("java", MANY_POLLED, warm_up=WARM_UP),
    "confluent consume(500)": Peer("confluent_consume", TUNED),
}


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    with DevCluster(broker_properties=BROKER) as cluster:
        cases = [bulk(cluster, plan, case, sizes, PEERS) for case, sizes in cases_of(plan)]
    return {"scenario": NAME, "partitions": PARTITIONS, "cases": cases}
