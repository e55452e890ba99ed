"""The text of ``/metrics``, read back with the parser of Prometheus' own client."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from tests.group_snapshots import NOW, group_snapshot, stat
from tests.unit.operations.serving.watched import at, watched, without_logs
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations.group_snapshot import AckNode, GroupSnapshot, LoanNode, NoteSummary, PointersNode, Problem
from zkconsumer.operations.serving.api import Details, group_document, judge_watched
from zkconsumer.operations.serving.group_history import HistoryState
from zkconsumer.operations.serving.group_trends import GroupTrend, Totals
from zkconsumer.operations.serving.metrics_text import Family, MetricsLevel, labelled, metrics_text
from zkconsumer.operations.serving.observed_group import unread
from zkconsumer.operations.serving.poller import Board

E3 = TopicPartition("events", 3)


def balanced(snapshot: GroupSnapshot, noted: AckNode | None = None) -> GroupSnapshot:
    """The snapshot with a note, pointers and a loan of one partition."""
    return replace(
        snapshot,
        acks={E3: noted or AckNode(NoteSummary(100, 106, 4, 2), stat(1, mzxid=1 << 40, length=77))},
        pointers={E3: PointersNode(2, 1, (), stat())},
        loans={E3: {ConsumerId("g_x"): LoanNode(64, 1, 2, stat())}},
    )


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(*snapshots: GroupSnapshot, failure: str = "") -> Samples:
    """The samples by name and labels."""
    group = watched(*snapshots)
    group = unread(group, failure) if failure else group
    board = Board({group.group: group}, {group.group: judge_watched(group)}, polls=1, completed=NOW)
    return parsed(metrics_text(board))


def parsed(parts: list[Callable[[], bytes]]) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(b"".join(make() for make in parts).decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def everything() -> Samples:
    """The samples of a group that has all of them, with a history."""
    group = watched(*(balanced(at(second, 5, 9)) for second in range(0, 241, 60)))
    board = Board({group.group: group}, {group.group: judge_watched(group)}, polls=1, completed=NOW)
    trends = {group.group: GroupTrend(4, (), (Totals(0.0), Totals(60.0, 5, 9)))}
    return parsed(metrics_text(board, trends=trends, history=HistoryState(file="f", written=NOW)))


def value(found: Samples, name: str, **labels: str) -> float | None:
    return found.get((name, frozenset({"consumergroup": "g", **labels}.items())))


def test_group_has_the_names_and_labels_of_kafka_exporter() -> None:
    found = samples(at(0, 100, 110))
    place = {"topic": "events", "partition": "3"}
    assert value(found, "kafka_consumergroup_current_offset", **place) == 100
    assert value(found, "kafka_consumergroup_lag", **place) == 10
    assert value(found, "kafka_consumergroupzookeeper_lag_zookeeper", **place) == 10
    assert value(found, "kafka_consumergroup_group_lag_seconds", **place) == 2.5
    assert value(found, "kafka_consumergroup_lag_sum", topic="events") == 60
    assert value(found, "kafka_consumergroup_current_offset_sum", topic="events") == 600
    assert value(found, "kafka_consumergroup_members") == 3
    assert value(found, "zkconsumer_group_state", state="Rebalancing") == 1
    assert value(found, "zkconsumer_group_state", state="Stable") == 0
    assert value(found, "zkconsumer_partition_owned", topic="events", partition="5") == 0
    assert value(found, "zkconsumer_partition_owned_as_expected", topic="events", partition="4") == 1


def test_what_balanced_members_left_has_samples() -> None:
    """A group without balanced members has none of these; an unreadable node has none either."""
    place = {"topic": "events", "partition": "3"}
    names = ("finished_beyond", "note_bytes", "parked_messages", "dead_letters", "slots_lent")
    plain = samples(at(0, 100, 110))
    assert [value(plain, f"zkconsumer_partition_{name}", **place) for name in names] == [None] * 5
    found = samples(balanced(at(0, 100, 110)))
    assert [value(found, f"zkconsumer_partition_{name}", **place) for name in names] == [4, 77, 2, 1, 64]
    assert value(found, "kafka_consumergroup_lag", **place) == 6
    bad = balanced(at(0, 100, 110), AckNode(None, stat(1, mzxid=400, length=9), "?"))
    bad = replace(bad, pointers={E3: PointersNode(None, None, (), None, problem="?")})
    found = samples(replace(bad, loans={E3: {ConsumerId("g_x"): LoanNode(None, None, None, None)}}))
    assert [value(found, f"zkconsumer_partition_{name}", **place) for name in names] == [None, 9, None, None, None]
    assert value(found, "kafka_consumergroup_lag", **place) == 10


def test_nothing_stands_still_for_longer_than_it_was_read() -> None:
    """The readings fail for an hour. Whether the owners have moved on since the last good one, nobody knows."""
    group = watched(*(at(second, 5, 9) for second in range(0, 241, 60)))
    group = unread(group, "ZooKeeper is away")
    judgement = judge_watched(group)
    found = parsed(metrics_text(Board({group.group: group}, {group.group: judgement})))
    still = [value for (name, _), value in found.items() if name == "zkconsumer_partition_stands_still_seconds"]
    assert still == [240.0] * 5
    document = group_document(group, judgement, Details(), NOW + 3_600_000)
    ages = [one["verdict_age"] for one in document["partitions"] if one["check"] == "standing-still"]  # type: ignore[attr-defined]
    assert ages == still


@pytest.mark.parametrize("level", MetricsLevel)
def test_a_level_leaves_out_what_is_below_it(level: MetricsLevel) -> None:
    """The totals of the group are the same at each level, and leave the topic out that the group has left."""
    group, other = watched(at(0, 100, 110)), watched(group_snapshot(offsets={"t:0": 5}, group="h"))
    board = Board({"g": group, "h": other}, {"g": judge_watched(group), "h": judge_watched(other)})
    found = parsed(metrics_text(board, level, {"g", "unknown"}))
    assert value(found, "zkconsumer_group_lag") == 60
    assert value(found, "zkconsumer_group_lag_seconds") == 2.5
    assert value(found, "zkconsumer_group_partitions") == 6
    assert value(found, "zkconsumer_group_partitions_unowned") == 1
    labels = {name for _, pairs in found for name, _ in pairs}
    assert ("topic" in labels, "partition" in labels) == (level >= 1, level == 2)
    assert {dict(pairs).get("consumergroup", "g") for _, pairs in found} == {"g"}


def test_the_time_to_drain_is_infinite_while_the_lag_grows() -> None:
    found = everything()
    assert value(found, "zkconsumer_group_drain_seconds") == math.inf
    assert value(found, "zkconsumer_group_produced_messages_total") == 9


def test_an_abandoned_topic_is_marked() -> None:
    found = samples(at(0, 100, 110))
    assert value(found, "zkconsumer_topic_abandoned", topic="old") == 1
    assert value(found, "zkconsumer_topic_abandoned", topic="events") == 0


def test_a_dead_group_keeps_its_lag() -> None:
    found = samples(group_snapshot(offsets={"t:0": 5}, logs={"t:0": (0, 9)}))
    assert value(found, "kafka_consumergroup_members") == 0
    assert value(found, "kafka_consumergroup_lag", topic="t", partition="0") == 4
    assert value(found, "zkconsumer_group_state", state="Empty") == 1
    assert value(found, "zkconsumer_topic_abandoned", topic="t") == 0


def test_what_is_unknown_has_no_sample() -> None:
    """No committed offset: no offset, lag or time of commit. No brokers: no log end and no lag."""
    for snapshot in (
        group_snapshot(members={"g_a": {"t": 1}}, owners={"t:0": "g_a-0"}, logs={"t:0": (0, 9)}),
        without_logs(group_snapshot(offsets={"t:0": 5}, logs={"t:0": (0, 9)})),
    ):
        found = samples(snapshot)
        lag = [name for name, _ in found if "_lag" in name and not name.endswith("_unknown")]
        assert lag == []
        assert not any(math.isnan(number) or number < 0 for number in found.values())


def test_a_failed_reading_keeps_values_and_says_so() -> None:
    found = samples(at(0, 100, 110), failure="ZooKeeper is away")
    assert value(found, "kafka_consumergroup_lag", topic="events", partition="0") == 10
    assert value(found, "zkconsumer_group_read_success") == 0
    assert value(found, "zkconsumer_group_read_timestamp_seconds") == NOW / 1000


def test_owners_that_cannot_be_read_are_not_called_missing() -> None:
    silent = replace(at(0, 1, 2), owners={}, problems=(Problem("/consumers/g/owners/events", "NoAuth"),))
    assert not any(name == "zkconsumer_partition_owned" for name, _ in samples(silent))


@given(st.text())
def test_any_name_stays_inside_its_label(name: str) -> None:
    family = Family("x", "gauge", "any")
    family.add(4, labelled(topic=name))
    ((key, found),) = parsed([family.text]).items()
    assert found == 4
    assert not name.isprintable() or key == ("x", frozenset({("topic", name)}))


def test_hostile_names_yield_the_samples_of_harmless_ones() -> None:
    name = 'a"} 1\nkafka_consumergroup_lag{topic="t"} 0\r\u2028\u202e\x1b[2J\\'
    plain = samples(group_snapshot(offsets={"t:0": 5}, owners={"t:0": "x-0"}, logs={"t:0": (0, 9)}))
    wild = f"{name}:0"
    hostile = samples(group_snapshot(offsets={wild: 5}, owners={wild: name}, logs={wild: (0, 9)}))
    assert sorted(key[0] for key in hostile) == sorted(key[0] for key in plain)
    assert all(value.isprintable() for _, labels in hostile for _, value in labels)
