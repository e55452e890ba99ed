"""The checks of the records that balanced members keep: ill, healthy and unknown groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.group_snapshots import NOW, partition, stat
from tests.unit.operations.doctor.cases import (
    OURS,
    diagnosed,
    healthy,
    later,
    table,
    with_log,
    with_problem,
    without_owner,
)
from zkconsumer.core.message_pointers import MOST_POINTERS
from zkconsumer.model import ConsumerId
from zkconsumer.operations.doctor import CHECKS
from zkconsumer.operations.group_snapshot import (
    AckNode,
    FailingMessage,
    GroupSnapshot,
    LoanNode,
    NoteSummary,
    PointedMessage,
    PointersNode,
)

MINUTE = 60_000
SHARING = {**OURS, "share": "key:10"}
ALL_OURS = healthy(extra={"g_a": OURS, "g_b": OURS})
ALL_SCALA = healthy(extra={})
NOBODY = replace(ALL_OURS, members={}, owners={})


def pointers(parked: int | None, dead: int | None = 0, *listed: int, due: int = 0, problem: str = "") -> PointersNode:
    made = tuple(PointedMessage(offset, False, 3, reason="KeyError") for offset in listed[: parked or 0])
    made += tuple(PointedMessage(offset, True, 16, reason="KeyError") for offset in listed[parked or 0 :])
    return PointersNode(parked, dead, made, stat(length=70), due, problem)


def pointing(snapshot: GroupSnapshot, nodes: Mapping[str, PointersNode]) -> GroupSnapshot:
    return replace(snapshot, pointers={partition(text): node for text, node in nodes.items()})


def noted(note: NoteSummary | None, mzxid: int = 300, snapshot: GroupSnapshot = ALL_OURS, **more: Any) -> GroupSnapshot:
    """The snapshot with a note of ``t:2``, whose offset 50 transaction 300 wrote."""
    return replace(snapshot, acks={partition("t:2"): AckNode(note, stat(1, mzxid=mzxid, length=70), **more)})


def lent(session: int = 2, borrower: str = "g_a", age: float = 600.0, **more: Any) -> GroupSnapshot:
    """The group with slots of ``t:2`` on loan. Session 2 is that of ``g_b``, which owns it."""
    loan = LoanNode(**{"slots": 64, "number": 5, "session": session, "stat": stat(9, age), **more})
    return replace(ALL_OURS, loans={partition("t:2"): {ConsumerId(borrower): loan}})


test_parked_without_member = table(
    "parked-without-member",
    (ALL_OURS, ["ok"]),
    (pointing(ALL_OURS, {"t:0": pointers(2)}), ["ok"]),
    (pointing(ALL_SCALA, {"t:0": pointers(0, 4)}), ["ok"]),
    (pointing(ALL_SCALA, {"t:0": pointers(2)}), ["error"], "only other members are in the group"),
    (pointing(NOBODY, {"t:0": pointers(1)}), ["warn"], "1 parked message wait, and no member is"),
    (pointing(ALL_OURS, {"t:0": pointers(2, due=NOW - 9 * MINUTE)}), ["ok"]),
    (pointing(ALL_OURS, {"t:0": pointers(2, due=NOW - 11 * MINUTE)}), ["warn"], "are overdue"),
    (pointing(ALL_OURS, {"t:0": pointers(2, due=NOW + MINUTE)}), ["ok"]),
    (with_problem(pointing(NOBODY, {"t:0": pointers(1)}), "/consumers/g/ids"), ["unknown"], "a member of this"),
    (with_problem(ALL_OURS, "/consumers/g/parked"), ["unknown"], "not all nodes were read"),
)


test_parked_beside_scala = table(
    "parked-beside-scala",
    (healthy(), ["ok"]),
    (pointing(healthy(), {"t:0": pointers(2)}), ["warn"], "Scala members own 1 partition with parked messages"),
    (pointing(healthy(), {"t:2": pointers(2)}), ["note"], "leaves its parked messages behind"),
    (pointing(ALL_OURS, {"t:0": pointers(2)}), ["ok"]),
    (pointing(ALL_SCALA, {"t:0": pointers(2)}), ["ok"]),
)


def crowded(node: PointersNode) -> GroupSnapshot:
    return pointing(ALL_OURS, {"t:0": node})


test_full_pointers = table(
    "full-pointers",
    (crowded(pointers(MOST_POINTERS * 4 // 5 - 1, 5)), ["ok"]),
    (crowded(pointers(MOST_POINTERS * 4 // 5, 5)), ["warn"], "t-0 has 800 parked messages of at most 1000"),
    (crowded(pointers(0, MOST_POINTERS)), ["error"], "at the next one the partition stops"),
    (crowded(pointers(None, None, problem="its checksum is wrong")), ["error"], "cannot be read"),
    (crowded(replace(pointers(None, None, problem="no rights"), stat=None)), ["unknown"], "were not read: no rights"),
)


test_dead_letters = table(
    "dead-letters",
    (pointing(ALL_OURS, {"t:0": pointers(3)}), ["ok"]),
    (
        pointing(ALL_OURS, {"t:0": pointers(0, 2, 7, 9), "t:1": pointers(0, 1)}),
        ["warn"],
        "3 dead letters wait: messages that were given up",
        "partitions t:0,1; t-0 at offset 7: 16 attempts, KeyError",
        "/consumers/g/parked/t/0",
        "zkconsumer dead list g --zookeeper 127.0.0.1:2181",
    ),
)


OLD = (FailingMessage(50, 4, NOW - 11 * MINUTE),)
HELD, HELD_LATER = noted(NoteSummary(50, 1051, 1000, 1)), later(noted(NoteSummary(50, 2051, 2000, 1)), 60)


test_held_base = table(
    "held-base",
    (ALL_OURS, ["ok"]),
    (noted(NoteSummary(50, 1049, 998, 1)), ["ok"]),
    (HELD, ["note"], "t-2 is held at 50 while 1,000 messages"),
    # worse: other work is done while the base stays
    ([HELD, HELD_LATER], ["warn"]),
    ([HELD_LATER, later(HELD_LATER, 60)], ["note"]),
    (noted(NoteSummary(50, 60, 9, 1, OLD)), ["warn"], "while 9 messages beyond it are finished"),
    (noted(NoteSummary(50, 1051, 1000, 1), 299), ["ok"]),
    (noted(None, problem="no note"), ["ok"]),
)


test_void_note = table(
    "void-note",
    (noted(NoteSummary(50, 90, 30, 10)), ["ok"]),
    (noted(NoteSummary(50, 90, 30, 10), 301), ["ok"]),
    (noted(NoteSummary(50, 90, 30, 10), 299), ["warn"], "about 30 messages that were finished"),
    (noted(NoteSummary(20, 50, 29, 1), 299), ["ok"]),
    (noted(NoteSummary(20, 60, 39, 1), 299), ["warn"], "about 10 messages"),
    (noted(NoteSummary(70, 90, 19, 1), 299), ["warn"], "about 19 messages"),
    (replace(noted(NoteSummary(50, 90, 30, 10)), offsets={}), ["note"], "has no offset that it belongs to"),
    (noted(None, problem="no note"), ["warn"], "cannot be read"),
    (replace(ALL_OURS, acks={partition("t:2"): AckNode(None, None, "no rights")}), ["unknown"], "no rights"),
    ids=["counts", "newer", "void", "nothing beyond", "in the middle", "rewound", "no offset", "damaged", "unread"],
)


test_lost_loan = table(
    "lost-loan",
    (lent(), ["ok"]),
    (lent(borrower="g_gone"), ["warn"], "g_gone has slots of t-2 on loan and is not in the group"),
    (lent(borrower="g_gone", age=5.0), ["note"], "is not in the group"),
    (with_problem(lent(borrower="g_gone"), "/consumers/g/ids"), ["unknown"], "whether g_gone is in the group"),
    (lent(session=9), ["warn"], "is not the owner any more"),
    (without_owner(lent(), "t:2"), ["warn"], "nobody owns t-2"),
    (with_problem(without_owner(lent(), "t:2"), "/consumers/g/owners/t"), ["unknown"], "who owns t-2"),
    (lent(slots=0, borrower="g_gone"), ["ok"]),
    (lent(slots=None, problem="it is not JSON"), ["warn"], "cannot be read"),
    (lent(slots=None, problem="no rights", stat=None), ["unknown"], "was not read: no rights"),
)


def aged(start: int | None, *listed: int) -> GroupSnapshot:
    """The group with parked messages of ``t:0`` at these offsets, whose log begins at ``start`` and ends at 10,000."""
    return with_log(pointing(ALL_OURS, {"t:0": pointers(len(listed), 0, *listed)}), "t:0", start=start, end=10_000)


test_pointer_retention = table(
    "pointer-retention",
    ([aged(0, 1)], ["ok"]),
    ([aged(5_000, 9_000)], ["ok"]),
    ([aged(5_000, 5_100)], ["warn"], "about to delete the message at offset 5,100 of t-0, which is parked"),
    ([aged(5_000, 4_000, 5_100)], ["error"], "retention has deleted 1 message of t-0"),
    ([aged(4_000, 5_100), later(aged(5_000, 5_100), 3600)], ["warn"], "about to delete"),
    ([aged(4_999, 5_100), later(aged(5_000, 5_100), 3600)], ["ok"]),
    ([aged(5_000, 5_100), later(aged(5_000, 5_100), 3600)], ["ok"]),
    ([aged(None, 1)], ["unknown"], "are still there"),
    ids=["nothing deleted", "far", "near", "passed", "soon", "slowly", "at rest", "unknown"],
)


test_mixed_sharing = table(
    "mixed-sharing",
    (ALL_OURS, ["ok"]),
    (healthy(extra={"g_a": SHARING, "g_b": SHARING}), ["ok"]),
    (healthy(extra={"g_a": SHARING, "g_b": OURS}), ["note"], "2 partitions cannot be shared"),
    (healthy(extra={"g_b": SHARING}), ["note"], "2 partitions cannot be shared"),
    (healthy(extra={"g_a": {**OURS, "share": "none:4"}, "g_b": SHARING}), ["warn"], "different values of order"),
    (healthy(extra={"g_a": {**OURS, "share": 7}, "g_b": OURS}), ["ok"]),
)


def test_every_finding_has_evidence_node_and_link() -> None:
    """The remedy may be missing where only a look helps; the link is the check's place in the docs."""
    ill = pointing(noted(NoteSummary(50, 1051, 1000, 1), 299), {"t:0": pointers(1000, 900, 1, due=1)})
    ill = with_log(replace(ill, loans=lent(session=9).loans), "t:0", start=50)
    names = [check.name for check in CHECKS if check.run.__module__.endswith("doctor.balance")]
    assert len(names) == 9
    for name in names:
        for found in diagnosed(name, ill):
            assert found.link == f"docs/doctor.md#{name}"
            if str(found.level) in ("warn", "error"):
                assert found.evidence
                assert found.node.startswith("/consumers/g/")
