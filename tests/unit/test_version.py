"""The builds of Python that the package refuses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.programs import run_python
from zkconsumer.version import refuse_free_threaded_builds

_FREE_THREADED = """
import sys
sys.version = "3.14.0 free-threading build (main, Oct  7 2025, 15:34:55) [GCC 14.2.0]"
import zkconsumer
"""


def test_an_ordinary_build_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version", "3.14.0 (main, Oct  7 2025, 15:34:55) [GCC 14.2.0]")

    refuse_free_threaded_builds()


@pytest.mark.parametrize("build", ["experimental free-threading build", "free-threading build"])
def test_a_free_threaded_build_is_refused(build: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 calls it experimental."""
    monkeypatch.setattr(sys, "version", f"3.14.0 {build} (main, Oct  7 2025, 15:34:55) [GCC 14.2.0]")

    with pytest.raises(ImportError, match=r"free-threaded builds.*\(GIL\).*use the ordinary build"):
        refuse_free_threaded_builds()


def test_importing_in_a_free_threaded_build_fails(tmp_path: Path) -> None:
    done = run_python("-c", _FREE_THREADED, code=1, folder=tmp_path)
    assert "ImportError: zkconsumer does not support free-threaded builds" in done.stderr
