"""The strategy as one member applies it: plans, remembers the assignment in force, and warns about the group.

Called by the group thread only. Each warning comes once, and again only when it changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.registration import Registration
from zkconsumer.member.zookeeper.planner import Assign, GroupView, Plan, differing_subscriptions, plan, possible
from zkconsumer.model import Assignment, ConsumerId, TopicPartition

log = logging.getLogger(__name__)

Concern = Callable[[Mapping[ConsumerId, Registration]], str | None]
"""Returns why the members may not agree on our strategy; None: nothing speaks against it."""


class AppliedStrategy:
    """Plans for one member by its strategy.

    Arguments: ``assign`` is the strategy, ``name`` its name; ``concern`` is asked about the members of each view.
    """

    def __init__(
        self,
        consumer: ConsumerId,
        assign: Assign,
        *,
        exclude_internal_topics: bool,
        name: str = "range",
        concern: Concern = lambda _: None,
    ) -> None:
        self._consumer = consumer
        self._assign = assign
        self._exclude_internal = exclude_internal_topics
        self._name = name
        self._concern = concern
        self._in_force: Assignment = {}
        self._concerned: str | None = None
        self._differing = False
        self._failure = ""
        self.orphaned: frozenset[TopicPartition] = frozenset()
        """Partitions that the assignment before the last gave to members that have left since."""

    def plan(self, view: GroupView, owned: Mapping[TopicPartition, PartitionPosition]) -> tuple[Plan, str]:
        """Return what to do, and why that is not what the strategy says; empty if it is.

        A strategy that raises leaves the assignment before it in force. That harms nothing that flows already, and
        partitions lost meanwhile are claimed again as before. Raises AssignmentError for an impossible assignment.
        """
        self._warn(view)
        threads = {tp: position.thread for tp, position in owned.items()}

        def made(assign: Assign) -> Plan:
            return plan(view, self._consumer, threads, assign, exclude_internal_topics=self._exclude_internal)

        try:
            todo = made(self._assign)
        except (Exception, SystemExit) as e:  # noqa: BLE001 (a plug-in raises whatever it likes; the member lives on)
            return made(lambda view, threads: possible(self._in_force, view, threads)), self._failed(e)
        if self._failure:
            log.info("the strategy %s works again", self._name)
        self._failure = ""
        members = view.members.keys() | {self._consumer}
        self.orphaned = frozenset(
            tp for tp, thread in self._in_force.items() if ConsumerId(thread.rpartition("-")[0]) not in members
        )
        self._in_force = todo.assignment
        return todo, ""

    def _warn(self, view: GroupView) -> None:
        """Warn if the members do not agree on the strategy, or do not subscribe alike."""
        concerned = self._concern(view.members)
        if concerned != self._concerned:
            if concerned is not None:
                log.warning("partition.assignment.strategy=%s: %s", self._name, concerned)
            else:
                log.info("partition.assignment.strategy=%s: the whole group agrees now", self._name)
            self._concerned = concerned
        differing = differing_subscriptions(view)
        if differing is not None and not self._differing:
            log.info("%s; that is legal, but is it meant?", differing)
        self._differing = differing is not None

    def _failed(self, error: BaseException) -> str:
        failure = f"the strategy {self._name} failed ({type(error).__name__}: {error})"
        if failure != self._failure:
            log.error("%s; the assignment before it stays in force", failure, exc_info=error)
        self._failure = failure
        return failure
