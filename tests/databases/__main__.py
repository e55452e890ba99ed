"""The campaign of kills: ``python -m tests.databases [--kills 200] [--slow 0.05] [--seed 1] [sqlite|postgres ...]``.

It starts a cluster, and a PostgreSQL server from the machine's programs. It ends with 1 if a table does not equal its
topic.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.databases import campaign
from tests.databases.postgres import server, why_none
from zkconsumer.devcluster import DevCluster


def main() -> int:
    """Run the campaigns, and print what came of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.databases")
    parser.add_argument("databases", nargs="*", choices=["sqlite", "postgres", []], help="by default both")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--slow", type=float, default=0.0, help="seconds between rows and record in each transaction")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    failed = False
    with ExitStack() as stack:
        cluster = stack.enter_context(DevCluster(tick_ms=500))
        for name in arguments.databases or ["sqlite", "postgres"]:
            if name == "postgres" and why_none():
                print(f"{name}: not run, {why_none()}", flush=True)
                continue
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"zkconsumer-{name}-")))
            if name == "sqlite":
                database = campaign.sqlite(folder)
            else:
                database = campaign.postgres(stack.enter_context(server()).address)
            topic = f"to-{name}"
            cluster.create_topic(topic, campaign.PARTITIONS)
            code = campaign.program(database, cluster, topic, name, arguments.slow)
            made = campaign.campaign(cluster, topic, code, database, folder, kills=arguments.kills, seed=arguments.seed)
            print(f"{name}: {made}", flush=True)
            failed = failed or bool(made.missing or made.surplus)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
