"""Offsets in Kafka: of a group that ZooKeeper coordinates, and of a group that the brokers coordinate.

A group in ZooKeeper (``offsets.storage=kafka``) commits in no member's name, so that nothing fences its commits. A
coordinator takes them from anybody while its own group has no members.

In a group of the brokers every commit is in a member's name. The name and the generation are read for each commit. If
the coordinator refuses an outdated one, the group's thread is told, for which our partitions are lost. Mirrors the Java
consumer's part of ``ConsumerCoordinator``. Differs on purpose: there the application gets a refused commit, while its
streams go on with partitions of other members.

Called by one thread (the committer's); any may ``close``, and a waiting call raises. A call makes one try; the caller
repeats the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from threading import Event
from typing import Protocol

from zkconsumer.core.finished_note import FinishedNote, decode_note, encode_note, note_as_text, note_of_text, text_bytes
from zkconsumer.core.generation_fence import GenerationEpochs
from zkconsumer.core.leader_epochs import NO_EPOCH, epoch_before
from zkconsumer.errors import (
    BrokerError,
    BrokerResponseError,
    FencedInstanceIdError,
    OffsetCommitError,
    UnknownMemberIdError,
)
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.coordinator_client import CoordinatorSearch, OffsetClient
from zkconsumer.kafka.error_codes import ErrorAction, action_for
from zkconsumer.kafka.group_channel import Membership, OffsetAndMetadata
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.member_store import NO_POINTERS
from zkconsumer.offsets.store import NO_NOTES, Failures, Notes, NotingStore
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.ownership.stored_offset import StoredNotes, StoredOffset
from zkconsumer.runtime.deadline import Deadline

log = logging.getLogger(__name__)

MOST_CHARACTERS = 4096
"""Characters of a note at first: the default limit of brokers."""
_LEAST = 32

SentOffsets = Mapping[TopicPartition, int | OffsetAndMetadata]
Send = Callable[[SentOffsets], Mapping[TopicPartition, BrokerResponseError]]
"""Sends one request; returns the refused partitions."""


class MetadataNotes:
    """Writes and reads notes of finished messages in the metadata of offsets. Remembers how long a note may be.

    Brokers limit the metadata of an offset in characters, whatever the name of ``offset.metadata.max.bytes`` says
    (4,096 by default). So a note is text of 15 bits a character. Any other client's commit replaces the metadata, and
    so makes the note void: a Java or Scala member writes an empty text. A note names its base, and counts only with
    that offset.
    """

    def __init__(self) -> None:
        self.characters = MOST_CHARACTERS

    def commit(self, offsets: SentOffsets, notes: Notes, send: Send) -> Mapping[TopicPartition, BrokerResponseError]:
        """Write offsets with their notes. Returns the refused partitions. Raises what ``send`` raises.

        A broker that refuses a note as too long gets half of it, and at last none.
        """
        failures: dict[TopicPartition, BrokerResponseError] = {}
        left = offsets
        while left:
            texts = {tp: self._text(notes[tp]) for tp in left if tp in notes}
            answered = send({tp: _with(offset, texts.get(tp, "")) for tp, offset in left.items()})
            too_long = {tp for tp, error in answered.items() if _too_long(error) and texts.get(tp)}
            failures.update((tp, error) for tp, error in answered.items() if tp not in too_long)
            left = {tp: left[tp] for tp in too_long}
            if left:
                self.characters = self.characters // 2 if self.characters >= 2 * _LEAST else 0
                log.info("the broker refuses longer metadata: notes have %d characters from now on", self.characters)
        return failures

    def _text(self, note: FinishedNote) -> str:
        data = b"" if note.empty or not self.characters else encode_note(note, text_bytes(self.characters))
        return note_as_text(data) if data else ""


def note_in(stored: OffsetAndMetadata) -> FinishedNote | None:
    """Return the note beside an offset; None if there is none of this offset."""
    data = note_of_text(stored.metadata) if stored.metadata else None
    note = None if data is None else decode_note(data)
    return note if note is not None and note.base == stored.offset else None


def _with(offset: int | OffsetAndMetadata, text: str) -> int | OffsetAndMetadata:
    if not text:
        return offset
    return (
        offset._replace(metadata=text)
        if isinstance(offset, OffsetAndMetadata)
        else OffsetAndMetadata(offset, metadata=text)
    )


def _too_long(error: BrokerResponseError) -> bool:
    return error.code == error_codes.OFFSET_METADATA_TOO_LARGE


LOOK_AGAIN = 0.05
"""Seconds between two tries while the group passes into the next generation."""

ANSWERED_WITHIN = 10.0
"""Seconds to wait for the answer of a commit that was sent, even if its caller has left. Over a new connection the next
commit could overtake the unanswered one, which would then take the offset back.
"""

Offsets = Mapping[TopicPartition, int]

ASKED = "an offset commit"
NOT_OURS = "lost with our membership of the group, or given to another member since"
TAKEN_BACK = "in ZooKeeper only, because the brokers took the partition back: another member may have begun there"
"""The reasons of a commit that is not sent."""

_LOST = (ErrorAction.REJOIN_WITHOUT_PARTITIONS, ErrorAction.REJOIN_AS_NEW_MEMBER)
_BETWEEN = (ErrorAction.REJOIN_WITHOUT_PARTITIONS, ErrorAction.REJOIN)
"""Refusals of a commit between two generations."""


class KafkaOffsets(NotingStore):
    """The offsets of a group that ZooKeeper coordinates (an ``OffsetStore``).

    Arguments: ``search`` belongs to this store alone; ``sent`` is told the number of offsets of each answered commit.
    """

    def __init__(self, search: CoordinatorSearch, sent: Callable[[int], None] = lambda _: None) -> None:
        self._client = OffsetClient(search)
        self._nobody = Membership(search.group)
        self._sent = sent
        self._notes = MetadataNotes()

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Read offsets. Raises BrokerError if that of any partition is unknown, whatever the reason."""
        return self.fetch_noted(partitions, timeout)[0]

    def fetch_noted(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> tuple[Mapping[TopicPartition, int], Notes]:
        """Read offsets and their notes. Raises BrokerError if an offset is unknown, whatever the reason."""
        return _noted(self._client.fetch(partitions, Deadline(timeout)))

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float, notes: Notes = NO_NOTES) -> Failures:
        """Write offsets with their notes in one request. Returns what the coordinator refused. Raises BrokerError."""
        deadline = Deadline(timeout)
        commit, nobody = self._client.commit, self._nobody
        refused = self._notes.commit(offsets, notes, lambda some: commit(nobody, some, deadline, ANSWERED_WITHIN))
        self._sent(len(offsets))
        return refused

    def close(self) -> None:
        """Close all connections, for good."""
        self._client.close()


class Identity(Protocol):
    """The member's name and partitions in the group; read by any thread."""

    @property
    def who(self) -> Membership:
        """The member and generation to commit as."""

    @property
    def settled(self) -> bool:
        """Whether no next generation is under way, of which we may be a member already without knowing it."""

    @property
    def held(self) -> GenerationEpochs:
        """The partitions that no other member can own in that generation, or in a later one. Read it after ``who``."""


class MemberOffsets(KafkaOffsets):
    """The offsets of a group that the brokers coordinate (an ``OffsetStore``).

    Arguments: ``search`` belongs to this store alone. ``refused`` is told, on the committer's thread, of a refused
    member and the reason; ``sent`` of the number of offsets of each answered commit. ``positions`` returns the
    partitions we own: an offset is stored with the leader epoch of the message before it (brokers from 2.1 on). By that
    epoch the next owner sees whether the log is still the same (KIP-320).

    The coordinator lets any member of its generation commit any partition. So a commit of a partition that was lost or
    handed over is not tried again: the next try would be in a later generation, which gave it to another member.
    ``tracked`` are the partitions that are ours, each with its ownership epoch.
    """

    def __init__(
        self,
        search: CoordinatorSearch,
        identity: Identity,
        refused: Callable[[Membership, Exception], None],
        sent: Callable[[int], None] = lambda _: None,
        positions: Callable[[], Mapping[TopicPartition, PartitionPosition]] = dict,
    ) -> None:
        super().__init__(search, sent)
        self._positions = positions
        self._identity = identity
        self._refused = refused
        self._closing = Event()
        self.tracked: dict[TopicPartition, StoredOffset] = {}

    def claimed(self, partition: TopicPartition) -> None:
        """Note a tracked partition with its present epoch, or with none if a newer generation has begun."""
        stored = self.tracked[partition]
        stored.elsewhere.epoch = self._identity.held.epochs.get(partition)
        stored.notes = StoredNotes(trouble=NO_POINTERS)

    def not_ours(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return those that were lost or handed over since. The coordinator itself refuses others that are not ours."""
        held = self._identity.held
        ours = {tp: self.tracked[tp].elsewhere.epoch for tp in partitions if tp in self.tracked}
        return {tp: OffsetCommitError(NOT_OURS) for tp, epoch in ours.items() if held.ended(tp, epoch)}

    def with_owner(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return all partitions, because only the group's leader knows whether they have owners."""
        reason = "not owned by this member, and in a group that the brokers coordinate only the owner commits"
        return {tp: OffsetCommitError(reason) for tp in partitions}

    def fetch_noted(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> tuple[Mapping[TopicPartition, int], Notes]:
        """Read offsets and their notes. Raises BrokerError if an offset is unknown, whatever the reason."""
        found = self._client.fetch(partitions, Deadline(timeout))
        positions = self._positions()
        for tp, stored in found.items():
            position = positions.get(tp)
            # nobody fetches the partition before it begins there
            if position is not None and position.cursor.fetched is None and stored.leader_epoch >= 0:
                position.cursor.epochs = ((stored.offset - 1, stored.leader_epoch),)
        return _noted(found)

    def _with_epochs(self, offsets: Offsets) -> dict[TopicPartition, int | OffsetAndMetadata]:
        positions = self._positions()
        found: dict[TopicPartition, int | OffsetAndMetadata] = dict(offsets)
        for tp, offset in offsets.items():
            epoch = epoch_before(positions[tp].cursor.epochs, offset) if tp in positions else NO_EPOCH
            if epoch > NO_EPOCH:
                found[tp] = OffsetAndMetadata(offset, leader_epoch=epoch)
        return found

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float, notes: Notes = NO_NOTES) -> Failures:
        """Write offsets with their notes in one request. Returns what the coordinator refused. Raises BrokerError.

        While the group passes into the next generation nobody may commit until the leader decides, so the call waits.
        Partitions that we own in both generations are ours all the while. Others are not sent in the next one.
        """
        deadline, started = Deadline(timeout), self._identity.held
        while True:
            who, held = self._identity.who, self._identity.held  # in this order: what we hold is never older
            left, refused, unclear = self._sorted_out(offsets, started, held)
            if unclear and not held.decided and self._may_wait(deadline):
                continue
            try:
                failures = self._send(who, left, notes, deadline)
                break
            except BrokerError as e:
                between = action_for(e) in _BETWEEN and (not self._identity.settled or self._identity.who != who)
                if between and self._may_wait(deadline):
                    continue
                if between:  # the next try may do: nothing of this says that anything is lost
                    raise error_codes.error(error_codes.REBALANCE_IN_PROGRESS, ASKED) from e
                if action_for(e) in _LOST or isinstance(e, FencedInstanceIdError):
                    self._refused(who, e)
                raise
        if left:
            self._sent(len(left))
        return {**refused, **unclear, **failures}

    def _sorted_out(
        self, offsets: Offsets, started: GenerationEpochs, held: GenerationEpochs
    ) -> tuple[Offsets, Failures, Failures]:
        """Return the offsets to send, the failures of ownerships that ended since the commit ``started``, and the
        failures to try again: their generation has not decided whose they are, then or now.
        """
        left: dict[TopicPartition, int] = {}
        refused: dict[TopicPartition, Exception] = {}
        unclear: dict[TopicPartition, Exception] = {}
        for tp, offset in offsets.items():
            stay = started.epochs.get(tp)
            if stay is not None and held.epochs.get(tp) == stay:
                left[tp] = offset
            elif stay is not None and held.ended(tp, stay):
                refused[tp] = OffsetCommitError(NOT_OURS)
            else:
                unclear[tp] = error_codes.error(error_codes.REBALANCE_IN_PROGRESS, ASKED)
        return left, refused, unclear

    def _send(self, who: Membership, offsets: Offsets, notes: Notes, deadline: Deadline) -> Failures:
        commit, sent = self._client.commit, self._with_epochs(offsets)
        return self._notes.commit(sent, notes, lambda some: commit(who, some, deadline, ANSWERED_WITHIN))

    def _may_wait(self, deadline: Deadline) -> bool:
        """Wait a moment; return False if no time is left, or the store is closed."""
        return not deadline.expired and not self._closing.wait(deadline.bounded(LOOK_AGAIN))

    def close(self) -> None:
        """Close all connections, for good."""
        self._closing.set()
        super().close()


class BridgeOffsets(MemberOffsets):
    """The brokers' side of the offsets of a bridge, whose partitions ZooKeeper decides.

    A bridge outside the brokers' group commits as nobody: an empty group accepts that. While bridges join or leave one
    after the other, the coordinator refuses bridges outside of the group because the group has members. That passes, so
    the commit is tried again. It must not be left out: the next owner may know this side alone.

    The brokers may take a partition back before ZooKeeper's side has released the partition, and give it to a member
    that reads its start here. Then no offset is written here any more until we claim the partition anew: a commit that
    lands after the other member's would set its offset back. ZooKeeper has the offset, for the next bridge.
    """

    def claimed(self, partition: TopicPartition) -> None:
        """Note for a tracked partition which epoch had ended before the brokers gave us the partition."""
        held = self._identity.held
        given = partition in held.epochs
        self.tracked[partition].elsewhere.epoch = held.past.get(partition) if given else None

    def not_ours(self, partitions: Collection[TopicPartition], deadline: Deadline) -> Failures:
        """Return the partitions that the brokers took back since the claim, also those that were given to us again."""
        return self._taken_back(partitions, self._identity.held)

    def _taken_back(self, partitions: Collection[TopicPartition], held: GenerationEpochs) -> Failures:
        past = {tp: held.past.get(tp) for tp in partitions if tp in self.tracked}
        return {
            tp: OffsetCommitError(TAKEN_BACK)
            for tp, epoch in past.items()
            if epoch is not None and epoch != self.tracked[tp].elsewhere.epoch
        }

    def _sorted_out(
        self, offsets: Offsets, started: GenerationEpochs, held: GenerationEpochs
    ) -> tuple[Offsets, Failures, Failures]:
        """Return the offsets to send and the failures of partitions that were taken back.

        A bridge waits for no generation to decide: ZooKeeper has the offset, and the next commit writes it here.
        """
        refused = self._taken_back(offsets, held)
        return {tp: offset for tp, offset in offsets.items() if tp not in refused}, refused, {}

    def commit(self, offsets: Offsets, timeout: float, notes: Notes = NO_NOTES) -> Failures:
        """Write offsets as :meth:`MemberOffsets.commit`. Raises BrokerError."""
        try:
            return super().commit(offsets, timeout, notes)
        except UnknownMemberIdError as e:
            raise BrokerError(f"{e}: the brokers' group has members, and we are not in it") from e


def _noted(found: Mapping[TopicPartition, OffsetAndMetadata]) -> tuple[Mapping[TopicPartition, int], Notes]:
    notes = {tp: note for tp, stored in found.items() if (note := note_in(stored)) is not None}
    return {tp: stored.offset for tp, stored in found.items()}, notes
