"""The account of the demo of message balance: what became of each flight, and whether carriers kept order. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from scripts.demonstration.balanced_member import Attempt
from scripts.demonstration.message_account import MessagePosition


@dataclass(frozen=True)
class BalancedTotals:
    """The numbers of flights.

    ``handled`` counts different flights, and ``repeated`` how often one was handled again. ``lost`` are neither handled
    nor dead. ``unexpected`` were handled otherwise than they were produced, or are dead letters although they are
    whole. ``overtaken`` were handled after a later one of their carrier, ``overlapping`` at the same time as another
    one of their carrier in their partition.
    """

    produced: int
    handled: int
    dead: int
    lost: int
    unexpected: int
    repeated: int
    failed_attempts: int
    overtaken: int
    overlapping: int
    by_member: Mapping[str, int]

    @property
    def good(self) -> bool:
        """Whether every flight was handled in order or is a dead letter. Repetition is no failure."""
        return (
            self.handled + self.dead == self.produced
            and not self.lost
            and not self.unexpected
            and not self.overtaken
            and not self.overlapping
        )


def balanced_totals(
    produced: Mapping[MessagePosition, int],
    damaged: Collection[int],
    dead: Collection[MessagePosition],
    attempts: Mapping[str, Iterable[Attempt]],
) -> BalancedTotals:
    """Return the totals.

    Arguments: ``produced`` has the checksum of each flight, ``damaged`` the checksums of damaged ones, ``dead`` the
    places of dead letters; ``attempts`` are those of each member.
    """
    everything = sorted((one, name) for name, of_member in attempts.items() for one in of_member)
    done = [(one, name) for one, name in everything if not one.failed]
    handled = {(one.partition, one.offset): one.checksum for one, _ in done}
    overtaken, overlapping = _out_of_order([one for one, _ in everything])
    unexpected = sum(produced.get(place) != checksum for place, checksum in handled.items())
    unexpected += sum(produced.get(place) not in damaged for place in dead)
    return BalancedTotals(
        produced=len(produced),
        handled=len(handled),
        dead=len(set(dead)),
        lost=len(produced.keys() - handled.keys() - set(dead)),
        unexpected=unexpected,
        repeated=len(done) - len(handled),
        failed_attempts=len(everything) - len(done),
        overtaken=overtaken,
        overlapping=overlapping,
        by_member=Counter(name for _, name in done),
    )


def _out_of_order(attempts: Iterable[Attempt]) -> tuple[int, int]:
    """Return how many flights were overtaken by a later one of their carrier, and how many attempts overlapped another.

    ``attempts`` are in the order of their beginning. An offset that was handled before is repetition.
    """
    last: dict[tuple[int, bytes], tuple[int, int]] = {}
    seen: set[MessagePosition] = set()
    overtaken = overlapping = 0
    for one in attempts:
        lane, place = (one.partition, one.carrier), (one.partition, one.offset)
        highest, ended = last.get(lane, (-1, 0))
        overlapping += one.begun < ended
        if not one.failed and place not in seen:
            seen.add(place)
            overtaken += one.offset < highest
            highest = max(highest, one.offset)
        last[lane] = (highest, max(ended, one.ended))
    return overtaken, overlapping
