"""Progress of reads that take long: a bar by rich, or a function of the caller.

One thread, the reader's; rich gets no thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from zkconsumer.errors import MissingExtraError

if TYPE_CHECKING:
    from rich.progress import Progress

Report = Callable[[int, int | None], object]
"""Called with the number of messages that are read, and with that of all; None if it is unknown."""

REFRESH_EACH = 0.1
"""Seconds between two pictures of a bar."""


class ProgressBar:
    """A bar on the terminal, or in a notebook. It is shown from the first report until :meth:`close`."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._shown = 0.0

    def __call__(self, read: int, total: int | None) -> None:
        """Show how many messages are read, of how many."""
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("messages"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, auto_refresh=False)
            self._bar.add_task("messages", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=read, total=total)
        now = monotonic()
        if now - self._shown >= REFRESH_EACH:
            self._shown = now
            self._bar.refresh()

    def close(self) -> None:
        """Show the last picture, and let the terminal go. May be called again."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def __del__(self) -> None:
        self.close()  # a loop over batches was left: else the cursor would stay hidden


class ProgressReport:
    """The reports of one read. Arguments: ``progress`` as for ``to_arrow``. Raises: MissingExtraError, ValueError."""

    def __init__(self, progress: bool | Report) -> None:
        self._bar: ProgressBar | None = None
        self._report: Report | None = None if isinstance(progress, bool) else progress
        if progress is True:
            try:
                import rich.progress  # noqa: F401
            except ImportError:
                advice = "install the package rich, or give a function of (read, total)"
                raise MissingExtraError("the bar of progress=True", "demo", advice) from None
            self._report = self._bar = ProgressBar()
        elif self._report is not None and not callable(self._report):
            raise ValueError(f"progress must be True, False or a function of (read, total), not {progress!r}")

    def __call__(self, read: int, total: int | None) -> None:
        """Report how many messages are read, of how many."""
        if self._report is not None:
            self._report(read, total)

    def close(self) -> None:
        """End the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
