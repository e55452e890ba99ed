"""``zkconsumer groups`` beside Kafka's own tools, on the same groups: equal columns, widths and texts."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import produce_to, unique
from tests.cluster.in_process import offsets_of
from tests.cluster.kafka_tools import ConsumerGroupsTool, Printed, lines_of, table, tool
from tests.cluster.operator_commands import run_command
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster
from zkconsumer.errors import BrokerError, MemberIdRequiredError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.group_channel import GroupChannel, Joined, Membership
from zkconsumer.model import Endpoint
from zkconsumer.runtime.deadline import Deadline

COMMITTED = 3
STAYS_S = 600.0
"""Longer than the tests look at the group that rebalances."""
IN_TIME = ("--timeout", "60000")


def run(where: Sequence[str], *arguments: str) -> Printed:
    """Run our command in this process."""
    return run_command("groups", *where, *arguments, *IN_TIME)


# ---- groups that the brokers coordinate ----


@dataclass(frozen=True)
class BrokersGroups:
    """One group in each state, on topics of their own."""

    topic: str
    other: str
    stable: str
    empty: str
    twin: str
    bare: str
    rebalancing: str
    unknown: str


@pytest.fixture(scope="module")
def groups(cluster: DevCluster) -> Iterator[BrokersGroups]:
    names = BrokersGroups(
        *(unique("events"), unique("quiet"), unique("stable"), unique("empty"), unique("empty")),
        *(unique("bare"), unique("joining"), unique("nobody")),
    )
    cluster.create_topic(names.topic, 4)
    cluster.create_topic(names.other, 1)
    produce_to(cluster.bootstrap_servers, names.topic, [b"%d" % n for n in range(40)], partitions=4)
    made: list[Any] = []
    try:
        _stage(cluster.bootstrap_servers, names, made)
        with Rebalancing(cluster.bootstrap_servers, names.rebalancing, names.topic):
            yield names
    finally:
        for one in made:
            one.close()


def _stage(bootstrap: str, names: BrokersGroups, made: list[Any]) -> None:
    from confluent_kafka import Consumer, TopicPartition

    def member(group: str, topics: Sequence[str], **properties: object) -> Any:
        base: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
        made.append(Consumer({**base, **{key.replace("_", "."): value for key, value in properties.items()}}))
        made[-1].subscribe(list(topics))
        return made[-1]

    static = member(names.stable, [names.topic, names.other], client_id="one", group_instance_id="static-one")
    plain = member(names.stable, [names.topic], client_id="two")
    idle = [member(names.stable, [names.other], client_id=name) for name in ("three", "four")]
    leaving = [member(name, [names.topic]) for name in (names.empty, names.twin, names.bare)]

    def settled() -> bool:
        for one in made:
            one.poll(0.02)
        owned = [len(one.assignment()) for one in (static, plain)]
        others = sum(len(one.assignment()) for one in idle)
        if owned[1] != 2 or owned[0] + others != 3 or any(len(one.assignment()) != 4 for one in leaving):
            return False
        # a member that joined later would begin a rebalance that ends only when all are polled
        described = ["--describe", "--group", names.stable, "--state", "--format", "json"]
        (state,) = json.loads(run(("--bootstrap-server", bootstrap), *described).out)
        return (state["state"], state["number_members"]) == ("Stable", 4)

    eventually(settled, 30, "all members have what is theirs")
    static.commit(offsets=[TopicPartition(names.topic, p, COMMITTED) for p in (0, 1)], asynchronous=False)
    for one in leaving[:2]:
        one.commit(offsets=[TopicPartition(names.topic, p, p) for p in range(4)], asynchronous=False)
    for one in leaving:
        one.close()
        made.remove(one)


class Rebalancing:
    """A group whose only member does not notice that another one joins."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic

    def __enter__(self) -> None:
        host, port = self.bootstrap.split(":")
        self.channels = [
            GroupChannel(BrokerChannel(Endpoint(0, host, int(port)), client_id="late", socket_timeout=STAYS_S))
            for _ in range(2)
        ]
        for channel in self.channels:
            channel.connect(Deadline(scaled(10)))
        first = self._join(self.channels[0])
        self.channels[0].sync(first, protocol="range", deadline=Deadline(scaled(10)), assignments={})
        self.waiting = threading.Thread(target=self._wait, name="joins")
        self.waiting.start()

    def _join(self, channel: GroupChannel) -> Membership:
        names = self.topic.encode()
        metadata = b"\0\0" + (1).to_bytes(4, "big") + len(names).to_bytes(2, "big") + names + b"\xff\xff\xff\xff"

        def joined(member: str) -> Joined:
            return channel.join(
                Membership(self.group, member_id=member),
                [("range", metadata)],
                session_timeout=STAYS_S,
                rebalance_timeout=STAYS_S,
                deadline=Deadline(STAYS_S),
            )

        try:
            answer = joined("")
        except MemberIdRequiredError as required:
            answer = joined(required.member_id)
        return Membership(self.group, answer.generation, answer.member_id)

    def _wait(self) -> None:
        with suppress(BrokerError):  # the connection is closed while it waits
            self._join(self.channels[1])

    def __exit__(self, *_: object) -> None:
        for channel in self.channels:
            channel.close()
        self.waiting.join(scaled(20))


@pytest.fixture(scope="module")
def kafka(cluster: DevCluster) -> Iterator[ConsumerGroupsTool]:
    with ConsumerGroupsTool(cluster.bootstrap_servers) as started:
        yield started


def test_deleting_says_what_kafkas_tool_says(
    cluster: DevCluster, groups: BrokersGroups, kafka: ConsumerGroupsTool
) -> None:
    """Refusals have no effect and come first. Then Kafka's tool deletes one group, and ours its twin."""
    where = ("--bootstrap-server", cluster.bootstrap_servers)

    def both(action: str, theirs: str, ours: str, *arguments: str) -> tuple[list[str], list[str]]:
        told = kafka.run(action, "--group", theirs, *arguments)
        printed = run(where, action, "--group", ours, *arguments, "--execute")
        # the real tool prints the table of deleted offsets in one line
        rows = re.sub(r"STATUS +|Successful +|\w\.(?=\w+-\d+-\d+ )", lambda found: found[0].rstrip() + "\n", told.out)
        return [line for line in lines_of(rows) if line], [
            line for line in lines_of(printed.out.replace(ours, theirs)) if line
        ]

    for arguments in (("--topic", f"{groups.topic}:0"), ("--topic", f"{groups.other}:0")):
        theirs, ours = both("--delete-offsets", groups.stable, groups.stable, *arguments)
        assert ours == theirs
    theirs, ours = both("--delete-offsets", groups.empty, groups.twin, "--topic", f"{groups.topic}:0,1")
    assert ours == theirs
    theirs, ours = both("--delete-offsets", groups.empty, groups.twin, "--topic", groups.topic)
    assert ours == theirs
    theirs, ours = both("--delete", groups.unknown, groups.unknown)
    assert [line.replace("java.util.concurrent.ExecutionException: ", "") for line in theirs] == ours
    theirs, ours = both("--delete", groups.stable, groups.stable)
    assert theirs[0] == ours[0]
    assert ours[1].startswith(theirs[1].replace("java.util.concurrent.ExecutionException: ", "")), "and names members"
    theirs, ours = both("--delete", groups.bare, groups.rebalancing)
    assert "successful" in theirs[0]
    assert "not empty" in ours[1]


# ---- groups in ZooKeeper ----


def test_a_mixed_group_fills_the_same_columns(
    cluster: DevCluster,
    new_topic: Callable[..., str],
    legacy_member: Callable[..., Any],
    our_member: Callable[..., Any],
    new_group: Callable[[], str],
    zookeeper: KazooClient,
) -> None:
    """A Scala member and a member of ours: the rows are those of Kafka 1.1.1's tool, the last for such groups."""
    topic, group = new_topic(4), new_group()
    where = ("--zookeeper", cluster.zookeeper_connect)
    produce_to(cluster.bootstrap_servers, topic, [b"%d" % n for n in range(20)], partitions=4)
    first = {"auto.offset.reset": "smallest"}
    scala = legacy_member("1.1.1", group, {topic: 1}, properties={**first, "consumer.id": "scala"})
    ours = our_member(group, {topic: 1}, properties={**first, "consumer.id": "ours"})
    for one in (scala, ours):
        one.wait_ready()
    eventually(lambda: sum(offsets_of(zookeeper, group, topic).values()) == 20, 30, "all is committed")
    described = ["--describe", "--group", group]
    eventually(lambda: run(where, *described, "--state").out.split()[-2] == "Stable", 20, "the group is stable")
    theirs = tool("1.1.1", "kafka.admin.ConsumerGroupCommand", *where, *described)
    columns = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID")
    rows = table(run(where, *described).out.splitlines(), "GROUP")
    assert sorted([row[name] for name in columns] for row in rows) == sorted(
        [row[name] for name in columns] for row in table(theirs, "TOPIC")
    )
    assert {row["GROUP"] for row in rows} == {group}
    members = json.loads(run(where, *described, "--members", "--verbose", "--format", "json").out)
    assert {(one["consumer_id"], one["kind"], one["number_partitions"]) for one in members} == {
        (scala.consumer_id, "Scala", 2),
        (ours.consumer_id, "zkconsumer", 2),
    }
    (state,) = json.loads(run(where, *described, "--state", "--format", "json").out)
    assert (state["number_members"], state["assignment_strategy"], state["state"]) == (2, "range", "Stable")
    assert state["coordinator_id"] == f"{cluster.zookeeper_connect}  (ZooKeeper)"
    refused = run(where, "--delete", "--group", group, "--execute")
    assert (refused.code, scala.consumer_id in refused.out, ours.consumer_id in refused.out) == (1, True, True)
    assert run(where, "--delete-offsets", "--group", group, "--topic", topic, "--execute").code == 1
    assert sum(offsets_of(zookeeper, group, topic).values()) == 20
    for one in (scala, ours):
        one.stop()
    empty = run(where, *described)
    assert f"Consumer group '{group}' has no active members." in empty.err
    assert run(where, "--delete-offsets", "--group", group, "--topic", f"{topic}:0,1", "--execute").code == 0
    assert set(offsets_of(zookeeper, group, topic)) == {2, 3}
    assert run(where, "--delete", "--group", group).code == 0, "a dry run"
    assert set(offsets_of(zookeeper, group, topic)) == {2, 3}
    deleted = run(where, "--delete", "--group", group, "--execute")
    assert deleted.out == f"Deletion of requested consumer groups ('{group}') was successful.\n"
    assert zookeeper.exists(f"/consumers/{group}") is None
