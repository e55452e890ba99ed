"""Python programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.timing import scaled


def run_python(
    *arguments: str,
    code: int = 0,
    folder: Path | None = None,
    seconds: float = 60.0,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments and variables of the environment. It must end with the exit code in time."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=scaled(seconds),
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done


def exists(pid: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
