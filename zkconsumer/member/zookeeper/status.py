"""What a member shows of itself: its state, whether it has joined, and what is wrong, each trouble once.

Called by the group's thread only; others read :attr:`Standing.state` and wait for :attr:`Standing.first_round`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sized
from concurrent.futures import Future

from zkconsumer.errors import (
    ConsumerIdInUseError,
    NotPermittedError,
    RegistryAuthenticationError,
    RegistryError,
    RegistryUnavailableError,
)
from zkconsumer.member.connector_state import ConnectorState, Phase

log = logging.getLogger(__name__)


class Standing:
    """Where the member stands. Arguments: ``owned`` are the partitions that are ours, whatever they are at the time."""

    def __init__(self, owned: Sized) -> None:
        self._owned = owned
        self._trouble = ("", "")
        self.state = ConnectorState(Phase.STARTING)
        self.first_round: Future[None] = Future()

    def show(self, phase: Phase, detail: str | None = None) -> None:
        """We stand there now; ``detail`` None: what was wrong still is."""
        before = self.state
        self.state = ConnectorState(
            phase,
            len(self._owned),
            before.wanted,
            before.blocked if phase is Phase.WAITING else {},
            before.detail if detail is None else detail,
            before.rebalances,
        )

    def round_failed(self, error: Exception, *, connected: bool) -> None:
        """A round failed. Who waits to join hears of what waiting longer does not cure."""
        if isinstance(error, NotPermittedError | RegistryAuthenticationError) and not self.first_round.done():
            self.first_round.set_exception(error)
        if isinstance(error, ConsumerIdInUseError):
            self.show(Phase.WAITING)
        elif isinstance(error, RegistryUnavailableError) and not connected:
            self.show(Phase.SUSPENDED)
        elif self.first_round.done():
            self.show(Phase.FAILED)

    def backs_off(self, trouble: str, failures: int, pause: float) -> None:
        """It is tried again after ``pause`` seconds, for the ``failures``-th time."""
        # the same thing once: what an operator has to cure can take long
        known = trouble == self._trouble[0] and failures > 1
        if not known:
            self._trouble = trouble, time.strftime("%H:%M:%S")
        log.log(
            logging.DEBUG if known else logging.WARNING,
            "rebalance failed (attempt %d), next try in %.1f s: %s",
            failures,
            pause,
            trouble,
        )
        self.show(self.state.phase, detail=f"{trouble} (since {self._trouble[1]})")

    def closed(self) -> None:
        """The member leaves for good."""
        self.show(Phase.CLOSED, "")  # what troubled a member concerns nobody once it has left
        if not self.first_round.done():
            self.first_round.set_exception(RegistryError("the connector was shut down while it joined the group"))
