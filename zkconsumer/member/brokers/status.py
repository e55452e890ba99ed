"""The status of a coordinated member: rebalances, failures, pauses after failures, and the state for the user.

Written by the group thread only. Joining callers wait for ``first_round``; any thread calls ``shown``.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from time import monotonic

from zkconsumer.errors import ConnectorClosedException, ZkConsumerError
from zkconsumer.member.brokers.join_protocol import MemberSettings
from zkconsumer.member.brokers.state_machine import State
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.runtime.deadline import backoff
from zkconsumer.runtime.withdrawable_request import Answer

log = logging.getLogger(__name__)

REFUSED_MOST = 30.0
"""Seconds between two tries where only an operator can let us in, at most."""

_PHASES = {
    State.UNJOINED: Phase.AWAY,
    State.BACKING_OFF: Phase.REJOINING,
    State.FINDING: Phase.REJOINING,
    State.JOINING: Phase.REJOINING,
    State.LEADING: Phase.REJOINING,
    State.SYNCING: Phase.REJOINING,
    State.STABLE: Phase.OWNING,
    State.SEARCHING: Phase.OWNING,
    State.FENCED: Phase.FAILED,
    State.LEAVING: Phase.CLOSED,
    State.CLOSED: Phase.CLOSED,
}
"""The phase of each state, if nothing else is known."""


class CoordinatedStatus:
    """The progress of one member.

    Arguments: ``refuse`` makes every reader raise an error, None takes it back; ``rebalanced`` is told the seconds that
    each rebalance took.
    """

    def __init__(
        self, settings: MemberSettings, refuse: Callable[[Exception | None], None], rebalanced: Callable[[float], None]
    ) -> None:
        self._settings = settings
        self._refuse = refuse
        self._rebalanced = rebalanced
        self._began = monotonic()
        self._failures = self._rebalances = 0
        self._surfaced = False
        self.detail = ""
        """The last failure, in words; empty if there was none since. Any thread."""
        self.error: Exception | None = None
        """The last failure."""
        self.first_round: Answer[None] = Answer()
        """Done with the first generation, or if nothing is subscribed; failed with an error that no waiting cures."""

    # ---- what happens ----

    def began(self, reason: str = "") -> None:
        """Note that a rebalance begins; with a ``reason`` if the group was stable."""
        self._began = monotonic()
        if reason:
            log.info("rebalancing: %s", reason)

    def settled(self, owned: int) -> None:
        """Note that the group has decided, and that we own our partitions."""
        self.well()
        self._rebalances += 1
        took = monotonic() - self._began
        self._rebalanced(took)
        log.info("owning %d partitions, after %.2f s", owned, took)

    def let_in(self) -> None:
        """Wake the callers that wait for the join."""
        if not self.first_round.done():
            self.first_round.set_result(None)

    def well(self) -> None:
        """Note that nothing is wrong any more: the coordinator answers, and knows us."""
        self._failures, self.detail = 0, ""
        if self._surfaced:
            self._surfaced = False
            self._refuse(None)

    def failed(self, trouble: str, *, refused: bool) -> float:
        """Note a failure. Returns the seconds until the next try.

        Arguments: ``refused``: only an operator can help.
        """
        settings = self._settings
        self._failures += 1
        longest = max(settings.backoff_max, REFUSED_MOST if refused else 0.0)
        pause = backoff(self._failures, settings.backoff, longest) * random.uniform(0.8, 1.2)
        level = logging.DEBUG if trouble == self.detail and self._failures > 1 else logging.WARNING
        log.log(level, "no way into the group (attempt %d), next try in %.1f s: %s", self._failures, pause, trouble)
        self.detail = trouble
        return pause

    def surface(self, trouble: str, *, flowing: bool) -> None:
        """Raise an error that we cannot cure, to joining callers, and to readers if nothing flows."""
        error = self.error or ZkConsumerError(trouble)
        self.detail = trouble
        if not self.first_round.done():
            self.first_round.set_exception(error)
        if not flowing:
            self._surfaced = True
            self._refuse(error)

    def away(self, trouble: str) -> None:
        """Note that we leave the group for a while."""
        log.warning("leaving the group: %s", trouble)
        self.detail = f"outside the group: {trouble}"

    def closed(self) -> None:
        """Fail joining callers at the end."""
        if not self.first_round.done():
            self.first_round.set_exception(ConnectorClosedException("the connector was shut down while it joined"))

    # ---- for the user ----

    def shown(self, state: State, owned: int, *, valid: bool, away: bool, beside: tuple[str, ...]) -> ConnectorState:
        """Return the state for the user.

        Arguments: ``valid``: the lease holds; ``away``: a reader is waited for; ``beside``: other troubles in words.
        """
        phase = _PHASES[state]
        if state is State.UNJOINED and not away:
            phase = Phase.OWNING if self.first_round.done() else Phase.STARTING
        elif phase is Phase.REJOINING and not self.first_round.done():
            phase = Phase.STARTING
        elif owned and not valid and state is not State.CLOSED:
            phase = Phase.SUSPENDED
        detail = "; ".join(filter(None, (self.detail, *beside)))
        return ConnectorState(phase, owned, owned, detail=detail, rebalances=self._rebalances)
