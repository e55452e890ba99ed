"""A part of these tests with the oldest PySpark that has streams, and with a PySpark before streams.

``scripts/test --pyspark 4.2.1`` runs all tests. PySpark 4.1 has batches, snapshots and tables only.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.spark.other_pyspark import PySparkNotAvailableError, python_with
from tests.spark.recorded import KINDS
from tests.timing import scaled
from zkconsumer.version import VERSION

OLDEST = "4.2.1"
WITHOUT_STREAMS = "4.1.1"
_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]


def _chosen() -> Iterator[str]:
    """A batch, a query as a member, and one of each kind that goes on from its checkpoint."""
    yield "test_batch.py::test_a_batch_holds_what_was_produced"
    yield "test_member.py::test_what_is_there_now_is_read_as_a_member_that_leaves_then"
    going_on = "test_checkpoints.py::test_a_query_goes_on_from_a_recorded_checkpoint"
    yield from (f"{going_on}[{VERSION}/{kind}-as-{kind}]" for kind in KINDS)


def _python(version: str) -> Path:
    """The Python of an environment with that version."""
    try:
        return python_with(version)
    except PySparkNotAvailableError as missing:
        pytest.skip(str(missing))


def _run(version: str, chosen: Sequence[str], *options: str) -> None:
    """Run these tests with that PySpark, and see that they were run and passed."""
    ours = ("PYTEST_", "SPARK_", "PYSPARK_")  # of this process, which may have a session of its own
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [str(_python(version)), "-m", "pytest", "-p", "no:cacheprovider", *options]
        + [str((_HERE / name).relative_to(_ROOT)) for name in chosen],
        capture_output=True,
        text=True,
        timeout=scaled(240),
        check=False,
        env=environment,
        cwd=_ROOT,
    )
    said = done.stdout[-8000:] + done.stderr[-2000:]
    assert done.returncode == 0, said
    assert f"PySpark {version}\n" in done.stdout, said
    assert re.search(rf"=+ {len(chosen)} passed in ", done.stdout), said


@pytest.mark.timeout(scaled(420))  # both deadlines, of the installation and of the run, end before it
def test_batches_members_and_checkpoints_with_the_oldest_pyspark() -> None:
    _run(OLDEST, list(_chosen()))


@pytest.mark.timeout(scaled(420))
def test_batches_and_tables_with_a_pyspark_without_streams() -> None:
    """PySpark 4.1 itself leaves a socket to the garbage collector when it collects rows."""
    chosen = [
        "test_batch.py::test_a_batch_holds_what_was_produced",
        "test_tables.py::test_the_state_of_a_group_is_read_as_tables",
    ]
    _run(
        WITHOUT_STREAMS,
        chosen,
        "-W",
        "ignore::ResourceWarning",
        "-W",
        "ignore::pytest.PytestUnraisableExceptionWarning",
    )


@pytest.mark.parametrize(
    ("version", "error", "said"),
    [
        (OLDEST, PySparkNotAvailableError, "pip cannot get pyspark 4.2.1: .*No matching distribution"),
        ("no version", RuntimeError, "pyspark no version cannot be installed in .*Invalid requirement"),
    ],
)
def test_only_a_version_that_cannot_be_had_is_a_reason_to_skip(
    version: str, error: type[Exception], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path))
    with pytest.raises(error, match=f"(?s){said}"):
        python_with(version)
