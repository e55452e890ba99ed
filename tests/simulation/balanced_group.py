"""Groups of balanced members: ``run`` with ``concurrency``, in any order; with and without ``share.partitions``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tests.simulation.balanced_application  # noqa: F401 - enters its application by name
from tests.simulation.balanced_promises import BalancedObserver, is_finished
from tests.simulation.scenario import SLOW_FOR, STANDS, Scenario
from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.balance.read_work import ReadWork
from zkconsumer.ownership.partition_position import PartitionPosition

KEYS = 7
"""The keys of a partition's messages."""
PART = 256
"""Messages that are read at a time: the window may be passed by so many."""


_HASHES: dict[type, Callable[[Any], int]] = {
    PartitionPosition: lambda one: hash(one.tp),
    OpenPartition: lambda one: hash(one.position.tp),
    ReadWork: lambda one: int(one.offset),
}
for _class, _hash in _HASHES.items():  # the package has sets of these, whose order would follow from addresses
    setattr(_class, "__hash__", _hash)  # noqa: B010 - it is replaced on purpose


class BalancedGroup(Scenario):
    """Members that call ``run`` with ``concurrency``. All have the same order, which the seed chooses."""

    observer_class = BalancedObserver
    observer: BalancedObserver
    orders: tuple[str, ...] = ("key", "key", "partition", "none")
    shares = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.observer.order = self.world.random.choice(self.orders)
        self.observer.drain = int(self.properties["rebalance.drain.timeout.ms"]) / 1000

    def choose_properties(self) -> dict[str, str | int]:
        chance = self.world.random
        return {
            **super().choose_properties(),
            "rebalance.drain.timeout.ms": chance.choice([1000, 3000]),
            "unfinished.max.offsets": chance.choice([20, 200, 10_000]),
            "handler.timeout.ms": chance.choice([-1, 2000]),
            "consumer.timeout.ms": chance.choice([-1, -1, 15_000]),
            "consumer.timeout.action": chance.choice(["raise", "end"]),
            "share.partitions": str(self.shares).lower(),
        }

    def produce(self, count: int) -> None:
        chance = self.world.random
        partition = chance.randrange(self.partitions)
        keys = [None if chance.random() < 0.1 else b"k%d" % chance.randrange(KEYS) for _ in range(count)]
        tp = list(self.observer.fates)[partition]
        self.observer.fates[tp].keys += keys  # before: a member may read the batch at once
        self.cluster.append(self.topic, partition, [b"v%d" % each for each in range(count)], keys)
        self.produced[tp] += count
        self._check_counts()

    def _check_counts(self) -> None:
        """Look at the parts' own counts."""
        window = int(self.properties["unfinished.max.offsets"])
        for member in self.live():
            run: Any = getattr(getattr(getattr(member, "connector", None), "lifecycle", None), "running", None)
            for partition in () if run is None else run.reader.partitions:
                unfinished, place = partition.ledger.unfinished, f"{member.name}: {partition.position.tp}"
                if unfinished > window + PART:
                    self.broken(f"{place} has {unfinished} unfinished messages, with a window of {window}")
                # a message whose outcome is being settled is in hand still
                if len(partition.failing) > unfinished + partition.ledger.pointer_count + partition.in_hand:
                    self.broken(f"{place} has {len(partition.failing)} failing messages, of {unfinished}")

    def settle(self) -> None:
        self.observer.calm = True
        super().settle()
        self._check_counts()

    def progress(self) -> int:
        """Parked messages are handled one by one, and move no offset."""
        return super().progress() + sum(len(fates.handled) for fates in self.observer.fates.values())

    def _not_done(self) -> str:
        if left := super()._not_done():
            return left
        for tp, fates in self.observer.fates.items():
            if fates.parked:
                return f"{tp}: {sorted(fates.parked)} are parked still"
            seen = self.observer.partitions[tp]
            if missing := [each for each in range(len(fates.keys)) if not is_finished(seen, each)]:
                return f"{tp}: nobody finished {missing}"
        return ""


class SharingGroup(BalancedGroup):
    """Members that lend slots to each other: there are more of them than partitions.

    Where statements are slow, a loan may begin later than ``consumer.timeout.ms``. Each run ends before it then, and
    takes the loans back, so nothing is handled before the statements are quick again.
    """

    partitions, stands_slowly = 2, SLOW_FOR + STANDS
    orders = ("key", "key", "none")
    shares = True
