"""The oldest PySpark that is supported: a part of these tests in an environment that has it.

All of them: ``scripts/test --pyspark 4.2.1``.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.other_pyspark import PySparkNotAvailableError, python_with
from tests.spark.recorded import KINDS
from tests.timing import scaled
from zkconsumer.version import VERSION

OLDEST = "4.2.1"
_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[1]


def _chosen() -> Iterator[str]:
    """A batch, a query as a member, and one of each kind that goes on from its checkpoint."""
    yield "test_batch.py::test_a_batch_holds_what_was_produced"
    yield "test_member.py::test_what_is_there_now_is_read_as_a_member_that_leaves_then"
    going_on = "test_checkpoints.py::test_a_query_goes_on_from_a_recorded_checkpoint"
    yield from (f"{going_on}[{VERSION}/{kind}-as-{kind}]" for kind in KINDS)


@pytest.fixture(scope="module")
def older() -> Path:
    """The Python of an environment with that version."""
    try:
        return python_with(OLDEST)
    except PySparkNotAvailableError as missing:
        pytest.skip(str(missing))


@pytest.mark.timeout(scaled(420))  # both deadlines, of the installation and of the run, end before it
def test_batches_members_and_checkpoints_with_the_oldest_pyspark(older: Path) -> None:
    chosen = [str((_HERE / name).relative_to(_ROOT)) for name in _chosen()]
    ours = ("PYTEST_", "SPARK_", "PYSPARK_")  # of this process, which may have a session of its own
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [str(older), "-m", "pytest", "-p", "no:cacheprovider", *chosen],
        capture_output=True,
        text=True,
        timeout=scaled(240),
        check=False,
        env=environment,
        cwd=_ROOT,
    )
    said = done.stdout[-8000:] + done.stderr[-2000:]
    assert done.returncode == 0, said
    assert f"PySpark {OLDEST}\n" in done.stdout, said
    assert re.search(rf"=+ {len(chosen)} passed in ", done.stdout), said


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
