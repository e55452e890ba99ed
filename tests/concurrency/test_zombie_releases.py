"""Late releases and commits, from another session or a second time, touch no node of other members.

Owner nodes of two members of ours look the same. A partition that was never started has no offset node, and therefore
no version that tells the two claims apart.
"""

from __future__ import annotations

import pytest

from tests.concurrency.group import (
    GROUP,
    TOPIC,
    SteppedMember,
    new_server,
    node_at,
    owners,
    settle,
    settled,
    settled_group,
)
from tests.concurrency.staging import after, before, unavailable
from zkconsumer.errors import OffsetCommitError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import NONE_HELD
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths

P2, P3 = TopicPartition(TOPIC, 2), TopicPartition(TOPIC, 3)


@pytest.fixture
def server() -> FakeZooKeeper:
    """Of four partitions the last one was never started."""
    made = new_server(4, offset=10)
    made.remove(paths.offset(GROUP, P3))
    return made


def node_of(server: FakeZooKeeper, tp: TopicPartition) -> int:
    return node_at(server, paths.owner(GROUP, tp)).czxid


def test_a_release_in_a_later_session_leaves_claims_of_others(server: FakeZooKeeper) -> None:
    first = settled(server, "a")
    second = SteppedMember(server, "b")
    claimed: list[int] = []

    def stopped_meanwhile() -> None:
        first.session.expire_unnoticed()
        settle([second])
        claimed.append(node_of(server, P3))
        first.session.suspend()
        first.session.resume()

    after(first.delivery, "revoke", stopped_meanwhile)
    second.step(2)
    first.step(2)
    assert claimed == [node_of(server, P3)], "its owner has not lost it"
    settle([first, second])
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}


def test_an_unanswered_release_is_not_repeated_on_others_claims(server: FakeZooKeeper) -> None:
    first = settled(server, "a")
    first.finish(P2, 5)
    second = SteppedMember(server, "b")
    second.step(4)
    claimed: list[int] = []

    def claimed_before_the_answer() -> None:
        settle([second])
        claimed.append(node_of(server, P3))
        unavailable()

    after(first.session, "transact", claimed_before_the_answer)
    first.step(2)
    assert claimed == [node_of(server, P3)], "its owner has not lost it"
    settle([first, second])
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}


def test_a_claim_that_came_into_another_session_is_given_back(server: FakeZooKeeper) -> None:
    """The session ended within a round, between two requests. So the claim succeeded in the next session, before the
    group's thread heard of the end of the first one. Nobody knew of these owner nodes any more.
    """
    first = SteppedMember(server, "a")
    before(first.session, "transact", first.session.expire)
    first.step(2)
    assert len(owners(server)) == 4
    second = SteppedMember(server, "b")
    second.step()
    settle([first, second])
    assert owners(server) == {0: "g_a-0", 1: "g_a-0", 2: "g_b-0", 3: "g_b-0"}
    assert set(second.owned) == {P2, P3}


def test_a_last_commit_after_its_deadline_releases_nothing(server: FakeZooKeeper) -> None:
    """Its partitions may have been claimed again by then, by ourselves too."""
    member = settled(server, "a")
    member.finish(P2, 5)
    held = list(member.owned.values())
    known = member.committer.commit_last(held, commit=True, held=NONE_HELD, deadline=Deadline(0.0), release=True)
    assert known.keys() == set(member.owned)
    assert None not in known.values()
    assert len(owners(server)) == 4


def test_a_commit_of_a_former_sessions_claim_is_refused() -> None:
    """An operator deleted offset nodes, so that their versions began anew. The versions that a member knew from its
    former session then fitted the node of its successor, and ZooKeeper took its commit.
    """
    server = new_server(1)
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
    for _ in range(3):  # the node's version at the claim of the late member
        server.put(paths.offset(GROUP, tp), b"7")
    node = server.node(paths.offset(GROUP, tp))
    with pytest.raises(OffsetCommitError, match="owner node is gone"):
        late.commit()
    assert server.node(paths.offset(GROUP, tp)) == node
