"""The checks of committed offsets: ill, healthy and unknown groups."""

from __future__ import annotations

from dataclasses import replace

from tests.group_snapshots import NOW, partition
from tests.unit.operations.doctor.cases import diagnosed, healthy, table, with_log, with_offset, with_problem
from zkconsumer.model import ConsumerId
from zkconsumer.operations.group_snapshot import FORBIDDEN_NODE, GroupSnapshot, KafkaOffset, MemberNode, TopicNode

LOGS = {f"t:{n}": (0, 100) for n in range(4)}
OTHER_TOPIC = healthy(offsets={"old:0": 3, "t:0": 50}, logs={**LOGS, "old:0": (0, 9)})


test_dead_offsets = table(
    "dead-offsets",
    (healthy(), ["ok"], ""),
    (
        healthy(offsets={"gone:0": 3, "gone:1": 3}),
        ["warn"],
        "topic gone does not exist, but has 2 offsets",
        "zkconsumer offsets prune g --dry-run",
    ),
    (healthy(offsets={"t:4": 3}), ["warn"], "topic t has 4 partitions; 1 offsets are of others"),
    (OTHER_TOPIC, ["note"], "no member subscribes to topic old"),
    (replace(OTHER_TOPIC, members={}), ["ok"], ""),
    (with_problem(healthy(), "/brokers/topics"), ["unknown"], "which topics exist"),
    (with_problem(healthy(offsets={"x:0": 1}), "/brokers/topics/x"), ["unknown"], "whether topic x exists"),
    (with_problem(healthy(offsets={"x:0": 1}), "topic 'x'", "TOPIC_AUTHORIZATION_FAILED"), ["unknown"], "FAILED"),
    (with_problem(healthy(zookeeper="", topics={}), "brokers", "no broker answers"), ["unknown"], "no broker"),
    (replace(healthy(), topics={"t": TopicNode((), NOW, "no JSON")}), ["unknown"], "no JSON"),
)


def test_an_unreadable_member_may_subscribe_to_any_topic() -> None:
    members = {**OTHER_TOPIC.members, ConsumerId("g_hidden"): MemberNode(None, None, FORBIDDEN_NODE)}
    found = diagnosed("dead-offsets", replace(OTHER_TOPIC, members=members))
    assert "subscribes" not in " ".join(one.text for one in found)


ANEW = replace(healthy(), topics={"t": TopicNode((0, 1, 2, 3), NOW - 1_000)})


test_offset_outside_log = table(
    "offset-outside-log",
    (healthy(), ["ok"], ""),
    (with_log(healthy(), "t:1", start=60), ["error"], "10 messages were deleted before they were read"),
    (with_log(healthy(), "t:1", end=40), ["error"], "smallest repeats 40 messages"),
    (with_log(ANEW, "t:1", end=40), ["error", "warn", "warn", "warn"], "the topic was created anew. auto"),
    (with_log(healthy(), "t:1", start=None), ["unknown"], "the logs of t:1 were not read"),
    (with_offset(healthy(), "t:1", -1), ["ok"], ""),
    (healthy(kafka_offsets={partition("t:1"): KafkaOffset(101)}), ["error"], "in Kafka lies beyond"),
)


T1, NODE = partition("t:1"), healthy().offsets[partition("t:1")]
FORBIDDEN = replace(healthy(), offsets={T1: replace(NODE, offset=None, stat=None, problem="ACL")})


test_offset_not_a_number = table(
    "offset-not-a-number",
    (healthy(), ["ok"]),
    (
        with_offset(healthy(), "t:1", None, "b'12 '", version=9),
        ["error"],
        "b'12 '",
        "set -v 9 /consumers/g/offsets/t/1 ",
    ),
    (FORBIDDEN, ["unknown"]),
    (with_offset(healthy(), "t:1", None, "-1 means that there is none"), ["note"]),
)


def stores(zookeeper: int, kafka: int, age_ms: int) -> GroupSnapshot:
    made = with_offset(healthy(), "t:1", zookeeper, mtime=NOW - age_ms)
    return replace(made, kafka_offsets={partition("t:1"): KafkaOffset(kafka)})


test_stores_disagree = table(
    "stores-disagree",
    (healthy(), ["ok"]),
    (stores(50, 50, 60_000), ["ok"]),
    (stores(50, 47, 60_000), ["warn"], "t-1 ZooKeeper 50, Kafka 47 (+3)", "migrate g --verify"),
    (stores(50, 47, 1_000), ["note"]),
    (replace(healthy(), kafka_offsets=None), ["unknown"]),
    (healthy(kafka_offsets=None, offsets={}), ["ok"]),
)
