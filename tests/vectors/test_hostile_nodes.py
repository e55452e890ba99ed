"""Odd bytes in another member's node, or in the topic's, as 1.1.1 read them.

Where 1.1.1 accepts the bytes, we assign the same. Where 1.1.1 throws, and the whole group stops, we name the node and
go on without it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.vectors.cases import Case
from zkconsumer.assignors import assignment_strategy
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.registration import Registration
from zkconsumer.errors import MalformedNodeError
from zkconsumer.member.zookeeper.claim_plan import GroupView, plan
from zkconsumer.model import ConsumerId
from zkconsumer.zookeeper import node_codecs, paths

FILES = ("kafka111_hostile_nodes",)

OURS = node_codecs.encode_registration(Registration("static", {"t": 1}, "1"))
TOPIC = b'{"version":1,"partitions":{"0":[0],"1":[0],"2":[0],"3":[0]}}'
NOT_RECORDED = b'{"version":1,"subscription":{"t":1},"pattern":"static","x":' + b"[" * 1_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """The group's plan, partition by partition, and the nodes that it could not read."""

    owners: dict[str, str]
    unreadable: dict[str, str]


def outcome(group: str, strategy: str, other: bytes | None, topic: bytes | None, *, alone: bool) -> Outcome:
    """The plan that follows from the bytes of three nodes: ours, another member's, and the topic's."""
    me = ConsumerId(f"{group}_me-1700000000000-aaaaaaaa")
    nodes = {me: OURS} | ({} if alone else {ConsumerId(f"{group}_other-1700000000000-bbbbbbbb"): other})
    members: dict[ConsumerId, Registration] = {}
    partitions: dict[str, tuple[int, ...]] = {}
    unreadable: dict[str, str] = {}
    for consumer, data in nodes.items():
        try:
            members[consumer] = node_codecs.decode_registration(data, paths.member("g", consumer))
        except MalformedNodeError as error:
            unreadable[error.path] = error.reason
    try:
        partitions["t"] = node_codecs.decode_topic(topic, paths.topic("t"))
    except MalformedNodeError as error:
        unreadable[error.path] = error.reason
    view = GroupView(members, partitions, topics=("t",), unreadable=unreadable)
    config = ConsumerConfig({"zookeeper.connect": "h:1", "group.id": "g", "partition.assignment.strategy": strategy})
    assignment = plan(view, me, {}, assignment_strategy(config)).assignment
    return Outcome({str(partition): str(thread) for partition, thread in assignment.items()}, unreadable)


def test_odd_bytes_never_stop_the_group(case: Case) -> None:
    recorded = case.data
    text = recorded["bytes_hex"]
    data = None if text is None else NOT_RECORDED if text == "(long)" else bytes.fromhex(text)
    found_group = re.match(r"g\d*(?=_)", next(iter(recorded.get("result", {}).values()), "g_"))
    group = found_group[0] if found_group else "g"
    of_topic = recorded["what"] == "topic_node"
    found = outcome(
        group, recorded["strategy"], None if of_topic else data, data if of_topic else TOPIC, alone=of_topic
    )
    if "result" in recorded:
        assert found == Outcome(recorded["result"], {})
        return
    assert len(found.unreadable) == 1, "only the odd node is refused"
    path, reason = next(iter(found.unreadable.items()))
    assert path == (paths.topic("t") if of_topic else paths.member("g", f"{group}_other-1700000000000-bbbbbbbb"))
    assert reason
    if not of_topic:
        assert sorted(found.owners) == ["t-0", "t-1", "t-2", "t-3"], "we go on without that member"
