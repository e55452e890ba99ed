"""The checkpoint of a query: it tells whether a batch has ended.

Spark tells a source that a batch has ended only at the next trigger, which may be hours later. But Spark writes the end
to the checkpoint at once, as the file ``commits/N`` beside ``offsets/N``. The option ``checkpointLocation`` (the same
as the sink's) lets the source read this file. So commits and revocations need not wait for the next trigger.

Called by the attendant's thread only. Only reads the checkpoint.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from zkconsumer.errors import ConfigException

log = logging.getLogger(__name__)

OPTION = "checkpointLocation"


class Checkpoint:
    """A query's checkpoint, in a file system that pyarrow can open: a path, ``file:``, ``hdfs:``, ``s3a:`` or the like.

    The location is written as for Hadoop. Raises ConfigException if it cannot be opened.
    """

    def __init__(self, location: str) -> None:
        from pyarrow import fs

        self._trouble = ""
        try:
            address = _address(location.rstrip("/") or "/")
            if "://" in address:
                self._files, self._folder = fs.FileSystem.from_uri(address)
            else:
                self._files, self._folder = fs.LocalFileSystem(), address
        except (OSError, ValueError, ImportError) as error:
            raise ConfigException(OPTION, f"{location!r}: cannot be opened from here ({error})") from error
        self._select = fs.FileSelector

    def has_ended(self, end: Mapping[str, Any]) -> bool:
        """Return whether the newest ended batch is the one with this end offset. False if the checkpoint cannot be
        read.
        """
        try:
            commits = self._files.get_file_info(self._select(f"{self._folder}/commits", allow_not_found=True))
            newest = max((int(file.base_name) for file in commits if file.base_name.isdecimal()), default=None)
            if newest is None:
                return False
            with self._files.open_input_stream(f"{self._folder}/offsets/{newest}") as file:
                lines = file.read().decode().splitlines()
            self._trouble = ""
            return any(_parsed(line) == end for line in lines[2:])
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:
                log.warning("the checkpoint cannot be read: %s", error)
            self._trouble = str(error)
            return False


def _address(location: str) -> str:
    """Return a path of this machine, or the address that pyarrow knows a place by.

    Hadoop takes a location literally, where an address has its special characters quoted. One slash may stand for
    three, and Hadoop has names of its own for S3.
    """
    found = _SCHEME.match(location)
    if found is None:
        return location
    scheme, host, path = found["scheme"].lower(), found["host"] or "", found["path"]
    if scheme == "file":
        return path
    return f"{_S3.get(scheme, scheme)}://{host}{quote(path)}"


_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(//(?P<host>[^/]*))?(?P<path>.*)", re.DOTALL)
_S3 = {"s3a": "s3", "s3n": "s3"}


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
