"""The state of a member, for a user to print and a program to test. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from zkconsumer.model import TopicPartition

LISTENERS = "the listener's "
"""Begins a trouble of the rebalance listener. The member goes on without it."""
UNOWNED = "nobody owned "
"""Begins the report on partitions that another member should own."""


class Phase(Enum):
    """The main state of a member."""

    STARTING = "starting"
    OWNING = "owning"
    WAITING = "waiting"
    SUSPENDED = "suspended"
    REJOINING = "rejoining"
    AWAY = "outside the group"
    FAILED = "failed"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class ConnectorState:
    """The state of a connector.

    ``owned`` of ``wanted`` partitions are ours; ``blocked`` names the holder of each other one. ``detail`` is the last
    trouble in words. ``rebalances`` counts rebalances since the start. ``balance`` has a line for each partition of a
    run with ``concurrency`` that has anything unfinished, parked, dead, lent or borrowed.
    """

    phase: Phase
    owned: int = 0
    wanted: int = 0
    blocked: Mapping[TopicPartition, str] = field(default_factory=dict)
    detail: str = ""
    rebalances: int = 0
    balance: tuple[str, ...] = ()

    def beside(self, trouble: str) -> ConnectorState:
        """Return this state with another trouble added, unless the member is closed."""
        if not trouble or self.phase is Phase.CLOSED:
            return self
        return replace(self, detail="; ".join(filter(None, (self.detail, trouble))))

    def __str__(self) -> str:
        text = self.phase.value
        if self.phase in (Phase.OWNING, Phase.WAITING):
            text = f"owning {self.owned} of {self.wanted} partitions"
        elif self.phase is Phase.FAILED:
            return f"failed because {self.detail}; tried again, owning {self.owned} of {self.wanted} partitions"
        for tp, owner in sorted(self.blocked.items())[:3]:
            text += f"; waiting for {tp}, held by {owner}"
        if len(self.blocked) > 3:
            text += f" and for {len(self.blocked) - 3} more"
        for line in self.balance[:3]:
            text += f"; {line}"
        if len(self.balance) > 3:
            text += f"; and {len(self.balance) - 3} more partitions at work"
        return text + (f"; {self.detail}" if self.detail else "")
