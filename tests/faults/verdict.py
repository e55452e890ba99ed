"""The rules for a run, and its verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for a run. Times are in seconds.

    - ``commit``: the commit interval. ``close``: the bound of a shutdown.
    - ``bound``: the bound of a recovery. ``bounds`` has others by kind of fault.
    - ``ordered``: the offsets belong to one log, and no program set offsets back.
    - ``rounds``: the most rebalances of one process from a fault to the next.
    """

    commit: float = 1.0
    bound: float = 5.0
    bounds: dict[str, float] = field(default_factory=dict)
    close: float = CLOSE_S
    ordered: bool = True
    rounds: int | None = None
    anew: frozenset[str] = frozenset()
    """Kinds of faults that delete offsets. After them all messages may be repeated."""


class Recovery(NamedTuple):
    """A recovery: from a fault, or its healing, until every partition flows."""

    kind: str
    seconds: float


@dataclass(slots=True)
class Verdict:
    """The verdict on a run. ``late`` counts the hand-outs after another member's claim.

    ``past_gate`` counts the late hand-outs that had passed the gate before the process froze, at most one a thread.
    ``overlaps`` counts the messages that were in hand at another member's claim.
    """

    violations: list[str] = field(default_factory=list)
    handed_out: int = 0
    acked: int = 0
    lost: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Acknowledged without an offset, and not in the log."""
    duplicates: Counter[str] = field(default_factory=Counter)
    late: list[str] = field(default_factory=list)
    past_gate: list[str] = field(default_factory=list)
    overlaps: int = 0
    unseen: int = 0
    """Ownerships that the watcher did not see, known from claims."""
    recoveries: list[Recovery] = field(default_factory=list)
    slow: list[tuple[str, float, float]] = field(default_factory=list)
    """Recoveries beyond their bound (kind, seconds, bound): wrong where the machine has nothing else to do."""
    closes: list[float] = field(default_factory=list)
    rounds: int = 0
    frozen_runs: int = 0
