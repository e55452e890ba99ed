"""The fake group coordinator of one broker: its groups, their locks and timeouts, and the requests for their offsets.

Any thread may call everything. ``_lock`` guards the table of groups, and each group's own lock guards the group and its
offsets. A thread that holds a group's lock may take ``_lock``, never the other way round. Answers are sent after the
locks are released: a ticket is a callable that takes the answer. Times are in seconds on the coordinator's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock, RLock
from typing import Any

from zkconsumer.testing import group_states as errors
from zkconsumer.testing.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    ExpiryBasis,
    OffsetsTopic,
    PartitionId,
)
from zkconsumer.testing.fake_clock import Clock
from zkconsumer.testing.fake_group import FakeGroup
from zkconsumer.testing.group_states import (
    CoordinatorGroupState,
    CoordinatorRules,
    DueAnswer,
    FakeGroupView,
    JoinAnswer,
    JoinRequest,
    SyncAnswer,
    SyncRequest,
)

Ticket = Callable[[Any], None]


class _Kept:
    """A group with its lock and its offsets."""

    def __init__(self, group_id: str, rules: CoordinatorRules) -> None:
        self.lock = RLock()
        self.group = FakeGroup(group_id, rules)
        self.offsets = CommittedOffsets(rules)
        self.stored = 0

    @property
    def standing(self) -> ExpiryBasis:
        """The facts that decide when the offsets expire."""
        group = self.group
        return ExpiryBasis(group.state, group.since, group.protocol_type, group.subscribed)

    @property
    def idle(self) -> bool:
        """Whether the group has neither members nor offsets."""
        return self.group.state is CoordinatorGroupState.EMPTY and not self.offsets

    def due(self) -> float | None:
        """Return the time of the next timeout, or None."""
        idle_until = self.group.since + self.group.rules.offsets_retention_check if self.idle else None
        times = [self.group.due(), self.offsets.due(self.standing), idle_until]
        return min((time for time in times if time is not None), default=None)


class GroupCoordinator:
    """The groups of one coordinator.

    Arguments: ``changed`` is called, under no lock, whenever the next timeout may have become earlier.
    """

    def __init__(
        self, rules: CoordinatorRules, clock: Clock, journal: OffsetsTopic, changed: Callable[[], None]
    ) -> None:
        self.rules = rules
        self._clock = clock
        self._journal = journal
        self._changed = changed
        self._lock = Lock()
        self._groups: dict[str, _Kept] = {}

    # ---- requests ----

    def join(self, group_id: str, request: JoinRequest, ticket: Ticket) -> None:
        """Handle a JoinGroup. The ticket gets a JoinAnswer, now or later."""
        low, high = self.rules.min_session_timeout, self.rules.max_session_timeout
        refused = JoinAnswer(errors.NONE, request.member_id, -1 if self.rules.modern else 0)
        if not group_id:
            ticket(refused._replace(error=errors.INVALID_GROUP_ID))
        elif not low <= request.session_timeout <= high:
            ticket(refused._replace(error=errors.INVALID_SESSION_TIMEOUT))
        else:
            kept = self._get(group_id, create=not request.member_id)
            if kept is None:
                ticket(refused._replace(error=errors.UNKNOWN_MEMBER))
                return
            with self._using(kept) as out:
                out += kept.group.join(self._clock.now(), request, ticket)

    def sync(self, group_id: str, request: SyncRequest, ticket: Ticket) -> None:
        """Handle a SyncGroup. The ticket gets a SyncAnswer, now or later."""
        kept = self._get(group_id)
        if kept is None:
            ticket(SyncAnswer(errors.UNKNOWN_MEMBER if group_id else errors.INVALID_GROUP_ID))
            return
        with self._using(kept) as out:
            out += kept.group.sync(self._clock.now(), request, ticket)

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation: int) -> int:
        """Handle a Heartbeat. Return the error code."""
        kept = self._get(group_id)
        if kept is None:
            return errors.UNKNOWN_MEMBER if group_id else errors.INVALID_GROUP_ID
        with self._using(kept):
            return kept.group.heartbeat(self._clock.now(), member_id, instance_id, generation)

    def leave(self, group_id: str, member_id: str, instance_id: str | None) -> int:
        """Handle a LeaveGroup of one member. Return the error code."""
        kept = self._get(group_id)
        if kept is None:
            return errors.UNKNOWN_MEMBER if group_id else errors.INVALID_GROUP_ID
        with self._using(kept) as out:
            error, deliveries = kept.group.leave(self._clock.now(), member_id, instance_id)
            out += deliveries
            return error

    def commit(
        self,
        group_id: str,
        who: tuple[str, str | None, int],
        offsets: Mapping[PartitionId, tuple[int, int, str]],
        retention: float | None,
        ages: Mapping[PartitionId, float] | None = None,
    ) -> dict[PartitionId, int]:
        """Handle an OffsetCommit. Return the error code of each partition.

        Arguments: ``who`` is member id, instance id and generation. ``offsets`` are offset, leader epoch and metadata.
        ``retention`` is in seconds, None for the broker's. ``ages`` holds the seconds since the commit of offsets that
        carry their own time; all others are committed now.
        """
        kept = self._get(group_id, create=who[2] < 0)
        if kept is None:
            return dict.fromkeys(offsets, errors.ILLEGAL_GENERATION)
        results = {}
        with self._using(kept):
            now = self._clock.now()
            error = kept.group.commit(now, *who)
            for place, (offset, epoch, metadata) in offsets.items():
                results[place] = error
                if not error and len(metadata) > self.rules.max_metadata:
                    results[place] = errors.OFFSET_METADATA_TOO_LARGE
                elif not error:
                    expires = None if retention is None else now + retention
                    at = now - (ages or {}).get(place, 0.0)
                    committed = CommittedOffset(offset, epoch, metadata, at, expires)
                    kept.offsets[place] = committed
                    self._journal.write_offset(group_id, place, committed)
        return results

    def committed(
        self, group_id: str, places: Iterable[PartitionId] | None = None
    ) -> dict[PartitionId, CommittedOffset | None]:
        """Handle an OffsetFetch: the committed offset of each partition, or None. Without ``places``, all offsets."""
        kept = self._get(group_id)
        if kept is None:
            return {} if places is None else dict.fromkeys(places)
        with self._using(kept):
            return {place: kept.offsets.get(place) for place in (sorted(kept.offsets) if places is None else places)}

    def delete(self, group_id: str) -> int:
        """Handle a DeleteGroups of one group: delete the group with its offsets. Return the error code."""
        kept = self._get(group_id)
        if kept is None:
            return errors.GROUP_NOT_FOUND
        with kept.lock:
            error = kept.group.delete()
            if not error:
                self._bury(kept)
        return error

    def forget_places(self, places: Iterable[PartitionId]) -> None:
        """Delete the offsets of deleted partitions in all groups, and delete groups that are idle after that."""
        wanted = list(places)
        for kept in self._all():
            with kept.lock:
                for place in kept.offsets.forget(wanted):
                    self._journal.write_offset(kept.group.group_id, place, None)
                if kept.idle:
                    kept.group.delete()
                    self._bury(kept)

    # ---- looking ----

    def view(self, group_id: str, *, everything: bool = True) -> FakeGroupView:
        """Return the present state of a group. An unknown group is Dead, as in DescribeGroups."""
        kept = self._get(group_id)
        if kept is None:
            return FakeGroupView(group_id, CoordinatorGroupState.DEAD.value, 0, "", "", "", {})
        with self._using(kept):
            return kept.group.view(everything=everything)

    def views(self) -> list[FakeGroupView]:
        """Return the present state of all groups."""
        return [self.view(kept.group.group_id) for kept in self._all()]

    # ---- time ----

    def due(self) -> float | None:
        """Return the time of the next timeout, or None."""
        times = []
        for kept in self._all():
            with kept.lock:
                times.append(kept.due())
        return min((time for time in times if time is not None), default=None)

    def tick(self) -> None:
        """Run the timeouts that are due."""
        for kept in self._all():
            with self._using(kept):
                pass  # the timeouts run at the end of the block, as after every request

    def expire(self, group_id: str, member_id: str) -> None:
        """End a member's session now. Raises KeyError for an unknown group or member."""
        kept = self._get(group_id)
        if kept is None:
            raise KeyError(group_id)
        with self._using(kept) as out:
            out += kept.group.expire(self._clock.now(), member_id)

    # ---- moving ----

    def unload(self, group_id: str) -> None:
        """Give a group up to another coordinator."""
        with self._lock:
            kept = self._groups.pop(group_id, None)
        if kept is not None:
            with self._using(kept) as out:
                out += kept.group.unload()

    def load(self, group_id: str) -> None:
        """Load a group from the offsets topic, if it has records there."""
        written, offsets = self._journal.last(group_id)
        if written is None and not offsets:
            return
        kept = _Kept(group_id, self.rules)
        kept.group.since = now = self._clock.now()
        if written is not None:
            kept.group.load(now, written.view, [replace(member) for member in written.members], written.since)
        for place, committed in offsets.items():
            kept.offsets[place] = committed
        with self._lock:
            self._groups[group_id] = kept
        self._changed()

    # ---- inside ----

    def _all(self) -> list[_Kept]:
        with self._lock:
            return list(self._groups.values())

    def _get(self, group_id: str, *, create: bool = False) -> _Kept | None:
        with self._lock:
            kept = self._groups.get(group_id)
            if kept is None and create:
                kept = self._groups[group_id] = _Kept(group_id, self.rules)
                kept.group.since = self._clock.now()
            return kept

    @contextmanager
    def _using(self, kept: _Kept) -> Iterator[list[DueAnswer]]:
        """Hold the group's lock for a block, then write the changes to the offsets topic and send the answers."""
        out: list[DueAnswer] = []
        try:
            with kept.lock:
                try:
                    yield out
                finally:
                    self._settle(kept, out)
        finally:
            for ticket, answer in out:
                assert callable(ticket)
                ticket(answer)
            self._changed()

    def _settle(self, kept: _Kept, out: list[DueAnswer]) -> None:
        """Run the timeouts that are due and write the changes to the offsets topic.

        Timeouts run in the order of time, because the expiry of an offset depends on the group's state at that moment.
        """
        now, group = self._clock.now(), kept.group
        while group.state is not CoordinatorGroupState.DEAD and (at := kept.due()) is not None and at <= now:
            out += group.tick(at)
            gone = kept.offsets.expire(at, kept.standing)
            for place in gone:
                self._journal.write_offset(group.group_id, place, None)
            if kept.idle and (gone or group.since + self.rules.offsets_retention_check <= at):
                group.delete()
                self._bury(kept)
        out += group.tick(now)  # also returns the answers that the request itself left
        if group.state is not CoordinatorGroupState.DEAD and kept.stored != group.stored:
            kept.stored = group.stored
            self._journal.write_group(group)

    def _bury(self, kept: _Kept) -> None:
        """Write the tombstones of a deleted group."""
        group_id = kept.group.group_id
        for place in kept.offsets.forget(sorted(kept.offsets)):
            self._journal.write_offset(group_id, place, None)
        self._journal.bury(group_id)
        with self._lock:
            if self._groups.get(group_id) is kept:
                del self._groups[group_id]
