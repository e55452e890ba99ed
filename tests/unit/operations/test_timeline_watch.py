"""Following a group by watches, on a ZooKeeper in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.group_snapshots import group_snapshot
from tests.values import present
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.operations.group_timeline import EventKind, TimelineEvent
from zkconsumer.operations.timeline_watch import GIVEN_UP, SETTLED, GroupWatch, OpenRebalance
from zkconsumer.testing import FakeSession, FakeZooKeeper
from zkconsumer.zookeeper.node_codecs import encode_owner, encode_registration
from zkconsumer.zookeeper.session import SessionChanged

MEMBER = encode_registration(Registration(STATIC, {"t": 1}))


class Watched:
    """A followed group ``g``; ``next`` returns the words of the events since the last call."""

    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self.sessions: list[FakeSession] = []
        self.now = 1_000.0
        self.watch = GroupWatch(self._session, "g", timeout=5.0, clock=lambda: self.now)
        self._changes: Iterator[tuple[TimelineEvent, ...]] | None = None

    def _session(self, on_change: Callable[[SessionChanged], None]) -> FakeSession:
        self.sessions.append(self.server.session(on_change))
        return self.sessions[-1]

    def events(self) -> tuple[TimelineEvent, ...]:
        if self._changes is None:
            self._changes = self.watch.changes()
        self.now += 10
        return next(self._changes)

    def next(self) -> list[str]:
        return [
            " ".join(word for word in (one.kind.value, one.member, str(one.partition or "")) if word)
            for one in self.events()
        ]

    def join(self, name: str, session: int) -> None:
        self.server.put(f"/consumers/g/ids/{name}", MEMBER, ephemeral_owner=session)

    def claim(self, number: int, name: str) -> None:
        self.server.put(f"/consumers/g/owners/t/{number}", encode_owner(ThreadId(f"{name}-0")), ephemeral_owner=7)

    def release(self, number: int) -> None:
        self.server.remove(f"/consumers/g/owners/t/{number}")


@pytest.fixture
def group() -> Iterator[Watched]:
    watched = Watched()
    with watched.watch:
        yield watched


def test_a_followed_group_tells_each_change_once(group: Watched) -> None:
    assert group.next() == []
    group.join("g_a", 11)
    group.claim(0, "g_a")
    group.claim(1, "g_a")
    assert group.next() == ["group created", "joined g_a", "claimed g_a-0 t-0", "claimed g_a-0 t-1"]
    assert group.next() == []
    group.join("g_b", 12)
    group.release(1)
    group.claim(1, "g_b")
    assert group.next() == ["joined g_b", "released g_a-0 t-1", "claimed g_b-0 t-1"]
    group.release(1)
    assert group.next() == ["released g_b-0 t-1"]
    group.server.remove("/consumers/g/ids/g_b")
    (left,) = group.events()
    assert (left.kind, left.member) == (EventKind.LEFT, "g_b")
    ids = present(group.server.node("/consumers/g/ids"))
    assert left.zxid == ids.pzxid
    fired, read = group.now - 10, group.now
    assert (left.seen_after, left.seen) == (int(fired * 1000), int(read * 1000))


def test_a_new_partition_and_a_deleted_topic_are_told(group: Watched) -> None:
    group.join("g_a", 11)
    group.server.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0]}}')
    group.next()
    group.server.put("/brokers/topics/t", b'{"version":1,"partitions":{"0":[0],"1":[0]}}')
    (changed,) = group.events()
    assert (changed.kind, changed.detail) == (EventKind.PARTITIONS_CHANGED, "t, 1 to 2 partitions")
    group.server.remove("/brokers/topics/t")
    assert group.next() == ["topic deleted"]


def test_a_lost_connection_is_an_event_and_nothing_is_missed(group: Watched) -> None:
    group.join("g_a", 11)
    group.next()
    (session,) = group.sessions
    session.suspend()
    assert group.next() == ["connection lost"]
    group.join("g_b", 12)
    assert group.next() == []
    session.expire_unnoticed()
    session.resume()
    assert group.next() == ["connection back", "joined g_b"]
    group.claim(0, "g_b")
    assert group.next() == ["claimed g_b-0 t-0"]


@pytest.mark.parametrize("data", [b"\xff\x00", b"", b"[" * 300, b"x" * 200_000])
def test_hostile_nodes_do_not_end_the_watch(group: Watched, data: bytes) -> None:
    group.server.put("/consumers/g/ids/odd", data, ephemeral_owner=11)
    group.server.put("/consumers/g/owners/t/0", data, ephemeral_owner=11)
    group.server.put("/consumers/g/owners/t/zero", data)
    group.server.put("/brokers/topics/t", data)
    assert group.next()[:2] == ["group created", "joined odd"]
    group.claim(1, "g_a")
    assert group.next() == ["claimed g_a-0 t-1"]


def test_a_rebalance_is_over_when_everything_is_claimed_again() -> None:
    def event(kind: EventKind, number: int = 0) -> TimelineEvent:
        return TimelineEvent(kind, 5, 1_000, "g_a-0", TopicPartition("t", number))

    collected, half = OpenRebalance(), group_snapshot(owners={"t:0": "g_a-0"})
    whole = group_snapshot(owners={"t:0": "g_a-0", "t:1": "g_a-0"})
    begun = [event(EventKind.JOINED), event(EventKind.RELEASED), event(EventKind.RELEASED, 1), event(EventKind.CLAIMED)]
    assert collected.add(begun, 0.0, half) == ()
    assert collected.add([], SETTLED + 1, half) == (), "t-1 has no owner yet"
    assert collected.add([event(EventKind.CLAIMED, 1)], SETTLED + 2, whole) == ()
    (over,) = collected.add([], 2 * SETTLED + 3, whole)
    assert (len(over.claims), len(over.causes)) == (2, 1)
    assert collected.add([], 100.0, whole) == ()
    assert collected.add([event(EventKind.LEFT), event(EventKind.RELEASED)], 200.0, half) == ()
    (abandoned,) = collected.add([], 200.0 + GIVEN_UP, half)
    assert abandoned.claims == ()
    assert collected.add([*begun, event(EventKind.LEFT)], 300.0, whole)[0].causes[0].kind is EventKind.JOINED


def test_releases_after_claims_do_not_end_a_rebalance() -> None:
    """A member whose session was away claims all partitions again, and one look sees half of the claims."""
    collected, whole = OpenRebalance(), group_snapshot(owners={"t:0": "g_a-0", "t:1": "g_a-0"})
    steps = [(EventKind.RELEASED, 0), (EventKind.CLAIMED, 0), (EventKind.RELEASED, 1), (EventKind.CLAIMED, 1)]
    found = [TimelineEvent(kind, zxid, 1_000, "g_a-0", TopicPartition("t", n)) for zxid, (kind, n) in enumerate(steps)]
    assert collected.add(found[:3], 0.0, whole) == ()
    assert collected.add(found[3:], 1.0, whole) == ()
    (over,) = collected.add([], 1.0 + SETTLED, whole)
    assert (len(over.claims), len(over.releases)) == (2, 2)
