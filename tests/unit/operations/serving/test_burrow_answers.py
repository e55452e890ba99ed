"""Burrow's JSON, field by field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.group_snapshots import NOW, group_snapshot, stat
from tests.unit.operations.serving.watched import OURS, at, watched
from tests.values import present
from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import BrokersGroup, BrokersMember, GroupSnapshot, KafkaOffset, OffsetNode
from zkconsumer.operations.serving.burrow_answers import BurrowCluster
from zkconsumer.operations.serving.burrow_rules import EXPIRE_GROUP

MINUTE = [at(second, 100 + second, 110 + 2 * second) for second in range(0, 60, 10)]
END = NOW + 51_000


def ask(path: str, *snapshots: GroupSnapshot, now: int = END) -> tuple[int, Any]:
    """Status and document of ``/v3/kafka/<path>``."""
    cluster = BurrowCluster("local", {"g": watched(*(snapshots or MINUTE))}, now, "here", 10.0)
    answer = present(cluster.answer(f"/v3/kafka/{path}", tuple(path.split("/")) if path else ()))
    return answer.status, json.loads(json.dumps(answer.document))


def test_lists() -> None:
    assert ask("")[1] == {
        "error": False,
        "message": "cluster list returned",
        "clusters": ["local"],
        "request": {"url": "/v3/kafka/", "host": "here"},
    }
    assert ask("local/topic")[1]["topics"] == ["events", "old"]
    assert ask("local/topic/events")[1]["offsets"] == [210] * 6
    assert ask("local/topic/events/consumers")[1]["consumers"] == ["g"]
    assert ask("local/topic/none/consumers")[1]["consumers"] == []
    assert ask("local/consumer")[1]["consumers"] == ["g"]
    assert ask("local")[1]["module"]["class-name"] == "kafka"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("other", "cluster module not found"),
        ("other/topic", "cluster not found"),
        ("other/consumer", "cluster not found"),
        ("local/topic/none", "cluster or topic not found"),
        ("local/consumer/none", "cluster or consumer not found"),
    ],
)
def test_what_is_not_there_is_an_error(path: str, message: str) -> None:
    status, found = ask(path)
    assert status == 404
    assert found == {"error": True, "message": message, "request": {"url": f"/v3/kafka/{path}", "host": "here"}}


def test_status_of_an_unknown_group_is_notfound() -> None:
    status, found = ask("local/consumer/none/status")
    assert status == 404
    assert not found["error"]
    assert found["status"] == {
        "cluster": "local",
        "group": "none",
        "status": "NOTFOUND",
        "complete": 1,
        "partitions": [],
        "partition_count": 0,
        "maxlag": None,
        "totallag": 0,
    }


def test_status_has_bad_partitions_and_lag_has_all() -> None:
    status, found = ask("local/consumer/g/status")
    assert status == 200
    assert found["message"] == "consumer status returned"
    told = found["status"]
    assert list(told) == [
        *("cluster", "group", "status", "complete", "partitions", "partition_count", "maxlag", "totallag")
    ]
    assert (told["status"], told["complete"], told["partition_count"], told["totallag"]) == ("ERR", 0, 7, 6 * 60 + 4)
    assert [one["status"] for one in told["partitions"]] == ["WARN"] * 6 + ["STOP"]
    assert told["partitions"][0] == {
        "topic": "events",
        "partition": 0,
        "owner": f"{OURS}-0",
        "client_id": "",
        "status": "WARN",
        "start": {"offset": 100, "timestamp": NOW - 1000, "observedAt": NOW, "lag": 10},
        "end": {"offset": 150, "timestamp": NOW + 49_000, "observedAt": NOW + 50_000, "lag": 60},
        "current_lag": 60,
        "complete": 0.6,
    }
    assert told["maxlag"] == told["partitions"][0]
    caught_up = ask("local/consumer/g/status", at(0, 100, 100))[1]["status"]
    assert [one["topic"] for one in caught_up["partitions"]] == ["old"]
    assert len(ask("local/consumer/g/lag", at(0, 100, 100))[1]["status"]["partitions"]) == 7


def test_consumer_has_a_window_for_each_partition() -> None:
    topics = ask("local/consumer/g", at(0, 100, 110), at(10, 105, 120))[1]["topics"]
    assert list(topics) == ["events", "old"]
    assert topics["events"][5] == {
        "offsets": [None] * 8
        + [
            {"offset": 100, "timestamp": NOW - 1000, "observedAt": NOW, "lag": 10},
            {"offset": 105, "timestamp": NOW + 9000, "observedAt": NOW + 10_000, "lag": 15},
        ],
        "owner": "",
        "client_id": "",
        "current-lag": 15,
    }


def test_a_group_expires_a_week_after_its_last_commit() -> None:
    week = EXPIRE_GROUP * 1000
    last = NOW + 49_000
    assert ask("local/consumer/g/lag", now=last + week)[0] == 200
    assert ask("local/consumer/g/lag", now=last + week + 1)[0] == 404


def test_an_offset_node_with_a_huge_number_makes_no_list() -> None:
    made = group_snapshot(offsets={"t:0": 5, "t:2147483647": 5}, logs={"t:0": (0, 9)})
    assert ask("local/consumer/g/lag", made, now=NOW)[1]["status"]["partition_count"] == 1


def test_offsets_in_kafka_commit_when_they_are_first_seen() -> None:
    tp = TopicPartition("t", 0)
    member = BrokersMember("m-1", "app", "/10.0.0.7", assignment=(tp,), topics=("t",))

    def seen(second: int, offset: int) -> GroupSnapshot:
        made = group_snapshot(logs={"t:0": (0, 9)}, group_node=None, ids_node=None)
        group = BrokersGroup("Stable", "range", members=(member,))
        taken = NOW + second * 1000
        return replace(made, taken=taken, kafka_offsets={tp: KafkaOffset(offset)}, brokers_group=group)

    (told,) = ask("local/consumer/g/lag", seen(0, 5), seen(10, 5), seen(20, 7))[1]["status"]["partitions"]
    assert (told["owner"], told["client_id"]) == ("/10.0.0.7", "app")
    assert (told["start"]["timestamp"], told["end"]["timestamp"]) == (NOW, NOW + 20_000)
    assert told["complete"] == 0.2


def test_shares_are_printed_as_gos_32_bit_floats() -> None:
    snapshots = []
    for second in range(10):
        made = at(second, 100 + second, 300)
        young = {tp: node for tp, node in made.offsets.items() if tp.partition != 1 and tp.topic == "events"}
        fresh = {TopicPartition("events", 1): OffsetNode(3, replace(stat(1), mtime=NOW))}
        three = {tp: node for tp, node in (young | fresh).items() if tp.partition < 3}
        topics = {"events": replace(made.topics["events"], partitions=(0, 1, 2))}
        snapshots.append(replace(made, offsets=three, topics=topics))
    text = json.dumps(ask("local/consumer/g/lag", *snapshots)[1]["status"])
    assert '"complete": 0.6666667,' in text
    assert '"complete": 1}' in text
