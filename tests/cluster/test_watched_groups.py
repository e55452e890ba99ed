"""Groups that watches hold are what a fresh reading finds, on real ZooKeepers of the first and the last line."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tests.cluster.conftest import TICK_MS
from tests.faults.proxy import Proxy
from tests.timing import eventually, scaled
from tests.unit.operations.test_watched_groups import CONTENTS, PATHS, settled
from zkconsumer.devcluster.zookeeper_server import EmbeddedZooKeeper
from zkconsumer.errors import RegistryError
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.watched_groups import WatchedGroups
from zkconsumer.operations.zookeeper_reader import ZooKeeperReader
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.node_values import NodePart, Wanted
from zkconsumer.zookeeper.server_statistics import server_statistics
from zkconsumer.zookeeper.session import Session

ROUNDS, CHANGES = 12, 8
LOST = 6
"""The round in which the connection is lost, and with it all watches."""


def soon() -> Deadline:
    return Deadline(scaled(10.0))


@pytest.fixture(scope="module", params=["3.4.14", "3.9.5"])
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(tick_ms=TICK_MS, version=request.param) as running:
        yield running


def held_by(held: WatchedGroups) -> dict[str, GroupSnapshot]:
    held.begin()
    names = held.names(soon())
    held.prefetch(names, soon())
    found = {name: held.read(GroupSnapshot(name, 1), soon())[1] for name in names}
    held.leave(names)
    return found


def read_anew(session: Session) -> dict[str, GroupSnapshot]:
    found = {name: GroupSnapshot(name, 1) for name in session.children("/consumers", soon()) or ()}
    for draft in found.values():
        assert ZooKeeperReader(session, draft, soon()).read()
    return found


def told(found: dict[str, GroupSnapshot]) -> dict[str, GroupSnapshot]:
    """What events tell of: a report below a loan changes the loan's stat, and has no event there."""
    for one in found.values():
        one.loans = {
            tp: {name: replace(loan, stat=None) for name, loan in loans.items()} for tp, loans in one.loans.items()
        }
    return settled(found)


def change(nodes: KazooClient, chance: random.Random) -> None:
    path = chance.choice(PATHS)
    if chance.random() < 0.3 and nodes.exists(path):
        nodes.delete(path, recursive=True)
    else:
        nodes.ensure_path(path)
        nodes.set(path, chance.choice(CONTENTS))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_changes_settle_to_a_fresh_reading(server: EmbeddedZooKeeper, seed: int) -> None:
    """The events of real servers differ between lines: their number, their order, and those for missing nodes."""
    chance = random.Random(seed)
    with ExitStack() as stack:
        nodes = KazooClient(server.connect)
        nodes.start()
        stack.callback(nodes.close)
        stack.callback(nodes.stop)
        proxy = stack.enter_context(Proxy(("127.0.0.1", server.port)))
        session = Session(proxy.address, timeout=scaled(10.0), on_change=lambda _: None)
        stack.callback(lambda: session.close(soon()))
        session.open(soon())
        held = WatchedGroups(session)
        nodes.ensure_path("/consumers")

        def same() -> bool:
            """Events may come late, and a lost connection takes a moment to come back."""
            try:
                return told(held_by(held)) == told(read_anew(session))
            except RegistryError:
                return False

        for number in range(ROUNDS):
            if number == LOST:
                proxy.drop()
                eventually(lambda: not session.connected, 10, "the end of the connection")
            for _ in range(CHANGES):
                change(nodes, chance)
            if number == LOST:
                proxy.carry()
            eventually(same, 20, f"round {number} to settle")
        assert held.differences == 0


def received(server: EmbeddedZooKeeper) -> int:
    """The packets that the server has received."""
    return int(server.ask("srvr").partition("Received: ")[2].split()[0])


def test_contents_are_read_together_where_servers_can(server: EmbeddedZooKeeper) -> None:
    """Servers before 3.6 do not know this request, and end the connection."""
    (told,) = server_statistics([("127.0.0.1", server.port)], soon())
    with ExitStack() as stack:
        nodes = KazooClient(server.connect)
        nodes.start()
        stack.callback(nodes.close)
        stack.callback(nodes.stop)
        for number in range(200):
            nodes.create(f"/together/{number}", b"x" * number, makepath=True)
        nodes.delete("/together/0")  # missing now
        nodes.create("/together/secret", acl=[make_digest_acl("alice", "secret", all=True)])
        session = Session(server.connect, timeout=scaled(10.0), on_change=lambda _: None)
        stack.callback(lambda: session.close(soon()))
        session.open(soon())
        paths = [f"/together/{name}" for name in (*range(200), "none", "secret")]
        wanted = [Wanted(part, path) for path in paths for part in (NodePart.CONTENT, NodePart.RIGHTS)]
        alone = list(session.read_each(wanted, soon()))
        assert [one.wanted.path for one in alone if one.forbidden] == ["/together/secret"] * 2
        assert told.multi_read == (server.version == "3.9.5")
        if told.multi_read:
            session.multi_read.set()
            before = received(server)
            assert list(session.read_each(wanted, soon())) == alone
            assert received(server) - before < len(wanted) * 3 // 4
