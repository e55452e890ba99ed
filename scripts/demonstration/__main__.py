"""Runs the demo; see the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from scripts.demonstration import balanced_scenario
from scripts.demonstration.scenario import QUICK_FLIGHTS, DemoSettings, play
from zkconsumer.errors import ZkConsumerError

_DESCRIPTION = """\
Starts a real ZooKeeper and Kafka on this machine and sends 336,776 real flights through
a consumer group while members join, crash and leave. Then checks that nothing was lost,
reads the same topic into a Spark DataFrame, and has a Spark stream share a group with
another member, which joins and leaves.

It takes about a minute and a half. With --quick, it sends 100,000 flights, leaves Spark
out and takes half a minute. The first time it fetches ZooKeeper and Kafka (55 MB), later
it needs no network. Exit code: 0 if all numbers agree, 1 if not.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/demo", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster up, and show what to try next")
    parser.add_argument("--quick", action="store_true", help="100,000 flights, without Spark, in half a minute")
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
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 100:
        raise argparse.ArgumentTypeError("at least 100, or there is nothing to see")
    return number


def main(argv: list[str] | None = None) -> int:
    """Run the demo. Return the exit code. ``argv`` is without the program's name (default: ``sys.argv``)."""
    arguments = _parser().parse_args(argv)
    settings = DemoSettings(
        flights=arguments.flights or (QUICK_FLIGHTS if arguments.quick else None),
        keep=arguments.keep,
        spark=not (arguments.no_spark or arguments.quick),
        report=arguments.report,
        plot=arguments.plot,
    )
    try:
        return (balanced_scenario.play if arguments.balance else play)(settings)
    except (ZkConsumerError, OSError) as error:  # such as a process that cannot be started
        print(f"scripts/demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
