"""A group that the brokers coordinate, with other members of Kafka's protocol, and the faults of its coordinator.

The coordinator's state says who owns a partition. The leader's assignment makes the owners of a generation. An
ownership ends when the member joins again without the partition, when it leaves, and when a later generation gives the
partition to another member or has lost the member. It begins again when the coordinator repeats the assignment, because
a join or its answer was lost.

- A generation assigns no partition twice.
- The coordinator takes no commit of a partition that another member owns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.simulation.faults import Faults
from tests.simulation.kafka_member import KafkaMember
from tests.simulation.members import Member
from tests.simulation.promises import Observer, Ownership, Watched
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import world
from zkconsumer.core.consumer_protocol import MemberSubscription, decode_assignment, decode_subscription
from zkconsumer.model import TopicPartition
from zkconsumer.testing import group_states as errors
from zkconsumer.testing.fake_group import FakeGroup
from zkconsumer.testing.group_states import JoinRequest, SyncAnswer, SyncRequest

STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky", "zkconsumer", "cooperative-sticky,range")
FOREIGN = 0.3  # the part of members that are not of the package, unless the strategy is the package's own
INSTANCES = 0.3  # the part of runs in which members have a `group.instance.id`
LONGEST_SESSION = 10.0  # seconds: the longest `session.timeout.ms`
_ANSWERS = ("JoinGroup", "SyncGroup", "Heartbeat", "OffsetCommit", "OffsetFetch", "LeaveGroup", "Fetch")
OPEN = float("inf")  # the end of an ownership that has not ended
_HEARS = 6.0
"""Seconds after which a member has heard the coordinator's answer that it is no member, over a slow network."""
_UUID = 37  # characters at the end of a member id, after the client id or the instance id


class BrokersObserver(Observer):
    """What all members of one group did."""

    def __init__(self, scenario: Any) -> None:
        super().__init__(scenario)
        self._zookeeper.changed = lambda: None
        self.instances: dict[str, str] = {}  # by `group.instance.id`: the consumer that has it now
        self._removed: dict[str, float] = {}
        """By consumer: until when one that an operator removed from the group may not know that."""
        self.rebalancing: dict[str, float] = {}  # by consumer: when a heartbeat told it first that the group rebalances
        self.generation = 0
        self._write_group = self._journal.write_group
        vars(self._journal)["write_group"] = self._assigned
        for groups in [broker.groups for broker in scenario.cluster.brokers.values()]:
            for name in ("join", "sync", "leave", "heartbeat", "commit"):
                vars(groups)[name] = partial(getattr(self, f"_{name}"), getattr(groups, name))

    def consumer(self, member_id: str) -> str:
        name = member_id[:-_UUID]
        return self.instances.get(name, name)

    def _counts(self, consumer: str) -> bool:
        """Return whether the coordinator alone says what a consumer owns."""
        return bool(consumer)

    def removed(self, member_id: str, until: float) -> None:
        """An operator removes a member, whose lease holds no longer than ``until``."""
        self._removed[self.consumer(member_id)] = until

    # ---- the coordinator's state

    def _assigned(self, group: FakeGroup) -> None:
        """A generation has its assignment, or the group is empty."""
        self._write_group(group)
        if group.group_id != self._group:
            return
        self.generation = group.generation
        owners: dict[TopicPartition, str] = {}
        consumers = [self.consumer(member_id) for member_id in group.members]
        for consumer, member in zip(consumers, group.members.values(), strict=True):
            for tp in decode_assignment(member.assignment, consumer).partitions:
                if owners.setdefault(tp, consumer) != consumer:
                    self.broke(f"{tp}: generation {group.generation} gives it to {owners[tp]} and to {consumer}")
        world().note(f"generation {group.generation}: {', '.join(consumers) or 'no members'}")
        for tp, seen in self.partitions.items():
            owner = owners.get(tp)
            for consumer in filter(self._counts, list(seen.owned)):
                if consumer not in consumers or (owner is not None and consumer != owner):
                    self._close(seen, consumer)
            self._open(seen, owner)
            self.show_owner(tp, seen, owner)

    def show_owner(self, tp: TopicPartition, seen: Watched, owner: str | None) -> None:
        if owner != seen.owner:
            seen.moved = world().now  # it is fetched anew
            world().note(f"owner of {tp}: {owner}")
        seen.owner = owner

    def _open(self, seen: Watched, owner: str | None) -> None:
        """Begin an ownership now, unless it has begun."""
        if owner is not None and self._counts(owner) and (owner not in seen.owned or seen.owned[owner].ended != OPEN):
            seen.owned[owner] = Ownership(world().now, OPEN, seen.committed["kafka"] or 0)

    def _close(self, seen: Watched, consumer: str) -> None:
        """End an ownership now, or when the consumer can know that."""
        if seen.owned[consumer].ended == OPEN:
            seen.change(consumer, ended=max(world().now, self._removed.get(consumer, 0.0)))

    def _gave_up(self, consumer: str, kept: tuple[TopicPartition, ...] = ()) -> None:
        """A member owns nothing more, but for what it keeps."""
        if not self._counts(consumer):
            return
        self._heard(consumer, world().now)
        for tp, seen in self.partitions.items():
            if tp not in kept and consumer in seen.owned:
                self._close(seen, consumer)
                seen.owner = None if seen.owner == consumer else seen.owner

    def _heard(self, consumer: str, at: float) -> None:
        """A consumer that an operator removed knows it no later than this."""
        if self._removed.get(consumer, 0.0) <= at:
            return
        self._removed[consumer] = at
        for seen in self.partitions.values():
            if consumer in seen.owned and at < seen.owned[consumer].ended < OPEN:
                seen.change(consumer, ended=at)

    # ---- requests that its coordinator handles

    def _join(self, ask: Callable[..., None], group: str, request: JoinRequest, ticket: Any) -> None:
        if group == self._group and request.member_id:
            told = decode_subscription(request.protocols[0][1], request.member_id)
            self._gave_up(self.consumer(request.member_id), told.owned)
            self.joins_again(self.consumer(request.member_id), told)
        ask(group, request, ticket)

    def _sync(self, ask: Callable[..., None], group: str, request: SyncRequest, ticket: Any) -> None:
        def answer(given: SyncAnswer) -> None:
            if group == self._group and not given.error and request.generation == self.generation:
                consumer = self.consumer(request.member_id)
                for tp in decode_assignment(given.assignment, consumer).partitions:
                    self._open(self.partitions[tp], consumer)
                    self.show_owner(tp, self.partitions[tp], consumer)
            ticket(given)

        ask(group, request, answer)

    def joins_again(self, consumer: str, told: MemberSubscription) -> None:
        """A known member asks to join. ``told`` is what it tells the leader."""

    def _leave(self, ask: Callable[..., int], group: str, member_id: str, instance_id: str | None) -> int:
        if group == self._group and member_id:
            self._gave_up(self.consumer(member_id))
        return ask(group, member_id, instance_id)

    def _heartbeat(self, ask: Callable[..., int], group: str, member_id: str, *rest: Any) -> int:
        error = ask(group, member_id, *rest)
        if error == errors.REBALANCING:
            self.rebalancing.setdefault(self.consumer(member_id), world().now)
        elif error == errors.UNKNOWN_MEMBER:
            self._heard(self.consumer(member_id), world().now + _HEARS)
        return error

    def _commit(self, ask: Callable[..., Any], group: str, who: Any, offsets: Any, *rest: Any) -> dict[Any, int]:
        errors_of: dict[Any, int] = ask(group, who, offsets, *rest)
        consumer = self.consumer(who[0])
        for place, error in errors_of.items():
            seen = self.partitions.get(TopicPartition(*place)) if group == self._group and who[0] else None
            owner = None if seen is None or error or not self._counts(consumer) else seen.owner
            if owner is not None and owner != consumer and self._counts(owner):
                self.broke(f"{place}: {consumer} committed {offsets[place][0]}, but {owner} owns it")
        return errors_of


class BrokersMember(Member):
    """A member of the package in a group that the brokers coordinate."""

    instance = ""

    @property
    def in_contact(self) -> bool:
        """Whether the member hears of changes in its group: the coordinator takes no commit of one that does not."""
        return True

    @property
    def properties(self) -> dict[str, Any]:
        names = {"client.id": f"{self.scenario.group}_{self.name}"}
        return {**super().properties, **names, **({"group.instance.id": self.instance} if self.instance else {})}


class BrokersFaults(Faults):
    _scenario: Any

    kinds: tuple[str, ...] = (
        "join", "join", "join", "leave", "kill", "freeze", "cut brokers", "slow network", "move leader", "stop broker",
        "all brokers", "move coordinator", "load coordinator", "remove member",
        "lose broker answer", "lose broker answer",
    )  # fmt: skip

    def _other(self, fault: str, member: Any) -> None:
        scenario, world = self._scenario, self._scenario.world
        cluster, group, chance = scenario.cluster, scenario.group, world.random
        seconds = chance.choice([0.5, 3.0, 8.0])
        if fault == "all brokers":
            for broker in range(scenario.brokers):
                cluster.stop_broker(broker)
            world.sleep(seconds)
            for broker in range(scenario.brokers):
                cluster.start_broker(broker)
        elif fault in {"move coordinator", "load coordinator"}:
            loading = fault == "load coordinator"
            cluster.move_coordinator(group, chance.randrange(scenario.brokers), loading=loading)
            if loading:
                world.sleep(seconds)
                cluster.finish_loading(group)
        elif fault == "remove member":
            self._remove()
        elif fault == "lose broker answer":
            parked = cluster.park(chance.choice(_ANSWERS), client_id=member.consumer)
            world.spawn("thief", lambda: _lose(parked), world.system)

    def _remove(self) -> None:
        """Remove a member from the group, as an operator's request does."""
        scenario, group = self._scenario, self._scenario.group
        coordinator = scenario.cluster.coordinator(group)
        if coordinator is None:
            return
        groups = scenario.cluster.brokers[coordinator].groups
        members = sorted(groups.view(group).members)
        if members:
            chosen = scenario.world.random.choice(members)
            scenario.observer.removed(chosen, scenario.world.now + LONGEST_SESSION)
            groups.expire(group, chosen)


def _lose(parked: Any) -> None:
    """Close the connection of a request that was done, before it is answered."""
    try:
        parked.wait(20.0)
    except TimeoutError:
        parked.release()
    else:
        parked.drop()


class BrokersScenario(Scenario):
    faults_class, observer_class = BrokersFaults, BrokersObserver
    observer: Any

    def choose_properties(self) -> dict[str, Any]:
        chance = self.world.random
        properties = super().choose_properties()
        for key in ("offsets.storage", "dual.commit.enabled", "zookeeper.session.timeout.ms"):
            del properties[key]
        self.instances = chance.random() < INSTANCES
        return {
            **properties,
            "group.coordination": "kafka",
            "session.timeout.ms": chance.choice([6000, int(LONGEST_SESSION * 1000)]),
            "max.poll.interval.ms": chance.choice([10_000, 60_000]),
            "heartbeat.interval.ms": chance.choice([300, 300, 1000]),
            "partition.assignment.strategy": chance.choice(STRATEGIES),
        }

    def _begin(self) -> None:
        if self.world.random.random() < 0.5:
            self.properties["bootstrap.servers"] = self.cluster.bootstrap_servers
            del self.properties["zookeeper.connect"]

    def new_member(self, number: int, ours: bool) -> Any:
        strategies = self.properties["partition.assignment.strategy"]
        if not ours and strategies != "zkconsumer" and self.world.random.random() < FOREIGN:
            return KafkaMember(self, number, strategies)
        member = BrokersMember(self, number)
        if self.instances:
            brokers_members = [one for one in self.members if isinstance(one, BrokersMember)]
            used = {one.instance for one in brokers_members if one.process.alive and not one.ended}
            member.instance = next(name for name in map("i{}".format, range(10)) if name not in used)
            self.observer.instances[member.instance] = f"{self.group}_{member.name}"
        return member
