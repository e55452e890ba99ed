"""One call of ``run`` with ``concurrency``: its reader, its dispatcher, its executor, and what went wrong.

Threads: the caller's thread starts everything and waits in :meth:`BalancedRun.until_the_end`. Reader and executor have
threads of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from time import monotonic

from zkconsumer.balance.balance_state import BalanceState, HeldMessage, PartitionBalance, RunEnd, RunSummary
from zkconsumer.balance.chunk_intake import ChunkIntake
from zkconsumer.balance.dead_letters import DeadLetters, DeadLetterTarget, checked_target
from zkconsumer.balance.dispatched_work import Executor, Work
from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.failed_messages import RunRules
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.idle_workers import BatchSize
from zkconsumer.balance.message_intake import ENOUGH
from zkconsumer.balance.message_order import Order
from zkconsumer.balance.open_partition import Lending, OpenPartition, ReadLimits
from zkconsumer.balance.outcomes import DONE, NOT_STARTED
from zkconsumer.balance.parked_reader import ParkedReader
from zkconsumer.balance.retry_policy import Retry
from zkconsumer.balance.sharing.lent_partition import LentPartitions
from zkconsumer.balance.sharing.sharing_thread import Sharing, SharingAccess
from zkconsumer.balance.thread_executor import Handler, ThreadExecutor
from zkconsumer.core.message_pointers import PointerKind
from zkconsumer.core.names import first_of
from zkconsumer.core.registration import AdvertisedShare
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.fetch.message_lookup import MessageLookup
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.streams.member_streams import MemberStreams
from zkconsumer.streams.rate_limit import HandOutGate
from zkconsumer.streams.stream_queue import nothing_came
from zkconsumer.streams.until import RunEndWatch

log = logging.getLogger(__name__)

SLICE = 0.2
"""Seconds after which the caller's thread looks whether a signal has come, or the time is over."""
LEAVE_WITHIN = 2.0
"""Seconds that a run takes to give back what it has on loan."""
STOP_WITHIN = 5.0
"""Seconds that an interrupted run waits for handlers to return."""


@dataclass(frozen=True, slots=True)
class BalancedOptions:
    """The options of ``run`` with ``concurrency``; see there."""

    concurrency: int
    order: Order = Order.KEY
    executor: str | Executor = "threads"
    batch: int = 1
    retry: Retry = field(default_factory=Retry)
    failure_limit: FailureLimit | None = field(default_factory=FailureLimit)
    until: RunEndWatch | None = None
    dead_letter: DeadLetterTarget = None

    def __post_init__(self) -> None:
        checked_target(self.dead_letter)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberAccess:
    """The parts of a member that a run uses.

    ``closing`` says whether the connector is being shut down, ``closed`` whether it has left the group; ``shut_down``
    does so without counting anything as finished that is in hand, and waits; ``parks``: pointers can be kept;
    ``handler_timeout`` in seconds, None for none; ``lookup`` reads single messages; ``limits`` without the run's end.
    """

    consumer: ConsumerId
    group: str
    lookup: MessageLookup
    delivery: MemberStreams
    positions: Callable[[], Mapping[TopicPartition, PartitionPosition]]
    wake_fetchers: Callable[[], None]
    gate: HandOutGate
    limits: ReadLimits
    parks: bool
    timeout: float | None
    closing: Callable[[], bool]
    closed: Callable[[], bool]
    shut_down: Callable[[], None]
    sharing: SharingAccess | None = None
    handler_timeout: float | None = None


class BalancedRun:
    """One run. Nothing is started before :meth:`until_the_end`."""

    def __init__(self, member: MemberAccess, handler: Handler, options: BalancedOptions) -> None:
        self.member = member
        self._until = options.until
        self.concurrency = options.concurrency
        self._events: SimpleQueue[BaseException | None] = SimpleQueue()
        self._hurried = False
        self.reached_end = False
        """Whether the run ended because of ``until``."""
        sizes = BatchSize()
        self.executor: Executor = self._executor(handler, options, sizes)
        self.dead_letters = DeadLetters(
            member.consumer, member.group, options.dead_letter, failed=self._events.put, keeps_pointers=member.parks
        )
        self.dispatcher = Dispatcher(
            member.gate,
            RunRules(options.order, options.retry, options.failure_limit, member.parks),
            failed=self._events.put,
            dead_letters=self.dead_letters,
            wake_executor=self.executor.wake,
            sizes=sizes,
        )
        self.dispatcher.intake.pause.enough = max(ENOUGH, 2 * options.concurrency * options.batch)
        lent = LentPartitions() if member.sharing is not None else None
        self.reader = reader = self._reader(options, lent)
        self.pointers = ParkedReader(
            member.consumer, reader.partitions, self.dispatcher.intake, member.lookup, most=2 * options.concurrency
        )
        self.sharing: Sharing | None = None
        if member.sharing is not None and lent is not None:
            share = AdvertisedShare(options.order.value, options.concurrency)
            self.sharing = Sharing(member.sharing, self.dispatcher, reader, lent, share)

    def _reader(self, options: BalancedOptions, lending: Lending | None) -> ChunkIntake:
        member, executor = self.member, self.executor
        limits = member.limits if options.until is None else member.limits._replace(end=options.until.limit)
        idle = [self.dead_letters.tend]
        if isinstance(executor, ThreadExecutor):
            idle.append(executor.reclaim)
        return ChunkIntake(
            member.consumer,
            self.dispatcher,
            limits,
            member.delivery,
            member.positions,
            member.wake_fetchers,
            lending,
            idle,
        )

    def _executor(self, handler: Handler, options: BalancedOptions, sizes: BatchSize) -> Executor:
        if not isinstance(options.executor, str):
            return options.executor
        return ThreadExecutor(handler, options.concurrency, batch=options.batch, name=self.member.consumer, sizes=sizes)

    # ---- the caller's thread

    def until_the_end(self) -> None:
        """Run until the end. Raises: what went wrong; ConsumerTimeoutException after ``timeout``."""
        try:
            if self.sharing is not None:
                self.sharing.prepare()
            self.reader.start()
            if self.sharing is not None:
                self.sharing.start()
            self.dead_letters.start()
            if self.member.parks:
                self.pointers.start()
            self.executor.start(self.dispatcher)
            error = self._wait()
            self._end(error)
        except BaseException:
            self._interrupted()
            raise
        if error is not None:
            raise error

    def _wait(self) -> BaseException | None:
        """Wait for the end. Returns the error that ended the run, None for a shutdown, or for ``until``."""
        timeout = self.member.timeout
        pause = SLICE if timeout is None else max(0.01, min(SLICE, timeout / 4))
        while True:
            try:
                return self._events.get(timeout=pause)
            except Empty:
                pass
            if self._hurried or self.member.closing():
                return None
            if self._at_end():
                return None
            dispatcher = self.dispatcher
            # a worker process may be on its way to a message, or what a loan gives waits for the connection
            waiting = any(one.aside and one.unseen_loan for one in self.reader.partitions)
            held_back = dispatcher.busy or self.reader.unstored or waiting
            if timeout is not None and not held_back and monotonic() - dispatcher.active_at >= timeout:
                return self._nothing_came()

    def _at_end(self) -> bool:
        """Return whether ``until`` is reached, and no message of the run is pending.

        The next run would hand out again a parked message that is pending. A message whose dead letter cannot be
        delivered comes again, and is not waited for.
        """
        if not self.reached_end:
            if self._until is None or not self._until.reached(list(self.member.positions().values())):
                return False
            self.reached_end = True
            self.dispatcher.end()
        kept = (one for one in self.reader.partitions if not one.position.revoked)
        return all(one.in_hand <= (self.dead_letters.waiting_of(one) if one.stopped else 0) for one in kept)

    def _nothing_came(self) -> ConsumerTimeoutException:
        streams = self.member.delivery.streams()
        return streams[0][2].nothing_came() if streams else nothing_came("")

    def _end(self, error: BaseException | None) -> None:
        """Stop everything, and wait until all handlers have returned, or somebody is in a hurry."""
        self.dispatcher.end()
        if error is not None and not isinstance(error, ConsumerTimeoutException):
            self.member.shut_down()
        while not self.executor.drained(Deadline(SLICE)) and not self._hurried:
            if self.member.closed():  # other members may have the messages now: end what can be ended
                self.executor.stop(Deadline(0.0))
        self.executor.stop(Deadline(0.0))
        self._recall()
        self._stop_reader()
        self._tell_of_late_handlers()

    def _recall(self) -> None:
        """Take back what other members have of our partitions, if these stay ours: nobody would read their reports.

        It takes as long as their handlers, unless somebody shuts down, or nothing can be taken back for a while. Then
        the next run, or the next owner, takes over the loans.
        """
        sharing, trouble = self.sharing, Deadline(STOP_WITHIN)
        while sharing is not None and not self._hurried and not self.member.closing():
            if sharing.leave(Deadline(SLICE), recall=True):
                return
            if not sharing.trouble:
                trouble = Deadline(STOP_WITHIN)
            elif trouble.expired:
                log.warning("what other members have of our partitions is not taken back: %s", sharing.trouble)
                return

    def _interrupted(self) -> None:
        """Ctrl-C, or a signal handler that raised: leave the group, and wait for handlers a while."""
        with ExitStack() as last:  # in reverse, and each step also if a second Ctrl-C ends one before it
            last.callback(self._tell_of_late_handlers)
            last.callback(self._stop_reader)
            last.callback(lambda: self.executor.stop(Deadline(STOP_WITHIN)))
            last.callback(self.member.shut_down)
            self.dispatcher.end()

    def _stop_reader(self) -> None:
        with ExitStack() as last:  # in reverse, and each step also if a second Ctrl-C ends one before it
            last.callback(self._end_reader)
            last.callback(self._close_dead_letters)
            last.callback(lambda: self.pointers.close(Deadline(STOP_WITHIN)))
            if self.sharing is not None:
                last.callback(self.sharing.stop, Deadline(STOP_WITHIN))
            self.give_back()

    def _close_dead_letters(self) -> None:
        if not self.dead_letters.close(Deadline(STOP_WITHIN)):
            log.warning("a dead letter is being delivered still; its message comes again")

    def _end_reader(self) -> None:
        self.reader.stop()
        if self.reader.thread.ident is not None:
            self.reader.thread.join(STOP_WITHIN)

    def _tell_of_late_handlers(self) -> None:
        for name in getattr(self.executor, "late", ()):
            log.warning("%s: its handler has not returned", name)

    # ---- any thread

    def give_back(self) -> None:
        """Give back what is on loan from other members, once the messages of it in hand are finished; waits a while."""
        if self.sharing is not None:
            self.sharing.leave(Deadline(0.0 if self._hurried else LEAVE_WITHIN))

    def state(self) -> BalanceState:
        """Return what the run does at this moment. Any thread, also a signal handler."""
        return run_state(self)

    def summary(self, ended: RunEnd) -> RunSummary:
        """Return what the run has done. Arguments: ``ended`` is the cause of its end."""
        failures = self.dispatcher.failures
        dead = self.dead_letters.delivered + self.pointers.lost
        return RunSummary(self.dispatcher.handled, failures.failed, failures.parking.parked, dead, ended)

    def problems(self) -> tuple[str, ...]:
        """Return why not everything is handled, in words. Any thread, also a signal handler; takes no lock."""
        return run_problems(self)

    def hurry(self) -> None:
        """Wait for no handler any more. Any thread, also a signal handler."""
        self._hurried = True
        self._events.put(None)

    def left_to_parent(self) -> None:
        """Do nothing more in a forked process; see :mod:`zkconsumer.runtime.fork_guard`."""
        self.dispatcher.left_to_parent()
        leave = getattr(self.executor, "left_to_parent", None)  # of coroutines
        if leave is not None:
            leave()

    def settle_in_hand(self, thread: int, finished: bool) -> None:
        """Settle the messages of the handler that this thread runs, because the thread waits for the group.

        Arguments: ``thread`` is its native identifier; ``finished``: the messages count as done, otherwise they come
        again.
        """
        self.dispatcher.settle([(work, DONE if finished else NOT_STARTED) for work in self.in_hand_of(thread)])

    def in_hand_of(self, thread: int) -> Sequence[Work]:
        """Return the messages of the handler that this thread (native identifier) runs.

        Messages that the thread has taken and not begun go back.
        """
        executor = self.executor
        if not isinstance(executor, ThreadExecutor):
            return ()
        executor.reclaim(thread)
        return executor.in_hand_of(thread)

    def finish(self, works: Sequence[Work]) -> None:
        """Count these messages as done, unless their handlers have returned. Any thread."""
        self.dispatcher.settle([(work, DONE) for work in works])


Running = Mapping[tuple[int, int], float]
"""When the handlers began (monotonic seconds), by the identity of the ledger and the offset."""
BLOCKED = 5.0
"""Seconds for which a handler may block an event loop before that is a trouble."""


# ---- what a run does now: single attributes are read, and copies that one step of the interpreter makes. So any thread
# may ask, also a signal handler, and the numbers of one partition may be a moment apart.


def run_state(run: BalancedRun) -> BalanceState:
    """Return what a run does now."""
    dispatcher, executor, partitions = run.dispatcher, run.executor, run.reader.partitions
    now = monotonic()
    running = {(id(work.ledger), work.offset): began for work, began in running_works(executor)}
    return BalanceState(
        run.concurrency,
        tuple(_partition(partition, running, now) for partition in sorted(partitions, key=lambda one: one.position.tp)),
        dispatcher.failures.failed,
        dispatcher.failures.late,
        dispatcher.zombies,
        run.pointers.lost,
        tuple(_troubles(run)),
        tuple(_warnings(run)),
        dispatcher.intake.workers.sizes.times.value(),
    )


def run_problems(run: BalancedRun) -> tuple[str, ...]:
    """Return :attr:`BalanceState.problems`, without taking a lock."""
    stops = (f"{partition.position.tp} {why}" for partition in run.reader.partitions if (why := _stopped(partition)))
    return (*stops, *_troubles(run))


def running_works(executor: Executor) -> Sequence[tuple[Work, float]]:
    """Return the works in handlers, each with the time at which its handler began; none if the executor cannot tell."""
    tell = getattr(executor, "running", None)
    return tell() if tell is not None else ()


def _troubles(run: BalancedRun) -> Iterator[str]:
    """Yield what keeps a run from its work, beside partitions that stand still."""
    executor, limit, now = run.executor, run.member.handler_timeout, monotonic()
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
    if run.sharing is not None and run.sharing.trouble:
        yield run.sharing.trouble
    unstored = run.reader.unstored
    if unstored:
        some, longest = first_of(sorted(unstored)), max(unstored.values())
        yield f"{some}: results wait up to {longest:.0f} s to be stored, and no more is handled until they are"
    for tp, why in sorted(run.pointers.trouble.copy().items()):
        yield f"{tp}: parked messages have to wait: {why}"


def _warnings(run: BalancedRun) -> Iterator[str]:
    """Yield what somebody should look after although everything is handled."""
    for risk in run.pointers.retention.at_risk:
        yield f"{risk.partition}: {risk.text}"
    rules = run.dispatcher.failures.rules
    if rules.parks and rules.order is not Order.PARTITION:
        for partition in run.reader.partitions:
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
