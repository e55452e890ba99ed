"""RocketMQ's strategies, as 5.3.3 computed them, one client's view at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.cases import Case, check_each
from zkconsumer.assignors import AssignmentError, java_hash
from zkconsumer.assignors.rocketmq import (
    AverageAssignor,
    AverageByCircleAssignor,
    ConsistentHashAssignor,
    MachineRoomAssignor,
    MachineRoomNearbyAssignor,
    MessageQueue,
    QueueAllocator,
    allocate,
    md5_hash,
)

FILES = (
    "rocketmq_avg",
    "rocketmq_avg_by_circle",
    "rocketmq_config_machine_room",
    "rocketmq_consistent_hash",
    "rocketmq_consistent_hash_params",
    "rocketmq_machine_room_nearby",
)

HASHES = {
    None: md5_hash,
    "constant_7": lambda _: 7,
    "java_hashcode": java_hash,
    "java_hashcode_abs_mod_16": lambda text: java_hash(text) % 16,
}


def before_first_dash(text: str) -> str:
    return text.split("-", 1)[0]


def strategy(name: str, params: dict[str, Any]) -> QueueAllocator:
    if name == "AVG":
        return AverageAssignor()
    if name == "AVG_BY_CIRCLE":
        return AverageByCircleAssignor()
    if name == "CONSISTENT_HASH":
        return ConsistentHashAssignor(params.get("virtualNodeCnt", 10), HASHES[params.get("hash")])
    if name == "MACHINE_ROOM":
        return MachineRoomAssignor(params["consumeridcs"])
    if name.startswith("MACHINE_ROOM_NEARBY-"):
        assert params["resolver"] == "before_first_dash"
        return MachineRoomNearbyAssignor(
            strategy(params["inner"], params), lambda queue: before_first_dash(queue.broker), before_first_dash
        )
    raise AssertionError(f"no strategy {name}")


def answer(data: dict[str, Any]) -> list[list[object]] | None:
    params, current, clients = data["params"], data["currentCID"], data["cidAll"]
    queues = [MessageQueue(*queue) for queue in data["mqAll"] or ()]
    if data["strategy"] == "CONFIG":  # returns its parameter; ours is a table with checks and has its own tests
        configured: list[list[object]] | None = params["messageQueueList"]
        return configured
    share = allocate(strategy(data["strategy"], params), current, queues, clients or ())
    return [list(queue) for queue in share]


def check(case: Case) -> None:
    if "error" not in case.data:
        assert answer(case.data) == case.data["result"]
        return
    with pytest.raises((AssignmentError, ValueError, TypeError)) as caught:
        answer(case.data)
    if isinstance(caught.value, AssignmentError):
        assert str(caught.value) == case.data["message"]


def test_a_client_is_given_the_queues_that_rocketmq_gives_it(cases: list[Case]) -> None:
    check_each(cases, check)
