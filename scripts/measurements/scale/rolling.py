"""The partitions that change their owner while the members of a group are restarted one after the other, simulated.

A member leaves, starts again :data:`DOWN_S` later, and the next follows when the group has come to rest. A partition
has moved if its owner node is made by another member than the last time. The name of a host counts as the member, for a
consumer id has the time of its start.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from scripts.measurements.scale.changes import GROUP, TOPIC, SimulatedGroup
from scripts.measurements.scale.ours import OurMember
from zkconsumer.member.zookeeper import placement_node  # noqa: F401 (its clock is replaced)
from zkconsumer.zookeeper import paths

DOWN_S = 5.0
CRASH_S = 6.0
APART_S = 3.0


@dataclass(frozen=True)
class Rolling:
    """The outcome. ``moves`` are changes of owners, ``unowned`` the partitions without one at the end."""

    strategy: str
    lasting: bool
    partitions: int
    members: int
    moves: int
    unowned: int
    most_of_one: int


class _Owners:
    """Counts the changes of owners, as the owner nodes are made."""

    def __init__(self, group: SimulatedGroup) -> None:
        below = paths.owner_topic(GROUP, TOPIC) + "/"
        self.moves = 0
        self._last = {f"{below}{number}": _member_of(thread) for number, thread in group.owners().items()}

        def created(path: str, data: bytes) -> None:
            if path.startswith(below):
                member = _member_of(data.decode())
                self.moves += self._last.get(path, member) != member
                self._last[path] = member

        group.server.created = created


def _member_of(thread: str) -> str:
    return thread[len(GROUP) + 1 :].split("-")[0]


def rolling_restart(
    strategy: str, *, lasting: bool, partitions: int = 500, members: int = 10, crash: bool = False
) -> Rolling:
    """Restart every member once. ``lasting``: with a ``group.instance.id``; ``crash``: killed, not shut down."""
    properties: dict[str, str | int] = {"partition.assignment.strategy": strategy, "group.instance.grace.ms": 60_000}
    group = SimulatedGroup("zkconsumer", partitions, counts_cpu=False, interval=20.0)
    with group.simulation.clocks():
        try:

            def start(number: int, life: int) -> None:
                name = f"host{number:02}" if lasting else f"host{number:02}-{1795230310008 + life}-ba05be38"
                own = {**properties, "group.instance.id": name} if lasting else properties
                group.members[name] = OurMember(group.server, GROUP, name, TOPIC, interval=20.0, properties=own)

            def rest(seconds: float) -> None:
                group.simulation.run(group.simulation.now + seconds)

            for number in range(members):
                start(number, 0)
                rest(0.2)
            rest(30.0)
            owners = _Owners(group)
            for number in range(members):
                name = next(name for name in group.members if name.startswith(f"host{number:02}"))
                gone = group.members.pop(name)
                if crash:
                    gone.crash()
                    rest(CRASH_S)
                    gone.expire()
                else:
                    gone.stop()
                rest(DOWN_S)
                start(number, 1)
                rest(APART_S)
            rest(30.0)
            owned = group.owners()
            return Rolling(
                strategy,
                lasting,
                partitions,
                members,
                owners.moves,
                partitions - len(owned),
                max(Counter(owned.values()).values()),
            )
        finally:
            group.simulation.close()
