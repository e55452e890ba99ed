"""A member of Kafka's protocol beside those of the package, as the Java consumer is: it has no lease.

One thread joins, syncs, sends heartbeats, consumes by moving its positions, and commits in its generation's name. Now
and then it forgets its heartbeats for longer than its session, and consumes on. Half of these members leave without a
word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.simulation.members import MemberProcess
from tests.simulation.scheduler import world
from zkconsumer import errors
from zkconsumer.core.consumer_protocol import RebalanceProtocol, decode_assignment
from zkconsumer.kafka.broker_channel import BrokerChannel
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.member.brokers import leader_assignment
from zkconsumer.model import ConsumerId, Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

if TYPE_CHECKING:
    from tests.simulation.brokers_scenario import BrokersScenario

SESSION, REBALANCE = 8.0, 20.0
HEARTBEATS, COMMITS = 1.0, 2.0
_PATIENCE = 5.0
_OUTDATED = (errors.IllegalGenerationError, errors.UnknownMemberIdError, errors.FencedInstanceIdError)


class KafkaMember(MemberProcess):
    """One process. ``strategies`` are what it offers."""

    kind_of_name = "k"
    session = None
    _channel: GroupChannel | None = None
    _must_join = True
    _beat_at = _commit_at = 0.0

    def __init__(self, scenario: BrokersScenario, number: int, strategies: str) -> None:
        super().__init__(scenario, number)
        self.group, self.topic = scenario.group, scenario.topic
        self._polite = scenario.world.random.random() < 0.5
        make: Any = leader_assignment.group_assignor
        self._assignors = [make(name, None, ConsumerId(self.consumer), lambda _: 1) for name in strategies.split(",")]
        self._cooperative = leader_assignment.common_protocol(self._assignors) is RebalanceProtocol.COOPERATIVE
        self._who = Membership(self.group)
        self._search = CoordinatorSearch(
            self.group,
            lambda _: [Endpoint(*address) for address in scenario.cluster.addresses()],
            lambda endpoint: BrokerChannel(endpoint, client_id=self.consumer, socket_timeout=_PATIENCE),
        )
        self._previous: tuple[TopicPartition, ...] = ()
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}

    def leave(self) -> None:
        """Have the process end. A wait for other members ends, too."""
        self.left = True
        self._search.interrupt()

    def _main(self) -> None:
        while not self.left:
            try:
                if self._channel is None:
                    self._channel = self._search.find(Deadline(_PATIENCE))
                self._turn(self._channel)
            except errors.MemberIdRequiredError as e:
                self._who = self._who._replace(member_id=e.member_id)
            except errors.RebalanceInProgressError:
                self._must_join = True
            except _OUTDATED as e:
                world().note(f"{self.name}: {type(e).__name__}")
                known = self._who.member_id if isinstance(e, errors.IllegalGenerationError) else ""
                self._who, self._must_join = Membership(self.group, member_id=known), True
                self._previous, self._positions = (), {}
            except errors.BrokerError as e:
                world().note(f"{self.name}: {type(e).__name__}")
                if self._channel is not None:
                    self._search.discard(self._channel)
                self._channel = None
                world().sleep(0.2)
        self._end()

    def _end(self) -> None:
        try:
            if self._polite and self._who.member_id:
                channel = self._search.find(Deadline(_PATIENCE))
                self._commit(channel)
                channel.leave(self._who, Deadline(_PATIENCE))
        except errors.BrokerError as e:
            world().note(f"{self.name}, leaving: {type(e).__name__}")
        self._search.close()
        world().note("has left")

    def _turn(self, channel: GroupChannel) -> None:
        """Do what is due, and consume a message."""
        here = world()
        if self._must_join:
            self._join(channel)
        if here.now >= self._beat_at:
            self._beat_at = here.now + HEARTBEATS
            channel.heartbeat(self._who, Deadline(_PATIENCE))
            if here.random.random() < 0.01:
                here.note(f"{self.name} forgets its heartbeats")
                self._beat_at = self._commit_at = here.now + 2 * SESSION
        if here.now >= self._commit_at:
            self._commit_at = here.now + COMMITS
            self._commit(channel)
        self.consume(self._positions)

    def _join(self, channel: GroupChannel) -> None:
        """Join, lead if the coordinator says so, and take the assignment over."""
        if not self._cooperative and self._positions:
            self._commit(channel)
            self._positions = {}
        deadline = Deadline(2 * REBALANCE)
        who, owned = self._who, sorted(self._positions)
        offers = leader_assignment.protocol_offers(
            self._assignors, [self.topic], owned=owned, previous=self._previous, generation=who.generation
        )
        joined = channel.join(who, offers, session_timeout=SESSION, rebalance_timeout=REBALANCE, deadline=deadline)
        self._who = Membership(self.group, joined.generation, joined.member_id)
        assignments: Mapping[str, bytes] = {}
        if joined.members:
            assignor = next(one for one in self._assignors if one.name == joined.protocol)
            topics = {self.topic: self.scenario.partitions}
            assignments = leader_assignment.assign_group(assignor, topics, joined.members).assignments
        data = channel.sync(self._who, protocol=joined.protocol, assignments=assignments, deadline=deadline)
        share = decode_assignment(data, "the leader").partitions
        gone = [tp for tp in self._positions if tp not in share]
        if gone:
            self._commit(channel)
        for tp in gone:
            del self._positions[tp]
        self._previous = share
        added = [tp for tp in share if tp not in self._positions]
        for tp, stored in channel.offsets(self.group, added, Deadline(_PATIENCE)).items():
            self._positions[tp] = self._committed[tp] = max(stored.offset, 0)
        self._must_join = bool(gone)  # only a cooperative member has any: now another one gets them

    def _commit(self, channel: GroupChannel) -> None:
        """Commit what has changed, in the name of the generation."""
        changed = {tp: offset for tp, offset in self._positions.items() if self._committed.get(tp) != offset}
        if changed:
            codes = channel.commit(self._who, changed, Deadline(_PATIENCE))
            self._committed.update({tp: offset for tp, offset in changed.items() if not codes[tp]})
