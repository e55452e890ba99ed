"""The tiers of the tests: which tests run for every edit, for every change, and before a merge.

``scripts/test --quick``, ``scripts/test``, ``scripts/test --all`` and ``scripts/test --ci`` choose a tier, by pytest's
option ``--tier``. Each tier contains the tiers below it. A test belongs to the tier of the longest path in ``TIERS``
that contains its file. ``@pytest.mark.tier("ci")`` puts a single test, or a single parameter, into a higher tier.

``scripts/test --campaigns`` runs samples of the long campaigns, and no other tests. These are whole files.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from zkconsumer.version import COMPILED

ROOT = Path(__file__).resolve().parent.parent


class Tier(IntEnum):
    """A tier; a higher one takes longer. Times are for a quiet machine of 2 cores."""

    QUICK = 1
    """For every edit, 75 seconds: static checks, vectors, and the parts of the package, each alone."""
    STANDARD = 2
    """For every change, 9 minutes: whole members, and each of ZooKeeper, Kafka, the original, Spark and Docker."""
    ALL = 3
    """Before a merge, 15 minutes: every kind of server, peer and database, and a sample of the interrupts."""
    CI = 4
    """In CI, 23 minutes: everything but the campaigns, so also crashes and installations of Spark, and all peers."""
    CAMPAIGNS = 5
    """Before a release, and after a change of what they try: samples of campaigns, other Pythons and PySparks."""


_QUICK, _STANDARD, _ALL, _CI, _CAMPAIGNS = Tier

LONG = [
    f"tests/unit/{file}.py"
    for file in (
        "fetch/test_truncation_check",
        "kafka/test_arrow_columns",
        "kafka/test_broker_channel",
        "kafka/test_compression",
        "kafka/test_fetched_batches",
        "kafka/test_security",
        "member/brokers/test_faults",
        "member/zookeeper/test_recreated_topics",
        "operations/serving/test_group_history",
        "operations/serving/test_server",
        "operations/test_snapshot_reader",
        "spark/test_idle_queries",
        "spark/test_query_member",
        "spark/test_replaced_logs",
        "spark/test_streaming_query",
        "streams/test_messages_and_columns_agree",
        "streams/test_read_deadlines",
        "zookeeper/test_server_connection",
    )
]
"""Tests of parts that take over four seconds a file."""

TIERS = {
    "tests/unit": _STANDARD,
    **{f"tests/unit/{folder.name}": _QUICK for folder in (ROOT / "tests" / "unit").iterdir() if folder.is_dir()},
    **dict.fromkeys(LONG, _STANDARD),
    "tests/vectors": _QUICK,
    "tests/concurrency": _QUICK,
    "tests/faults": _STANDARD,
    "tests/faults/test_rows.py": _ALL,
    "tests/contract": _STANDARD,
    "tests/contract/test_installations.py": _CI,
    "tests/simulation": _STANDARD,
    "tests/typing": _STANDARD,
    "tests/interrupts": _ALL,
    "tests/interrupts/test_other_pythons.py": _CAMPAIGNS,
    "tests/scale": _ALL,
    "tests/cluster": _ALL,
    "tests/cluster/test_bench.py": _CAMPAIGNS,
    "tests/cluster/test_coordinated_peers.py": _CI,
    "tests/cluster/test_demo.py": _CI,
    "tests/cluster/test_dev_command.py": _CI,
    "tests/cluster/test_examples.py": _CI,
    "tests/cluster/test_kraft.py": _STANDARD,
    "tests/cluster/test_live.py": _STANDARD,
    "tests/cluster/test_mixed_group.py": _STANDARD,
    "tests/cluster/test_same_streams.py": _CI,
    "tests/cluster/test_standstill.py": _CI,
    "tests/databases": _STANDARD,
    "tests/docker": _ALL,
    "tests/docker/test_compose.py": _STANDARD,
    "tests/spark": _ALL,
    "tests/spark/test_batch.py": _STANDARD,
    "tests/spark/test_checkpoints.py": _CI,
    "tests/spark/test_clusters.py": _CI,
    "tests/spark/test_coordinated_member.py": _CI,
    "tests/spark/test_crashes.py": _CI,
    "tests/spark/test_dataframe.py": _CI,
    "tests/spark/test_kafka_source.py": _CI,
    "tests/spark/test_many_batches.py": _CAMPAIGNS,
    "tests/spark/test_older_pyspark.py": _CAMPAIGNS,
    "tests/spark/test_pipeline.py": _CI,
    "tests/spark/test_stateful.py": _CI,
    "tests/spark/test_stream.py": _STANDARD,
    "tests/spark/test_wheel.py": _CI,
}

BOTH_WAYS = {
    "tests/unit/streams": _STANDARD,
    "tests/unit/kafka": _STANDARD,
    "tests/unit/fetch": _STANDARD,
    "tests/vectors/test_message_sets.py": _STANDARD,
    "tests/interrupts": _ALL,
    "tests/unit/test_consumed.py": _STANDARD,
}
"""The tests that ``scripts/test`` runs a second time with ``ZKCONSUMER_PURE=1``, and from which tier on. The first time
they run compiled code, if there is a C compiler.
"""

ONE_WAY = frozenset(
    f"tests/unit/kafka/test_{name}.py"
    for name in (
        "broker_channel",
        "endpoints",
        "fetch_request",
        "group_channel",
        "mutated_batches",
        "offset_client",
        "requests",
        "sasl_mechanisms",
        "schema",
        "security",
    )
)
"""Files below a path of ``BOTH_WAYS`` that do not run a second time: they read no records, or run both ways themselves.
``@pytest.mark.one_way`` says the same of a single test.
"""

only_plain = pytest.mark.skipif(COMPILED, reason="compiled code reads the clock without Python: nothing can come there")


_SERVERS = (pytest.mark.cluster, pytest.mark.java)
# PySpark warns of versions of pandas that it was not tested with, although nothing here uses pandas.
_SPARK = (
    pytest.mark.spark,
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
)
MARKS = {
    "tests/cluster": _SERVERS,
    "tests/docker": (pytest.mark.docker,),
    "tests/faults/test_rows.py": _SERVERS,
    "tests/spark": (*_SERVERS, *_SPARK),
}
"""The marks of all tests of a file or folder."""


@cache
def marks_of(path: Path) -> Sequence[pytest.MarkDecorator]:
    """Return the marks of a file's tests."""
    file = path.relative_to(ROOT)
    return [mark for folder in (file, *file.parents) for mark in MARKS.get(str(folder), ())]


def tier_of(path: PurePosixPath) -> Tier:
    """Return the tier of a file, whose path is relative to the repository.

    Raises KeyError where no path of ``TIERS`` contains it.
    """
    for folder in (path, *path.parents):
        if str(folder) in TIERS:
            return TIERS[str(folder)]
    raise KeyError(f"{path} is in no tier: add it to tests/tiers.py")


@cache
def _tier_of_file(path: Path) -> Tier:
    return tier_of(PurePosixPath(path.relative_to(ROOT)))


def tier_of_item(item: pytest.Item) -> Tier:
    """Return the tier of a test: its file's, or that of its marker where that is higher."""
    marked = [Tier[str(marker.args[0]).upper()] for marker in item.iter_markers("tier")]
    return max(_tier_of_file(item.path), *marked, Tier.QUICK)


def left_out(path: Path, chosen: Tier) -> bool:
    """Whether no test of a file runs in the chosen tier, so that nothing of it need be imported."""
    if not _is_test_file(path):
        return False
    tier = _tier_of_file(path)
    return tier != chosen if chosen is Tier.CAMPAIGNS else tier > chosen


def one_way_only(path: Path, chosen: Tier) -> bool:
    """Whether a file's tests do not run a second time in plain Python."""
    if not _is_test_file(path):
        return False
    file = PurePosixPath(path.relative_to(ROOT))
    if str(file) in ONE_WAY or _tier_of_file(path) > chosen:
        return True
    return all(BOTH_WAYS.get(str(folder), chosen + 1) > chosen for folder in (file, *file.parents))


def _is_test_file(path: Path) -> bool:
    return path.suffix == ".py" and path.name.startswith("test_") and path.is_relative_to(ROOT)
