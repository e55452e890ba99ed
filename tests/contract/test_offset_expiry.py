"""Expiry of offsets and groups at a group coordinator.

One suite, on the coordinator in memory and on real brokers of 3.9.1 and 1.1.1 that look for old offsets all the time.
No test waits for a retention to pass. A commit has its own time (version 1) or retention (2 to 4), and either makes an
offset too old at once.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.group_client import ClientMember, Target
from tests.timing import eventually

COORDINATOR_NOT_AVAILABLE = 15
A_MONTH = 30 * 86400.0


def outdated(says: str) -> dict[str, Any]:
    """Return fields of a commit that make its offset too old at once: a retention of 1 ms may outlast a whole test."""
    if says == "its time":
        return {"version": 1, "commit_timestamp": round((time.time() - A_MONTH) * 1000)}
    return {"version": 3, "retention_time_ms": 0}


either = pytest.mark.parametrize("says", ["its time", "how long to keep it"])


def swept(target: Target) -> None:
    """Wait until the coordinator has looked for old offsets in all groups: those of two other groups are gone.

    Two, since its round for the first one may have passed our group before.
    """
    for other in (target.fresh(), target.fresh()):
        try:
            _forgets(other)
        finally:
            other.close()


def _forgets(other: Target) -> None:
    assert other.commit({("t", 0): 1}, **outdated("its time")) == [0]
    eventually(lambda: other.committed("t", [0]) == [-1], 30, "an old offset to expire")


def stable(target: Target) -> ClientMember:
    """A member, alone in its group, that subscribes to ``t``."""
    member = target.member()
    joins(member)
    assert member.syncs({member.member_id: b""}).answer()["error_code"] == 0
    return member


def joins(member: ClientMember, **fields: Any) -> None:
    """Be the first of a group. The coordinator may forget the new group before the join, and answers so."""

    def let_in() -> bool:
        answer = member.joins(**fields).answer()
        if answer["error_code"] == COORDINATOR_NOT_AVAILABLE:
            return False
        member.is_let_in(answer)
        return True

    eventually(let_in, 10, "a new group to be joined")


def left(target: Target) -> list[int]:
    """The offsets of ``t`` and ``u``."""
    return [*target.committed("t", [0]), *target.committed("u", [0])]


def test_offsets_kept_for_a_moment_expire_with_their_group(forgetful: Target) -> None:
    assert forgetful.commit({("t", 0): 5}, version=3, retention_time_ms=500) == [0]
    eventually(lambda: forgetful.committed("t", [0]) == [-1], 30, "the offset to expire")
    forgetful.until("Dead")


@either
def test_in_a_group_without_members_each_offset_expires_alone(forgetful: Target, says: str) -> None:
    assert forgetful.commit({("u", 0): 6}) == [0]
    assert forgetful.commit({("t", 0): 5}, **outdated(says)) == [0]
    eventually(lambda: left(forgetful) == [-1, 6], 30, "the old offset alone to expire")
    assert forgetful.state() == "Empty"


@either
def test_in_a_stable_group_only_unsubscribed_topics_expire(forgetful: Target, says: str) -> None:
    member = stable(forgetful)
    assert member.commit({("t", 0): 5, ("u", 0): 6}, **outdated(says)) == [0, 0]
    expected = [5, -1] if forgetful.modern else [-1, -1]
    eventually(lambda: left(forgetful) == expected, 30, "the old offset to expire")
    assert (member.heartbeat(), forgetful.state()) == (0, "Stable")


@either
def test_in_an_emptied_group_offsets_expire_by_either_time(forgetful: Target, says: str) -> None:
    """Since 2.1 such a group ignores the age of a commit, and heeds only the commit's own retention time."""
    member = stable(forgetful)
    assert member.commit({("u", 0): 6}) == [0]  # or the group might be forgotten before the next commit
    assert member.leave() == 0
    kept = forgetful.modern and says == "its time"
    assert forgetful.commit({("t", 0): 5}, **outdated(says)) == [0]
    swept(forgetful)
    assert (left(forgetful), forgetful.state()) == ([5 if kept else -1, 6], "Empty")


@either
def test_no_offset_expires_during_a_rebalance(forgetful: Target, says: str) -> None:
    first, second = stable(forgetful), forgetful.member()
    waiting = second.joins()
    forgetful.until("PreparingRebalance")
    assert first.commit({("u", 0): 6}, **outdated(says)) == [0]
    swept(forgetful)
    assert left(forgetful)[1] == (6 if forgetful.modern else -1)
    first.joined()
    second.has_joined(waiting)
    swept(forgetful)
    assert left(forgetful)[1] == (6 if forgetful.modern else -1)
    syncing = second.syncs()
    assert first.syncs({}).answer()["error_code"] == syncing.answer()["error_code"] == 0
    eventually(lambda: left(forgetful)[1] == -1, 30, "the old offset to expire")


@either
def test_while_members_are_no_consumers_no_offset_dies(forgetful: Target, says: str) -> None:
    member = forgetful.member(protocols=(("any", b"what only they understand"),))
    joins(member, protocol_type="workers")
    assert member.syncs({}).answer()["error_code"] == 0
    assert member.commit({("t", 0): 5}, **outdated(says)) == [0]
    swept(forgetful)
    assert (left(forgetful)[0], forgetful.state()) == (5 if forgetful.modern else -1, "Stable")


def test_an_empty_group_without_offsets_is_forgotten(forgetful: Target) -> None:
    assert stable(forgetful).leave() == 0
    forgetful.until("Dead")
    listed = {group["group_id"] for group in forgetful.ask("ListGroups", {})["groups"]}
    assert forgetful.group not in listed


def test_an_empty_group_goes_with_the_topic_of_its_last_offsets(coordinator: Target) -> None:
    doomed = f"doomed-by-{coordinator.group}"
    topic = {"name": doomed, "num_partitions": 1, "replication_factor": 1}
    (made,) = coordinator.ask("CreateTopics", {"topics": [topic], "timeout_ms": 10_000}, version=0)["topics"]
    assert made["error_code"] == 0
    eventually(lambda: coordinator.commit({(doomed, 0): 5}) == [0], 20, "the broker to know the topic")
    assert coordinator.state() == "Empty"
    (gone,) = coordinator.ask("DeleteTopics", {"topic_names": [doomed], "timeout_ms": 10_000}, version=0)["responses"]
    assert gone["error_code"] == 0
    coordinator.until("Dead")
