"""The builds of Python that the package refuses."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.timing import scaled
from zkconsumer.version import refuse_free_threaded_builds

_FREE_THREADED = """
import sysconfig
sysconfig.get_config_var = lambda name: 1 if name == "Py_GIL_DISABLED" else None
import zkconsumer
"""


@pytest.mark.parametrize("value", [None, 0], ids=["before 3.13", "since 3.13"])
def test_an_ordinary_build_is_accepted(value: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": value}.get)

    refuse_free_threaded_builds()


def test_a_free_threaded_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", {"Py_GIL_DISABLED": 1}.get)

    with pytest.raises(ImportError, match=r"free-threaded builds.*\(GIL\).*use the ordinary build"):
        refuse_free_threaded_builds()


def test_importing_in_a_free_threaded_build_fails(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FREE_THREADED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )

    assert done.returncode == 1
    assert "ImportError: zkconsumer does not support free-threaded builds" in done.stderr
