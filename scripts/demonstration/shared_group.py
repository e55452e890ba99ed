"""Step 8 of the demo: a Spark stream and a member without Spark share a group. The main thread directs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from scripts.demonstration.flight_producer import log_ends
from scripts.demonstration.group_owners import GroupInZooKeeper, GroupOwners, wait_until
from scripts.demonstration.member_process import MemberProcess
from scripts.demonstration.message_account import MessageAccount
from scripts.demonstration.screen import Screen
from scripts.demonstration.spark_process import SparkProcess
from scripts.demonstration.weeks_picture import draw

_OTHER = "zoe"
_SESSION_TIMEOUT_MS = 6000
_BATCHES = 20
_STEP_S = 120.0


class DemoTopic(NamedTuple):
    """The cluster, topic and group of the demo."""

    zookeeper: str
    bootstrap: str
    topic: str
    group: str


class SharedGroupResult(NamedTuple):
    """The messages that each member read, the group's committed ``offsets`` and the topic's ``ends``."""

    spark: int
    other: int
    total: int
    again: int
    offsets: dict[int, int]
    ends: dict[int, int]

    @property
    def good(self) -> bool:
        """Whether nothing is lost, nothing is repeated and everything is committed."""
        return self.spark + self.other == self.total and not self.again and self.offsets == self.ends


def options(total: int) -> dict[str, str]:
    """Return the stream's options. Batches are small, because the group can change only between batches."""
    return {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(max(50, total // _BATCHES))}


class SharedGroup:
    """The group of the Spark stream and the other member."""

    def __init__(self, spark: SparkProcess, group: GroupInZooKeeper, screen: Screen, folder: Path) -> None:
        self._spark = spark
        self._group = group
        self._screen = screen
        self._folder = folder
        self._account = MessageAccount()
        self._other: MemberProcess | None = None
        self._view = GroupOwners()

    def play(self, name: str, place: DemoTopic, total: int, picture: Path | None) -> SharedGroupResult:
        """Run step 8 and return its result. Raises: ZkConsumerError if a wait is too long."""
        self._screen.step(8, f'Spark as a live member of "{name}": flights by week, as they come')
        for line in ('spark.readStream.format("zkconsumer")...', '     .groupBy(window("time", "7 days"))'):
            self._screen.say(line, "green")
        try:
            return self._play(name, place, total, picture)
        finally:
            self._screen.settle()
            if self._other is not None:
                self._other.close()

    def _play(self, name: str, place: DemoTopic, total: int, picture: Path | None) -> SharedGroupResult:
        ends = log_ends(place.bootstrap, place.topic)
        self._until(lambda: sum(self._group.committed().values()) > 0, "the query reads")
        self._other = MemberProcess(
            _OTHER,
            place.zookeeper,
            name,
            place.topic,
            _SESSION_TIMEOUT_MS,
            self._folder,
            per_second=max(100, total // 40),
        )
        self._other.start(self._account)
        self._until(lambda: _OTHER in self._view.members, f"{_OTHER} joins")
        self._screen.say(f"{_OTHER} joins, without Spark: it gets its share once the running batch has ended")
        self._until(lambda: self._account.consumed_count >= total // 40, f"{_OTHER} consumes")
        self._other.leave()
        self._until(lambda: _OTHER not in self._view.members, f"{_OTHER} leaves")
        self._other.join()
        self._screen.say(f"{_OTHER} leaves, and the query reads the rest")
        self._until(lambda: self._group.committed() == ends, "everything is read")
        shared = self._sums(total, ends)
        self._spark.end()
        self._until(lambda: not self._view.members, "the query leaves the group")
        self._screen.settle()
        self._show(shared, picture)
        return shared

    def _sums(self, total: int, ends: dict[int, int]) -> SharedGroupResult:
        totals = self._account.totals()
        read = sum(week.flights for week in self._spark.weeks(whole=False).values())
        again = sum(totals.duplicates.values())
        return SharedGroupResult(read, totals.consumed, total, again, self._group.committed(), ends)

    def _show(self, shared: SharedGroupResult, picture: Path | None) -> None:
        ends = [("offsets", shared.offsets), ("topic's ends", shared.ends)]
        rows = [
            ("read by Spark", shared.spark, "in the weeks of its aggregate"),
            (f"read by {_OTHER}", shared.other, ""),
            ("together", shared.spark + shared.other, f"of {shared.total:,}: nothing lost, nothing twice"),
            *((what, sum(at.values()), " ".join(str(at[number]) for number in sorted(at))) for what, at in ends),
        ]
        if not shared.good:
            rows[2] = (*rows[2][:2], "")
        self._screen.say("")
        self._screen.figures(rows)
        if picture is not None:
            draw(self._spark.weeks(whole=True), self._spark.weeks(whole=False), picture)
            self._screen.say(f"the weeks as a picture:\n{picture}")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until ``done``. Show the owners meanwhile."""
        wait_until(done, self._look, what, _STEP_S)

    def _look(self) -> GroupOwners:
        self._spark.check()
        if self._other is not None:
            self._other.check()
        self._view = self._named(self._group.look())
        self._screen.owners(self._view)
        return self._view

    def _named(self, view: GroupOwners) -> GroupOwners:
        """Return the view with a short name for the query."""

        def short(member: str) -> str:
            return member if member == _OTHER else "Spark"

        owners = {partition: (short(member), stream) for partition, (member, stream) in view.owners.items()}
        return replace(view, members=frozenset(map(short, view.members)), owners=owners)
