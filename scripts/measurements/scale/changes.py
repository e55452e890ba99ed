"""The simulated cost of a change of a group: for our code and for the original's algorithm, at any size.

A group of ``members`` shares one topic of ``partitions``. Then one member joins (in the middle of the order of names),
leaves, is killed or restarts, or all members start at once. The simulation counts all requests to ZooKeeper from the
change until nothing happens any more. The time ends with the last owner node. The time begins with the change, with the
end of a killed member's session, or with the new start of a restarted member.

"rest" is the cost of 20 seconds without a change: our members check their nodes then, the original does not.
Heartbeats are not counted, because they are equal.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

from scripts.measurements.scale.original import OriginalMember
from scripts.measurements.scale.ours import NEVER, OurMember
from scripts.measurements.scale.owners import range_owners
from scripts.measurements.scale.wire import CountedServer, Traffic
from tests.simulated_clock import Simulation
from zkconsumer.zookeeper import paths

GROUP, TOPIC = "group", "events"
OURS, ORIGINAL = "zkconsumer", "original"
CHANGES = ("join", "leave", "kill", "restart", "all start", "rest")
SESSION_S = 6.0
REST_S = 20.0
RESTART_S = 1.0
STAGGER_S = 0.001
QUIET_S = 12.0
LIMIT_S = 300.0
BROKERS = 3


class SimulatedMember(Protocol):
    """A member of ours or of the original, as far as this module uses it."""

    consumer: str

    def progress(self) -> None: ...
    def stop(self) -> None: ...
    def crash(self) -> None: ...
    def expire(self) -> None: ...


@dataclass(frozen=True)
class Cost:
    """The cost of one change.

    ``moved`` partitions got another owner by the assignment; ``unowned`` ones have no right owner at the end.
    ``seconds`` pass until the last owner node. ``cpu`` are the seconds that the busiest member computed (0 for the
    original). ``untouched`` is true if no request named a node of a partition that did not move. ``trips`` is the
    largest number of round trips of one member.
    """

    side: str
    change: str
    partitions: int
    members: int
    moved: int
    unowned: int
    requests: dict[str, int]
    total: int
    parts: int
    events: int
    bytes: int
    seconds: float
    cpu: float
    untouched: bool
    registrations_read: int
    trips: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class SimulatedGroup:
    """A simulated group of one side."""

    def __init__(self, side: str, partitions: int, *, counts_cpu: bool, interval: float = NEVER) -> None:
        self._options = {"interval": interval} if side == OURS else {}
        self.simulation = Simulation(counts_cpu=counts_cpu)
        self.server = CountedServer(self.simulation, session_timeout=SESSION_S)
        self.members: dict[str, Any] = {}
        self.side = side
        self.partitions = partitions
        listed = ",".join(f'"{n}":[0]' for n in range(partitions))
        self.server.put(paths.topic(TOPIC), f'{{"version":1,"partitions":{{{listed}}}}}'.encode())
        for broker in range(BROKERS):
            self.server.put(
                f"/brokers/ids/{broker}",
                b'{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},'
                b'"endpoints":["PLAINTEXT://broker-1.example.org:9092"],"jmx_port":-1,"features":{},'
                b'"host":"broker-1.example.org","timestamp":"1795230310008","port":9092,"version":5}',
            )
        self.server.put(paths.ids(GROUP))
        self.server.put(paths.owner_topic(GROUP, TOPIC))
        for number in range(partitions):
            self.server.put(f"{paths.offset_topic(GROUP, TOPIC)}/{number}", b"12345")

    def start(self, name: str) -> None:
        kind: Callable[..., Any] = OurMember if self.side == OURS else OriginalMember
        self.members[name] = kind(self.server, GROUP, name, TOPIC, **self._options)

    def settle(self) -> None:
        """Let time pass until nothing is asked of ZooKeeper for longer than anybody pauses between two tries."""
        end = self.simulation.now + LIMIT_S
        quiet_since, seen = self.simulation.now, -1
        while self.simulation.now - quiet_since < QUIET_S and self.simulation.now < end:
            self.simulation.run(self.simulation.now + 0.5)
            if self.server.traffic.total != seen:
                quiet_since, seen = self.simulation.now, self.server.traffic.total

    def wanted(self) -> dict[int, str]:
        return range_owners([f"{GROUP}_{name}-0" for name in self.members], self.partitions)

    def owners(self) -> dict[int, str]:
        below = paths.owner_topic(GROUP, TOPIC) + "/"
        return {int(path[len(below) :]): data.decode() for path, data in self.server.tree(below).items()}

    def unowned(self) -> int:
        owners = self.owners()
        return sum(owners.get(number) != thread for number, thread in self.wanted().items())


def simulate(side: str, change: str, partitions: int, members: int, *, counts_cpu: bool = False) -> Cost:
    """Return the cost of a change of a group of ``members``, which include a joining member."""
    interval = REST_S if change == "rest" else NEVER
    group = SimulatedGroup(side, partitions, counts_cpu=counts_cpu, interval=interval)
    names = [f"host{number:03}.example.org-1795230310008-ba05be38" for number in range(members)]
    one = names[min(members, partitions) // 2]  # one that owns something, in the middle
    with group.simulation.clocks():
        try:
            if change != "all start":
                _form(group, [name for name in names if change != "join" or name != one])
            for member in group.members.values():
                member.progress()
            return _changed(group, change, names, one)
        finally:
            group.simulation.close()


def _form(group: SimulatedGroup, names: list[str]) -> None:
    """Form a group, and wait until it rests.

    Members of the original may give up before all partitions are owned. Then a node in the group wakes them. That is
    not measured here.
    """
    for name in names:
        group.start(name)
        group.simulation.run(group.simulation.now + (STAGGER_S if group.side == OURS else 0.0))
    group.settle()
    nudges = 0
    while group.unowned() and nudges < 20:
        # an event that wakes members that gave up, as any change of the group would
        path = f"{paths.ids(GROUP)}/nudge"
        group.server.put(path, b'{"version":1,"subscription":{},"pattern":"static","timestamp":"1"}')
        group.simulation.run(group.simulation.now + 0.2)
        group.server.remove(path)
        group.settle()
        nudges += 1
    if group.unowned():
        raise AssertionError(f"the group of {len(names)} does not come to rest: {group.unowned()} unowned")


def _changed(group: SimulatedGroup, change: str, names: list[str], one: str) -> Cost:
    simulation, server = group.simulation, group.server
    before = group.owners()
    server.traffic = Traffic()
    cpu_before = {name: member.task.cpu for name, member in group.members.items()}
    counts_from = simulation.now
    if change == "rest":
        simulation.run(simulation.now + REST_S)
        return _cost(group, change, cpu_before, counts_from, set())
    if change == "join":
        group.start(one)
    elif change == "all start":
        for number, name in enumerate(names):
            simulation.at(counts_from + number * STAGGER_S, partial(group.start, name))
    elif change == "kill":
        gone = group.members.pop(one)
        gone.crash()
        simulation.run(counts_from + SESSION_S)
        counts_from = simulation.now
        gone.expire()
    else:
        group.members.pop(one).stop()
        if change == "restart":
            simulation.run(counts_from + RESTART_S)
            counts_from = simulation.now
            group.start(one)
    group.settle()
    wanted = group.wanted()
    moved = {number for number, thread in wanted.items() if before.get(number) != thread}
    if change == "restart":  # a restart moves the partitions of a leave, and moves them back
        without = range_owners([f"{GROUP}_{name}-0" for name in names if name != one], group.partitions)
        moved = {number for number, thread in before.items() if without[number] != thread}
    return _cost(group, change, cpu_before, counts_from, moved)


def _cost(
    group: SimulatedGroup, change: str, cpu_before: dict[str, float], counts_from: float, moved: set[int]
) -> Cost:
    server, named = group.server, group.server.traffic.paths
    stay = set(range(group.partitions)) - moved
    touched = any(
        named[f"{below(GROUP, TOPIC)}/{number}"] for number in stay for below in (paths.owner_topic, paths.offset_topic)
    )
    ids = paths.ids(GROUP) + "/"
    used = [member.task.cpu - cpu_before.get(name, 0.0) for name, member in group.members.items()]
    return Cost(
        group.side,
        change,
        group.partitions,
        len(group.members) + (change in ("leave", "kill")),
        len(moved),
        group.unowned(),
        dict(sorted(server.traffic.requests.items())),
        server.traffic.total,
        server.traffic.parts,
        server.traffic.events,
        server.traffic.bytes,
        max(0.0, server.owners_changed - counts_from),
        max(used) if group.side == OURS else 0.0,
        not touched,
        sum(count for path, count in named.items() if path.startswith(ids)),
        max(server.traffic.trips.values(), default=0),
    )
