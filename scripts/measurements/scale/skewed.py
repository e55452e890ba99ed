"""``lag-aware`` under a skewed load, simulated: how many partitions move in some hours, and whether that ends.

Each member reads chunks of one stream at its own speed. The planner's decisions, the meters of the members and their
positions are the real ones. ZooKeeper, the broker and the clock are not here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.assignors.placement_decision import LOOK_EVERY_S, Measured, Placement, SeenGroup
from zkconsumer.core.placement_plan import PartitionLoad, PlacementPlan, PlanInputs, consumer_of
from zkconsumer.member.zookeeper.placement_node import PUBLISH_EVERY_S, LoadMeter
from zkconsumer.model import LAG_AWARE, ConsumerId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition

CHUNK = 10_000
CHUNKS = 2
STEP_S = 5
TOPIC = "t"
EVEN = (50.0,) * 12
HOT = (500.0, *[50.0] * 11)
TOO_HOT = (1000.0, *[50.0] * 11)
CASES: Mapping[str, tuple[Sequence[float], Mapping[str, float]]] = {
    "all are fast": (EVEN, {"a": 1000, "b": 1000, "c": 1000}),
    "one partition is hot": (TOO_HOT, {"a": 2000, "b": 2000, "c": 2000}),
    "one is hot, one member slow": (HOT, {"a": 1000, "b": 1000, "c": 100}),
    "the member with the hot one is slow": (HOT, {"a": 100, "b": 1000, "c": 1000}),
    "one member is slow": (EVEN, {"a": 1000, "b": 1000, "c": 100}),
    "the planner is slow": (EVEN, {"a": 100, "b": 1000, "c": 1000}),
    "all are too slow": (EVEN, {"a": 150, "b": 150, "c": 150}),
}
"""The new messages of each partition in a second, and the messages that each member can consume in a second."""


@dataclass(frozen=True)
class Skewed:
    """The outcome.

    ``late`` moves are in the second half of the time. ``rates`` are those of the members' partitions.
    """

    case: str
    noise: float
    hours: float
    moves: int
    late: int
    rates: dict[str, float]


class _Reader:
    """One member with one stream, whose queue has room for two chunks."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._meter = LoadMeter()
        self._queue: list[tuple[PartitionPosition, int]] = []
        self.owned: dict[TopicPartition, PartitionPosition] = {}
        self.report: dict[TopicPartition, PartitionLoad] = {}

    def drop(self, tp: TopicPartition) -> int:
        gone = self.owned.pop(tp)
        self._queue = [entry for entry in self._queue if entry[0] is not gone]
        return gone.consumed or 0

    def publish(self, now: float) -> None:
        self.report = self._meter.measure(self.owned, now)

    def step(self, ends: Mapping[TopicPartition, float], chance: random.Random) -> None:
        left = int(self._speed * STEP_S)
        while True:
            for position in chance.sample(list(self.owned.values()), len(self.owned)):
                if len(self._queue) < CHUNKS:
                    self._fetch(position, int(ends[position.tp]))
            if not self._queue or not left:
                return
            position, end = self._queue[0]
            assert position.consumed is not None
            used = min(left, end - position.consumed)
            position.consumed += used
            left -= used
            if position.consumed == end:
                self._queue.pop(0)

    def _fetch(self, position: PartitionPosition, end: int) -> None:
        assert position.cursor.fetched is not None
        position.cursor.log_end = end
        if end > position.cursor.fetched:
            position.cursor.fetched = min(end, position.cursor.fetched + CHUNK)
            self._queue.append((position, position.cursor.fetched))


def skewed_load(case: str, *, noise: float = 0.5, hours: float = 8.0, seed: int = 1) -> Skewed:
    """Let a group read for some hours. ``noise``: rates differ by so much of themselves from one step to the next."""
    rates, speeds = CASES[case]
    chance = random.Random(seed)
    readers = {ConsumerId(name): _Reader(speed) for name, speed in speeds.items()}
    first = next(iter(readers))
    inputs = PlanInputs(LAG_AWARE, {name: {TOPIC: 1} for name in readers}, {TOPIC: tuple(range(len(rates)))})
    planner, seen = Placement(first, wait=10.0, grace=60.0), SeenGroup(inputs, first)
    ends = {TopicPartition(TOPIC, number): 0.0 for number in range(len(rates))}
    plan: PlacementPlan | None = None
    moved: list[int] = []
    for now in range(0, int(hours * 3600), STEP_S):
        if now % LOOK_EVERY_S == 0:
            loads = {
                tp: load for reader in readers.values() for tp, load in reader.report.items() if tp in reader.owned
            }
            decision = planner.decide(seen, plan, float(now), Measured(loads=loads))
            if decision.write and decision.plan is not None:
                moved.extend([now] * _follow(plan, decision.plan, readers))
                plan = decision.plan
                planner.followed(decision)
        for tp in ends:
            ends[tp] += rates[tp.partition] * STEP_S * (1 + noise * chance.uniform(-1, 1))
        for reader in readers.values():
            reader.step(ends, chance)
            if now % PUBLISH_EVERY_S == 0:
                reader.publish(float(now))
    found = {str(name): sum(rates[tp.partition] for tp in reader.owned) for name, reader in readers.items()}
    return Skewed(case, noise, hours, len(moved), sum(at >= hours * 1800 for at in moved), found)


def _follow(before: PlacementPlan | None, plan: PlacementPlan, readers: Mapping[ConsumerId, _Reader]) -> int:
    """Give the partitions to their new owners. Returns the number of moves."""
    moves = 0
    for tp, thread in plan.assignment.items():
        old = None if before is None else before.assignment[tp]
        if old != thread:
            start = 0 if old is None else readers[consumer_of(old)].drop(tp)
            readers[consumer_of(thread)].owned[tp] = PartitionPosition(tp, thread, start)
            moves += old is not None
    return moves
