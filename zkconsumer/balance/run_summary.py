"""The summary that ``run`` returns. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RunEnd = Literal["until", "timeout", "shutdown", "signal"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The work of one call of ``run``.

    * ``handled``: messages whose handler finished them
    * ``failed``: attempts that failed. Without ``concurrency`` the first one ends the run, by its exception
    * ``parked``: messages that were parked, also behind others of their key. One that was handled later counts in
      ``handled``, too
    * ``dead``: messages that became dead letters
    * ``ended``: the cause of the end. ``"until"``: all before the end was handled; ``"timeout"``: no message came
      for ``consumer.timeout.ms``, with ``consumer.timeout.action=end``; ``"signal"``: one of ``stop_on``; else
      ``"shutdown"``
    """

    handled: int = 0
    failed: int = 0
    parked: int = 0
    dead: int = 0
    ended: RunEnd = "shutdown"

    def __str__(self) -> str:
        return (
            f"{self.handled:,} messages handled, {self.failed:,} attempts failed, {self.parked:,} messages parked, "
            f"{self.dead:,} dead letters; ended by {self.ended}"
        )
