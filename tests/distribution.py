"""The distribution of a whole tier's files to the workers of xdist.

A worker runs all tests of a file, because they share servers. Files of one line of ``TOGETHER`` also go to one worker:
a worker starts a Spark session, and a cluster of each release of Kafka, which take longer than most of their tests.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from xdist.scheduler.loadfile import LoadFileScheduling

from tests.tiers import ROOT

FIRST = (
    "tests/spark/test_batch.py",
    "tests/databases",
    "tests/contract/test_coordinated_member.py",
    "tests/faults/test_rows.py",
    "tests/spark/test_member.py",
    "tests/spark",
    "tests/simulation",
    "tests/cluster/test_demo.py",
    "tests/cluster/test_dev_command.py",
    "tests/cluster/test_coordinated_peers.py",
    "tests/cluster/test_brokers.py",
    "tests/contract",
    "tests/cluster",
    "tests/docker",
    "tests/typing",
    "tests/interrupts",
    "tests/concurrency",
)
"""Files and folders in the order of their begin. The longest begin first: otherwise the last one keeps all waiting."""

TOGETHER = (
    tuple(
        f"tests/spark/test_{name}.py" for name in ("batch", "stream", "options", "tables", "demo_weeks", "dataframe")
    ),
    tuple(f"tests/cluster/test_{name}.py" for name in ("brokers", "generations", "devcluster", "group_requests")),
    tuple(f"tests/contract/test_{name}.py" for name in ("coordinated_member", "group_coordinator", "offset_expiry")),
    tuple(f"tests/contract/test_{name}.py" for name in ("session", "offset_stores", "stored_acks")),
)


@cache
def start_order(path: Path) -> int:
    """Return the place of a file in the order of ``FIRST``. The longest of its paths decides."""
    if not path.is_relative_to(ROOT):
        return len(FIRST)
    file = path.relative_to(ROOT)
    for folder in map(str, (file, *file.parents)):
        if folder in FIRST:
            return FIRST.index(folder)
    return len(FIRST)


def unit_of(file: str) -> str:
    """Return the first of the files that run on one worker together with ``file``."""
    return next((line[0] for line in TOGETHER if file in line), file)


class FilesByServers(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """The distribution ``loadfile`` of xdist, where the files of a line of ``TOGETHER`` count as one file."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(super()._split_scope(nodeid))
