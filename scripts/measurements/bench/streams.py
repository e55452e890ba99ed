"""Several streams: one member, four streams, as many threads; and the ways that need no threads of one's own.

confluent-kafka knows no streams; its one consumer is there for orientation.
"""

from __future__ import annotations

from typing import Any

from scripts.measurements.bench.iterate import BROKER, bulk
from scripts.measurements.bench.peers import GROUP, OURS, SCALA, TUNED, Peer
from scripts.measurements.bench.plan import Plan
from scripts.measurements.bench.producing import LARGEST, SMALLEST
from zkconsumer.devcluster import DevCluster

NAME = "streams"
HELP = "four streams of one member, read by four threads, by connector.run and by one loop"

STREAMS = 4
PEERS = {
    OURS: Peer("threads", GROUP),
    f"{OURS}, one loop": Peer("merged", GROUP),
    f"{OURS}, run()": Peer("run", GROUP),
    f"Scala {SCALA}": Peer("scala", GROUP),
    "confluent poll()": Peer("confluent_poll", TUNED),
}


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    with DevCluster(broker_properties=BROKER) as cluster:
        case = bulk(
            cluster,
            plan,
            "4 streams",
            (SMALLEST, LARGEST),
            PEERS,
            partitions=STREAMS,
            streams=STREAMS,
        )
    return {"scenario": NAME, "streams": STREAMS, "cases": [case]}
