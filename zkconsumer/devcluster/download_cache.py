"""The cache folder: jars, compiled helpers, and the state of ``zkconsumer dev``.

Functions only, callable from any thread and process. ``locked`` guards between processes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import sleep

from zkconsumer.runtime.deadline import Deadline

_LOCK_POLL_S = 0.1


def cache_directory() -> Path:
    """Return ``$ZKCONSUMER_CACHE``, else ``$XDG_CACHE_HOME/zkconsumer``, else ``~/.cache/zkconsumer``.

    The folder may not exist yet.
    """
    if os.environ.get("ZKCONSUMER_CACHE"):
        return Path(os.environ["ZKCONSUMER_CACHE"]).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "zkconsumer"


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file. A reader sees the old content or the new, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def locked(path: Path, deadline: Deadline) -> Iterator[None]:
    """Hold an exclusive lock on a file between processes. The lock of a dead process is released.

    Raises: TimeoutError if another process holds the lock until the deadline.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline.expired:
                    raise TimeoutError(f"another process holds {path}") from None
                sleep(deadline.bounded(_LOCK_POLL_S))
        yield
