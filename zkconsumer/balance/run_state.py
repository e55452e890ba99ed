"""Makes the :class:`~zkconsumer.balance.balance_state.BalanceState` of a run, from what its parts show.

Any thread may call, also a signal handler: what is read are single attributes, and copies that one step of the
interpreter makes. So the numbers of one partition may be a moment apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import NamedTuple

from zkconsumer.balance.balance_state import BalanceState, HeldMessage, PartitionBalance
from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.balance.pointer_reader import PointerReader
from zkconsumer.balance.reader import Reader
from zkconsumer.balance.sharing.sharing_thread import Sharing
from zkconsumer.balance.waiting_messages import Order
from zkconsumer.balance.work import Executor, Work
from zkconsumer.core.message_pointers import PointerKind
from zkconsumer.core.names import first_of

Running = Mapping[tuple[int, int], float]
"""When the handlers began (monotonic seconds), by the identity of the ledger and the offset."""
BLOCKED = 5.0
"""Seconds for which a handler may block an event loop before that is a trouble."""


class RunParts(NamedTuple):
    """The parts of a run. ``limit`` is ``handler.timeout.ms`` in seconds, None for none; ``sharing`` if it shares."""

    dispatcher: Dispatcher
    reader: Reader
    executor: Executor
    pointers: PointerReader
    concurrency: int
    limit: float | None = None
    sharing: Sharing | None = None


def run_state(parts: RunParts) -> BalanceState:
    """Return what a run does now."""
    dispatcher, executor, partitions = parts.dispatcher, parts.executor, parts.reader.partitions
    now = monotonic()
    running = {(id(work.ledger), work.offset): began for work, began in running_works(executor)}
    return BalanceState(
        parts.concurrency,
        tuple(_partition(partition, running, now) for partition in sorted(partitions, key=lambda one: one.position.tp)),
        dispatcher.failures.failed,
        dispatcher.failures.late,
        dispatcher.zombies,
        parts.pointers.lost,
        tuple(_troubles(parts)),
        tuple(_warnings(parts)),
        dispatcher.sizes.times.value(),
    )


def run_problems(parts: RunParts) -> tuple[str, ...]:
    """Return :attr:`BalanceState.problems`, without taking a lock."""
    stops = (f"{partition.position.tp} {why}" for partition in parts.reader.partitions if (why := _stopped(partition)))
    return (*stops, *_troubles(parts))


def running_works(executor: Executor) -> Sequence[tuple[Work, float]]:
    """Return the works in handlers, each with the time at which its handler began; none if the executor cannot tell."""
    tell = getattr(executor, "running", None)
    return tell() if tell is not None else ()


def _troubles(parts: RunParts) -> Iterator[str]:
    """Yield what keeps a run from its work, beside partitions that stand still."""
    executor, limit, now = parts.executor, parts.limit, monotonic()
    if limit is not None:
        for work, began in running_works(executor):
            if now - began > limit:
                where = f"{work.ledger.position.tp} at offset {work.offset}"
                yield f"the handler of {where} has run for {now - began:.0f} s: its key waits"
    tell = getattr(executor, "troubles", None)  # of processes
    if tell is not None:
        yield from tell()
    behind = getattr(executor, "lag", 0.0)
    if behind > BLOCKED:
        yield f"a handler blocks the event loop for {behind:.0f} s: nothing else runs"
    if parts.sharing is not None and parts.sharing.trouble:
        yield parts.sharing.trouble
    unstored = parts.reader.unstored
    if unstored:
        some, longest = first_of(sorted(unstored)), max(unstored.values())
        yield f"{some}: results wait up to {longest:.0f} s to be stored, and no more is handled until they are"
    for tp, why in sorted(parts.pointers.trouble.copy().items()):
        yield f"{tp}: parked messages have to wait: {why}"


def _warnings(parts: RunParts) -> Iterator[str]:
    """Yield what somebody should look after although everything is handled."""
    for risk in parts.pointers.retention.at_risk:
        yield f"{risk.partition}: {risk.text}"
    if parts.dispatcher.rules.parks and parts.dispatcher.rules.order is not Order.PARTITION:
        for partition in parts.reader.partitions:
            if partition.own and (why := partition.position.stored.parking_trouble):
                yield f"nothing of {partition.position.tp} can be parked: {why}"


def _stopped(partition: OpenPartition) -> str:
    if partition.stopped:
        why = partition.stopped.removeprefix(f"{partition.position.tp} ").removeprefix("has stopped: ")
        return why if why.startswith("stopped") else f"stopped: {why}"
    return f"reads no more: {partition.full_because}" if partition.full_because else ""


def _partition(partition: OpenPartition, running: Running, now: float) -> PartitionBalance:
    ledger, base, reading = partition.ledger, partition.ledger.base, partition.reading
    pointers = ledger.pointers
    kinds = [one.kind for one in pointers.values()]
    return PartitionBalance(
        partition.position.tp,
        base,
        _held(partition, base, running, now, passing=base in pointers) if base < reading.at else None,
        ledger.finished_beyond,
        ledger.unfinished,
        partition.in_hand,
        max(0.0, now - reading.base_since) if base < reading.at and reading.base == base else 0.0,
        kinds.count(PointerKind.PARKED),
        kinds.count(PointerKind.DEAD),
        ledger.unnoted,
        {name: slots.bit_count() for name, slots in ledger.lent_slots.items()},
        "" if partition.own else partition.borrowed.lender,
        0 if partition.own else ledger.slots.bit_count(),
        partition.position.full,
        _stopped(partition),
    )


def _held(partition: OpenPartition, base: int, running: Running, now: float, *, passing: bool) -> HeldMessage:
    failing, began = partition.failing.get(base), running.get((id(partition.ledger), base))
    borrower = next((name for name, start in partition.ledger.lent_bases.items() if start == base), "")
    where = borrower if failing is None and began is None else ""
    return HeldMessage(
        base,
        0 if failing is None else failing.attempts,
        None if failing is None else max(0.0, failing.due - now),
        "" if failing is None else failing.reason.partition(":")[0][:80],
        None if began is None else now - began,
        where,
        passing and began is None,
    )
