"""The answers of a group coordinator, and the state of the group after them.

One suite, on the coordinator in memory and on real brokers of 3.9.1 and 1.1.1. It uses request versions before and
after compact fields.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.group_client import ME, OTHER, Target, leave, subscription
from tests.timing import eventually

ILLEGAL_GENERATION, INCONSISTENT, INVALID_GROUP, UNKNOWN_MEMBER = 22, 23, 24, 25
INVALID_SESSION_TIMEOUT, REBALANCING, MEMBER_ID_REQUIRED, FENCED = 26, 27, 79, 82
NON_EMPTY, NOT_FOUND = 68, 69


def codes(*answers: Any) -> list[int]:
    return [answer["error_code"] for answer in answers]


@pytest.fixture
def modern(coordinator: Target) -> Target:
    """A broker with 3.9's rules: given member ids (since 2.2), static members (2.3), limits of a sync (3.1)."""
    if not coordinator.modern:
        pytest.skip("another rule before")
    return coordinator


def test_an_unknown_group_is_dead(coordinator: Target) -> None:
    found = coordinator.described()
    assert (found["error_code"], found["group_state"], found["protocol_type"]) == (0, "Dead", "")
    assert found["members"] == []


def test_the_first_member_leads_and_must_assign(coordinator: Target) -> None:
    first = coordinator.member()
    answer = first.joined()
    assert (answer["generation_id"], answer["leader"], answer["protocol_name"]) == (1, first.member_id, "range")
    assert [(m["member_id"], m["metadata"]) for m in answer["members"]] == [(first.member_id, ME)]
    found = coordinator.described()
    assert (found["group_state"], found["protocol_type"], found["protocol_data"]) == (
        "CompletingRebalance",
        "consumer",
        "",
    )
    (member,) = found["members"]
    assert (member["member_id"], member["member_metadata"], member["member_assignment"]) == (first.member_id, b"", b"")


def test_before_the_assignment_commits_are_refused(coordinator: Target) -> None:
    first = coordinator.member()
    first.joined()
    assert first.commit({("t", 0): 5}) == [REBALANCING]
    assert first.heartbeat() == (0 if coordinator.modern else REBALANCING)
    assert first.heartbeat(generation_id=9) == (ILLEGAL_GENERATION if coordinator.modern else REBALANCING)
    assert first.heartbeat(member_id="nobody") == UNKNOWN_MEMBER
    assert coordinator.state() == "CompletingRebalance"


def test_the_leaders_assignment_makes_the_group_stable(coordinator: Target) -> None:
    first = coordinator.member()
    first.joined()
    answer = first.syncs({first.member_id: b"yours"}).answer()
    assert (answer["error_code"], answer["assignment"]) == (0, b"yours")
    assert first.heartbeat() == 0
    assert first.syncs().answer()["assignment"] == b"yours"
    found = coordinator.described()
    assert (found["group_state"], found["protocol_data"]) == ("Stable", "range")
    (member,) = found["members"]
    assert (member["member_metadata"], member["member_assignment"]) == (ME, b"yours")
    assert (member["client_id"], member["client_host"]) == ("contract", "/127.0.0.1")


def test_a_second_member_calls_the_first_back(coordinator: Target) -> None:
    first, second, waiting = coordinator.rebalancing()
    assert first.heartbeat() == REBALANCING
    assert codes(first.syncs().answer()) == [REBALANCING]
    assert first.commit({("t", 0): 7}) == [0]
    assert waiting.waits()
    again = first.joined()
    told = second.has_joined(waiting)
    assert (again["generation_id"], told["generation_id"]) == (2, 2)
    assert again["leader"] == told["leader"] == first.member_id
    assert {m["member_id"] for m in again["members"]} == {first.member_id, second.member_id}
    assert told["members"] == []
    assert coordinator.state() == "CompletingRebalance"


def test_a_follower_that_asks_before_the_leader_waits(coordinator: Target) -> None:
    first, second = coordinator.undecided()
    asked = second.syncs()
    assert coordinator.state() == "CompletingRebalance"
    assert asked.waits()
    own = first.syncs({second.member_id: b"for the second", "stranger": b"x"}).answer()
    assert (own["error_code"], own["assignment"]) == (0, b"")
    answer = asked.answer()
    assert (answer["error_code"], answer["assignment"]) == (0, b"for the second")
    assert coordinator.state() == "Stable"


# ---- joining again ----


def test_a_follower_that_joins_again_unchanged_is_told_what_is(coordinator: Target) -> None:
    first, second = coordinator.pair()
    follower = second if first.leads else first
    answer = follower.joined()
    assert (answer["generation_id"], answer["members"]) == (2, [])
    assert coordinator.state() == "Stable"


def test_a_follower_that_wants_something_else_begins_a_rebalance(coordinator: Target) -> None:
    first, second = coordinator.pair()
    follower, leader = (second, first) if first.leads else (first, second)
    follower.protocols = (("range", OTHER),)
    waiting = follower.joins()
    coordinator.until("PreparingRebalance")
    assert leader.heartbeat() == REBALANCING
    told = leader.joined()
    follower.has_joined(waiting)
    assert told["generation_id"] == 3
    assert {m["metadata"] for m in told["members"]} == {ME, OTHER}


def test_the_leader_that_joins_again_begins_a_rebalance(coordinator: Target) -> None:
    first = coordinator.alone()
    assert first.joined()["generation_id"] == 2
    assert coordinator.state() == "CompletingRebalance"


def test_an_unchanged_join_before_the_assignment_is_answered(coordinator: Target) -> None:
    first = coordinator.member()
    before = first.joined()
    assert first.joined() == before
    first.protocols = (("range", OTHER),)
    assert first.joined()["generation_id"] == 2


def test_a_new_member_is_sent_away_once_with_an_id(modern: Target) -> None:
    member = modern.member()
    answer = member.connection.send("JoinGroup", member.join_request({})).answer()
    assert answer["error_code"] == MEMBER_ID_REQUIRED
    assert answer["member_id"].startswith("contract-")
    assert (modern.state(), modern.described()["members"]) == ("Empty", [])
    member.member_id = answer["member_id"]
    assert member.joined()["member_id"] == answer["member_id"]


def test_older_versions_join_at_once(coordinator: Target) -> None:
    member = coordinator.member()
    answer = member.connection.ask("JoinGroup", member.join_request({}), version=2)
    assert (answer["error_code"], answer["generation_id"]) == (0, 1)
    assert answer["member_id"].startswith("contract-")


# ---- protocols ----


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"protocol_type": "connect"}, "another type"),
        ({"protocols": [{"name": "sticky", "metadata": b""}]}, "nothing in common"),
        ({"protocols": []}, "no protocol at all"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_cannot_do_what_the_members_do_is_refused(coordinator: Target, fields: Any, why: str) -> None:
    first = coordinator.alone()
    assert codes(coordinator.member().joins(**fields).answer()) == [INCONSISTENT], why
    assert coordinator.state() == "Stable"
    assert first.heartbeat() == 0


def test_the_first_member_must_offer_something(coordinator: Target) -> None:
    assert codes(coordinator.member().joins(protocols=[]).answer()) == [INCONSISTENT]
    assert codes(coordinator.member().joins(protocol_type="").answer()) == [INCONSISTENT]
    assert coordinator.state() == "Empty"


def test_the_members_vote_for_what_all_of_them_can_do(coordinator: Target) -> None:
    offers = [("a", "b", "c"), ("b", "a", "d"), ("b", "d", "a")]
    members = [coordinator.member(protocols=[(name, subscription(name)) for name in offer]) for offer in offers]
    coordinator.stable(members[0])
    assert coordinator.described()["protocol_data"] == "a"
    coordinator.stable(*members)
    found = coordinator.described()
    assert found["protocol_data"] == "b"
    assert {m["member_metadata"] for m in found["members"]} == {subscription("b")}


@pytest.mark.parametrize("value", ["other", None])
@pytest.mark.parametrize("name", ["protocol_type", "protocol_name"])
def test_a_sync_for_another_protocol_is_refused(coordinator: Target, name: str, value: str | None) -> None:
    if coordinator.versions["SyncGroup"] < 5:
        pytest.skip("since SyncGroup 5")
    first = coordinator.member()
    first.joined()
    given: dict[str, Any] = {name: value}
    assert codes(first.syncs(**given).answer()) == [INCONSISTENT]
    assert coordinator.state() == "CompletingRebalance"


# ---- leaving, in each state ----


def test_the_last_that_leaves_empties_the_group_at_once(coordinator: Target) -> None:
    first = coordinator.alone()
    assert first.leave() == 0
    found = coordinator.described()
    assert (found["group_state"], found["protocol_type"], found["members"]) == ("Empty", "consumer", [])
    assert first.heartbeat() == UNKNOWN_MEMBER
    assert first.leave() == UNKNOWN_MEMBER
    assert coordinator.member().joined()["generation_id"] == 3


def test_leaving_a_stable_group_calls_the_others_at_once(coordinator: Target) -> None:
    first, second = coordinator.pair()
    assert second.leave() == 0
    assert coordinator.state() == "PreparingRebalance"
    assert first.heartbeat() == REBALANCING
    assert second.heartbeat() == UNKNOWN_MEMBER
    answer = first.joined()
    assert answer["generation_id"] == 3
    assert [m["member_id"] for m in answer["members"]] == [first.member_id]


def test_leaving_before_the_assignment_calls_the_others_at_once(coordinator: Target) -> None:
    first, second = coordinator.undecided()
    asked = second.syncs()
    assert coordinator.state() == "CompletingRebalance"
    assert first.leave() == 0
    assert codes(asked.answer()) == [REBALANCING]
    assert coordinator.state() == "PreparingRebalance"
    answer = second.joined()
    assert (answer["generation_id"], answer["leader"]) == (3, second.member_id)


def test_leaving_while_others_join_completes_their_join(coordinator: Target) -> None:
    first, second, waiting = coordinator.rebalancing()
    assert first.leave() == 0
    answer = second.has_joined(waiting)
    assert (answer["generation_id"], answer["leader"]) == (2, second.member_id)
    assert [m["member_id"] for m in answer["members"]] == [second.member_id]
    assert coordinator.state() == "CompletingRebalance"


def test_an_id_that_was_only_given_out_can_leave(modern: Target) -> None:
    member = modern.member()
    member_id = member.connection.ask("JoinGroup", member.join_request({}))["member_id"]
    assert leave(modern, member_id) == 0
    assert codes(member.joins(member_id=member_id).answer()) == [UNKNOWN_MEMBER]


def test_an_id_that_was_only_given_out_holds_up_the_join(modern: Target) -> None:
    first, second, third = (modern.member() for _ in range(3))
    modern.stable(first)
    third_id = third.connection.ask("JoinGroup", third.join_request({}))["member_id"]
    waiting = second.joins()
    modern.until("PreparingRebalance")
    again = first.joins()
    assert modern.state() == "PreparingRebalance"
    assert leave(modern, third_id) == 0
    assert first.has_joined(again)["generation_id"] == second.has_joined(waiting)["generation_id"] == 2


# ---- errors ----


def test_what_is_said_for_another_generation_is_refused(coordinator: Target) -> None:
    first = coordinator.alone()
    for generation in (0, 2, -1):
        assert first.heartbeat(generation_id=generation) == ILLEGAL_GENERATION
        assert codes(first.syncs(generation_id=generation).answer()) == [ILLEGAL_GENERATION]
        assert first.commit({("t", 0): 1}, generation_id=generation) == [ILLEGAL_GENERATION]
    assert coordinator.state() == "Stable"


@pytest.mark.parametrize("state", ["Dead", "Stable"])
def test_what_is_said_by_a_stranger_is_refused(coordinator: Target, state: str) -> None:
    """No coordinator has given out the member id."""
    nobody = coordinator.member()
    nobody.member_id, nobody.generation = "nobody", 1
    if state == "Stable":
        coordinator.alone()
        assert nobody.commit({("t", 0): 1}) == [UNKNOWN_MEMBER]
    assert (nobody.heartbeat(), nobody.leave()) == (UNKNOWN_MEMBER, UNKNOWN_MEMBER)
    assert codes(nobody.syncs().answer(), nobody.joins().answer()) == [UNKNOWN_MEMBER, UNKNOWN_MEMBER]
    assert coordinator.state() == state


def test_a_group_needs_a_name(coordinator: Target) -> None:
    member = coordinator.member()
    assert codes(member.joins(group_id="").answer()) == [INVALID_GROUP]


@pytest.mark.parametrize("session", [0.05, 3600.0])
def test_a_session_must_be_of_the_length_that_the_broker_allows(coordinator: Target, session: float) -> None:
    member = coordinator.member(session=session)
    assert codes(member.joins(reason="x").answer()) == [INVALID_SESSION_TIMEOUT]
    assert coordinator.state() == "Dead"


# ---- time ----


def test_a_member_that_is_silent_is_taken_out(coordinator: Target) -> None:
    first, second = coordinator.pair(session=1.0)
    coordinator.until("PreparingRebalance")
    assert first.heartbeat() == REBALANCING
    assert second.heartbeat() == UNKNOWN_MEMBER
    assert [m["member_id"] for m in first.joined()["members"]] == [first.member_id]


def test_a_group_whose_only_member_is_silent_becomes_empty(coordinator: Target) -> None:
    coordinator.stable(coordinator.member(session=0.5))
    coordinator.until("Empty")


def test_heartbeats_keep_a_member(coordinator: Target) -> None:
    first, second = coordinator.member(session=1.0), coordinator.member(session=3.0)
    coordinator.stable(second)
    coordinator.stable(second, first)
    eventually(lambda: second.heartbeat() == REBALANCING, 20, "the silent one to go while this one lives")
    assert {m["member_id"] for m in coordinator.described()["members"]} == {second.member_id}


def test_who_does_not_join_again_in_time_is_taken_out(coordinator: Target) -> None:
    first, second = coordinator.member(rebalance=1.0), coordinator.member(rebalance=0.5)
    coordinator.stable(first)
    answer = second.has_joined(second.joins())
    assert [m["member_id"] for m in answer["members"]] == [second.member_id]
    assert answer["generation_id"] == 2
    assert first.heartbeat() == UNKNOWN_MEMBER


def test_a_member_that_never_syncs_is_removed(modern: Target) -> None:
    first, second = modern.member(rebalance=1.0), modern.member(rebalance=1.0)
    modern.stable(first)
    waiting = second.joins()
    modern.until("PreparingRebalance")
    first.joined()
    second.has_joined(waiting)
    assert codes(first.syncs({}).answer()) == [0]
    assert modern.state() == "Stable"
    modern.until("PreparingRebalance")
    assert (first.heartbeat(), second.heartbeat()) == (REBALANCING, UNKNOWN_MEMBER)


# ---- static members ----


def test_a_static_member_returns_without_a_rebalance(modern: Target) -> None:
    first, second = modern.pair(instance="two")
    again = modern.member(instance="two")
    answer = again.joined()
    assert (answer["generation_id"], answer["leader"]) == (2, first.member_id)
    assert again.member_id.startswith("two-")
    assert again.member_id != second.member_id
    assert again.syncs().answer()["assignment"] == b"1"
    assert modern.state() == "Stable"
    assert first.heartbeat() == 0


def test_who_was_replaced_is_fenced(modern: Target) -> None:
    _, second = modern.pair(instance="two")
    modern.member(instance="two").joined()
    assert second.heartbeat() == FENCED
    assert codes(second.syncs().answer()) == [FENCED]
    assert codes(second.joins().answer()) == [FENCED]
    assert second.commit({("t", 0): 1}) == [FENCED]
    assert second.leave() == FENCED
    assert modern.state() == "Stable"


def test_a_leader_that_returns_does_not_assign(modern: Target) -> None:
    first = modern.alone(instance="one")
    again = modern.member(instance="one")
    answer = again.joined()
    assert answer["generation_id"] == 1
    if modern.versions["JoinGroup"] >= 9:
        assert (answer["leader"], answer["skip_assignment"]) == (again.member_id, True)
        assert [m["group_instance_id"] for m in answer["members"]] == ["one"]
    else:
        assert (answer["leader"], answer["members"]) == (first.member_id, [])
    assert again.syncs().answer()["assignment"] == b"0"


def test_a_static_member_back_before_the_assignment_rebalances(modern: Target) -> None:
    first = modern.member(instance="one")
    first.joined()
    again = modern.member(instance="one")
    answer = again.joined()
    assert (answer["generation_id"], answer["leader"]) == (2, again.member_id)
    assert first.heartbeat() == FENCED


def test_a_static_member_back_during_its_join_takes_over(modern: Target) -> None:
    first, _, waiting = modern.rebalancing(instance="two")
    again = modern.member(instance="two")
    replaced = again.joins()
    assert codes(waiting.answer()) == [FENCED]
    answer = first.joined()
    again.has_joined(replaced)
    assert {m["member_id"] for m in answer["members"]} == {first.member_id, again.member_id}


def test_a_static_member_stays_until_its_session_ends(modern: Target) -> None:
    first, second = modern.member(instance="one", rebalance=0.5, session=20.0), modern.member(rebalance=0.5)
    modern.stable(first)
    answer = second.has_joined(second.joins())
    assert (answer["generation_id"], answer["leader"]) == (2, second.member_id)
    assert {m["member_id"] for m in answer["members"]} == {first.member_id, second.member_id}


def test_an_operator_takes_a_static_member_out_by_its_name(modern: Target) -> None:
    modern.alone(instance="one")
    assert leave(modern, "", "other") == UNKNOWN_MEMBER
    assert leave(modern, "", "one") == 0
    assert modern.state() == "Empty"


def test_a_member_id_with_a_foreign_name_is_unknown(modern: Target) -> None:
    first = modern.alone()
    assert first.heartbeat(group_instance_id="never") == UNKNOWN_MEMBER


# ---- deleting ----


def deleted(target: Target) -> int:
    (result,) = target.ask("DeleteGroups", {"groups_names": [target.group]})["results"]
    return int(result["error_code"])


def test_a_group_with_members_cannot_be_deleted(coordinator: Target) -> None:
    first = coordinator.member()
    first.joined()
    assert deleted(coordinator) == NON_EMPTY
    first.syncs({}).answer()
    assert deleted(coordinator) == NON_EMPTY
    second = coordinator.member()
    second.joins()
    coordinator.until("PreparingRebalance")
    assert deleted(coordinator) == NON_EMPTY


def test_a_deleted_group_is_dead_and_may_begin_anew(coordinator: Target) -> None:
    first = coordinator.alone()
    assert first.commit({("t", 0): 5}) == [0]
    assert first.leave() == 0
    assert deleted(coordinator) == 0
    assert (coordinator.state(), coordinator.committed("t", [0])) == ("Dead", [-1])
    assert deleted(coordinator) == NOT_FOUND
    assert coordinator.member().joined()["generation_id"] == 1


def test_groups_are_listed(coordinator: Target) -> None:
    coordinator.stable(coordinator.member())
    listed = {group["group_id"]: group for group in coordinator.ask("ListGroups", {})["groups"]}
    assert listed[coordinator.group]["protocol_type"] == "consumer"
    if coordinator.versions["ListGroups"] >= 4:
        assert listed[coordinator.group]["group_state"] == "Stable"
        empty = coordinator.ask("ListGroups", {"states_filter": ["Empty"]})["groups"]
        assert coordinator.group not in {group["group_id"] for group in empty}


def test_the_coordinator_is_found(coordinator: Target) -> None:
    answer = coordinator.ask("FindCoordinator", {"key": coordinator.group})
    assert (answer["error_code"], answer["host"], answer["port"]) == (0, *coordinator.address)


# ---- offsets ----


def test_a_member_commits_with_its_generation(coordinator: Target) -> None:
    first = coordinator.alone()
    assert first.commit({("t", 0): 5, ("t", 2): 0}) == [0, 0]
    assert coordinator.committed("t", [0, 1, 2]) == [5, -1, 0]
    assert first.commit({("t", 0): 3}) == [0]
    assert coordinator.committed("t", [0]) == [3]


def test_anybody_commits_while_there_are_no_members(coordinator: Target) -> None:
    assert coordinator.commit({("t", 0): 5}) == [0]
    assert (coordinator.state(), coordinator.committed("t", [0])) == ("Empty", [5])
    first = coordinator.alone()
    assert coordinator.commit({("t", 0): 6}) == [UNKNOWN_MEMBER]
    assert first.leave() == 0
    assert coordinator.commit({("t", 0): 7}) == [0]
    assert coordinator.committed("t", [0]) == [7]


def test_a_commit_between_the_states(coordinator: Target) -> None:
    first = coordinator.member()
    first.joined()
    expected = UNKNOWN_MEMBER if coordinator.modern else REBALANCING
    assert coordinator.commit({("t", 0): 6}) == [expected]
    assert first.commit({("t", 0): 6}, generation_id=7) == [ILLEGAL_GENERATION if coordinator.modern else REBALANCING]


def test_a_commit_of_a_generation_that_nobody_knows(coordinator: Target) -> None:
    assert coordinator.commit({("t", 0): 5}, generation_id=3, member_id="x") == [ILLEGAL_GENERATION]
    assert coordinator.state() == "Dead"
    assert coordinator.commit({("t", 0): 5}) == [0]
    assert coordinator.commit({("t", 0): 6}, generation_id=3, member_id="x") == [UNKNOWN_MEMBER]
    assert coordinator.commit({("t", 0): 7}, member_id="x") == [0]


@pytest.mark.parametrize(("topic", "number"), [("t", 99), ("no-such-topic", 0)])
def test_offsets_of_what_does_not_exist_are_refused(coordinator: Target, topic: str, number: int) -> None:
    lenient = topic == "t" and not coordinator.modern
    assert coordinator.commit({("t", 0): 5, (topic, number): 5}) == [0, 0 if lenient else 3]


def test_metadata_of_a_commit_is_kept_and_must_not_be_too_long(coordinator: Target) -> None:
    assert coordinator.commit({("t", 0): 5}, committed_metadata="m" * 4096) == [0]
    assert coordinator.commit({("t", 0): 6}, committed_metadata="m" * 4097) == [12]
    topics = [{"name": "t", "partition_indexes": [0]}]
    (topic,) = coordinator.ask("OffsetFetch", {"group_id": coordinator.group, "topics": topics})["topics"]
    (partition,) = topic["partitions"]
    assert (partition["committed_offset"], partition["metadata"]) == (5, "m" * 4096)


def test_all_offsets_of_a_group(coordinator: Target) -> None:
    assert coordinator.commit({("t", 2): 5, ("t", 0): 6}) == [0, 0]
    answer = coordinator.ask("OffsetFetch", {"group_id": coordinator.group, "topics": None})
    found = {
        (t["name"], p["partition_index"]): p["committed_offset"] for t in answer["topics"] for p in t["partitions"]
    }
    assert found == {("t", 0): 6, ("t", 2): 5}


def test_another_order_of_the_same_protocols_is_another_offer(coordinator: Target) -> None:
    """It is the order of votes."""
    first = coordinator.member(protocols=(("a", ME), ("b", ME)))
    before = first.joined()
    first.protocols = (("b", ME), ("a", ME))
    assert first.joined()["generation_id"] == before["generation_id"] + 1
