"""A ZooKeeper in memory whose requests are counted, weighed and take virtual time.

The size of a request follows ZooKeeper's protocol:

* 12 bytes before a request (length, number, kind)
* 20 before an answer (length, number, transaction, error)
* 4 before each text or content
* 68 for a node's stat
* 31 for the right "open to all"
* 9 before each part of a transaction

A request takes half the round trip, its bytes over the network, the server's time (one request after the other), and
the same way back. Requests that are sent together share one round trip. Watch events travel like answers and never
overtake one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tests.simulated_clock import Simulation
from zkconsumer.errors import NotPermittedError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper import FakeSession, FakeZooKeeper
from zkconsumer.zookeeper.node_requests import NodeFailure, Transaction
from zkconsumer.zookeeper.node_values import Look, Node, NodeEvent, Seen, Watch
from zkconsumer.zookeeper.session import SessionChanged

T = TypeVar("T")

REQUEST, ANSWER, TEXT, STAT, ACL, PART = 12, 20, 4, 68, 31, 9
LATENESS_S = 0.02
"""How late a member may learn of what has arrived, for it is busy otherwise: each has its own, from none to this."""


@dataclass(frozen=True)
class Costs:
    """Seconds: a round trip, what the server takes for a read, a write and each further part of a transaction, and
    what the client's library takes for a request. ``bandwidth`` in bytes a second.
    """

    round_trip: float = 0.0002
    read: float = 0.00002
    write: float = 0.00005
    part: float = 0.00002
    client: float = 0.0
    bandwidth: float = 125e6


@dataclass
class Traffic:
    """The traffic with ZooKeeper: requests by kind, events, and bytes both ways.

    ``parts`` counts the parts of transactions, which are no requests. ``paths`` counts the requests for each node,
    ``trips`` the round trips that each client waited for.
    """

    requests: Counter[str] = field(default_factory=Counter)
    parts: int = 0
    events: int = 0
    bytes: int = 0
    paths: Counter[str] = field(default_factory=Counter)
    trips: Counter[int] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """All requests."""
        return sum(self.requests.values())


class CountedServer(FakeZooKeeper):
    """The server, with its accounts; ``owners_changed`` is when an owner node last came or went."""

    def __init__(self, simulation: Simulation, *, session_timeout: float = 6.0) -> None:
        super().__init__(session_timeout=session_timeout)
        self.simulation = simulation
        self.traffic = Traffic()
        self.free = simulation.now
        self.owners_changed = simulation.now
        self.created: Callable[[str, bytes], None] = lambda path, data: None
        """Called with each node that is made."""

    def connect(self, on_change: Callable[[SessionChanged], None], costs: Costs) -> CountedSession:
        """A session, not yet open."""
        return CountedSession(self, on_change, costs)

    def serve(self, seconds: float) -> None:
        """Keep the server busy for this time with a request that arrives now."""
        self.free = max(self.free, self.simulation.now) + seconds

    def create(self, path: str, data: bytes, owner: int) -> None:
        super().create(path, data, owner)
        self._note(path)
        self.created(path, data)

    def delete(self, path: str, version: int) -> None:
        super().delete(path, version)
        self._note(path)

    def _note(self, path: str) -> None:
        if "/owners/" in path:
            self.owners_changed = max(self.free, self.simulation.now)


class CountedSession(FakeSession):
    """One client's session. Every method but ``suspend`` and ``expire_unnoticed`` is called within a task."""

    def __init__(self, server: CountedServer, on_change: Callable[[SessionChanged], None], costs: Costs) -> None:
        super().__init__(server, on_change)
        self.costs = costs
        self._counted = server
        self._simulation = server.simulation
        self._travelling: dict[Watch, Watch] = {}
        self._delivered = 0.0
        self._within = False

    # ---- one round trip ----

    def _trip(
        self,
        kind: str | Mapping[str, int],
        asked: Sequence[tuple[str, int]],
        service: float,
        perform: Callable[[], T],
        weigh: Callable[[T], int],
        parts: int = 0,
    ) -> T:
        """Send requests together in one round trip.

        Arguments: ``asked`` are their paths and bytes. ``kind`` is their common kind, or their number by kind.
        ``weigh`` returns the bytes of the answers beyond those of every answer.
        """
        if self._within or not asked:
            return perform()  # the fake's own methods use one another
        traffic, costs, simulation = self._counted.traffic, self.costs, self._simulation
        sent = sum(REQUEST + size for _, size in asked)
        traffic.trips[id(self)] += 1
        traffic.requests.update({kind: len(asked)} if isinstance(kind, str) else kind)
        traffic.parts += parts
        traffic.paths.update(path for path, _ in asked)
        leaves = simulation.settle_cpu() + costs.client * len(asked)
        simulation.sleep_until(leaves + costs.round_trip / 2 + sent / costs.bandwidth)
        self._counted.serve(service)
        done = self._counted.free
        self._within = True
        try:
            result = perform()
        finally:
            self._within = False
            simulation.forget_cpu()
        received = ANSWER * len(asked) + weigh(result)
        traffic.bytes += sent + received
        arrives = max(done + costs.round_trip / 2 + received / costs.bandwidth, self._delivered)
        self._delivered = arrives
        simulation.sleep_until(arrives)
        return result

    def _watch(self, watch: Watch | None) -> Watch | None:
        """The same, told when the event has travelled here."""
        if watch is None or self._within:
            return watch
        travelling = self._travelling.get(watch)
        if travelling is None:

            def fired(event: NodeEvent) -> None:
                size = ANSWER + 8 + TEXT + len(event.path)
                self._counted.traffic.events += 1
                self._counted.traffic.bytes += size
                at = max(self._counted.free, self._simulation.now) + self.costs.round_trip / 2
                self._delivered = max(at + size / self.costs.bandwidth, self._delivered)
                self._simulation.at(self._delivered, lambda: self._arrived(watch, event))

            travelling = self._travelling[watch] = fired
        return travelling

    def _arrived(self, watch: Watch, event: NodeEvent) -> None:
        if self._up:
            watch(event)

    # ---- the session's interface ----

    def look(self, wanted: Look, deadline: Deadline, watch: Watch | None = None) -> Seen:
        """Look in one round trip. With a watch, missing nodes and present rare nodes take a second round trip."""
        own = self._watch(watch)
        contents = [*wanted.nodes, *wanted.existing, *wanted.plain]
        seen = self._reads(
            {"read": contents, "exists": [*wanted.stats, *wanted.rare], "children": wanted.children},
            lambda: super(CountedSession, self).look(wanted, deadline, own),
            lambda seen: (
                sum(TEXT + len(node.data) + STAT for path in contents if (node := seen.nodes[path]) is not None)
                + sum(STAT for path in wanted.stats if seen.nodes[path] is not None)
                + sum(TEXT + sum(TEXT + len(name) for name in seen.children[path] or ()) for path in wanted.children)
            ),
        )
        missing = [path for path in wanted.nodes if seen.nodes[path] is None]
        missing += [path for path in wanted.children if seen.children[path] is None]
        present = [path for path in wanted.rare if seen.children[path] is not None]
        if watch is not None and (missing or present):
            names = sum(TEXT + sum(TEXT + len(name) for name in seen.children[path] or ()) for path in present)
            self._reads({"exists": missing, "children": present}, lambda: None, lambda _: names)
        return seen

    def _reads(self, kinds: Mapping[str, Sequence[str]], perform: Callable[[], T], weigh: Callable[[T], int]) -> T:
        asked = [(path, TEXT + len(path) + 1) for paths in kinds.values() for path in paths]
        counts = {kind: len(paths) for kind, paths in kinds.items() if paths}
        return self._trip(counts, asked, self.costs.read * len(asked), perform, weigh)

    def read(
        self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None, **options: Any
    ) -> list[Node | None]:
        """The nodes; a missing one that is to be watched costs a second request."""
        own = self._watch(watch)

        def perform() -> list[Node | None]:
            return super(CountedSession, self).read(paths, deadline, own, **options)

        found = self._trip(
            "read",
            [(path, TEXT + len(path) + 1) for path in paths],
            self.costs.read * len(paths),
            perform,
            lambda nodes: sum(TEXT + len(node.data) + STAT for node in nodes if node is not None),
        )
        missing = [path for path, node in zip(paths, found, strict=True) if node is None]
        if missing and watch is not None and options.get("watch_missing", True):
            self._trip(
                "exists",
                [(path, TEXT + len(path) + 1) for path in missing],
                self.costs.read * len(missing),
                lambda: None,
                lambda _: 0,
            )
        return found

    def stat(self, paths: Sequence[str], deadline: Deadline, watch: Watch | None = None) -> list[Node | None]:
        """The nodes without contents."""
        own = self._watch(watch)
        return self._trip(
            "exists",
            [(path, TEXT + len(path) + 1) for path in paths],
            self.costs.read * len(paths),
            lambda: super(CountedSession, self).stat(paths, deadline, own),
            lambda nodes: sum(STAT for node in nodes if node is not None),
        )

    def children(self, path: str, deadline: Deadline, watch: Watch | None = None) -> tuple[str, ...] | None:
        """The names below a node."""
        own = self._watch(watch)
        return self._trip(
            "children",
            [(path, TEXT + len(path) + 1)],
            self.costs.read,
            lambda: super(CountedSession, self).children(path, deadline, own),
            lambda names: TEXT + sum(TEXT + len(name) for name in names or ()),
        )

    def create(self, path: str, data: bytes, deadline: Deadline, *, ephemeral: bool = False) -> bool:
        """A new node."""
        return self._trip(
            "create",
            [(path, 2 * TEXT + len(path) + len(data) + ACL + 4)],
            self.costs.write,
            lambda: super(CountedSession, self).create(path, data, deadline, ephemeral=ephemeral),
            lambda made: TEXT + len(path) if made else 0,
        )

    def ensure_each(self, paths: Sequence[str], deadline: Deadline) -> dict[str, NotPermittedError]:
        """Look at all nodes. If a node is missing, create each level of the paths in one round trip."""
        if any(node is None for node in self.stat(paths, deadline)):
            levels = {
                "/".join(path.split("/")[: depth + 1]) for path in paths for depth in range(1, path.count("/") + 1)
            }
            for depth in sorted({level.count("/") for level in levels}):
                made = [level for level in sorted(levels) if level.count("/") == depth]
                self._trip(
                    "create",
                    [(path, 2 * TEXT + len(path) + ACL + 4) for path in made],
                    self.costs.write * len(made),
                    partial(self._put, made),
                    lambda created: TEXT * len(created),
                )
        return {}

    def _put(self, made: Sequence[str]) -> Sequence[str]:
        for path in made:
            if self._counted.node(path) is None:
                self._counted.put(path)
        return made

    def write(self, path: str, data: bytes, deadline: Deadline, version: int = -1) -> bool:
        """Another content."""
        return self._trip(
            "write",
            [(path, 2 * TEXT + len(path) + len(data) + 4)],
            self.costs.write,
            lambda: super(CountedSession, self).write(path, data, deadline, version),
            lambda done: STAT if done else 0,
        )

    def delete(self, path: str, deadline: Deadline, version: int = -1) -> bool:
        """No node any more."""
        return self._trip(
            "delete",
            [(path, TEXT + len(path) + 4)],
            self.costs.write,
            lambda: super(CountedSession, self).delete(path, deadline, version),
            lambda _: 0,
        )

    def transact(self, build: Callable[[Transaction], None], deadline: Deadline) -> list[NodeFailure | None]:
        """All or nothing, as one request."""
        weighed = _Weighed()
        build(weighed)
        if not weighed.operations:
            return []

        def replay(transaction: Transaction) -> None:
            for operation in weighed.operations:
                operation(transaction)

        self._counted.traffic.paths.update(set(weighed.paths))
        return self._trip(
            "multi",
            [("", PART + weighed.size)],
            self.costs.write + self.costs.part * (len(weighed.operations) - 1),
            lambda: super(CountedSession, self).transact(replay, deadline),
            lambda results: PART + weighed.answer + PART * len(results),
            parts=len(weighed.operations),
        )

    def open(self, deadline: Deadline) -> None:
        """Connect: one round trip."""
        self._trip(
            "connect",
            [("", 45)],
            self.costs.write,
            lambda: super(CountedSession, self).open(deadline),
            lambda _: 37,
        )

    def close(self, deadline: Deadline) -> None:
        """End the session: one request."""
        self._trip(
            "close",
            [("", 0)],
            self.costs.write,
            lambda: super(CountedSession, self).close(deadline),
            lambda _: 0,
        )


class _Weighed(Transaction):
    """A transaction that is only written down, with its bytes."""

    def __init__(self) -> None:
        super().__init__(None)
        self.operations: list[Callable[[Transaction], None]] = []
        self.paths: list[str] = []
        self.size = self.answer = 0

    def _add(self, path: str, size: int, answer: int, operation: Callable[[Transaction], None]) -> None:
        self.operations.append(operation)
        self.paths.append(path)
        self.size += PART + size
        self.answer += answer

    def create(self, path: str, data: bytes, *, ephemeral: bool = False) -> None:
        size = 2 * TEXT + len(path) + len(data) + ACL + 4
        self._add(path, size, TEXT + len(path), lambda to: to.create(path, data, ephemeral=ephemeral))

    def check(self, path: str, version: int) -> None:
        self._add(path, TEXT + len(path) + 4, 0, lambda to: to.check(path, version))

    def write(self, path: str, data: bytes, version: int = -1) -> None:
        size = 2 * TEXT + len(path) + len(data) + 4
        self._add(path, size, STAT, lambda to: to.write(path, data, version))

    def delete(self, path: str, version: int = -1) -> None:
        self._add(path, TEXT + len(path) + 4, 0, lambda to: to.delete(path, version))
