"""The promises of a ZooKeeper session on which the group relies.

The suite runs on the fake, on the fake that is served over ZooKeeper's protocol, and on a real server.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from queue import SimpleQueue
from typing import Any

import pytest
from kazoo.security import ACL, Id, Permissions

from tests.internals import kazoo_client_of
from tests.timing import eventually, scaled
from zkconsumer.errors import RegistryError
from zkconsumer.model import ConsumerId, TopicPartition, thread_id
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper, FakeZooKeeperServer
from zkconsumer.testing.fake_zookeeper import FakeSession
from zkconsumer.zookeeper import ownership_transactions, paths
from zkconsumer.zookeeper.broker_directory import BrokerDirectory
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_requests import NodeFailure, Transaction
from zkconsumer.zookeeper.node_values import FORBIDDEN, Look, NodeEvent, NodeEventKind
from zkconsumer.zookeeper.ownership_transactions import ABSENT, Claim, Commit, KnownOffset, Outcome
from zkconsumer.zookeeper.session import Session

OpenSession = Callable[[], Session]
_numbers = itertools.count(1)


@pytest.fixture
def fake() -> FakeZooKeeper:
    return FakeZooKeeper()


@pytest.fixture(params=["fake", "served", pytest.param("real", marks=[pytest.mark.cluster, pytest.mark.java])])
def open_session(request: pytest.FixtureRequest, fake: FakeZooKeeper) -> Iterator[OpenSession]:
    sessions: list[Session] = []

    def make() -> Session:
        if request.param == "fake":
            session: Session = fake.session()
        else:
            address = served.connect if served is not None else request.getfixturevalue("zookeeper_server")
            session = Session(address, timeout=4.0, on_change=lambda _: None)
        session.open(Deadline(scaled(10)))
        sessions.append(session)
        return session

    with FakeZooKeeperServer() if request.param == "served" else nullcontext() as served:
        yield make
        for session in sessions:
            session.close(Deadline(scaled(5)))


@pytest.fixture
def session(open_session: OpenSession) -> Session:
    return open_session()


@pytest.fixture
def forbid(open_session: OpenSession, fake: FakeZooKeeper, deadline: Deadline) -> Callable[[str], None]:
    """Take everybody's right to read a node."""

    def forbid(path: str) -> None:
        session = open_session()
        if isinstance(session, FakeSession):
            fake.refuse(path, "read")
        else:
            rights = [
                ACL(Permissions.ALL, Id("digest", "nobody:nothing")),
                ACL(Permissions.WRITE, Id("world", "anyone")),
            ]
            kazoo_client_of(session).set_acls_async(path, rights).get(timeout=deadline.remaining())

    return forbid


@pytest.fixture
def deadline() -> Deadline:
    return Deadline(scaled(20))


@pytest.fixture
def root(session: Session, deadline: Deadline) -> str:
    path = f"/contract-{next(_numbers)}"
    session.ensure([path], deadline)
    return path


def test_many_nodes_are_read_in_order_with_missing_ones(session: Session, root: str, deadline: Deadline) -> None:
    session.create(f"{root}/a", b"1", deadline)
    session.create(f"{root}/c", b"", deadline, ephemeral=True)
    a, b, c = session.read([f"{root}/a", f"{root}/b", f"{root}/c"], deadline)
    assert a is not None
    assert (a.data, a.version, a.ephemeral_owner) == (b"1", 0, 0)
    assert b is None
    assert c is not None
    assert c.ephemeral_owner == session.session_id != 0


def test_a_forbidden_node_does_not_hide_the_others(
    session: Session, root: str, deadline: Deadline, forbid: Callable[[str], None]
) -> None:
    paths = [f"{root}/{name}" for name in "abc"]
    for path in paths:
        session.create(path, b"1", deadline, ephemeral=True)
    forbid(paths[1])
    a, b, c = session.read(paths, deadline, lambda _: None)
    assert a is not None
    assert b is not None
    assert c is not None
    assert [node is FORBIDDEN for node in (a, b, c)] == [False, True, False]
    assert [node is FORBIDDEN for node in session.stat(paths, deadline)] == [False, True, False]
    assert not session.write(paths[1], b"2", deadline, b.version), "its version is none that a write would go by"
    assert session.write(paths[1], b"2", deadline)


@pytest.mark.cluster
@pytest.mark.java
def test_paths_and_watches_are_those_below_the_chroot(zookeeper_server: str, deadline: Deadline) -> None:
    above = Session(zookeeper_server, timeout=4.0, on_change=lambda _: None)
    above.open(deadline)
    root = f"/contract-{next(_numbers)}/chroot"
    above.ensure([f"{root}/a/b"], deadline)
    below = Session(zookeeper_server + root, timeout=4.0, on_change=lambda _: None)
    below.open(deadline)
    try:
        told: SimpleQueue[str] = SimpleQueue()
        cache = NodeCache(below, told.put)
        assert cache.children("/a", deadline) == ("b",)
        cache.nodes(["/a/b", "/a/c"], deadline)
        above.write(f"{root}/a/b", b"changed", deadline)
        above.create(f"{root}/a/c", b"made", deadline)
        assert sorted(told.get(timeout=scaled(10)) for _ in range(3)) == ["/a", "/a/b", "/a/c"]
        contents = [node and node.data for node in cache.nodes(["/a/b", "/a/c"], deadline).values()]
        assert contents == [b"changed", b"made"]
        assert sorted(cache.children("/a", deadline) or ()) == ["b", "c"]
    finally:
        below.close(Deadline(scaled(5)))
        above.close(Deadline(scaled(5)))


def test_creating_twice_says_so(session: Session, root: str, deadline: Deadline) -> None:
    assert session.create(f"{root}/a", b"1", deadline)
    assert not session.create(f"{root}/a", b"2", deadline)
    with pytest.raises(RegistryError):
        session.create(f"{root}/no/parent", b"", deadline)


def test_ensure_makes_what_is_missing_and_touches_nothing_else(session: Session, root: str, deadline: Deadline) -> None:
    session.create(f"{root}/a", b"kept", deadline)
    session.ensure([f"{root}/a/b/c", f"{root}/d"], deadline)
    found = session.read([f"{root}/a", f"{root}/a/b/c", f"{root}/d"], deadline)
    assert [node.data if node else None for node in found] == [b"kept", b"", b""]


def test_versions_guard_writes_and_deletes(session: Session, root: str, deadline: Deadline) -> None:
    path = f"{root}/a"
    session.create(path, b"0", deadline)
    assert not session.write(path, b"1", deadline, version=7)
    assert session.write(path, b"1", deadline, version=0)
    assert not session.delete(path, deadline, version=0)
    assert session.delete(path, deadline, version=1)
    assert not session.delete(path, deadline)
    assert not session.write(path, b"1", deadline)


def test_children_of_missing_and_of_empty_nodes_differ(session: Session, root: str, deadline: Deadline) -> None:
    assert session.children(f"{root}/none", deadline) is None
    assert session.children(root, deadline) == ()
    session.ensure([f"{root}/a/b", f"{root}/c"], deadline)
    assert sorted(session.children(root, deadline) or ()) == ["a", "c"]


def test_a_transaction_is_done_whole_or_not_at_all(session: Session, root: str, deadline: Deadline) -> None:
    session.create(f"{root}/a", b"0", deadline)

    def good(transaction: Transaction) -> None:
        transaction.create(f"{root}/b", b"", ephemeral=True)
        transaction.write(f"{root}/b", b"x", 0)
        transaction.check(f"{root}/a", 0)

    assert session.transact(good, deadline) == [None, None, None]

    def bad(transaction: Transaction) -> None:
        transaction.create(f"{root}/c", b"")
        transaction.write(f"{root}/a", b"1", 5)
        transaction.delete(f"{root}/b", 1)

    assert session.transact(bad, deadline) == [None, NodeFailure.BAD_VERSION, None]
    a, b, c = session.read([f"{root}/a", f"{root}/b", f"{root}/c"], deadline)
    assert c is None
    assert a is not None
    assert b is not None
    assert (a.data, b.data, b.version) == (b"0", b"x", 1)
    assert session.transact(lambda t: t.check(f"{root}/none", 0), deadline) == [NodeFailure.NO_NODE]
    assert session.transact(lambda t: t.create(f"{root}/a", b""), deadline) == [NodeFailure.NODE_EXISTS]


def test_watches_fire_once_for_each_kind_of_change(
    session: Session, open_session: OpenSession, root: str, deadline: Deadline
) -> None:
    other = open_session()
    events: SimpleQueue[NodeEvent] = SimpleQueue()
    session.read([f"{root}/a"], deadline, events.put)
    session.children(root, deadline, events.put)
    other.create(f"{root}/a", b"0", deadline)
    got = {events.get(timeout=scaled(5)) for _ in range(2)}
    assert got == {NodeEvent(NodeEventKind.CREATED, f"{root}/a"), NodeEvent(NodeEventKind.CHILDREN, root)}
    session.read([f"{root}/a"], deadline, events.put)
    session.read([f"{root}/a"], deadline, events.put)
    other.write(f"{root}/a", b"1", deadline)
    assert events.get(timeout=scaled(5)) == NodeEvent(NodeEventKind.CHANGED, f"{root}/a")
    session.read([f"{root}/a"], deadline, events.put)
    other.delete(f"{root}/a", deadline)
    assert events.get(timeout=scaled(5)) == NodeEvent(NodeEventKind.DELETED, f"{root}/a")
    assert events.empty()


def test_one_look_tells_of_everything_and_watches_what_it_should(
    session: Session, open_session: OpenSession, root: str, deadline: Deadline
) -> None:
    other = open_session()
    events: SimpleQueue[NodeEvent] = SimpleQueue()
    names = ("node", "to-come", "standing", "absent", "plain", "stat", "parent", "no-parent", "rare", "never")
    node, to_come, standing, absent, plain, stat, parent, no_parent, rare, never = (f"{root}/{name}" for name in names)
    for path in (node, standing, plain, stat, parent, rare):
        session.create(path, path.encode(), deadline)
    for path in (parent, rare):
        session.create(f"{path}/x", b"", deadline)
    wanted = Look([node, to_come], [standing, absent], [plain], [stat], [parent, no_parent], [rare, never])
    seen = session.look(wanted, deadline, events.put)
    contents = {path: None if found is None else found.data for path, found in seen.nodes.items()}
    assert contents == {
        node: node.encode(),
        to_come: None,
        standing: standing.encode(),
        absent: None,
        plain: plain.encode(),
        stat: b"",
    }
    assert seen.children == {parent: ("x",), no_parent: None, rare: ("x",), never: None}
    for path in (absent, to_come, no_parent, never):
        other.create(path, b"", deadline)
    for path in (node, standing, plain, stat):
        other.write(path, b"", deadline)
    for path in (parent, rare):
        other.create(f"{path}/y", b"", deadline)
    told = {(event := events.get(timeout=scaled(5))).path: event.kind for _ in range(7)}
    assert told == {
        to_come: NodeEventKind.CREATED,
        no_parent: NodeEventKind.CREATED,
        never: NodeEventKind.CREATED,
        node: NodeEventKind.CHANGED,
        standing: NodeEventKind.CHANGED,
        parent: NodeEventKind.CHILDREN,
        rare: NodeEventKind.CHILDREN,
    }
    assert events.empty()


def test_a_node_known_as_deleted_is_not_read_if_believed(
    session: Session, open_session: OpenSession, root: str, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_session()
    changed: SimpleQueue[str] = SimpleQueue()
    cache = NodeCache(session, changed.put)
    path = f"{root}/a"
    other.create(path, b"", deadline)
    assert cache.look(Look(existing=[path]), deadline).nodes[path] is not None
    other.delete(path, deadline)
    assert changed.get(timeout=scaled(5)) == path
    other.create(path, b"again", deadline)
    with monkeypatch.context() as patch:
        patch.setattr(session, "look", None)
        assert cache.look(Look(existing=[path]), deadline, believing=True).nodes[path] is None
        assert not cache.stands(path)
    again = cache.look(Look(existing=[path]), deadline).nodes[path]
    assert again is not None
    assert again.data == b"again"


BROKER = b'{"host":"h","port":9092,"version":1,"jmx_port":-1,"timestamp":"1"}'


def test_brokers_are_read_again_only_where_they_may_be_others(fake: FakeZooKeeper, deadline: Deadline) -> None:
    session = fake.session()
    session.open(deadline)
    directory = BrokerDirectory(session)
    fake.put(paths.broker(1), BROKER)

    def seen() -> tuple[list[str], int]:
        fake.operations.clear()
        found = [f"{broker.broker_id} at {broker.endpoints[0].host}" for broker in directory.brokers(deadline)]
        return found, sum(fake.operations.values())

    assert seen() == (["1 at h"], 2)
    assert seen() == (["1 at h"], 0)
    fake.put(paths.broker(2), BROKER)
    assert seen() == (["1 at h", "2 at h"], 3)
    fake.remove(paths.broker(1))
    fake.put(paths.broker(1), BROKER.replace(b'"h"', b'"elsewhere"'))
    assert seen() == (["1 at elsewhere", "2 at h"], 3)
    session.suspend()  # which takes the watches with it
    fake.remove(paths.broker(2))
    session.resume()
    assert seen() == (["1 at elsewhere"], 2)


def test_brokers_that_change_while_they_are_read_are_read_again(
    fake: FakeZooKeeper, deadline: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = fake.session()
    session.open(deadline)
    directory, read = BrokerDirectory(session), session.read
    fake.put(paths.broker(1), BROKER)

    def slow(*arguments: Any, **options: Any) -> Any:
        found = read(*arguments, **options)
        fake.put(paths.broker(2), BROKER)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(session, "read", slow)
        assert len(directory.brokers(deadline)) == 1
    assert len(directory.brokers(deadline)) == 2


def test_children_of_a_node_to_come_are_watched(
    session: Session, open_session: OpenSession, root: str, deadline: Deadline
) -> None:
    other = open_session()
    changed: SimpleQueue[str] = SimpleQueue()
    cache = NodeCache(session, changed.put)
    assert cache.children(f"{root}/later", deadline) is None
    other.ensure([f"{root}/later"], deadline)
    assert changed.get(timeout=scaled(5)) == f"{root}/later"
    assert cache.children(f"{root}/later", deadline) == ()
    other.create(f"{root}/later/x", b"", deadline)
    assert changed.get(timeout=scaled(5)) == f"{root}/later"
    assert cache.children(f"{root}/later", deadline) == ("x",)


def test_ephemeral_nodes_vanish_with_their_session(
    session: Session, open_session: OpenSession, root: str, deadline: Deadline
) -> None:
    other = open_session()
    other.create(f"{root}/a", b"", deadline, ephemeral=True)
    gone: SimpleQueue[NodeEvent] = SimpleQueue()
    session.read([f"{root}/a"], deadline, gone.put)
    other.close(Deadline(scaled(5)))
    assert gone.get(timeout=scaled(5)).kind is NodeEventKind.DELETED


def test_a_closed_session_refuses_requests(session: Session, root: str, deadline: Deadline) -> None:
    session.close(Deadline(scaled(5)))
    with pytest.raises(RegistryError):
        session.read([root], deadline)
    assert not session.lease.valid


def test_the_lease_follows_answered_requests(session: Session) -> None:
    assert not session.lease.valid, "not before whoever owns the group's state says so"
    session.lease.resume(session.lease.epoch)
    eventually(lambda: session.lease.valid, 5, "the lease of a connected session")
    before = session.lease.ends_at
    session.touch()
    eventually(lambda: session.lease.ends_at > before, 5, "the lease moves on with an answer")
    epoch = session.lease.epoch
    session.lease.suspend()
    assert not session.lease.valid
    session.lease.resume(epoch)
    assert not session.lease.valid, "what was dealt with is a former connection"


# ---- fenced claims, commits and releases ----

TP = TopicPartition("t", 0)


@pytest.fixture
def group(session: Session, deadline: Deadline) -> str:
    name = f"g{next(_numbers)}"
    session.ensure([paths.owner_topic(name, "t"), paths.offset_topic(name, "t")], deadline)
    return name


def test_a_claim_creates_the_owner_and_moves_the_version(session: Session, group: str, deadline: Deadline) -> None:
    session.create(paths.offset(group, TP), b"42", deadline)
    thread = thread_id(ConsumerId(f"{group}_c"), 0)
    assert ownership_transactions.claim(session, group, [Claim(TP, thread, KnownOffset(42, 0))], deadline) == {
        TP: Outcome.DONE
    }
    owner, offset = session.read([paths.owner(group, TP), paths.offset(group, TP)], deadline)
    assert owner is not None
    assert offset is not None
    assert (owner.data, owner.version, owner.ephemeral_owner) == (thread.encode(), 1, session.session_id)
    assert (offset.data, offset.version) == (b"42", 1)


def test_a_claim_takes_the_offender_out_and_does_the_rest(session: Session, group: str, deadline: Deadline) -> None:
    tps = [TopicPartition("t", n) for n in range(4)]
    session.create(paths.owner(group, tps[1]), b"somebody", deadline)
    session.create(paths.offset(group, tps[2]), b"7", deadline)
    thread = thread_id(ConsumerId(f"{group}_c"), 0)
    stale = {tps[2]: KnownOffset(7, 5)}
    outcomes = ownership_transactions.claim(
        session, group, [Claim(tp, thread, stale.get(tp, ABSENT)) for tp in tps], deadline
    )
    assert outcomes == {
        tps[0]: Outcome.DONE,
        tps[1]: Outcome.OWNED,
        tps[2]: Outcome.OFFSET_MOVED,
        tps[3]: Outcome.DONE,
    }


@pytest.fixture
def sizes(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many operations the session's transactions have from now on."""
    found: list[int] = []
    transact = session.transact

    def counted(build: Callable[[Transaction], None], deadline: Deadline) -> list[NodeFailure | None]:
        results = transact(build, deadline)
        found.append(len(results))
        return results

    monkeypatch.setattr(session, "transact", counted)
    return found


def test_a_claim_refused_for_many_owners_takes_few_requests(
    session: Session, group: str, deadline: Deadline, sizes: list[int]
) -> None:
    tps = [TopicPartition("t", n) for n in range(90)]
    for tp in tps[::3]:
        session.create(paths.owner(group, tp), b"somebody", deadline)
    for tp in tps[1::3]:
        session.create(paths.offset(group, tp), b"7", deadline)
    thread = thread_id(ConsumerId(f"{group}_c"), 0)
    outcomes = ownership_transactions.claim(session, group, [Claim(tp, thread, ABSENT) for tp in tps], deadline)
    assert {tp for tp, outcome in outcomes.items() if outcome is Outcome.OWNED} == set(tps[::3])
    assert {tp for tp, outcome in outcomes.items() if outcome is Outcome.DONE} == set(tps) - set(tps[::3])
    assert len(sizes) == 3

    known = {tp: KnownOffset(7, 3) for tp in tps[1::3]}
    commits = [Commit(tp, 8, known.get(tp, ABSENT)) for tp in tps if tp not in tps[::3]]
    sizes.clear()
    outcomes = ownership_transactions.commit(session, group, commits, deadline)
    assert {tp for tp, outcome in outcomes.items() if outcome is Outcome.OFFSET_MOVED} == set(known)
    assert {tp for tp, outcome in outcomes.items() if outcome is Outcome.DONE} == set(tps[2::3])
    assert len(sizes) == 3


def test_claims_refused_for_unknown_reasons_cost_a_halving(
    session: Session, group: str, deadline: Deadline, sizes: list[int]
) -> None:
    """Here their parent may have no children; a right that is missing shows as little."""
    session.ensure([paths.offset_topic(group, "u")], deadline)
    session.create(paths.owner_topic(group, "u"), b"", deadline, ephemeral=True)
    claims = [TopicPartition("ut"[n % 4 == 3], n) for n in range(64)]
    thread = thread_id(ConsumerId(f"{group}_c"), 0)
    outcomes = ownership_transactions.claim(session, group, [Claim(tp, thread, ABSENT) for tp in claims], deadline)
    assert outcomes == {tp: Outcome.REFUSED if tp.topic == "u" else Outcome.DONE for tp in claims}
    assert sum(sizes) < 2 * len(claims) * 7, "each is sent about log n times"


def test_a_claim_without_parents_says_so(session: Session, group: str, deadline: Deadline) -> None:
    tp = TopicPartition("unknown", 0)
    thread = thread_id(ConsumerId(f"{group}_c"), 0)
    assert ownership_transactions.claim(session, group, [Claim(tp, thread, ABSENT)], deadline) == {
        tp: Outcome.NO_PARENT
    }


@pytest.mark.parametrize("who", ["nobody", "one of ours", "a Scala member"])
def test_a_commit_of_a_former_owner_is_refused(
    who: str, session: Session, open_session: OpenSession, group: str, deadline: Deadline
) -> None:
    session.create(paths.offset(group, TP), b"42", deadline)
    claim = Claim(TP, thread_id(ConsumerId(f"{group}_c"), 0), KnownOffset(42, 0))
    ownership_transactions.claim(session, group, [claim], deadline)
    session.delete(paths.owner(group, TP), deadline)
    other = open_session()
    if who == "one of ours":
        theirs = Claim(TP, thread_id(ConsumerId(f"{group}_d"), 0), KnownOffset(42, 1))
        assert ownership_transactions.claim(other, group, [theirs], deadline) == {TP: Outcome.DONE}
    elif who == "a Scala member":
        other.create(paths.owner(group, TP), b"scala-0", deadline, ephemeral=True)
    outcome = ownership_transactions.commit(session, group, [Commit(TP, 50, KnownOffset(42, 1))], deadline)[TP]
    assert outcome in (Outcome.NOT_OURS, Outcome.OFFSET_MOVED)
    offset = session.read([paths.offset(group, TP)], deadline)[0]
    assert offset is not None
    assert offset.data == b"42"
    ownership_transactions.release(session, group, [Commit(TP, None, KnownOffset(42, 1))], deadline)
    owner = session.read([paths.owner(group, TP)], deadline)[0]
    assert (owner is not None) == (who != "nobody"), "a release deletes nobody else's owner node"


def test_a_commit_creates_a_node_and_a_release_deletes_ours(session: Session, group: str, deadline: Deadline) -> None:
    claim = Claim(TP, thread_id(ConsumerId(f"{group}_c"), 0), ABSENT)
    ownership_transactions.claim(session, group, [claim], deadline)
    assert ownership_transactions.commit(session, group, [Commit(TP, 3, ABSENT)], deadline) == {TP: Outcome.DONE}
    assert ownership_transactions.commit(session, group, [Commit(TP, 4, ABSENT)], deadline) == {
        TP: Outcome.OFFSET_MOVED
    }
    assert ownership_transactions.release(session, group, [Commit(TP, 5, KnownOffset(3, 0))], deadline) == {
        TP: Outcome.DONE
    }
    owner, offset = session.read([paths.owner(group, TP), paths.offset(group, TP)], deadline)
    assert owner is None
    assert offset is not None
    assert offset.data == b"5"


def test_many_claims_are_split_by_bytes(session: Session, deadline: Deadline) -> None:
    group, topic = f"g{next(_numbers)}", "t" * 200
    session.ensure([paths.owner_topic(group, topic), paths.offset_topic(group, topic)], deadline)
    thread = thread_id(ConsumerId("c" * 200), 0)
    claims = [Claim(TopicPartition(topic, n), thread, ABSENT) for n in range(1500)]
    outcomes = ownership_transactions.claim(session, group, claims, deadline)
    assert set(outcomes.values()) == {Outcome.DONE}
    assert len(session.children(paths.owner_topic(group, topic), deadline) or ()) == 1500
