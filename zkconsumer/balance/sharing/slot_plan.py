"""Which member should handle which slots of which partition. Pure and deterministic.

Every owner computes :func:`slot_quotas` alone, from the same registrations and owner nodes. Owners that see different
moments may lend too much or too little for a while. They never lend the same slot twice, because each owner lends only
slots of its own partitions. :func:`deal_slots` then chooses the slots of one partition, and moves as few as possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zkconsumer.core.key_slots import ALL_SLOTS, NO_SLOTS, SLOTS, slots_in
from zkconsumer.model import TopicPartition

FEWEST_SLOTS = SLOTS // 16
"""The fewest slots of a partition that are worth a loan, and that an owner keeps of each of its partitions.

A borrower reads the whole partition for its slots.
"""
SLACK = 8
"""An owner lends nothing if its own partitions need at most 1/8 more handlers than it has."""


@dataclass(frozen=True, slots=True)
class SharingMember:
    """A member that shares: ``capacity`` is its number of handlers, ``topics`` are those it is subscribed to."""

    capacity: int
    topics: frozenset[str]


def slot_quotas(
    members: Mapping[str, SharingMember], owners: Mapping[TopicPartition, str]
) -> dict[TopicPartition, dict[str, int]]:
    """Return how many slots of each partition each member should handle; the owner's number is never 0.

    Each owner first serves its own partitions, up to its capacity. What they still need goes to members with handlers
    to spare, one after the other, so that few members read a partition that another one reads too. All partitions are
    taken to be equally busy.

    Arguments: ``members`` are those that share, by consumer id; ``owners`` has the owner of each partition. Partitions
    of owners that do not share are left out.
    """
    partitions = sorted(tp for tp, owner in owners.items() if owner in members)
    need = sum(member.capacity for member in members.values())  # of each partition, in handlers times partitions
    free = {consumer: member.capacity * len(partitions) for consumer, member in members.items()}
    served: dict[TopicPartition, dict[str, int]] = {}
    for consumer in sorted({owners[tp] for tp in partitions}):
        _serve_own(consumer, [tp for tp in partitions if owners[tp] == consumer], need, free, served)
    # partitions that few members can help with come first
    hungry = sorted(partitions, key=lambda tp: (sum(tp.topic in m.topics for m in members.values()), tp))
    for tp in hungry:
        missing = need - sum(served[tp].values())
        for consumer in sorted(members):
            if missing > 0 and free[consumer] > 0 and tp.topic in members[consumer].topics and consumer != owners[tp]:
                taken = min(missing, free[consumer])
                served[tp][consumer] = taken
                free[consumer] -= taken
                missing -= taken
    return {tp: _in_slots(served[tp], owners[tp]) for tp in partitions}


def _serve_own(
    consumer: str,
    own: list[TopicPartition],
    need: int,
    free: dict[str, int],
    served: dict[TopicPartition, dict[str, int]],
) -> None:
    """Give an owner's capacity to its own partitions: a little to each, then one after the other."""
    if need * len(own) * SLACK <= free[consumer] * (SLACK + 1):
        served.update((tp, {consumer: need}) for tp in own)
        free[consumer] = max(0, free[consumer] - need * len(own))
        return
    least = min(max(1, need * FEWEST_SLOTS // SLOTS), max(1, free[consumer] // len(own)))
    left = max(0, free[consumer] - least * len(own))
    for tp in own:
        more = min(need - least, left)
        served[tp] = {consumer: least + more}
        left -= more
    free[consumer] = left


def _in_slots(served: Mapping[str, int], owner: str) -> dict[str, int]:
    """Return shares as numbers of slots, :data:`SLOTS` in all. Shares too small for a loan go to the owner."""
    total = sum(served.values())
    found = {consumer: units * SLOTS // total for consumer, units in served.items() if consumer != owner}
    found = {consumer: slots for consumer, slots in found.items() if slots >= FEWEST_SLOTS}
    found[owner] = SLOTS - sum(found.values())
    return found


def deal_slots(
    quotas: Mapping[str, int], present: Mapping[str, int], owner: str, pinned: int = NO_SLOTS
) -> dict[str, int]:
    """Return the set of slots of one partition for each member, disjoint and all together every slot.

    Members keep the slots that they have, as far as their quota goes. The owner gets what nobody else does.

    Arguments: ``quotas`` are numbers of slots by consumer id; ``present`` are the sets that members have on loan;
    ``pinned`` are the slots that must be the owner's, since a message of theirs is parked or fails.
    """
    borrowers = sorted(consumer for consumer in quotas if consumer != owner)
    found: dict[str, int] = {}
    left = ALL_SLOTS & ~pinned
    for consumer in borrowers:
        kept = _first(present.get(consumer, NO_SLOTS) & left, quotas[consumer])
        found[consumer] = kept
        left &= ~kept
    # slots of the owner come before those of members that must give some back: they need not be waited for
    lent = NO_SLOTS
    for consumer, slots in present.items():
        lent |= slots if consumer != owner else NO_SLOTS
    for consumer in borrowers:
        for pool in (left & ~lent, left & lent):
            more = _first(pool, quotas[consumer] - found[consumer].bit_count())
            found[consumer] |= more
            left &= ~more
    return {consumer: slots for consumer, slots in found.items() if slots} | {owner: left | pinned & ALL_SLOTS}


def _first(slots: int, most: int) -> int:
    """Return the lowest ``most`` slots of a set."""
    if slots.bit_count() <= most:
        return slots
    found = NO_SLOTS
    for slot in slots_in(slots):
        if most <= 0:
            break
        found |= 1 << slot
        most -= 1
    return found
