"""What each round of a member came to, for its state and its log.

Called by the group's thread only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping

from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.zookeeper.planner import GroupView
from zkconsumer.member.zookeeper.rebalance_round import Round, names
from zkconsumer.model import ConsumerId, TopicPartition

log = logging.getLogger(__name__)

MOST_NAMED = 8
"""Nodes and topics that a state names of many."""


class Progress:
    """What each round came to, as the member's state and a line in the log."""

    def __init__(self, group: str, consumer: ConsumerId) -> None:
        self._group = group
        self._consumer = consumer
        self._blocked: dict[TopicPartition, tuple[str, str]] = {}

    def concluded(self, done: Round, before: ConnectorState, owned: int, trouble: str, why: str) -> ConnectorState:
        """The state after a round that ended well; ``before`` is the one until now."""
        detail = "; ".join(filter(None, (trouble, *_missing(done.view, self._consumer))))
        blocked = self._since(done.claimed.blocked)
        phase = Phase.WAITING if blocked else Phase.OWNING
        changed = bool(done.todo.release or done.claimed.ours or done.registered or blocked != before.blocked)
        state = ConnectorState(phase, owned, done.todo.wanted, blocked, detail, before.rebalances + 1)
        log.log(
            logging.INFO if changed or detail != before.detail else logging.DEBUG,
            "rebalanced group %s in %.0f ms (%s): released %s, claimed %s, kept %d; %s",
            self._group,
            done.seconds * 1000,
            why,
            names(done.todo.release),
            names(done.claimed.ours),
            len(done.todo.keep),
            state,
        )
        return state

    def _since(self, blocked: Mapping[TopicPartition, str]) -> dict[TopicPartition, str]:
        """Who holds what we wait for, and since when we know him to."""
        now = time.strftime("%H:%M:%S")
        self._blocked = {
            tp: (holder, self._blocked[tp][1] if self._blocked.get(tp, ("",))[0] == holder else now)
            for tp, holder in blocked.items()
        }
        return {tp: f"{holder} since {since}" for tp, (holder, since) in self._blocked.items()}


def _some(paths: Collection[str]) -> str:
    listed = sorted(paths)
    return ", ".join(listed[:MOST_NAMED]) + (
        f" and {len(listed) - MOST_NAMED} more" if len(listed) > MOST_NAMED else ""
    )


def _missing(view: GroupView, consumer: ConsumerId) -> list[str]:
    # a topic's node whose text is no JSON, or tells no partitions, is no error to anybody, so it must show here
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
        f"unreadable: {_some(view.unreadable)}" if view.unreadable else "",
        f"left to unreadable members: {names(view.kept)}" if view.kept else "",
    ]
