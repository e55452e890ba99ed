"""The limits and settings of a member whose group the brokers coordinate. Pure."""

from __future__ import annotations

from dataclasses import dataclass

NEVER = float("inf")
LEAVE_WITHIN = 0.75
"""Seconds that leaving waits for a coordinator: a dead one finds out by itself."""
LOOK_FOR_MISSING = 1.0
"""Seconds between two looks for a topic that somebody in the group waits for."""
OTHERS_MAY_TAKE = 600.0
"""Seconds that a join, or the leader, may take at the least: the other members' rebalance timeouts are not ours."""
AT_ONCE = 3
"""How often who is sent back to join does so without a pause before it has a share."""
REFUSED_MOST = 30.0
"""Seconds between two tries where only an operator can let us in, at most."""
LOOK_FOR_READER = 0.1
"""Seconds between two looks for a reader that did not come back."""


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The part of the configuration that concerns the group; times in seconds.

    ``max_poll`` is ``max.poll.interval.ms``, ``drain`` is ``rebalance.drain.timeout.ms``. Topics are looked at once an
    ``interval``. ``backoff`` is the first pause after a failure. ``static_leaves``: a static member leaves, too, once
    it wants nothing while it lives on. ``conflict`` is ``offset.conflict``.
    """

    session: float
    max_poll: float
    interval: float
    backoff: float
    backoff_max: float
    request_timeout: float
    drain: float
    auto_commit: bool
    static_leaves: bool = False
    conflict: str = "adopt"
