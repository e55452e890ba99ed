"""A Python environment with another PySpark than the installed one, and all else as here.

``python -m tests.spark.other_pyspark 4.2.1`` makes it where needed and prints its Python: `scripts/test --pyspark`.

PySpark itself (480 MB) is installed once per user, in a folder of the cache. The environment, of the project's folder
``.cache``, is a few links: first to that folder, then to the packages of the environment it is made from, which stays
as it is.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from tests.timing import scaled
from zkconsumer.devcluster.download_cache import cache_directory, locked, write_atomically
from zkconsumer.runtime.deadline import Deadline

_ROOT = Path(__file__).resolve().parents[2]
_INSTALL_S = 150.0
# Texts of pip without an answer, or with answers that lack the version.
_NOT_TO_BE_HAD = ("No matching distribution found", "Connection", "Timeout", "timed out")


class PySparkNotAvailableError(Exception):
    """The package cannot be had here and now."""


def python_with(version: str) -> Path:
    """The Python of an environment with PySpark of this version.

    Raises PySparkNotAvailableError where it cannot be had, RuntimeError where it cannot be installed otherwise.
    """
    packages = cache_directory() / "pyspark" / version
    with locked(packages.with_name(f"{version}.lock"), Deadline(scaled(_INSTALL_S))):
        if not (packages / ".complete").exists():
            _install(version, packages)
        # One for each environment that it may be made from.
        key = hashlib.sha256(f"{sys.prefix} {sys.version} {packages}".encode()).hexdigest()[:8]
        return _linked(_ROOT / ".cache" / f"pyspark-{version}-{key}", packages)


def _install(version: str, packages: Path) -> None:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "2", "--timeout", "30", "install"]
    command = [*pip, "--quiet", "--upgrade", "--target", str(packages), f"pyspark=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(_INSTALL_S), check=False)
    except subprocess.TimeoutExpired as slow:
        raise PySparkNotAvailableError(f"pip did not get pyspark {version} in {slow.timeout:g} s") from slow
    if done.returncode == 0:
        (packages / ".complete").touch()
        return
    said = done.stderr.strip()[-500:]
    if any(sign in done.stderr for sign in _NOT_TO_BE_HAD):
        raise PySparkNotAvailableError(f"pip cannot get pyspark {version}: {said}")
    raise RuntimeError(f"pyspark {version} cannot be installed in {packages}: {said}")


def _linked(folder: Path, packages: Path) -> Path:
    python = folder / "bin" / "python"
    lines = [str(packages), f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})", ""]
    within = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    if not python.exists() or not within.is_dir():
        venv.create(folder, clear=True, symlinks=True, with_pip=False)
    write_atomically(within / "linked.pth", "\n".join(lines))
    return python


if __name__ == "__main__":
    print(python_with(sys.argv[1]))
