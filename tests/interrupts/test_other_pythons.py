"""The sweep of readers in the other Pythons of this machine."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.interrupts import pythons
from tests.timing import scaled

FOUND = pythons.found()


@pytest.mark.parametrize("python", FOUND[1:], ids=lambda python: python.version)
def test_readers_lose_nothing_in_other_pythons(python: pythons.Python) -> None:
    """Bytecode differs from version to version, and so do the places where an interrupt can come."""
    try:
        inside = pythons.environment(python)
    except pythons.NotAvailableError as error:
        pytest.skip(f"found {[one.version for one in FOUND]}; {error}")
    command = [str(inside), "-m", "tests.interrupts", "--here", "--readers", "--json", "--often", "1", "--most", "10"]
    done = subprocess.run(
        [
            *command,
            "--within=/streams/",
            "--signals",
            "0.05",
            "stream.get",
            "next(stream)",
            "for message in stream",
            "stream.batches",
        ],
        cwd=pythons.ROOT,
        env=os.environ | {"PYTHONPATH": str(pythons.ROOT)},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert done.stdout, done.stderr
    said = json.loads(done.stdout)
    assert said["version"] == python.version
    assert not said["found"], "\n".join(line for one in said["report"] for line in one["lines"])
