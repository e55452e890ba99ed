"""Performs writes of offsets and tells what became of them, on standard error. The main thread's.

Standard output belongs to the tables, which scripts read. After Ctrl-C or SIGTERM the run ends after the slice under
way, and tells what was written.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from zkconsumer.cli.tables import Table, render
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.cluster.group_offsets import GroupOffsets, KafkaGroupOffsets
from zkconsumer.core.names import first_of
from zkconsumer.core.offset_move_plan import Store, StoreEntry
from zkconsumer.errors import RegistryError
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.offset_writer import (
    GroupOwners,
    OffsetRun,
    OwnedZooKeeperOffsets,
    OwnerCheckedKafkaOffsets,
    WriteState,
    wait_until_followed,
)
from zkconsumer.operations.printable import printable
from zkconsumer.runtime.deadline import Deadline


class StopSignals:
    """Takes SIGINT and SIGTERM within a ``with`` block of the main thread. A second signal interrupts at once.

    ``code`` is the exit code after a signal as a shell shows it, 0 without one. After an interrupt the block ends with
    SystemExit and this code.
    """

    def __init__(self) -> None:
        self.code = 0
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Return whether a signal has come."""
        return bool(self.code)

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._came)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, KeyboardInterrupt) and self.code:
            raise SystemExit(self.code) from error  # the code of Ctrl-C, 130, would be told after SIGTERM

    def _came(self, number: int, _: FrameType | None) -> None:
        if self.code:
            raise KeyboardInterrupt
        self.code = 128 + number


class OperatedGroup:
    """One group on one cluster. A context manager; it does not close the client."""

    def __init__(self, client: ClusterClient, group: str) -> None:
        self.group = group
        self.client = client
        self._kafka: KafkaGroupOffsets | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._kafka is not None:
            self._kafka.close()

    def offsets(self, store: Store) -> GroupOffsets:
        """Return one of the stores. Raises ConfigException if ZooKeeper is needed and was not named; RegistryError."""
        if store is Store.ZOOKEEPER:
            return OwnedZooKeeperOffsets(self.client.session, self.group)
        self._kafka = self._kafka or KafkaGroupOffsets(self.client, self.group)
        owners = GroupOwners(self.client.session, self.group) if self.client.zookeeper else None
        return OwnerCheckedKafkaOffsets(self._kafka, owners)


def complain(text: str) -> None:
    """Print a line on standard error, without control characters."""
    print(f"zkconsumer offsets: {printable(text)}", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class StoreChange:
    """The changes of one store.

    ``wanted`` are the new entries (None: remove it), ``expected`` the offsets they were planned with, ``live`` the
    partitions with owners. ``computed`` returns the offset to write over the present one of such a partition.
    """

    store: Store
    wanted: Mapping[TopicPartition, StoreEntry | None]
    expected: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    live: Collection[TopicPartition] = ()
    computed: Callable[[TopicPartition, int | None], int] | None = None


@dataclass(slots=True)
class WriteReport:
    """The writes of one command. ``options`` are those to connect with, for the command that undoes it.

    ``failed`` tells whether a partition has not its new offset, or its owner did not follow.
    """

    timeout: float
    wait: float
    options: str
    stop: StopSignals
    failed: bool = False
    runs: list[OffsetRun] = field(default_factory=list)

    def perform(self, group: OperatedGroup, change: StoreChange, undo_file: Path | None) -> OffsetRun:
        """Make the changes of a store, and tell the results. Raises as :class:`OffsetRun` before a write."""
        offsets = group.offsets(change.store)
        cluster = group.client.zookeeper
        run = OffsetRun(group.group, cluster, offsets, self.timeout, self.stop, computed=change.computed)
        wanted = run.begin(change.wanted, change.expected, change.live)
        saved = run.save(undo_file) if wanted else None
        self.runs.append(run)
        if saved is None:
            self._tell(run)
            return run
        trouble = "it was interrupted"
        try:
            trouble = run.write()
            if isinstance(offsets, OwnedZooKeeperOffsets) and offsets.adopted and not trouble:
                self._follow(run, offsets)
            elif isinstance(offsets, OwnerCheckedKafkaOffsets) and offsets.adopting and not trouble:
                self._tell_owners(run, offsets)
        finally:
            # also after a second Ctrl-C: what was written must be told
            try:
                run.settle()
            finally:
                # also after a third one
                self._tell(run, trouble)
                undo = f"zkconsumer offsets undo {shlex.quote(str(saved))} {self.options}"
                complain(f"what was there before is kept; to put it back: {undo} --execute")
        return run

    def skip(self, group: str, store: Store, why: str) -> None:
        """Tell that one store is left as it is."""
        self.failed = True
        complain(f"group {group}, {store}: nothing was written: {why}")

    def _follow(self, run: OffsetRun, offsets: OwnedZooKeeperOffsets) -> None:
        """Wait until the owners have adopted their new offsets, and tell which have not."""
        consumers = {owner.consumer for owner, _ in offsets.adopted.values()}
        complain(f"waiting up to {self.wait:g} s for {first_of(consumers)} to go on from the new offsets")
        try:
            late: Mapping[TopicPartition, ConsumerId] = wait_until_followed(offsets, self.wait, self.stop, self.timeout)
        except RegistryError as error:
            self.failed = True
            complain(f"group {run.group}: whether the owners follow cannot be seen: {error}")
            return
        if late:
            self.failed = True
            for tp, consumer in sorted(late.items()):
                complain(f"group {run.group}: {tp} has its new offset, and {consumer} has not followed")
            complain("they look at their offsets every rebalance.interval.ms (20 s by default); see --wait")
        else:
            complain(f"group {run.group}: {first_of(consumers)} went on from the new offsets")

    def _tell_owners(self, run: OffsetRun, offsets: OwnerCheckedKafkaOffsets) -> None:
        names = first_of({owner.consumer for owner in offsets.adopting.values()})
        complain(f"group {run.group}: {names} look for new offsets in Kafka; whether they follow cannot be seen there")
        try:
            offsets.nudge(Deadline(self.timeout))
        except RegistryError as error:
            complain(f"they could not be told, and look every rebalance.interval.ms (20 s by default): {error}")

    def _tell(self, run: OffsetRun, trouble: str = "") -> None:
        self.failed = self.failed or not run.done
        self._tell_moved(run)
        if run.done:
            return
        rows = [
            (run.group, tp.topic, tp.partition, str(result))
            for tp, result in sorted(run.results.items())
            if result.state is not WriteState.WRITTEN
        ]
        counts = ", ".join(f"{run.count(state)} {state.value}" for state in WriteState)
        complain(f"group {run.group}, {run.offsets.store}: {counts}" + (f" ({trouble})" if trouble else ""))
        print(render(Table(("GROUP", "TOPIC", "PARTITION", "RESULT"), rows)), file=sys.stderr, flush=True)

    def _tell_moved(self, run: OffsetRun) -> None:
        """Tell which offsets were overwritten that the plan did not know: their owners had committed meanwhile."""
        for tp, before in sorted(run.overwritten.items()):
            if run.results[tp].state is WriteState.WRITTEN and before != run.planned.get(tp, before):
                planned = run.planned[tp]
                complain(
                    f"group {run.group}: {tp} was at {planned} when this began, and its owner committed {before} since:"
                    f" the new offset is computed from {before}, which it overwrote"
                )

    def code(self) -> int:
        """Return the exit code."""
        return self.stop.code or int(self.failed)
