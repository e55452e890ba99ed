"""``zkconsumer offsets`` on a real ZooKeeper and a real broker: resets, undo and prune."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of, produce_to
from tests.cluster.in_process import Reader, commit_to_kafka, kafka_offsets, offsets_of
from tests.cluster.kafka_tools import ConsumerGroupsTool
from tests.cluster.operator_commands import OperatorCommands
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

PARTITIONS, MESSAGES = 3, 10
Connect = Callable[..., ZookeeperConsumerConnector]


def new_offsets(commands: OperatorCommands) -> dict[int, int]:
    """Return the rows of the printed table, by partition."""
    rows = [line.split() for line in commands.out.splitlines() if line.strip()]
    assert rows[0] == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"], commands.out
    return {int(row[2]): int(row[3]) for row in rows[1:]}


@pytest.fixture
def topic(cluster: DevCluster, new_topic: NewTopic) -> str:
    """A topic with MESSAGES messages in each partition."""
    name = new_topic(PARTITIONS)
    produce_to(cluster.bootstrap_servers, name, [str(n) for n in range(MESSAGES * PARTITIONS)], partitions=PARTITIONS)
    return name


def put_offsets(zookeeper: KazooClient, group: str, topic: str, offset: int) -> None:
    for partition in range(PARTITIONS):
        zookeeper.create(f"/consumers/{group}/offsets/{topic}/{partition}", b"%d" % offset, makepath=True)


def test_an_inactive_scala_group_is_reset_and_undone(
    commands: OperatorCommands, topic: str, new_group: Callable[[], str], zookeeper: KazooClient, tmp_path: Path
) -> None:
    group = new_group()
    put_offsets(zookeeper, group, topic, 4)
    zookeeper.ensure_path(f"/consumers/{group}/ids")
    reset = ("groups", "--reset-offsets", "--group", group, "--topic", f"{topic}:0,1", "--shift-by")
    assert commands(*reset, "-2") == 0
    assert "WARN: No action will be performed as the --execute option is missing." in commands.err
    assert new_offsets(commands) == {0: 2, 1: 2}
    assert offsets_of(zookeeper, group, topic) == {0: 4, 1: 4, 2: 4}, "a dry run writes nothing"
    file = tmp_path / "before.json"
    assert commands(*reset, "100", "--execute", "--undo-file", str(file)) == 0, commands.err
    assert new_offsets(commands) == {0: MESSAGES, 1: MESSAGES}
    assert f"New offset (104) is higher than latest offset for topic partition {topic}-0." in commands.err
    assert offsets_of(zookeeper, group, topic) == {0: MESSAGES, 1: MESSAGES, 2: 4}
    assert owners_of(zookeeper, group, topic) == {}
    assert commands("offsets", "undo", str(file), "--execute") == 0, commands.err
    assert offsets_of(zookeeper, group, topic) == {0: 4, 1: 4, 2: 4}


@pytest.mark.parametrize("storage", ["zookeeper", "kafka"])
def test_a_live_group_of_ours_follows_a_reset(
    commands: OperatorCommands,
    topic: str,
    new_group: Callable[[], str],
    zookeeper: KazooClient,
    connector: Connect,
    storage: str,
) -> None:
    """The member looks at its offsets only once an hour. The command tells the member of the reset.

    With offsets in Kafka there is dual commit: the member itself brings the new offset to Kafka.
    """
    group = new_group()
    patient = {"rebalance.interval.ms": 3_600_000, "auto.commit.interval.ms": 100, "offsets.storage": storage}
    member = connector(group, **patient)
    reader = Reader(member.create_message_streams({topic: 1})[topic][0])
    everything = dict.fromkeys(range(PARTITIONS), MESSAGES)
    eventually(lambda: offsets_of(zookeeper, group, topic) == everything, 20, "the commits")
    arguments = ("offsets", "reset", group, "--topic", f"{topic}:0", "--to-offset", "7", "--execute", "--verbose")
    assert commands(*arguments, "--wait", str(scaled(20))) == 0, commands.err
    assert f"{MESSAGES - 7}" in commands.out
    assert "repeats 3" in commands.out
    again = [(0, offset) for offset in range(7, MESSAGES)]
    eventually(lambda: reader.places[MESSAGES * PARTITIONS :] == again, 20, "the messages again")
    eventually(lambda: offsets_of(zookeeper, group, topic) == everything, 20, "the commits again")


def test_owners_follow_a_reset_in_kafka_alone(
    commands: OperatorCommands, topic: str, new_group: Callable[[], str], connector: Connect, cluster: DevCluster
) -> None:
    """Kafka does not show it to the command; the messages come again."""
    group = new_group()
    patient = {"rebalance.interval.ms": 3_600_000, "auto.commit.interval.ms": 100}
    member = connector(group, **patient, **{"offsets.storage": "kafka", "dual.commit.enabled": "false"})
    reader = Reader(member.create_message_streams({topic: 1})[topic][0])
    eventually(
        lambda: kafka_offsets(cluster.bootstrap_servers, group, topic) == dict.fromkeys(range(PARTITIONS), MESSAGES),
        20,
        "the commits",
    )
    reset = ("offsets", "reset", group, "--topic", f"{topic}:1", "--shift-by", "-4", "--execute")
    assert commands(*reset) == 0, commands.err
    assert "whether they follow cannot be seen" in commands.err
    again = [(1, offset) for offset in range(MESSAGES - 4, MESSAGES)]
    eventually(lambda: reader.places[MESSAGES * PARTITIONS :] == again, 20, "the messages again")


# ---- beside Kafka's own tool, on a group of the brokers ----


def test_dry_runs_print_what_kafkas_tool_prints(
    commands: OperatorCommands,
    topic: str,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    cluster: DevCluster,
    tmp_path: Path,
) -> None:
    """The rows of Kafka's tool come in an order by chance; 3.9 also forgets the ends of the lines."""
    groups, empty = [new_group(), new_group()], new_topic(1)
    for group, offset in zip(groups, (4, 6), strict=True):
        commit_to_kafka(cluster.bootstrap_servers, group, {(topic, 0): offset, (topic, 2): offset + 1})
    plan = tmp_path / "plan.csv"
    plan.write_text(f"{topic},0,3\n{topic},1,99\n")
    plans = tmp_path / "plans.csv"
    plans.write_text(f"{groups[0]},{topic},0,3\n{groups[1]},{topic},2,5\n")
    one, both = ["--group", groups[0]], ["--group", groups[0], "--group", groups[1]]
    commands.where = ["--bootstrap-server", cluster.bootstrap_servers]
    cases = [
        [*one, "--all-topics", "--to-earliest"],
        [*both, "--all-topics", "--to-latest"],
        [*one, "--topic", topic, "--to-current"],
        [*one, "--topic", f"{topic}:0,1", "--topic", empty, "--to-offset", "7"],
        [*one, "--topic", topic, "--to-offset", "-3"],
        [*one, "--all-topics", "--shift-by", "-2"],
        [*one, "--all-topics", "--shift-by", "50"],
        [*one, "--topic", topic, "--topic", empty, "--to-datetime", "2001-01-01T00:00:00.000"],
        [*one, "--topic", topic, "--to-datetime", "2101-01-01T00:00:00.000+01:00"],
        [*one, "--topic", topic, "--by-duration", "P1DT2H"],
        [*one, "--from-file", str(plan)],
        [*both, "--from-file", str(plans)],
        [*one, "--all-topics", "--to-earliest", "--export"],
        [*both, "--all-topics", "--to-earliest", "--export"],
        ["--group", "nobody.knows", "--topic", f"{topic}:1", "--to-latest"],
        ["--group", "nobody.knows", "--all-topics", "--to-latest"],
    ]
    with ConsumerGroupsTool(cluster.bootstrap_servers) as kafkas:
        for case in cases:
            theirs = kafkas.run("--reset-offsets", "--dry-run", *case)
            assert commands("groups", "--reset-offsets", "--dry-run", *case) == theirs.code, (case, commands.err)
            assert same_lines(commands.out, theirs.out), (case, commands.out, theirs.out, theirs.err)
        moved = ("--all-topics", "--shift-by", "-1", "--execute")
        assert kafkas.run("--reset-offsets", "--group", groups[0], *moved).code == 0
        assert commands("groups", "--reset-offsets", "--group", groups[0], *moved) == 0, commands.err
        assert new_offsets(commands) == {0: 2, 2: 3}, "each took one off"
        undecided = kafkas.run("--reset-offsets", *one, "--all-topics", "--to-earliest")
        assert commands("groups", "--reset-offsets", *one, "--all-topics", "--to-earliest") == undecided.code
        assert commands.err == undecided.err


def test_errors_of_kafkas_tool_are_ours(
    commands: OperatorCommands, topic: str, new_group: Callable[[], str], cluster: DevCluster
) -> None:
    """The texts are the same; the exit codes are not: a refusal is 1, and wrong usage is 2."""
    from confluent_kafka import Consumer

    group = new_group()
    commands.where = ["--bootstrap-server", cluster.bootstrap_servers]
    one = ["--group", group]
    wrong = [
        [*one, "--to-latest"],
        [*one, "--all-topics"],
        [*one, "--all-topics", "--to-latest", "--dry-run", "--execute"],
        [*one, "--all-topics", "--to-latest", "--to-offset", "3"],
        ["--all-topics", "--to-latest"],
    ]
    member = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group, "log_level": 0})
    try:
        with ConsumerGroupsTool(cluster.bootstrap_servers) as kafkas:
            for case in wrong:
                theirs = kafkas.run("--reset-offsets", *case)
                assert commands("groups", "--reset-offsets", *case) == 2
                words = sorted(reordered(commands.err.strip())[-1].split())
                assert any(words == sorted(line.split()) for line in reordered(theirs.err)), (words, theirs.err[:600])
            member.subscribe([topic])
            eventually(lambda: member.poll(0.2) or member.assignment(), 30, "an assignment")
            active = kafkas.run("--reset-offsets", "--dry-run", *one, "--all-topics", "--to-latest")
            assert commands("groups", "--reset-offsets", "--dry-run", *one, "--all-topics", "--to-latest") == 1
            refusal = next(line for line in active.out.splitlines() if line.startswith("Error:"))
            assert any(line.startswith(refusal) for line in commands.out.splitlines()), commands.out
    finally:
        member.close()


def reordered(text: str) -> list[str]:
    """The lines without brackets and commas: Java prints a set of options in an order by chance."""
    return text.translate(str.maketrans("[],", "   ")).splitlines()


def same_lines(ours: str, theirs: str) -> bool:
    lines = [line for line in ours.splitlines() if line]
    return all(line in theirs for line in lines) and sum(map(len, lines)) == len(theirs.replace("\n", ""))
