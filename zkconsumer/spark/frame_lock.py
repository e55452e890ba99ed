"""Keeps two queries from reading one streaming DataFrame at the same time.

Both would be members of the same group, or beside it. So each message would go to one of them, where with Spark's own
sources every query gets every message. The second one is refused.

Spark makes one data source for each ``load()``. All queries of that DataFrame get copies of it, each query in its own
process on the driver's host. Each process locks a file that is named after the data source. The system unlocks it when
the process ends, also when it is killed. A DataFrame that is loaded twice has two locks: its queries share a group.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from contextlib import suppress
from math import nan
from pathlib import Path
from threading import Event
from time import time
from typing import Any, Final

from zkconsumer.runtime.deadline import Deadline

log = logging.getLogger(__name__)

LEAVES_WITHIN: Final = 15.0
"""Seconds that a query which has begun to leave may take."""
_POLL: Final = 0.05
_LONGEST: Final = 32


class FrameLock:
    """The lock of one DataFrame. One thread uses it, the main one of a query's process; it travels unlocked.

    Arguments: ``frame`` names the DataFrame; ``since`` is the time (s since 1970) at which this query began.
    """

    def __init__(self, frame: str, since: float) -> None:
        self.path = Path(tempfile.gettempdir()) / f"zkconsumer-frame-{frame}.lock"
        self._since = since
        self.file: int | None = None
        """The descriptor of the locked file; None while it is not locked."""
        self._left = nan  # when the query that has the lock began to leave; it compares with nothing while it stays

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "file": None}

    def acquire(self, deadline: Deadline) -> bool:
        """Return whether this query may read the DataFrame.

        A query that began to leave before this one began is waited for until the deadline. One that is there longer
        has read messages that this query would miss, also if it ends meanwhile. Where no file can be made there is no
        lock, which is logged.
        """
        pause = Event()
        try:
            while not self._try():
                if not self._left <= self._since or deadline.expired:
                    return False
                pause.wait(deadline.bounded(_POLL))
        except OSError as error:
            log.warning("whether other queries read the same DataFrame cannot be seen: %s", error)
        return True

    def leaving(self) -> None:
        """Tell a query that waits that this one is about to leave."""
        if self.file is not None:
            with suppress(OSError):
                os.pwrite(self.file, f"{time():.6f}\n".encode(), 0)

    def release(self) -> None:
        """Let another query read the DataFrame. May be called again."""
        file, self.file = self.file, None
        if file is not None:
            with suppress(OSError):
                self.path.unlink()  # before the lock is given up, so that nobody's is
            os.close(file)

    def _try(self) -> bool:
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.fstat(file).st_ino == self.path.stat().st_ino  # else its holder has just removed it
        except (BlockingIOError, FileNotFoundError):
            ours = False
        if ours:
            os.ftruncate(file, 0)  # a query that was killed may have written into it
            self.file = file
            return True
        with suppress(ValueError):
            self._left = float(os.pread(file, _LONGEST, 0) or "nan")
        os.close(file)
        return False
