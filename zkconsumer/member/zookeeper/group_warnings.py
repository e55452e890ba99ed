"""What a member has to say about its group: each thing once, and again only when it changes.

Called by the group's thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from zkconsumer.core.registration import Registration
from zkconsumer.member.zookeeper.planner import GroupView, differing_subscriptions
from zkconsumer.model import ConsumerId

log = logging.getLogger(__name__)

Concern = Callable[[Mapping[ConsumerId, Registration]], str | None]
"""Why the members may not agree on our strategy, None where nothing speaks against it."""


class Reports:
    """The log of what is strange in a group, without repetitions.

    Arguments: ``strategy`` is its name; ``concern`` is asked about the members.
    """

    def __init__(self, strategy: str = "range", concern: Concern = lambda _: None) -> None:
        self._strategy = strategy
        self._concern = concern
        self._concerned: str | None = None
        self._differing = False
        self._failure = ""

    def group(self, view: GroupView) -> None:
        """Look at the group: do the members agree on the strategy, do they subscribe alike?"""
        concerned = self._concern(view.members)
        if concerned != self._concerned:
            if concerned is not None:
                log.warning("partition.assignment.strategy=%s: %s", self._strategy, concerned)
            else:
                log.info("partition.assignment.strategy=%s: the whole group agrees now", self._strategy)
            self._concerned = concerned
        differing = differing_subscriptions(view)
        if differing is not None and not self._differing:
            log.info("%s; that is legal, but is it meant?", differing)
        self._differing = differing is not None

    def strategy_failed(self, error: BaseException) -> str:
        """The strategy raised; returns the words for the user."""
        failure = f"the strategy {self._strategy} failed ({type(error).__name__}: {error})"
        if failure != self._failure:
            log.error("%s; the assignment before it stays in force", failure, exc_info=error)
        self._failure = failure
        return failure

    def strategy_worked(self) -> None:
        """The strategy gave an assignment."""
        if self._failure:
            log.info("the strategy %s works again", self._strategy)
        self._failure = ""
