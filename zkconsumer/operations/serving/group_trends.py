"""The recent course of a group: its lag in the last hour, its rates, and the time until it has caught up.

``followed`` is a fold over the readings of one group. Pure; any thread. A reading that failed, or an offset that is
unknown, leaves a gap: it is never counted as no message and no progress.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from zkconsumer.model import TopicPartition
from zkconsumer.operations.judgement import Judgement
from zkconsumer.operations.serving.observed_group import ObservedGroup

MINUTES = 60
"""The minutes of the curve of lags."""
RATE_SECONDS = 300.0
"""The time over which rates are taken. Members commit each minute by default, so a shorter time has steps."""
LEAST_RATE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Totals:
    """The counts of a group since it was first seen, at a time of a clock that never goes back, in seconds.

    ``consumed`` counts messages that commits have passed, ``produced`` messages by which the logs have grown.
    """

    at: float
    consumed: int = 0
    produced: int = 0


@dataclass(frozen=True, slots=True)
class Advance:
    """What one reading adds: ``seconds`` since the reading before, and the messages of that time."""

    seconds: float
    consumed: int
    produced: int


@dataclass(frozen=True, slots=True)
class GroupTrend:
    """A group after its latest reading.

    ``lag`` is the sum over the topics that the group has not left, None if the latest reading tells none. A partition
    of which it tells nothing keeps its lag: otherwise a broker that is away would look like progress. ``minutes`` maps
    minutes since 1970 to the largest lag in them. ``totals`` are those of the last minutes, oldest first. ``latest`` is
    what the latest reading added, None if it added nothing that is known.
    """

    lag: int | None = None
    minutes: tuple[tuple[int, int], ...] = ()
    totals: tuple[Totals, ...] = ()
    latest: Advance | None = None

    def rates(self) -> tuple[float, float] | None:
        """Return the messages a second that are consumed and produced, None if they are unknown."""
        if not self.totals:
            return None
        first, last = self.totals[0], self.totals[-1]
        seconds = last.at - first.at
        if seconds < LEAST_RATE_SECONDS:
            return None
        return (last.consumed - first.consumed) / seconds, (last.produced - first.produced) / seconds

    def drain_seconds(self) -> float | None:
        """Return the time until nothing waits at the present rates. Infinite: never; None: unknown."""
        rates = self.rates()
        if self.lag == 0:
            return 0.0
        if self.lag is None or rates is None:
            return None
        gain = rates[0] - rates[1]
        return self.lag / gain if gain > 0 else float("inf")

    def curve(self, now: int) -> list[int | None]:
        """Return the lags of the last hour, one a minute, the latest last. ``now`` is milliseconds since 1970."""
        known, last = dict(self.minutes), now // 60_000
        return [known.get(minute) for minute in range(last - MINUTES + 1, last + 1)]

    def with_past(self, minutes: Iterable[tuple[int, int]]) -> GroupTrend:
        """Return the trend with lags of minutes from before the first reading."""
        return replace(self, minutes=tuple(sorted({**dict(minutes), **dict(self.minutes)}.items()))[-MINUTES:])


def followed(
    trend: GroupTrend, before: ObservedGroup | None, watched: ObservedGroup, judgement: Judgement, now: int, at: float
) -> GroupTrend:
    """Return the trend after one more reading.

    Arguments: ``before`` is the group at the reading before, None for the first one; ``now`` is milliseconds since
    1970; ``at`` is the time in seconds of a clock that never goes back.
    """
    if watched.failure:
        return replace(trend, lag=None, latest=None)
    current = [tp for tp in watched.snapshot.partitions() if not judgement.abandoned(tp.topic)]
    lags = [known for tp, known in watched.lags.items() if not judgement.abandoned(tp.topic)]
    told = any(known.taken == watched.snapshot.taken for known in lags)
    lag = sum(known.lag for known in lags) if told else None
    last = trend.totals[-1] if trend.totals else None
    latest, totals = None, trend.totals
    if before is None or last is None:
        totals = (Totals(at),)
    elif at > last.at:
        consumed, produced = _advance(before, watched, current)
        latest = Advance(at - last.at, consumed, produced)
        more = Totals(at, last.consumed + consumed, last.produced + produced)
        totals = (*_recent(totals, at), more)
    return GroupTrend(lag, _with_minute(trend.minutes, now // 60_000, lag), totals, latest)


def _recent(totals: tuple[Totals, ...], at: float) -> tuple[Totals, ...]:
    """Return the totals that a rate still needs: those of the last minutes, and always the latest."""
    return tuple(one for one in totals[:-1] if one.at >= at - RATE_SECONDS) + totals[-1:]


def _with_minute(minutes: tuple[tuple[int, int], ...], minute: int, lag: int | None) -> tuple[tuple[int, int], ...]:
    if lag is None:
        return minutes
    if minutes and minutes[-1][0] == minute:
        return (*minutes[:-1], (minute, max(lag, minutes[-1][1])))
    kept = tuple(
        one for one in minutes if minute - MINUTES < one[0] < minute
    )  # a clock that went back leaves none ahead
    return (*kept, (minute, lag))


def _advance(before: ObservedGroup, now: ObservedGroup, partitions: Iterable[TopicPartition]) -> tuple[int, int]:
    """Return how far offsets and ends of logs went on. One that went back, or is unknown on a side, counts nothing."""
    consumed = produced = 0
    for tp in partitions:
        old, new = before.snapshot.committed(tp), now.snapshot.committed(tp)
        if old is not None and new is not None:
            consumed += max(0, new - old)
        first, last = before.logs.get(tp), now.logs.get(tp)
        if first is not None and last is not None:
            produced += max(0, (last.log.end or 0) - (first.log.end or 0))
    return consumed, produced
