"""Range and round robin, as the Scala connectors of 0.8.2.2 and 1.1.1 computed them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.cases import Case, check_each
from zkconsumer.assignors import AssignmentError, Assignor, Member, RangeAssignor, RoundRobinAssignor
from zkconsumer.core.registration import Registration
from zkconsumer.core.subscription import thread_ids
from zkconsumer.errors import MalformedNodeError
from zkconsumer.model import ConsumerId
from zkconsumer.zookeeper.node_codecs import decode_registration, encode_registration

FILES = ("kafka082_range", "kafka082_roundrobin", "kafka111_range", "kafka111_roundrobin")


def registrations(data: dict[str, Any]) -> dict[ConsumerId, Registration]:
    """Every member's registration, written and read as it would be; a wildcard replaces the empty static one."""
    found = {name: Registration("static", topics) for name, topics in data["consumers"].items()}
    for name, wanted in data.get("wildcards", {}).items():
        found[name] = Registration(wanted["pattern"], {wanted["regex"]: wanted["threads"]})
    return {
        ConsumerId(name): decode_registration(encode_registration(registration), f"/consumers/g/ids/{name}")
        for name, registration in found.items()
    }


def assigned(data: dict[str, Any], assignor: Assignor) -> dict[str, str]:
    partitions = {topic: range(count) for topic, count in data["topics"].items()} | data.get("partition_ids", {})
    members = {
        consumer: Member(thread_ids(consumer, registration, list(partitions), data.get("exclude_internal", True)))
        for consumer, registration in registrations(data).items()
    }
    return {str(partition): str(thread) for partition, thread in assignor.assign(members, partitions).items()}


def check(case: Case) -> None:
    release = "0.8.2" if case.file.startswith("kafka082") else "1.1"
    assignor = RangeAssignor() if case.file.endswith("range") else RoundRobinAssignor(release)
    error = case.data.get("error", "")
    if error.endswith("NullPointerException"):
        assert assigned(case.data, assignor) == {}, "nobody takes part in a topic (KAFKA-1648)"
    elif error:
        with pytest.raises((AssignmentError, MalformedNodeError, ValueError)):
            assigned(case.data, assignor)
    elif case.data.get("note") == "hash_tie":
        assert assigned(case.data, assignor).keys() == case.data["result"].keys()
    else:
        assert assigned(case.data, assignor) == case.data["result"]


def test_the_group_is_assigned_as_by_the_original(cases: list[Case]) -> None:
    check_each(cases, check)
