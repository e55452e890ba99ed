"""Lost answers: the commit was done, so the offset in ZooKeeper is ours and no conflict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.concurrency.group import GROUP, TOPIC, SteppedMember, make_topic, offsets, settle
from zkconsumer.deadline import Deadline
from zkconsumer.errors import OffsetCommitError, RegistryUnavailableError
from zkconsumer.member.zookeeper.state_machine import Trigger
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.session import SessionChanged

P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture
def server() -> FakeZooKeeper:
    made = FakeZooKeeper()
    make_topic(made, 2)
    for tp in (P0, P1):
        made.put(paths.offset(GROUP, tp), b"10")
    return made


@pytest.fixture
def member(server: FakeZooKeeper) -> SteppedMember:
    made = SteppedMember(server, "a")
    settle([made])
    return made


def lose_the_answer(member: SteppedMember, *, done: bool = True) -> None:
    """The connection breaks during the next transaction, after or before the server has done it."""
    transact = member.session.transact

    def lossy(build: Callable[[Any], None], deadline: Deadline) -> Any:
        member.session.transact = transact  # type: ignore[method-assign]
        if done:
            transact(build, deadline)
        raise RegistryUnavailableError("the connection is gone")

    member.session.transact = lossy  # type: ignore[method-assign]


def commit_in_vain(member: SteppedMember) -> None:
    with pytest.raises(OffsetCommitError, match="the connection is gone"):
        member.commit()
    member.session.suspend()
    member.session.resume()
    settle([member])


@pytest.mark.parametrize("done", [True, False])
def test_a_blip_during_a_commit_repeats_nothing(server: FakeZooKeeper, member: SteppedMember, done: bool) -> None:
    flowing = member.owned[P0]
    member.finish(P0, 5)
    lose_the_answer(member, done=done)
    commit_in_vain(member)
    assert offsets(server)[0] == (15 if done else 10)
    member.finish(P0, 20)
    member.commit()
    settle([member])
    assert member.owned[P0] is flowing
    assert flowing.consumed == 35
    assert offsets(server)[0] == 35


def test_two_answers_lost_one_after_the_other(server: FakeZooKeeper, member: SteppedMember) -> None:
    flowing = member.owned[P0]
    for _ in range(2):
        member.finish(P0, 5)
        lose_the_answer(member, done=True)
        commit_in_vain(member)
    assert offsets(server)[0] == 15, "the second was refused, for its version is the one before the first"
    member.finish(P0, 1)
    member.commit()
    settle([member])
    assert member.owned[P0] is flowing
    assert offsets(server)[0] == 21


@pytest.mark.parametrize(("theirs", "times"), [(b"3", 1), (b"15", 2)])
def test_an_offset_of_somebody_else_is_a_conflict_all_the_same(
    server: FakeZooKeeper, member: SteppedMember, theirs: bytes, times: int
) -> None:
    member.finish(P0, 5)
    lose_the_answer(member, done=times == 1)
    commit_in_vain(member)
    for _ in range(times):
        server.put(paths.offset(GROUP, P0), theirs)
    member.finish(P0, 20)
    with pytest.raises(OffsetCommitError, match="somebody else wrote the offset"):
        member.commit()
    settle([member])
    assert member.owned[P0].consumed == int(theirs)
    assert offsets(server)[0] == int(theirs)


def test_a_commit_of_a_former_sessions_claim_is_refused(
    server: FakeZooKeeper,
) -> None:
    """An operator deleted offset nodes, so that their versions began anew. The versions that a member knew from its
    former session then fitted the node of its successor, and ZooKeeper took its commit.
    """
    make_topic(server, 1)
    tp = TopicPartition(TOPIC, 0)
    server.put(paths.offset(GROUP, tp), b"5")
    late, heir = SteppedMember(server, "a"), SteppedMember(server, "b")
    settle([late, heir])
    assert set(late.owned) == {tp}
    late.finish(tp, 100)
    late.session.freeze()
    settle([heir])
    assert set(heir.owned) == {tp}
    late.session.suspend()
    late.session.resume()  # with a new session; its group's thread has not heard of it yet
    server.remove(paths.offset(GROUP, tp))
    for _ in range(3):  # the version that it had when the late one claimed it
        server.put(paths.offset(GROUP, tp), b"7")
    node = server.node(paths.offset(GROUP, tp))
    with pytest.raises(OffsetCommitError, match="owner node is gone"):
        late.commit()
    assert server.node(paths.offset(GROUP, tp)) == node


def test_a_conflict_settled_in_a_later_session_claims_nothing(server: FakeZooKeeper) -> None:
    """With ``offset.conflict=overwrite`` a member read its successor's offset and wrote its own over it: the command to
    overwrite a node counted as a claim.
    """
    make_topic(server, 1)
    tp = TopicPartition(TOPIC, 0)
    late, heir = SteppedMember(server, "a", conflict="overwrite"), SteppedMember(server, "b")
    settle([late, heir])
    late.finish(tp, 5)
    server.put(paths.offset(GROUP, tp), b"3")
    with pytest.raises(OffsetCommitError, match="somebody else wrote the offset"):
        late.commit()
    late.session.freeze()
    settle([heir])
    heir.finish(tp, 50)
    heir.commit()
    late.session.suspend()
    late.session.resume()  # with a new session, of which its group's thread hears after the conflict
    changed = late.coordinator.monitor.changed
    refused: list[str] = []

    def commit_before(event: SessionChanged) -> tuple[Trigger, str] | None:
        if not refused:
            with pytest.raises(OffsetCommitError, match="owner node is gone") as error:
                late.commit()
            refused.append(str(error.value))
        return changed(event)

    late.coordinator.monitor.changed = commit_before  # type: ignore[method-assign]
    late.step()
    assert refused
    assert offsets(server)[0] == 53
