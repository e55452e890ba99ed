"""Lost answers: the commit was done, so the offset in ZooKeeper is ours and no conflict."""

from __future__ import annotations

import pytest

from tests.concurrency.group import (
    GROUP,
    TOPIC,
    SteppedMember,
    make_topic,
    new_server,
    offsets,
    settle,
    settled,
    settled_group,
)
from tests.concurrency.staging import after, before, unavailable
from zkconsumer.errors import OffsetCommitError
from zkconsumer.model import TopicPartition
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths

P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)


@pytest.fixture
def server() -> FakeZooKeeper:
    return new_server(2, offset=10)


@pytest.fixture
def member(server: FakeZooKeeper) -> SteppedMember:
    return settled(server, "a")


@pytest.mark.parametrize(("theirs", "times"), [(b"3", 1), (b"15", 2)])
def test_an_offset_of_somebody_else_is_a_conflict_all_the_same(
    server: FakeZooKeeper, member: SteppedMember, theirs: bytes, times: int
) -> None:
    member.finish(P0, 5)
    (after if times == 1 else before)(member.session, "transact", unavailable)
    with pytest.raises(OffsetCommitError, match="staged"):
        member.commit()
    member.session.suspend()
    member.session.resume()
    settle([member])
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
    late, heir = settled_group(server, "ab")
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
    refused: list[str] = []

    def commit_in_vain() -> None:
        with pytest.raises(OffsetCommitError, match="owner node is gone") as error:
            late.commit()
        refused.append(str(error.value))

    before(late.coordinator.monitor, "changed", commit_in_vain)
    late.step()
    assert refused
    assert offsets(server)[0] == 53
