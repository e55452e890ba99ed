"""One loop over all streams of a connector, in the caller's thread or with worker threads, so that nobody must write
threads to get what streams promise.

Threads: :class:`WorkerRun` starts workers, each of which reads some of the streams through a
:class:`~zkconsumer.streams.MergedStreams` of its own, and waits for their end. A lock guards who reads which stream and
what has failed; no handler runs under it.

The original leaves threads to the application; what was always written around it is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from zkconsumer.balance.balance_state import RunEnd, RunSummary
from zkconsumer.balance.balanced_run import BalancedOptions, BalancedRun, MemberAccess
from zkconsumer.balance.dispatched_work import Executor
from zkconsumer.balance.handler_check import check_handler, check_workers, is_coroutine_function
from zkconsumer.balance.message_order import Order, kept_order
from zkconsumer.balance.open_partition import ReadLimits
from zkconsumer.balance.sharing.sharing_thread import SharingAccess
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector.lifecycle import Lifecycle
from zkconsumer.connector.partition_control import commit
from zkconsumer.connector.signal_shutdown import ShutdownOnSignal
from zkconsumer.connector.subscribed_streams import Decoders, RunWay, Subscription
from zkconsumer.core.registration import SHARE_KEY, AdvertisedShare, Registration
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.errors import ConfigException, ConsumerTimeoutException
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.fork_guard import ends_forked_child
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.streams.chunk_reader import read_settings
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.until import RunEndRequest, watch_end
from zkconsumer.wiring import GroupMember
from zkconsumer.wiring.member_parts import read_timeout
from zkconsumer.wiring.zookeeper_member import ZooKeeperCoordination

log = logging.getLogger(__name__)

Handler = Callable[[Any], object]
EXECUTORS = ("threads", "processes", "asyncio")
JOIN_WITHIN = 5.0
"""Seconds that an interrupted run waits for handlers to return."""
SLICE = 0.5
"""Seconds after which who waits for workers looks whether a signal has come."""
HURRIED = -1
"""Stands for the number of a worker that has ended, where workers are waited for no more."""
SHORTEST_TIMEOUT = 0.05
"""Seconds of the shortest ``consumer.timeout.ms`` of a worker, which would look without a pause otherwise."""


class HandlerLoop:
    """Calls a handler for each message of a connector's streams.

    Arguments: the connector's ``lifecycle`` and ``subscription``.
    """

    def __init__(self, lifecycle: Lifecycle, subscription: Subscription) -> None:
        self._lifecycle = lifecycle
        self._subscription = subscription

    def check(
        self, order: str, workers: int, concurrency: int | None, topics: object, decoders: tuple[object, object]
    ) -> Order:
        """Return the order of messages. Raises ValueError if an earlier use of the connector forbids the run."""
        check_workers(workers, concurrency)
        subscription, created = self._subscription, self._lifecycle.created
        if self._lifecycle.running is not None:
            raise ValueError("this connector is being run already")
        if topics is None and decoders != (None, None):
            raise ValueError("decoders are given where streams are created: here, with topics, or there")
        balanced = concurrency is not None
        if balanced != subscription.way.balanced and created:
            raise ValueError(
                "the streams of this connector were created without concurrency: give topics to run(), on another one"
                if balanced
                else "this connector has been run with concurrency: run it so again, or make another one"
            )
        if topics is None and balanced and not created:
            raise ValueError("there are no streams yet: with concurrency, give topics to run()")
        return kept_order(order, subscription.way.order)

    def fitting(
        self, handler: Handler, executor: Any, concurrency: int | None, batch: int, decoders: Decoders, tracer: Any
    ) -> tuple[Handler, Any]:
        """Return the handler to call and its executor. Raises TypeError and ValueError for unfit arguments."""
        traced = tracer is not None and tracer is not False
        check_handler(handler, concurrency, executor, traced=traced)
        if executor != "processes":  # those pickle the handler, and do the same in the worker
            handler = ends_forked_child(handler, coroutine=is_coroutine_function(handler))
        if traced:  # here, so that the loop has no branch for it
            from zkconsumer.tracing import ProcessSpans  # here, because nobody else needs the library

            handler = ProcessSpans(tracer, self._lifecycle.config).around(handler)
        if concurrency is None:
            return handler, executor
        return handler, self._executor(executor, handler, concurrency, batch, decoders)

    def _executor(
        self, executor: str | Executor, handler: Handler, concurrency: int, batch: int, decoders: Decoders
    ) -> str | Executor:
        """Return a new executor of this name; "threads", and what is no name, as they are.

        It is made before the group is joined, so that a handler that does not fit its executor joins no group.
        """
        config, name = self._lifecycle.config, self._lifecycle.consumer_id
        timeout = config.handler_timeout_ms / 1000 if config.handler_timeout_ms > 0 else None
        # imported here: a member without them does not load asyncio and multiprocessing
        if executor == "processes":
            from zkconsumer.balance.process_executor import ProcessExecutor

            return ProcessExecutor(
                handler,
                concurrency,
                name=name,
                batch=batch,
                handler_timeout=timeout,
                settings=read_settings(config),
                decoders=decoders,
            )
        if executor == "asyncio":
            from zkconsumer.balance.asyncio_executor import AsyncioExecutor

            return AsyncioExecutor(handler, concurrency, name=name, batch=batch, handler_timeout=timeout)
        if isinstance(executor, str) and executor not in EXECUTORS:
            raise ValueError(f"executor must be one of {', '.join(map(repr, EXECUTORS))}, not {executor!r}")
        return executor

    def create_streams(self, topics: Any, workers: int, decoders: Decoders, way: RunWay) -> None:
        """Create the streams of ``run(topics=...)``, a stream of each topic for each worker; none without topics."""
        if topics is None:
            return
        if isinstance(topics, TopicFilter):
            self._subscription.create_by_filter(topics, workers, decoders, way)
            return
        named = [topics] if isinstance(topics, str) else topics
        wanted = named if isinstance(named, Mapping) else dict.fromkeys(named, workers)
        if not wanted:
            raise ValueError("no topics: name at least one, or leave them out to read the streams created before")
        self._subscription.create(wanted, decoders, way=way)

    def complete(self, run: WorkerRun | BalancedRun, guard: ShutdownOnSignal | None) -> RunEnd:
        """Run to the end, and return its cause. Raises what went wrong."""
        life = self._lifecycle
        life.running, life.balanced_run = run, run if isinstance(run, BalancedRun) else None
        try:
            run.until_the_end()
            life.end.raise_failure()
            if isinstance(run, BalancedRun) and run.reached_end and life.config.auto_commit_enable:
                commit(life, None, None)
            signal = guard is not None and guard.received is not None
            return "until" if not life.end.begun else "signal" if signal else "shutdown"
        except ConsumerTimeoutException as e:
            if getattr(e, "__notes__", None) or life.config.consumer_timeout_action != "end":
                raise
            return "timeout"
        finally:
            life.running = life.balanced_run = None

    def made_run(
        self, handler: Handler, workers: int, options: BalancedOptions | None, end: RunEndRequest | None
    ) -> WorkerRun | BalancedRun:
        """Return a run that is not started. Raises: as :meth:`Subscription.serving_member`."""
        member = self._subscription.serving_member()
        if options is None:
            return WorkerRun(self._lifecycle, self._subscription, handler, workers)
        if end is not None:
            options = replace(options, until=watch_end(end, member))
        return BalancedRun(self._access(member), handler, options)

    def _access(self, member: GroupMember) -> MemberAccess:
        life, subscription = self._lifecycle, self._subscription
        config = life.config
        return MemberAccess(
            consumer=life.consumer_id,
            group=config.group_id,
            lookup=member.parts.message_lookup(),
            delivery=member.delivery,
            positions=member.positions,
            wake_fetchers=member.fetching.wake,
            gate=member.parts.gate,
            limits=ReadLimits(config.unfinished_max_offsets, member.parts.budget, config.auto_commit_enable),
            parks=not config.coordinated_by_brokers,
            timeout=read_timeout(config),
            closing=lambda: life.end.begun,
            closed=lambda: life.end.over,
            shut_down=lambda: life.shut_down(finished=False),
            sharing=sharing_access(member, subscription.registration, shares=SHARE_KEY in subscription.way.advertised),
            handler_timeout=config.handler_timeout_ms / 1000 if config.handler_timeout_ms > 0 else None,
        )


class WorkerRun:
    """A call of ``run``: the workers, their streams, and the failures."""

    def __init__(self, lifecycle: Lifecycle, subscription: Subscription, handler: Handler, workers: int) -> None:
        self._lifecycle = lifecycle
        self._handler = handler
        self._delivery = subscription.serving_member().delivery
        self._lock = InterruptibleLock()
        self._readers: dict[KafkaStream[Any, Any], int] = {}
        self._failures: list[BaseException] = []
        self._timeout: ConsumerTimeoutException | None = None
        self._idle: set[int] = set()
        self._handled = [0] * workers
        self._over: SimpleQueue[int] = SimpleQueue()
        timeout = read_timeout(lifecycle.config)
        timeout = None if timeout is None else max(timeout, SHORTEST_TIMEOUT)
        self._merged = [
            subscription.merge(partial(self._streams_of, number), timeout, may_end=False) for number in range(workers)
        ]
        self._threads = [
            Thread(target=self._work, args=(n,), name=f"{lifecycle.consumer_id}-worker-{n}", daemon=True)
            for n in range(workers)
        ]

    def _streams_of(self, worker: int) -> list[KafkaStream[Any, Any]]:
        """The streams that a worker reads. The first caller deals out new streams, each to the least busy worker."""
        streams = [stream for _, _, stream in self._delivery.streams()]
        with self._lock:
            self._readers = {stream: reader for stream, reader in self._readers.items() if stream in streams}
            load = [0] * len(self._threads)
            for reader in self._readers.values():
                load[reader] += 1
            for stream in streams:
                if stream not in self._readers:
                    reader = self._readers[stream] = load.index(min(load))
                    load[reader] += 1
            return [stream for stream in streams if self._readers[stream] == worker]

    # ---- the caller's thread

    def until_the_end(self) -> None:
        """Start the workers and wait for them. Raises: what went wrong."""
        try:
            for thread in self._threads:
                thread.start()
            ended = 0
            while ended < len(self._threads):
                try:
                    # in slices: a signal that comes just before a wait runs its handler only after it
                    if self._over.get(timeout=SLICE) == HURRIED:
                        break
                except Empty:
                    continue
                ended += 1
            if ended == len(self._threads):
                for thread in self._threads:
                    thread.join()
            if self._lifecycle.end.begun:
                self._lifecycle.shut_down(finished=False)  # somebody began it: wait until it is done
            self._tell_of_late_handlers()
        except BaseException:
            self._interrupted()
            raise
        if self._failures:
            first, *others = self._failures
            for other in others:
                told = " ".join([repr(other), *getattr(other, "__notes__", [])])
                first.add_note(f"meanwhile another worker failed: {told}")
            raise first
        if self._timeout is not None:
            self._lifecycle.end.raise_failure()
            raise self._timeout

    def hurry(self) -> None:
        """Wait for no handler any more. Any thread, also a signal handler."""
        self._over.put(HURRIED)

    def summary(self, ended: RunEnd) -> RunSummary:
        """Return what the run has done. Arguments: ``ended`` is the cause of its end."""
        return RunSummary(sum(self._handled), ended=ended)

    def _interrupted(self) -> None:
        """Ctrl-C, or a signal handler that raised: leave the group, and wait for handlers a while."""
        try:
            self._lifecycle.shut_down(finished=False)
        finally:  # a second Ctrl-C ends that, and workers would read on
            self._stop()
        deadline = Deadline(JOIN_WITHIN)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(deadline.remaining())
        self._tell_of_late_handlers()

    def _tell_of_late_handlers(self) -> None:
        for thread in self._threads:
            if thread.is_alive():
                log.warning("%s: its handler has not returned", thread.name)

    def _stop(self) -> None:
        for merged in self._merged:
            merged.stop()

    # ---- a worker's thread

    def _work(self, number: int) -> None:
        try:
            self._read(number)
        except BaseException as e:  # noqa: BLE001 (whatever it is, the caller of run raises it)
            with self._lock:
                self._failures.append(e)
            # on this thread, whose message is then known to be unfinished, and is not waited for
            self._lifecycle.shut_down(finished=False)
            self._stop()
        finally:
            self._over.put(number)

    def _read(self, number: int) -> None:
        handler, messages, handled, idle = self._handler, self._merged[number], self._handled, False
        while True:
            try:
                for message in messages:
                    if idle:
                        idle = False
                        self._busy(number)
                    try:
                        handler(message)
                    except BaseException as e:
                        e.add_note(
                            f"raised by the handler of {message.topic}-{message.partition} at offset {message.offset};"
                            " this message is not committed"
                        )
                        raise
                    handled[number] += 1
                return
            except ConsumerTimeoutException as e:
                if getattr(e, "__notes__", None):  # the handler's own
                    raise
                idle = True
                self._nothing_came(number, e)

    def _busy(self, number: int) -> None:
        with self._lock:
            self._idle.discard(number)

    def _nothing_came(self, number: int, error: ConsumerTimeoutException) -> None:
        """No message within the timeout, for this worker. When that is so for all, the run is over."""
        with self._lock:
            self._idle.add(number)
            over = len(self._idle) == len(self._threads)
            if over:
                self._timeout = error
        if over:
            self._stop()


# ---- sharing


def share_keys(config: ConsumerConfig, options: BalancedOptions | None) -> Mapping[str, str]:
    """Return the extra keys of a registration by which a member says that it shares; none if it does not.

    Arguments: ``options`` of the run, None without ``concurrency``. Raises ConfigException if it cannot share.
    """
    if options is None or not config.share_partitions:
        return {}
    if options.order is Order.PARTITION:
        raise ConfigException("share.partitions", "has no meaning with order='partition': a partition is one lane")
    return {SHARE_KEY: str(AdvertisedShare(options.order.value, options.concurrency))}


def sharing_access(
    member: GroupMember, registration: Callable[[], Registration], *, shares: bool
) -> SharingAccess | None:
    """Return what sharing needs of a member, None if its group is not in ZooKeeper.

    Arguments: ``registration`` returns the present one; ``shares``: it advertises that it lends and borrows.
    """
    coordination, fetching = member.coordination, member.fetching
    if not isinstance(coordination, ZooKeeperCoordination):
        return None
    return SharingAccess(
        session=coordination.session,
        group=coordination.group,
        consumer=member.consumer,
        topics=lambda: None if registration().is_wildcard else registration().subscription,
        positions=member.positions,
        stream=member.parts.borrowing_stream,
        fetch=lambda position, sink: fetching.start([(position, sink)]),
        forget=fetching.forget,
        shares=shares,
    )
