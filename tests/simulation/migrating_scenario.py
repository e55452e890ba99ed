"""A group that moves from ZooKeeper to the brokers and back, member by member, as docs/migration.md says.

Kinds of members are ``old`` (ZooKeeper alone, of the package or Scala), ``bridge`` and ``new`` (the brokers alone). The
next kind begins when all members have the present one, and both stores agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation.brokers_scenario import OPEN, BrokersFaults, BrokersMember, BrokersObserver
from tests.simulation.promises import Watched
from tests.simulation.scala_member import ScalaMember
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import world
from zkconsumer.core.consumer_protocol import MemberSubscription
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

STRATEGIES = ("range", "cooperative-sticky", "cooperative-sticky,range")
PATIENCE = 10.0  # seconds that a bridge waits for a release, at least
_MOVES = (
    ("old", "bridge", "new"),
    ("new", "bridge", "old"),
    ("old", "bridge", "old", "bridge", "new"),
    ("old", "bridge", "new", "bridge", "old"),
)


class MigratingMember(BrokersMember):
    """A member of the package, of the kind of its time."""

    @property
    def in_contact(self) -> bool:
        return self.kind == "new" or (self.session is not None and self.session.connected)

    @property
    def properties(self) -> dict[str, Any]:
        return {**super().properties, **self.scenario.of_kind(self.kind)}  # type: ignore[attr-defined]


class MigratingObserver(BrokersObserver):
    """Owners are those of ZooKeeper, and for new members those of the coordinator's generation."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._zookeeper.changed = self.look
        self.kinds: dict[str, str] = {}  # by consumer
        self._released: dict[str, MemberSubscription] = {}
        """By bridge: its last join in time. It has released what it does not keep."""

    def _counts(self, consumer: str) -> bool:
        return self.kinds.get(consumer) == "new"

    def show_owner(self, tp: TopicPartition, seen: Watched, owner: str | None) -> None:
        """Name the owner of the generation, if that is a new member. The node of another owner says when it ends."""
        told = self._released.get(seen.owner or "")
        if owner and self._counts(owner) and told and told.generation == self.generation - 1 and tp not in told.owned:
            self.broke(f"{tp}: a generation gives it to {owner}, but {seen.owner} has not released it")
        if seen.owner is None or self._counts(seen.owner):
            super().show_owner(tp, seen, owner if owner and self._counts(owner) else None)

    def joins_again(self, consumer: str, told: MemberSubscription) -> None:
        """A bridge that asks to join has released its partitions, unless it has lost them or ZooKeeper was slow."""
        self._released.pop(consumer, None)
        in_time = world().now - self.rebalancing.pop(consumer, 0.0) < PATIENCE
        if in_time and told.generation == self.generation and self.kinds.get(consumer) == "bridge":
            self._released[consumer] = told

    def note_owner(self, tp: TopicPartition, seen: Watched, name: str | None) -> None:
        """The owner node of a partition has changed. A new member has none."""
        if seen.owner is not None and self._counts(seen.owner):
            if name is None:
                return
            seen.owner = None
        super().note_owner(tp, seen, name)
        if name is None:
            seen.owner = next((one for one in seen.owned if self._counts(one) and seen.owned[one].ended == OPEN), None)
        elif self.kinds.get(name, "old") == "old":
            seen.change(name, lowest=seen.committed["zookeeper"] or 0)


class MigratingFaults(BrokersFaults):
    kinds = (*BrokersFaults.kinds, "expire", "lose answer", "cut zookeeper", "slow zookeeper", "no quorum")


class MigratingScenario(Scenario):
    faults_class, observer_class = MigratingFaults, MigratingObserver
    observer: Any

    def choose_properties(self) -> dict[str, Any]:
        self._move = list(self.world.random.choice(_MOVES))
        self._strategies = self.world.random.choice(STRATEGIES)
        self._leaves: Any = None
        properties = super().choose_properties()
        del properties["offsets.storage"], properties["dual.commit.enabled"]
        return {**properties, "partition.assignment.strategy": "range"}

    def of_kind(self, kind: str) -> dict[str, Any]:
        """Return the properties of a kind, beside those of all."""
        if kind == "old":
            return {}
        made = {"session.timeout.ms": 8000, "partition.assignment.strategy": self._strategies}
        return {**made, "group.coordination": "kafka"} | ({} if kind == "new" else {"group.migration": "true"})

    def new_member(self, number: int, ours: bool) -> Any:
        kind = self._move[0]
        made: Any = super().new_member(number, ours) if kind == "old" else None
        if not isinstance(made, ScalaMember):
            made = MigratingMember(self, number)
            made.kind = kind
        self.observer.kinds[f"{self.group}_{made.name}"] = kind
        return made

    def _each_second(self) -> None:
        """Restart one more member as the present kind, or begin with the next kind."""
        if self._leaves is not None:
            if not self._gone(self._leaves):
                return
            self._leaves = None
            self.join()
        elif self.world.random.random() < 0.5:
            former = [member for member in self.live() if member.kind != self._move[0]]
            if former:
                self._leaves = self.world.random.choice(former)
                self.world.note(f"restart {self._leaves.name} as {self._move[0]}")
                self.world.spawn(f"{self._leaves.name}-leaver", self._leaves.leave, self._leaves.process)
            elif len(self._move) > 1 and self._settled():
                self._move.pop(0)
                self.world.note(f"the next kind is {self._move[0]}")

    def _gone(self, member: Any) -> bool:
        return not member.process.alive or all(task.process is not member.process for task in self.world.tasks)

    def _settled(self) -> bool:
        """Whether nobody of a former kind is left anywhere, and both stores agree."""
        if any(one.kind != self._move[0] and not self._gone(one) for one in self.members):
            return False
        live = {member.consumer for member in self.live()}
        registered = {path.rpartition("/")[2] for path in self.zookeeper.tree(paths.ids(self.group))}
        coordinator = self.cluster.coordinator(self.group)
        joined = {} if coordinator is None else self.cluster.brokers[coordinator].groups.view(self.group).members
        inside = {self.observer.consumer(member_id) for member_id in joined}
        agreed = all(len(set(seen.committed.values())) == 1 for seen in self.observer.partitions.values())
        return bool(live) and registered | inside <= live and (agreed or self._move[0] != "bridge")

    def _stores(self) -> Sequence[str]:
        kinds = {member.kind for member in self.live()}
        return ("zookeeper",) if "old" in kinds else ("kafka",) if "new" in kinds else ("kafka", "zookeeper")
