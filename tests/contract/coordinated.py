"""Where a connector whose group the brokers coordinate is tried: a cluster in memory, or a real broker. Beside it a
member without a connector, to bring a group into any state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread
from typing import Any

from tests.cluster.conftest import produce_to, unique
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.assignors.java_consumer_assignors import RangeGroupAssignor
from zkconsumer.errors import MemberIdRequiredError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.group_channel import GroupChannel, GroupDescription, Joined, Membership
from zkconsumer.member.brokers.leader_assignment import protocol_offers
from zkconsumer.model import Endpoint
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper.cluster_admin import Admin

QUICK: dict[str, Any] = {
    "auto.offset.reset": "smallest",
    "auto.commit.interval.ms": 100,
    "session.timeout.ms": 3000,
    "heartbeat.interval.ms": 100,
    "rebalance.interval.ms": 300,
    "fetch.wait.max.ms": 50,
}
DEFAULTS: dict[str, Any] = dict.fromkeys(name.replace(".", "_") for name in QUICK)
"""For a connector without any of these: None is as though a property were not given."""


class Place:
    """One broker, with a group and topics of the test's own."""

    def __init__(self, host: str, port: int, *, modern: bool, fake: FakeCluster | None, connect: str = "") -> None:
        self.modern = modern
        self.fake = fake
        self.bootstrap = f"{host}:{port}"
        self.endpoint = Endpoint(0, host, port)
        self.group = unique("group")
        self._connect = connect
        self._connectors: list[ZookeeperConsumerConnector] = []
        self._raw: list[RawMember] = []

    # ---- topics

    @contextmanager
    def _admin(self) -> Iterator[Any]:
        """Give the maker of topics: the fake itself, or an administrator of the real cluster."""
        if self.fake is not None:
            yield self.fake
        else:
            with Admin(self._connect) as admin:
                yield admin

    def topic(self, partitions: int, name: str = "") -> str:
        name = name or unique("topic")
        with self._admin() as admin:
            admin.create_topic(name, partitions)
        return name

    def add_partitions(self, topic: str, total: int) -> None:
        with self._admin() as admin:
            admin.add_partitions(topic, total)

    def delete_topic(self, topic: str) -> None:
        with self._admin() as admin:
            admin.delete_topic(topic)

    def produce(self, topic: str, count: int, partitions: int) -> None:
        values = [b"%d" % number for number in range(count)]
        if self.fake is not None:
            for partition in range(partitions):
                self.fake.append(topic, partition, values[partition::partitions])
        else:
            produce_to(self.bootstrap, topic, values, partitions=partitions)

    # ---- members

    def connector(self, **properties: Any) -> ZookeeperConsumerConnector:
        given = {name.replace("_", "."): value for name, value in properties.items()}
        made = ZookeeperConsumerConnector(
            {
                **QUICK,
                "group.id": self.group,
                "group.coordination": "kafka",
                "bootstrap.servers": self.bootstrap,
                **given,
            }
        )
        self._connectors.append(made)
        return made

    def raw(self) -> RawMember:
        made = RawMember(self)
        self._raw.append(made)
        return made

    def channel(self) -> GroupChannel:
        channel = GroupChannel(BrokerChannel(self.endpoint, client_id="test", socket_timeout=scaled(10)))
        channel.connect(Deadline(scaled(10)))
        return channel

    def described(self) -> GroupDescription:
        """The group as its coordinator sees it."""
        channel = self.channel()
        try:
            return channel.describe([self.group], Deadline(scaled(10)))[self.group]
        finally:
            channel.close()

    def await_state(self, state: str, members: int) -> None:
        def reached() -> bool:
            found = self.described()
            assert (found.state, len(found.members)) == (state, members)
            return True

        eventually(reached, 10, f"a group that is {state}, with {members} members")

    def close(self) -> None:
        for connector in self._connectors:
            connector.shutdown()
        for raw in self._raw:
            raw.close()


class RawMember:
    """A member that does only what it is told to."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._channel = place.channel()
        self.who = Membership(place.group)
        self.last: Joined | None = None

    def joins(self, topics: list[str]) -> Future[Joined]:
        """Ask to join; the answer comes when all have."""
        protocols = protocol_offers([RangeGroupAssignor()], topics, owned=(), previous=(), generation=-1)
        return _in_background(lambda: self._join(protocols))

    def _join(self, protocols: list[tuple[str, bytes]]) -> Joined:
        while True:
            try:
                answer = self._channel.join(
                    self.who, protocols, session_timeout=30, rebalance_timeout=30, deadline=Deadline(scaled(30))
                )
            except MemberIdRequiredError as required:
                self.who = self.who._replace(member_id=required.member_id)
                continue
            self.who = self.who._replace(generation=answer.generation, member_id=answer.member_id)
            self.last = answer
            return answer

    def syncs(self, assignments: Mapping[str, bytes] | None = None) -> Future[bytes]:
        """Ask for our share, or give everybody's."""
        assert self.last is not None
        protocol = self.last.protocol
        return _in_background(
            lambda: self._channel.sync(
                self.who, protocol=protocol, assignments=assignments or {}, deadline=Deadline(scaled(30))
            )
        )

    def close(self) -> None:
        self._channel.close()


def _in_background(work: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except Exception as e:
            future.set_exception(e)

    Thread(target=run, name="asks", daemon=True).start()
    return future
