"""How much a run of ``scripts/bench`` measures; every scenario takes one of these."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """``messages`` of the topics that are read in bulk, ``turns`` each peer has, ``batch_bytes`` of the producer;
    ``quick`` asks only whether everything works.
    """

    messages: int = 2_000_000
    turns: int = 3
    batch_bytes: int = 65536
    quick: bool = False

    def seconds(self, full: float, quick: float) -> float:
        """One of the two, for scenarios that last a given time."""
        return quick if self.quick else full
