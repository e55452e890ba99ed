"""The triggers of changed nodes. Does no input or output; the group thread's only."""

from __future__ import annotations

from collections.abc import Container, Iterable

from zkconsumer.member.events import Event, LookAgain, NodeChanged, StopRequested, SubscriptionChanged
from zkconsumer.member.zookeeper.state_machine import Trigger
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.session import SessionChanged

_ABOUT_THE_GROUP = frozenset({Trigger.MEMBERS_CHANGED, Trigger.CHANGED, Trigger.PLAN_CHANGED})


class NodeTriggers:
    """Tells which changed nodes concern a member.

    Arguments: ``owned`` are the partitions of this member, whatever they are at the time.
    """

    def __init__(self, group: str, owned: Container[TopicPartition]) -> None:
        self._group = group
        self._owned = owned
        self._waited_for: frozenset[str] = frozenset()

    def wait_for(self, partitions: Iterable[TopicPartition]) -> None:
        """Let the owner nodes of these partitions matter too: other members hold them, and we wait for a release."""
        self._waited_for = frozenset(paths.owner(self._group, tp) for tp in partitions)

    def of(self, path: str) -> Trigger | None:
        """Return what a changed node means to us; None: it is an owner node that does not concern us."""
        ids, owners = paths.ids(self._group), paths.owners(self._group)
        if path == ids or path.startswith(ids + "/"):
            return Trigger.MEMBERS_CHANGED
        if path == paths.placement(self._group):
            return Trigger.PLAN_CHANGED
        if not path.startswith(owners + "/"):
            return Trigger.CHANGED
        topic, _, partition = path[len(owners) + 1 :].partition("/")
        ours = partition.isdecimal() and TopicPartition(topic, int(partition)) in self._owned
        return Trigger.OWNER_CHANGED if ours or path in self._waited_for else None

    def matters_to_a_round(self, event: Event) -> bool:
        """Return whether a round that is under way would have to know of this."""
        return isinstance(event, SessionChanged | SubscriptionChanged | StopRequested | LookAgain) or (
            isinstance(event, NodeChanged) and self.of(event.path) in _ABOUT_THE_GROUP
        )
