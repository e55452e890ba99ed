"""Writes files that a crash cannot leave half written. Any thread."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from zkconsumer.errors import ConfigException


def write_new(path: Path, text: str) -> None:
    """Write a new file atomically and sync it to disk. Raises ConfigException, also for an existing file."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # a rename would overwrite an existing file
        finally:
            Path(temporary).unlink()
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise ConfigException(str(path), f"cannot be written: {error.strerror or error}") from None
