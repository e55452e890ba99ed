"""The supported Pythons of this machine, and an environment of each in which the sweep of readers can run.

An environment is made once per user, in a folder of the cache, with the package's requirements and pyarrow.
"""

from __future__ import annotations

import configparser
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.timing import scaled
from zkconsumer.devcluster.download_cache import cache_directory, locked
from zkconsumer.runtime.deadline import Deadline

ROOT = Path(__file__).resolve().parents[2]
SUPPORTED = ((3, 11), (3, 12), (3, 13), (3, 14), (3, 15))
_INSTALL_S = 300.0


class Python(NamedTuple):
    """An interpreter: its version ("3.12.1") and its path."""

    version: str
    path: Path

    @property
    def minor(self) -> tuple[int, int]:
        """(3, 12) of 3.12.1."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


class NotAvailableError(Exception):
    """No environment can be had for a Python here and now."""


def found() -> list[Python]:
    """Return an interpreter for each supported version on this machine, first the interpreter that runs this code."""
    here = Python(".".join(map(str, sys.version_info[:3])), Path(sys.executable))
    pythons = {here.minor: here}
    for path in _candidates():
        python = _asked(path)
        if python is not None and python.minor in SUPPORTED:
            pythons.setdefault(python.minor, python)
    return list(pythons.values())


def missing() -> list[str]:
    """The supported versions of which there is no interpreter here."""
    here = {python.minor for python in found()}
    return [f"{major}.{minor}" for major, minor in SUPPORTED if (major, minor) not in here]


def _candidates() -> Iterator[Path]:
    """Where interpreters may be: PATH, and the folders of pyenv and uv."""
    home = Path.home()
    roots = [Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions", home / ".local/share/uv/python"]
    for major, minor in SUPPORTED:
        name = f"python{major}.{minor}"
        in_path = shutil.which(name)
        if in_path is not None:
            yield Path(in_path)
        for root in roots:
            yield from sorted(root.glob(f"*{major}.{minor}*/bin/{name}"), reverse=True)


def _asked(path: Path) -> Python | None:
    command = [str(path), "-c", "import sys; print('%d.%d.%d' % sys.version_info[:3])"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(20), check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Python(done.stdout.strip(), path) if done.returncode == 0 else None  # a shim of pyenv may lead nowhere


def environment(python: Python) -> Path:
    """The interpreter of an environment of this Python with all that the readers need; made where it is missing.

    Raises: NotAvailableError.
    """
    if python.path == Path(sys.executable):
        return python.path
    needed = requirements()
    key = hashlib.sha256(f"{python.path} {python.version} {needed}".encode()).hexdigest()[:8]
    folder = cache_directory() / "pythons" / f"{python.version}-{key}"
    inside = folder / "bin" / "python"
    with locked(folder.with_suffix(".lock"), Deadline(scaled(_INSTALL_S))):
        if not (folder / ".complete").exists():
            _make(python, folder, needed)
    return inside


def _make(python: Python, folder: Path, needed: list[str]) -> None:
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--retries",
        "2",
        "install",
        "-q",
    ]
    for command in ([str(python.path), "-m", "venv", "--clear", str(folder)], [*pip, *needed]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(_INSTALL_S), check=False)
        except subprocess.TimeoutExpired as slow:
            raise NotAvailableError(f"Python {python.version}: {command[1:3]} took {slow.timeout:g} s") from slow
        if done.returncode:
            raise NotAvailableError(f"Python {python.version}: {done.stderr.strip()[-300:]}")
    (folder / ".complete").touch()


def requirements() -> list[str]:
    """The requirements of the package and of its extra ``arrow``, as setup.cfg lists them."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"] + "\n" + config["options.extras_require"]["arrow"]
    return [line.strip() for line in lines.splitlines() if line.strip() and not line.strip().startswith("#")]
