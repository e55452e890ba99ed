"""The changes that can be forecast, and the forecast. Pure values; any thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.names import first_of
from zkconsumer.errors import ZkConsumerError
from zkconsumer.model import Assignment, ConsumerId, ThreadId, TopicPartition
from zkconsumer.operations.strategy_inference import Strategy

MOST_PARTITIONS = 200_000
_NAMED = 5


class ForecastError(ZkConsumerError):
    """A change cannot be forecast; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Join:
    """A member joins from ``host``, with the subscription of the others; ``streams`` for each topic, None: as many."""

    host: str
    streams: int | None = None


@dataclass(frozen=True, slots=True)
class Leave:
    """A member leaves in order. ``member`` is a consumer id, or a part that no other consumer id has."""

    member: str


@dataclass(frozen=True, slots=True)
class Kill:
    """A member dies, and its session ends by its timeout. ``member`` as in :class:`Leave`."""

    member: str


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """A topic gets ``count`` partitions more; without ``topic`` every subscribed one does."""

    count: int
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class UseStrategy:
    """All members use another strategy: a name, or ``roundrobin-0.x`` for the old order of ``roundrobin``."""

    name: str


Change = Join | Leave | Kill | MorePartitions | UseStrategy


@dataclass(frozen=True, slots=True)
class ForecastMove:
    """A partition that changes its thread; None is nobody."""

    partition: TopicPartition
    before: ThreadId | None
    after: ThreadId | None


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of some partitions: their owners in words, their number, and the duration in words."""

    whose: str
    partitions: int
    how_long: str


@dataclass(frozen=True, slots=True)
class StrategyOutcome:
    """The outcome of the change under one strategy.

    ``moves`` counts the partitions that the change moves if the group has this strategy already; ``switch`` those that
    move from the present assignment to this strategy after the change. ``least`` and ``most`` are the partitions of a
    thread, ``idle`` the threads without any. All are None where ``problem`` says why.
    """

    strategy: str
    in_effect: bool
    moves: int | None = None
    switch: int | None = None
    least: int | None = None
    most: int | None = None
    idle: int | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The effect of a change on a group.

    ``before`` and ``after`` are the assignments, ``strategy`` the one in effect afterwards. ``stays`` counts the
    partitions that keep their thread; ``idle`` are the threads without partitions afterwards.
    """

    group: str
    before: Assignment
    after: Assignment
    strategy: Strategy
    moves: tuple[ForecastMove, ...]
    stays: int
    idle: tuple[ThreadId, ...]
    pauses: tuple[Pause, ...]
    outcomes: tuple[StrategyOutcome, ...]
    joined: tuple[ConsumerId, ...] = ()
    notes: tuple[str, ...] = ()


def moves_between(before: Assignment, after: Assignment) -> tuple[ForecastMove, ...]:
    """Return, in order, the partitions whose threads differ."""
    return tuple(
        ForecastMove(tp, before.get(tp), after.get(tp))
        for tp in sorted({*before, *after})
        if before.get(tp) != after.get(tp)
    )


def moved_partitions(before: Assignment, after: Assignment) -> tuple[ForecastMove, ...]:
    """Return the moves of partitions that had an owner: new ones do not count."""
    return tuple(move for move in moves_between(before, after) if move.before is not None)


def find_member(wanted: str, members: set[ConsumerId]) -> ConsumerId:
    """Return the member of this consumer id, or the only one whose id contains the text. Raises ForecastError."""
    if ConsumerId(wanted) in members:
        return ConsumerId(wanted)
    found = [consumer for consumer in members if wanted and wanted in consumer]
    if len(found) == 1:
        return found[0]
    problem = f"{len(found)} members have {wanted!r} in their id" if found else f"no member is called {wanted!r}"
    known = first_of(found or members, _NAMED)
    raise ForecastError(f"{problem}; name one of {known}" if known else f"{problem}: the group has no members")


def grown(partitions: Mapping[str, tuple[int, ...]], change: MorePartitions) -> dict[str, tuple[int, ...]]:
    """Return the partitions of each topic after the change. Raises ForecastError."""
    found = dict(partitions)
    for topic in [change.topic] if change.topic is not None else sorted(found):
        if topic not in found:
            raise ForecastError(f"no member subscribes to a topic {topic!r}; known are {first_of(found, _NAMED)}")
        numbers = found[topic]
        if not 0 < change.count <= MOST_PARTITIONS - len(numbers):
            raise ForecastError(f"--partitions +{change.count}: a topic has at most {MOST_PARTITIONS} partitions")
        first = numbers[-1] + 1 if numbers else 0
        found[topic] = (*numbers, *range(first, first + change.count))
    return found
