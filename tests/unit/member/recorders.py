"""Fetching, streams and a committer that only write down what the group thread tells them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from zkconsumer.errors import LogTruncatedError, OffsetConflictError
from zkconsumer.member.owned_partitions import OwnedPartitions
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import Held, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.ownership_transactions import KnownOffset

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MINE = ThreadId("g_me-0")
"""The thread that reads every stream."""


class Recorder:
    """Stands for fetching, streams and committer at once; ``log`` has each call with its partitions."""

    def __init__(self, *, asks: bool = False, reads_nodes: bool = True) -> None:
        self.asks = asks
        self.reads_nodes = reads_nodes
        self.log: list[tuple[Any, ...]] = []
        self.waits: list[Callable[[Deadline], None]] = []
        """What happens during the next waits for messages in hand."""
        self.refused: Exception | None = None

    def _note(self, what: str, positions: Iterable[PartitionPosition], *more: object) -> None:
        self.log.append((what, *(position.tp.partition for position in positions), *more))

    def accept(self, positions: Sequence[PartitionPosition]) -> Sequence[tuple[PartitionPosition, Any]]:
        return [(position, "queue") for position in positions]

    def start(self, partitions: Iterable[tuple[PartitionPosition, Any]]) -> None:
        self._note("fetch", [position for position, _ in partitions])

    def forget(self, positions: Collection[PartitionPosition] = ()) -> None:
        if positions:
            self._note("forget", positions)

    def wake(self) -> None:
        self.log.append(("wake",))

    def revoke(self, positions: Sequence[PartitionPosition]) -> None:
        self._note("revoke", positions)
        for position in positions:
            position.revoked = True

    def wait(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        self._note("wait", positions)
        if self.waits:
            self.waits.pop(0)(limit)

    def replace(self, old: PartitionPosition, new: PartitionPosition) -> None:
        old.revoked, old.successor = True, new
        self._note("replace", [new])

    def fail(self, position: PartitionPosition, error: OffsetConflictError | LogTruncatedError) -> None:
        self._note("fail", [position])

    def end(self) -> None:
        self.log.append(("end",))

    def find_starts(
        self, positions: Sequence[PartitionPosition], found: Callable[[Mapping[PartitionPosition, int | None]], None]
    ) -> Sequence[PartitionPosition]:
        if not self.asks:
            return positions
        if positions:
            self._note("find", positions)
        return ()

    def track(self, claimed: Sequence[tuple[PartitionPosition, KnownOffset]]) -> None:
        if claimed:
            self._note("track", [position for position, _ in claimed])

    def succeed(self, old: PartitionPosition, new: PartitionPosition) -> None:
        self._note("succeed", [new])

    def begin_other_log(self, old: PartitionPosition, new: PartitionPosition, known: KnownOffset) -> None:
        self._note("other log", [new])

    def store_starts(
        self, starts: Mapping[PartitionPosition, int], done: Callable[[Mapping[PartitionPosition, bool]], None]
    ) -> None:
        self._note("store", starts, *starts.values())

    def overwrite(self, position: PartitionPosition, known: KnownOffset | None) -> None:
        self._note("overwrite", [position])

    def write_starts(self, positions: Collection[PartitionPosition]) -> None:
        self._note("level", positions)

    def hurry(self) -> None:
        self.log.append(("hurry",))

    def check(self) -> None:
        self.log.append(("check",))

    def commit_last(
        self,
        positions: Collection[PartitionPosition],
        *,
        commit: bool,
        held: Held,
        deadline: Deadline,
        meanwhile: Callable[[], None],
        release: bool = False,
    ) -> Mapping[TopicPartition, KnownOffset | None]:
        meanwhile()
        if self.refused is not None:
            raise self.refused
        counted = [position.tp.partition for position in positions if position in held]
        self._note("last commit" if commit else "no commit", positions, *(["counting", *counted] if counted else []))
        return {position.tp: None if release else KnownOffset(position.consumed, 1) for position in positions}


def owning(
    recorder: Recorder, *partitions: TopicPartition, offset: int | None = 5
) -> tuple[OwnedPartitions, SimpleQueue[Any]]:
    """These partitions, claimed and fetched from ``offset`` on; and the queue of events. The log is empty."""
    events: SimpleQueue[Any] = SimpleQueue()
    owned = OwnedPartitions(recorder, recorder, recorder, events.put)
    owned.add({tp: (MINE, KnownOffset(offset, 3)) for tp in partitions})
    owned.starts.start(partitions)
    recorder.log.clear()
    return owned, events
