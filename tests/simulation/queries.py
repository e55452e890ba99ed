"""The scenario ``spark``: streaming queries are members of a group, beside connectors. Spark itself is a model.

The model calls a query's run as Spark's driver does. Its checkpoint outlives the process. It leaves out the tasks'
reading, which happens in other processes and knows no group, and the lock of the DataFrame.

- Each message is in one finished batch of a query at most, also after restarts and repeated batches.
- The tasks of a batch are what its end offset says, also when the batch is repeated.
- A batch that is new begins at partitions that its member owns, and commits pass no batch that is not finished.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.simulation.members import Member, tp_of
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Process
from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import OffsetRange, TopicPartition
from zkconsumer.spark import query_member
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.offset_ranges import decode_progress, ranges_of
from zkconsumer.spark.options import parse
from zkconsumer.spark.streaming_query import QueryRun
from zkconsumer.wiring import build_member

QUERIES = 2
ENDS = 60.0  # seconds in which a query ends: its running batch, and the way out of the group
_OPTIONS = ("zookeeper.connect", "group.id", "zookeeper.session.timeout.ms", "partition.assignment.strategy")


@dataclass
class Query:
    """A query's checkpoint, and what its finished batches have."""

    planned: dict[str, Any] = field(default_factory=dict)
    finished: dict[str, Any] = field(default_factory=dict)
    driver: QueryDriver | None = None
    output: set[tuple[TopicPartition, int]] = field(default_factory=set)


class QueryDriver(Member):
    """The process of a query's driver, from one start to its end."""

    def __init__(self, scenario: Scenario, number: int, query: Query) -> None:
        super().__init__(scenario, number)
        self.query = query
        query.driver = self

    def _main(self) -> None:
        scenario, chance = self.scenario, self.scenario.world.random
        given = {name: str(scenario.properties[name]) for name in _OPTIONS}
        given["rebalance.interval.ms"] = str(scenario.properties["rebalance.interval.ms"])
        if chance.random() < 0.3:
            given["releaseAfter"] = "2"
        options = parse({**given, "subscribe": scenario.topic, "startingOffsets": "earliest"})
        run = QueryRun(options, cluster_of(options))
        self.consumer = vars(run)["_membership"].consumer
        try:
            run.open()
            if self.query.planned != self.query.finished:
                self._batch(run, self.query.planned)
            while not self.left:
                self._trigger(run, chance.choice([None, 5, 40]))
                scenario.world.sleep(chance.random() * 2)
        except (ZkConsumerError, RuntimeError) as error:
            scenario.world.note(f"the query fails: {type(error).__name__}: {error}")
        self.left = True
        run.close()
        self.ended = True

    def _trigger(self, run: QueryRun, limit: int | None) -> None:
        world, query = self.scenario.world, self.query
        if world.random.random() < 0.5 and query.finished:
            run.settle(query.finished)  # Spark calls that for most batches, and late
        asked = world.now
        end = run.latest(query.finished, limit)
        if end == query.finished:
            return
        for one in ranges_of(decode_progress(end)):
            self.scenario.observer.handed(self.consumer, tp_of(one), one.start, asked)
        query.planned = end
        self._batch(run, end)

    def _batch(self, run: QueryRun, end: dict[str, Any]) -> None:
        """Run a batch. Raises RuntimeError if one of its tasks fails; then the batch is repeated by the next start."""
        world, query, observer = self.scenario.world, self.query, self.scenario.observer
        ranges = ranges_of(decode_progress(end))
        world.note(f"batch {ranges}")
        offsets = _offsets(ranges)
        if _offsets([each for task in run.plan(end) for each in task.ranges]) != offsets:
            observer.broke(f"{self.name}: the tasks of a batch are not {ranges}")
        world.sleep(world.random.choice([0.2, 1.0, 5.0]) * world.random.random())
        if world.random.random() < 0.03:
            raise RuntimeError("a task failed")
        twice = next((each for each in offsets if each in query.output), None)
        if twice is not None:
            observer.broke(f"{self.name}: message {twice} is in two batches of its query")
        query.output.update(offsets)
        query.finished = end
        for tp, offset in offsets:
            observer.finished(tp, offset)

    def leave(self) -> None:
        self.left = True
        world = self.scenario.world
        end = world.now + ENDS
        while not self.ended:
            if world.now > end and self.process.alive:
                self.scenario.observer.broke(f"the query of {self.name} has not ended after {ENDS:g} s")
                return
            world.sleep(0.5)


def _offsets(ranges: list[OffsetRange]) -> list[tuple[TopicPartition, int]]:
    return [(tp_of(one), each) for one in ranges for each in range(one.start, one.end)]


class QueryScenario(Scenario):
    """A group of queries and connectors."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.queries: list[Query] = []

        def build(config: Any, consumer: Any, environment: Any) -> Any:
            return build_member(config, consumer, environment=replace(environment, session=self.environment.session))

        vars(query_member)["build_member"] = build

    def new_member(self, number: int, ours: bool) -> Any:
        """Return a connector, or a driver that starts a query anew from its checkpoint, or a new query."""
        idle = [one for one in self.queries if one.driver is None or not one.driver.process.alive or one.driver.ended]
        if not idle and len(self.queries) < QUERIES:
            idle = [Query()]
            self.queries += idle
        if ours or not idle or self.world.random.random() < 0.4:
            return super().new_member(number, ours)
        return QueryDriver(self, number, idle[0])

    def _renewed(self, process: Process) -> None:
        if not any(isinstance(one, QueryDriver) and one.process is process for one in self.members):
            super()._renewed(process)  # a query has two sessions, and only one of them counts
