"""The registration of a member that respects ``message.model``: members share the partitions, or each take all.

A broadcasting member is a group of one. It registers, owns and commits in ``/consumers/<group>@<consumer.id>`` with the
same code as any other member. So the promises about ownership and offsets hold, and two processes with one
``consumer.id`` exclude each other. The member also shows itself by an ephemeral node in
``/consumers/<group>/broadcast``, where Scala members do not look.

A joining member withdraws if the group has live members of the other kind. A joining member looks before it makes its
node, and again after. If two members come at the same moment, both nodes stand before the second looks. So at least one
member sees the other, and the member with the younger node withdraws. Members that are already in the group stay, even
through a new session, and report the other kind: it harms no data, and a working member must not stop because of
another.

Called by the group thread only; others read :attr:`ModelRegistration.concern` and ``refusal``. The original has nothing
like this. Names and meaning are those of RocketMQ's ``MessageModel``, which keeps such offsets in a local file.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from zkconsumer.core.names import first_of
from zkconsumer.errors import MessageModelConflictError
from zkconsumer.member.zookeeper.group_registration import GroupRegistration, OwnRegistration
from zkconsumer.model import ConsumerId
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_values import Look, Seen
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)


class ModelRegistration(GroupRegistration):
    """The registration in a group whose members all consume by one ``message.model``.

    Arguments: as for :class:`GroupRegistration`; ``group`` is where the member registers, ``shared`` is the
    ``group.id``. The member broadcasts if they differ.
    """

    def __init__(
        self, session: Session, cache: NodeCache, group: str, consumer: ConsumerId, own: OwnRegistration, shared: str
    ) -> None:
        super().__init__(session, cache, group, consumer, own)
        self._shared = shared
        self._broadcasting = group != shared
        self._others = paths.ids(shared) if self._broadcasting else paths.broadcast_members(shared)
        self._shown = paths.broadcast_member(shared, consumer) if self._broadcasting else self.path
        self._admitted = False
        self.refusal: MessageModelConflictError | None = None
        """Why this member has withdrawn; None: it has not."""
        self.concern = ""
        """What is strange in its group, in words for the user; empty if nothing is."""

    def register(self, deadline: Deadline) -> bool:
        """Register, if no member of the other kind was there before us.

        Raises: :class:`MessageModelConflictError` if one was; nothing of us is left there then. Otherwise as
        :meth:`GroupRegistration.register`.
        """
        registered = super().register(deadline)
        if self._broadcasting:
            self._show(deadline)
        if not self._admitted:
            self._admit(deadline, looked=registered and not self._broadcasting)
        self._look(deadline)
        return registered

    def _before_registering(self) -> Look:
        """Look for members of the other kind, too, before we show ourselves; there are hardly ever any."""
        return replace(super()._before_registering(), rare=() if self._admitted else (self._others,))

    def _examine(self, seen: Seen) -> None:
        if not self._admitted:
            self._refuse_for(seen.children[self._others] or ())

    def _after_registering(self) -> Look:
        """Look for them again, or two members could miss each other. A broadcasting member must show itself first."""
        after = super()._after_registering()
        if self._admitted or self._broadcasting:
            return after
        self._cache.forget([self._others])
        return replace(after, rare=(self._others,))

    def deregister(self, deadline: Deadline) -> None:
        """Delete the nodes that our session made to show us."""
        if self._broadcasting:
            session_id = self._session.require_id()
            node = self._session.stat([self._shown], deadline)[0]
            if node is not None and node.ephemeral_owner == session_id:
                self._session.delete(self._shown, deadline, node.version)
        super().deregister(deadline)

    def _show(self, deadline: Deadline) -> None:
        """Show clustering members that we are there."""
        if self._cache.nodes([self._shown], deadline)[self._shown] is not None:
            return
        # with an empty directory of offsets: "ConsumerGroupCommand --delete --topic" fails for all groups where one of
        # the children of /consumers has none
        self._session.ensure([paths.offsets(self._shared), paths.broadcast_members(self._shared)], deadline)
        self._session.create(self._shown, self.group.encode(), deadline, ephemeral=True)
        self._cache.forget([self._shown])
        self._cache.nodes([self._shown], deadline)

    def _admit(self, deadline: Deadline, *, looked: bool) -> None:
        """Withdraw if a member of the other kind showed itself before us. ``looked``: they were read since we did."""
        if not looked:
            self._cache.forget([self._others])
        names = self._cache.look(Look(rare=(self._others,)), deadline).children[self._others] or ()
        if names:
            where = {f"{self._others}/{name}": name for name in names}
            nodes = self._cache.look(Look(nodes=[self._shown], existing=list(where)), deadline).nodes
            ours = nodes[self._shown]
            earlier = [
                name
                for path, name in where.items()
                if (node := nodes[path]) is not None and (ours is None or node.czxid < ours.czxid)
            ]
            try:
                self._refuse_for(earlier)
            except MessageModelConflictError:
                self.deregister(deadline)
                self._cache.forget([self._shown, self.path])
                raise
        self._admitted = True
        self.refusal = None

    def _refuse_for(self, names: Sequence[str]) -> None:
        if not names:
            return
        if self._broadcasting:
            what = "clustering members, so message.model=broadcasting would consume everything once more beside them"
        else:
            what = "broadcasting members, each of which takes all partitions already"
        self.refusal = MessageModelConflictError(
            f"the group {self._shared!r} has {what}: {first_of(names, 3)}; stop them or take another group.id"
        )
        raise self.refusal

    def _look(self, deadline: Deadline) -> None:
        """Note members of the other kind that joined later. Scala members do this, and cannot be refused."""
        names = self._cache.look(Look(rare=(self._others,)), deadline).children[self._others] or ()
        kind = "clustering" if self._broadcasting else "broadcasting"
        concern = f"the group {self._shared!r} has {kind} members as well: {first_of(names, 3)}" if names else ""
        if concern and concern != self.concern:
            log.warning("%s; each kind consumes everything", concern)
        self.concern = concern
