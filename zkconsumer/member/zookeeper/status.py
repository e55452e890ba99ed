"""The status of a member in ZooKeeper: state, whether the member has joined, and troubles, each once in the log.

Called by the group thread only. Others read :attr:`Status.state` and wait for :attr:`Status.first_round`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sized

from zkconsumer.core.names import first_of
from zkconsumer.errors import (
    ConsumerIdInUseError,
    NotPermittedError,
    RegistryAuthenticationError,
    RegistryError,
    RegistryUnavailableError,
)
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.zookeeper.claim_plan import GroupView
from zkconsumer.member.zookeeper.rebalance_round import Round
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.runtime.withdrawable_request import Answer

log = logging.getLogger(__name__)

MOST_NAMED = 8
"""Nodes and topics that a state names of many."""


class Status:
    """The state of one member.

    Arguments: ``owned`` are its partitions, whatever they are at the time; ``rebalanced`` is told the seconds that each
    round took.
    """

    def __init__(
        self, group: str, consumer: ConsumerId, owned: Sized, rebalanced: Callable[[float], None] = lambda _: None
    ) -> None:
        self._group = group
        self._consumer = consumer
        self._owned = owned
        self._rebalanced = rebalanced
        self._trouble = ("", "")
        self._blocked: dict[TopicPartition, tuple[str, str]] = {}
        self.state = ConnectorState(Phase.STARTING)
        self.first_round: Answer[None] = Answer()

    def show(self, phase: Phase, detail: str | None = None) -> None:
        """Set the phase in the state. Without ``detail`` the state keeps its previous text."""
        before = self.state
        self.state = ConnectorState(
            phase,
            len(self._owned),
            before.wanted,
            before.blocked if phase is Phase.WAITING else {},
            before.detail if detail is None else detail,
            before.rebalances,
        )

    def round_ended(self, done: Round, trouble: str, why: str, *, patient: bool) -> None:
        """Show what a round came to. ``patient``: joining still waits for partitions that others hold."""
        before = self.state
        waiting = f"waiting for a plan: {done.plan.waiting}" if done.plan.waiting else ""
        detail = "; ".join(filter(None, (trouble, waiting, *_missing(done.view, self._consumer))))
        blocked = self._since(done.claimed.blocked)
        changed = bool(done.todo.release or done.claimed.ours or done.registered or blocked != before.blocked)
        phase = Phase.WAITING if blocked or waiting else Phase.OWNING
        self.state = ConnectorState(phase, len(self._owned), done.todo.wanted, blocked, detail, before.rebalances + 1)
        log.log(
            logging.INFO if changed or detail != before.detail else logging.DEBUG,
            "rebalanced group %s in %.0f ms (%s): released %s, claimed %s, kept %d; %s",
            self._group,
            done.seconds * 1000,
            why,
            first_of(done.todo.release) or "nothing",
            first_of(done.claimed.ours) or "nothing",
            len(done.todo.keep),
            self.state,
        )
        if not self.first_round.done() and not patient:
            self.first_round.set_result(None)
        self._rebalanced(done.seconds)

    def round_failed(self, error: Exception, *, connected: bool) -> None:
        """Set the state after a failed round. A joining caller gets the error if waiting longer cannot help."""
        if isinstance(error, NotPermittedError | RegistryAuthenticationError) and not self.first_round.done():
            self.first_round.set_exception(error)
        if isinstance(error, ConsumerIdInUseError):
            self.show(Phase.WAITING)
        elif isinstance(error, RegistryUnavailableError) and not connected:
            self.show(Phase.SUSPENDED)
        elif self.first_round.done():
            self.show(Phase.FAILED)

    def backs_off(self, trouble: str, failures: int, pause: float) -> None:
        """Show that the next try, after ``failures`` ones, comes in ``pause`` seconds."""
        # the same trouble once: an operator may take long to cure it
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
        """Show that the member leaves for good."""
        self.show(Phase.CLOSED, "")  # the troubles of a member that has left concern nobody
        if not self.first_round.done():
            self.first_round.set_exception(RegistryError("the connector was shut down while it joined the group"))

    def _since(self, blocked: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
        """Return the holder of each partition that we wait for, and since when we know."""
        now = time.strftime("%H:%M:%S")
        self._blocked = {
            tp: (holder, self._blocked[tp][1] if self._blocked.get(tp, ("",))[0] == holder else now)
            for tp, holder in blocked.items()
        }
        return {tp: f"{holder} since {since}" for tp, (holder, since) in self._blocked.items()}


def _missing(view: GroupView, consumer: ConsumerId) -> list[str]:
    # a topic node that is no JSON, or names no partitions, is no error to anybody, so it must show here
    mine = view.members.get(consumer)
    static = [] if mine is None or mine.is_wildcard else sorted(mine.subscription)
    missing = [
        f"topic {topic} to {'have partitions' if topic in view.partitions else 'exist'}"
        for topic in static
        if not view.partitions.get(topic)
    ]
    if len(missing) > MOST_NAMED:
        missing[MOST_NAMED:] = [f"{len(missing) - MOST_NAMED} more topics"]
    return [
        "waiting for " + ", ".join(missing) if missing else "",
        f"unreadable: {first_of(view.unreadable)}" if view.unreadable else "",
        f"left to unreadable members: {first_of(view.kept)}" if view.kept else "",
    ]
