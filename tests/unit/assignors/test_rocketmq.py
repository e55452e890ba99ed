"""RocketMQ's strategies in our groups: threads as clients, racks as machine rooms. ``tests/vectors`` has the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.assignors.groups import group, member, owners, text
from zkconsumer.assignors import AssignmentError, RangeAssignor, assignor, rocketmq
from zkconsumer.assignors.rocketmq import ConsistentHashAssignor, MachineRoomNearbyAssignor
from zkconsumer.errors import ConfigException
from zkconsumer.model import ConsumerId, TopicPartition

THREE = group({"g_c1": {"t": 1}, "g_c2": {"t": 1}, "g_c3": {"t": 1}})
EIGHT = {"t": list(range(8))}
RACKS = {TopicPartition("t", n): "east" if n < 5 else "west" for n in range(8)}


def test_a_queue_is_written_as_rocketmq_writes_it() -> None:
    assert str(rocketmq.MessageQueue("T", "", 3)) == "MessageQueue [topic=T, brokerName=, queueId=3]"


def test_average_is_range() -> None:
    assert rocketmq.AverageAssignor().assign(THREE, EIGHT) == RangeAssignor().assign(THREE, EIGHT)


def test_a_stranger_is_given_nothing() -> None:
    assert rocketmq.allocate(rocketmq.AverageAssignor(), "x", [rocketmq.MessageQueue("t", "", 0)], ["c"]) == []


def test_without_points_on_the_ring_nobody_owns_anything() -> None:
    assert ConsistentHashAssignor(0).assign(THREE, EIGHT) == {}
    with pytest.raises(ValueError, match="negative"):
        ConsistentHashAssignor(-1)


@given(st.sets(st.integers(0, 30), min_size=2, max_size=12), st.data())
def test_consistent_hash_moves_only_what_the_leaving_member_had(numbers: set[int], data: st.DataObject) -> None:
    before = group({f"g_c{n}": {"t": 1} for n in numbers})
    leaving = ConsumerId(f"g_c{data.draw(st.sampled_from(sorted(numbers)))}")
    after = {name: member for name, member in before.items() if name != leaving}
    partitions = {"t": list(range(64))}
    old, new = ConsistentHashAssignor().assign(before, partitions), ConsistentHashAssignor().assign(after, partitions)
    assert all(thread == new[partition] for partition, thread in old.items() if thread != f"{leaving}-0")


def test_machine_room_consumes_only_its_rooms() -> None:
    assert text(owners(rocketmq.MachineRoomAssignor(["east"]), THREE, EIGHT, RACKS)) == {
        "g_c1-0": "t-0 t-3",
        "g_c2-0": "t-1 t-4",
        "g_c3-0": "t-2",
    }


def test_machine_room_needs_to_be_told_its_rooms() -> None:
    with pytest.raises(ConfigException, match=r"assignment\.rooms"):
        assignor("machine-room")


def test_nearby_keeps_partitions_in_their_room() -> None:
    """Partitions of rooms without members go to all members."""
    members = {
        ConsumerId("g_a"): member("g_a", {"t": 1}, room="east"),
        ConsumerId("g_b"): member("g_b", {"t": 1}, room="west"),
    }
    assert text(owners(MachineRoomNearbyAssignor(), members, EIGHT, RACKS)) == {
        "g_a-0": "t-0 t-1 t-2 t-3 t-4",
        "g_b-0": "t-5 t-6 t-7",
    }
    del members[ConsumerId("g_b")]
    members[ConsumerId("g_c")] = member("g_c", {"t": 1}, room="east")
    assert text(owners(MachineRoomNearbyAssignor(rocketmq.AverageByCircleAssignor()), members, EIGHT, RACKS)) == {
        "g_a-0": "t-0 t-2 t-4 t-5 t-7",
        "g_c-0": "t-1 t-3 t-6",
    }


def test_nearby_refuses_to_guess_a_room() -> None:
    with pytest.raises(AssignmentError, match="Machine room is null for consumer id g_c1-0"):
        MachineRoomNearbyAssignor().assign(THREE, EIGHT, RACKS)
    with pytest.raises(AssignmentError, match="Machine room is null for mq MessageQueue"):
        MachineRoomNearbyAssignor().assign(THREE, EIGHT)
