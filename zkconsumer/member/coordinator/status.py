"""How a member gets on, and what the user is told of it: rebalances, their times, failures and the pauses after them.

Written by the group's thread only; :attr:`Status.first_round` is for whoever waits to be let in, and
:meth:`Status.shown` for any thread.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic

from zkconsumer.core.backoff import backoff
from zkconsumer.errors import ConnectorClosedException, ZkConsumerError
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.coordinator.error_triggers import SHOWN
from zkconsumer.member.coordinator.settings import REFUSED_MOST, MemberSettings
from zkconsumer.member.coordinator.state_machine import State

log = logging.getLogger(__name__)


class Status:
    """What became of a member so far.

    Arguments: ``refuse`` makes every reader raise an error, None takes it back; ``rebalanced`` is told the seconds that
    each rebalance took.
    """

    def __init__(
        self,
        settings: MemberSettings,
        refuse: Callable[[Exception | None], None],
        rebalanced: Callable[[float], None],
    ) -> None:
        self._settings = settings
        self._refuse = refuse
        self._rebalanced = rebalanced
        self._began = monotonic()
        self._failures = self._rebalances = 0
        self._surfaced = False
        self._detail = ""
        self.error: Exception | None = None
        """The last failure."""
        self.first_round: Future[None] = Future()
        """Done with the first generation, or with nothing to join for; failed with what nothing helps against."""

    # ---- what happens ----

    def began(self, reason: str = "") -> None:
        """A rebalance begins, in a group that was stable where there is a ``reason``."""
        self._began = monotonic()
        if reason:
            log.info("rebalancing: %s", reason)

    def settled(self, owned: int) -> None:
        """The group has decided, and we have what is ours."""
        self.well()
        self._rebalances += 1
        took = monotonic() - self._began
        self._rebalanced(took)
        log.info("owning %d partitions, after %.2f s", owned, took)

    def let_in(self) -> None:
        """Whoever waits for the first generation need not wait any longer."""
        if not self.first_round.done():
            self.first_round.set_result(None)

    def well(self) -> None:
        """The coordinator answers, and knows us: nothing is wrong any more."""
        self._failures, self._detail = 0, ""
        if self._surfaced:
            self._surfaced = False
            self._refuse(None)

    def failed(self, trouble: str, *, refused: bool) -> float:
        """There is no way on just now; only an operator can help where it is ``refused``. Returns the seconds until the
        next try.
        """
        settings = self._settings
        self._failures += 1
        longest = max(settings.backoff_max, REFUSED_MOST if refused else 0.0)
        pause = backoff(self._failures, settings.backoff, longest) * random.uniform(0.8, 1.2)
        level = logging.DEBUG if trouble == self._detail and self._failures > 1 else logging.WARNING
        log.log(level, "no way into the group (attempt %d), next try in %.1f s: %s", self._failures, pause, trouble)
        self._detail = trouble
        return pause

    def surface(self, trouble: str, *, flowing: bool) -> None:
        """Nothing that we could do helps: whoever waits to join hears of it, and whoever reads, if nothing flows."""
        error = self.error or ZkConsumerError(trouble)
        self._detail = trouble
        if not self.first_round.done():
            self.first_round.set_exception(error)
        if not flowing:
            self._surfaced = True
            self._refuse(error)

    def away(self, trouble: str) -> None:
        """We leave the group for a while."""
        log.warning("leaving the group: %s", trouble)
        self._detail = f"outside the group: {trouble}"

    def closed(self) -> None:
        """The end."""
        if not self.first_round.done():
            self.first_round.set_exception(ConnectorClosedException("the connector was shut down while it joined"))

    # ---- for the user ----

    def shown(self, state: State, owned: int, *, valid: bool, away: bool, beside: tuple[str, ...]) -> ConnectorState:
        """Where the member stands, in ``state``, owning so many partitions.

        Arguments: ``valid``: the lease is; ``away``: a reader is waited for; ``beside``: other troubles in words.
        """
        phase = SHOWN[state]
        if state is State.UNJOINED and not away:
            phase = Phase.OWNING if self.first_round.done() else Phase.STARTING
        elif phase is Phase.REJOINING and not self.first_round.done():
            phase = Phase.STARTING
        elif owned and not valid and state is not State.CLOSED:
            phase = Phase.SUSPENDED
        detail = "; ".join(filter(None, (self._detail, *beside)))
        return ConnectorState(phase, owned, owned, detail=detail, rebalances=self._rebalances)
