"""Owners without progress, groups without members, and groups that do not settle."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.group_snapshots import NOW, partition
from tests.unit.operations.doctor.cases import diagnosed, healthy, later, levels, table, with_log, with_owner
from zkconsumer.operations.group_snapshot import BrokersGroup, BrokersMember, GroupSnapshot, KafkaOffset
from zkconsumer.operations.stalled_partitions import STANDS_STILL_MS

LIMIT = STANDS_STILL_MS / 1000
FOUR = [f"t:{n}" for n in range(4)]


def waiting(age: float = 3600) -> GroupSnapshot:
    """The healthy group, whose next messages came so many seconds before its first snapshot."""
    made = healthy()
    for text in FOUR:
        made = with_log(made, text, message_time=NOW - int(age * 1000))
    return made


def test_owners_that_do_not_move_are_an_error_at_one_look() -> None:
    """The offsets were committed 5 s before the snapshot, and a quarter of an hour later they are the same."""
    scala, ours = diagnosed("standing-still", later(waiting(), 15 * 60))
    assert levels([scala, ours]) == ["error", "error"]
    assert scala.text.startswith("g_a owns 2 partitions that stand still for 15 min: 100 messages wait")
    assert set(scala.partitions) == {partition("t:0"), partition("t:1")}
    assert scala.since == NOW - 5000
    assert "jstack" in scala.remedy
    assert "h1" in ours.remedy


SPARK = healthy(extra={"g_b": {"zkconsumer": "1", "reader": "spark"}})


test_standing_still = table(
    "standing-still",
    pytest.param((later(waiting(), LIMIT - 6), ["ok"]), id="not yet"),
    pytest.param((later(waiting(), LIMIT - 4), ["error", "error"]), id="at the limit"),
    pytest.param((later(waiting(-3600 + 1), 3600), ["ok"]), id="a message after an idle hour"),
    pytest.param((later(healthy(logs={f"t:{n}": (0, 50) for n in range(4)}), 3600), ["ok"]), id="nothing waits"),
    pytest.param((later(healthy(), 3600), ["unknown"]), id="the time of the message is unknown"),
    pytest.param(
        ([healthy(), later(healthy(), 600)], ["warn", "warn"], "transaction markers"), id="maybe transaction markers"
    ),
    pytest.param(
        (later(replace(waiting(), members=SPARK.members), 600), ["error", "warn"]),
        id="a slow Spark query",
    ),
)


def test_offsets_in_kafka_are_unknown_at_one_look_not_ok() -> None:
    stored = {partition(text): KafkaOffset(50) for text in FOUR}
    look = replace(waiting(), offsets={}, kafka_offsets=stored, taken=NOW + 900_000)
    (found,) = diagnosed("standing-still", look)
    assert found.unknown
    assert "Kafka, which keeps no time" in found.text
    assert set(found.partitions) == set(stored)
    assert levels(diagnosed("standing-still", look, later(look, 180))) == ["error", "error"]
    fresh = replace(waiting(1), offsets={}, kafka_offsets=stored)
    assert levels(diagnosed("standing-still", fresh)) == ["ok"]


def test_offsets_in_kafka_that_move_are_ok_at_two_looks() -> None:
    """A group that catches up, an hour behind, was unknown for ever."""
    first, second = (
        replace(waiting(), offsets={}, kafka_offsets={partition(text): KafkaOffset(offset) for text in FOUR})
        for offset in (50, 70)
    )
    assert levels(diagnosed("standing-still", first, later(second, 200))) == ["ok"]


def test_a_message_of_the_future_tells_nothing_at_one_look() -> None:
    """Producers give microseconds for milliseconds. The owners were ok, however long they stood still."""
    (found,) = diagnosed("standing-still", later(waiting(-1e6 * 3600), 3600))
    assert found.unknown
    assert levels(diagnosed("standing-still", waiting(-1e6 * 3600))) == ["ok"]


def test_an_offset_from_before_a_migration_stands_for_nobody() -> None:
    """The offsets that a group has left in ZooKeeper never move again."""
    member = BrokersMember("m-1", "app", "/h", assignment=tuple(map(partition, FOUR)), topics=("t",))
    group = BrokersGroup("Stable", members=(member,))

    def migrated(offset: int) -> GroupSnapshot:
        stored = {partition(text): KafkaOffset(offset) for text in FOUR}
        return replace(waiting(), members={}, owners={}, kafka_offsets=stored, brokers_group=group)

    assert levels(diagnosed("standing-still", migrated(100), later(migrated(100), 600))) == ["ok"]
    assert levels(diagnosed("standing-still", later(migrated(60), 600))) == ["unknown"]
    (found,) = diagnosed("standing-still", migrated(60), later(migrated(60), 600))
    assert levels([found]) == ["error"]
    assert "160 messages wait" in found.text


def test_an_owner_before_the_last_transaction_marker_is_ok() -> None:
    """A healthy Scala member of a transactional topic was a warning for ever, for one marker that nobody reads."""
    made = waiting()
    for text in FOUR:
        made = with_log(made, text, message_time=-2)
    assert levels(diagnosed("standing-still", made, later(made, 600))) == ["ok"]


def test_messages_without_a_time_are_an_error_at_two_looks() -> None:
    """Brokers before 0.10 write no times. Their messages were taken for transaction markers."""
    made = waiting()
    for text in FOUR:
        made = with_log(made, text, message_time=-1)
    assert levels(diagnosed("standing-still", later(made, 600))) == ["unknown"]
    found = diagnosed("standing-still", made, later(made, 600))
    assert levels(found) == ["error", "error"]
    assert "markers" not in found[0].text


test_no_member = table(
    "no-member",
    (healthy(members={}, owners={}), ["warn"], "the group has no member, and 200 messages wait"),
    (healthy(), ["ok"]),
)


def test_a_thread_that_keeps_what_is_not_its_own_is_stuck() -> None:
    wrong = with_owner(healthy(), "t:1", "g_b-0")
    assert levels(diagnosed("stuck", wrong)) == ["ok"]
    (found,) = diagnosed("stuck", wrong, later(wrong, 600))
    assert levels([found]) == ["error"]
    assert list(found.partitions) == [partition("t:1")]
