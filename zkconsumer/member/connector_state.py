"""The state of a member, for a user to print and a program to test, and the log lines of a member that stands still.

The original is silent while it stands still. So is a program that has not set up logging, apart from warnings: Python
prints these. The state of the connector decides; nothing is measured here. One thread calls :meth:`StandstillLog.look`,
about once a second.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from zkconsumer.model import TopicPartition

log = logging.getLogger(__name__)

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
    run with ``concurrency`` that has anything unfinished, parked, dead, lent or borrowed. ``followers`` has the broker
    of each owned partition that is read from a follower, because of ``client.rack``.
    """

    phase: Phase
    owned: int = 0
    wanted: int = 0
    blocked: Mapping[TopicPartition, str] = field(default_factory=dict)
    detail: str = ""
    rebalances: int = 0
    balance: tuple[str, ...] = ()
    followers: Mapping[TopicPartition, int] = field(default_factory=dict)

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
        if self.followers:
            brokers = ", ".join(map(str, sorted(set(self.followers.values()))))
            text += f"; reading {len(self.followers)} partitions from followers: broker {brokers}"
        return text + (f"; {self.detail}" if self.detail else "")


LOG_AFTER = 10.0
"""Seconds for which a member stands still before that is logged."""
REASON_LASTS = 3.0
"""Seconds for which another reason stands before it is logged, and for which messages flow before that is."""
MOST_REASONS = 8
"""Reasons of one standstill that are logged at most; a reason that comes again is not logged again."""
_MOVING = re.compile(r"\d\d:\d\d:\d\d|\b\d+(\.\d+)? ?(s|ms|times)\b|owning \d+ of \d+ partitions")
"""The parts of a state's text that change while the reason stays."""


def stands_still(state: ConnectorState, obstacle: str) -> bool:
    """Return whether the member cannot read all that it should. A spare member should read nothing. Pure.

    Arguments: ``state`` of the group thread; ``obstacle``: why owned partitions are not fetched, empty if they are.
    """
    if state.phase in (Phase.CLOSED, Phase.AWAY):  # the application's wish; a member logs itself that it goes away
        return False
    troubles = [one for one in state.detail.split("; ") if one and not one.startswith((LISTENERS, UNOWNED))]
    spare = state.phase is Phase.OWNING and not state.wanted and not troubles
    idle = not state.owned and not spare
    hindered = state.phase is Phase.SUSPENDED or (state.phase is Phase.OWNING and bool(troubles))
    return bool(obstacle) or idle or hindered


class StandstillLog:
    """The log lines of one member: a standstill once, again for each other reason, and the end.

    Argument: ``name`` is the member's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._began: float | None = None
        self._flows_since: float | None = None
        self._reason = "", 0.0
        self._told: set[str] = set()

    def look(self, state: ConnectorState, now: float, *, still: bool) -> None:
        """Log what has changed.

        Arguments: ``state`` with all problems; ``now`` in seconds of any clock; ``still``: the member cannot read what
        it should.
        """
        if still:
            self._stands_still(str(state), now)
        elif self._began is not None:
            self._flows(state, now)

    def _stands_still(self, reason: str, now: float) -> None:
        self._flows_since = None
        self._began = now if self._began is None else self._began
        key = _MOVING.sub("", reason)
        if key != self._reason[0]:
            self._reason = key, now
        lasted = now - self._began
        settled = not self._told or now - self._reason[1] >= REASON_LASTS
        if lasted >= LOG_AFTER and settled and key not in self._told and len(self._told) < MOST_REASONS:
            self._told.add(key)
            log.warning("%s has not read all that it should for %.0f s: %s", self._name, lasted, reason)

    def _flows(self, state: ConnectorState, now: float) -> None:
        # between two tries of a connection nothing may be wrong for a moment
        self._flows_since = now if self._flows_since is None else self._flows_since
        if now - self._flows_since < REASON_LASTS:
            return
        if self._told and state.phase is not Phase.CLOSED:
            lasted = self._flows_since - (self._began or 0.0)
            log.warning("%s flows again, after %.0f s: %s", self._name, lasted, state)
        self._began = self._flows_since = None
        self._reason = "", 0.0
        self._told.clear()
