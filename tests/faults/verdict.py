"""What a run is judged by, and what it showed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What a run is judged by. Seconds.

    ``commit``: the interval of commits; ``bound``: of recovery from any fault that has none of its own (``bounds`` by
    kind); ``close``: of a shutdown; ``unowned``: how long hand-outs may go on without an owner node (an operator's
    deed that has to be noticed). ``ordered``: offsets are those of one log that nobody set back. ``rounds``: most
    rebalances of one process from a fault to the next. ``clean_kinds``: faults that excuse no duplicate.
    """

    commit: float = 1.0
    bound: float = 5.0
    bounds: dict[str, float] = field(default_factory=dict)
    close: float = CLOSE_S
    unowned: float = 0.0
    ordered: bool = True
    rounds: int | None = None
    anew: frozenset[str] = frozenset()
    """Kinds of faults after which everything may come again, since offsets were taken away."""
    drop: frozenset[str] = frozenset()
    """Topics that are deleted in the run: what was acked in them need not be consumed."""
    slack: float = 1.0
    """For a loaded machine: limits of close and calls times this."""


class Recovery(NamedTuple):
    """From a fault or its healing until every partition flows: of which kind, how long, and what else befell the group
    between the beginning of the fault and that time: then it cannot be told which of them it took so long for.
    ``begin`` is where it counts from, ``victim`` whom it befell (None: all).
    """

    kind: str
    seconds: float
    begin: int = 0
    victim: str | None = None
    beside: tuple[str, ...] = ()


@dataclass(slots=True)
class Verdict:
    """What a run showed. ``late`` are hand-outs after another's claim; ``past_gate`` those of them that a frozen
    process had already let through, one a thread; ``overlaps`` messages that were in hand at another's claim.
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

    @property
    def recovery(self) -> float | None:
        """The slowest recovery in seconds, None without one."""
        return max((one.seconds for one in self.recoveries), default=None)
