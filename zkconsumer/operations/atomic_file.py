"""Writes files that a crash cannot leave half written. Any thread."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from zkconsumer.errors import ConfigException


def write_new(path: Path, text: str, *, replace: bool = False) -> None:
    """Write a file atomically and sync it to disk.

    Raises ConfigException, also for an existing file unless ``replace`` is true.
    """
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            if replace:
                Path(temporary).replace(path)
            else:
                os.link(temporary, path)  # a rename would overwrite an existing file
        finally:
            Path(temporary).unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigException(str(path), f"cannot be written: {error.strerror or error}") from None
