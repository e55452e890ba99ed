"""One loop over all streams of a connector, in the caller's thread or with worker threads, so that nobody must write
threads to get what streams promise.

Threads: :meth:`RunLoop.run` starts workers, each of which reads some of the streams through a
:class:`~zkconsumer.streams.MergedStreams` of its own, and waits for their end. A lock guards who reads which stream and
what has failed; no handler runs under it.

The original leaves threads to the application; what was always written around it is here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from time import time_ns
from typing import TYPE_CHECKING, Any, Literal

from zkconsumer.balance.balanced_run import BalancedOptions, BalancedRun, MemberAccess
from zkconsumer.balance.dead_letters import DeadLetterTarget
from zkconsumer.balance.executors import Decoders, executor_named
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.forked_child import ends_forked_child
from zkconsumer.balance.handler_check import check_handler, check_options, check_workers
from zkconsumer.balance.lanes import Order, kept_order, order_named
from zkconsumer.balance.retry import Retry
from zkconsumer.balance.run_summary import RunEnd, RunSummary
from zkconsumer.balance.until import RunEndRequest, checked_end, watch_end
from zkconsumer.balance.work import Executor
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector.shutdown import CLOSE_WITHIN, Closing
from zkconsumer.connector.signal_shutdown import shutdown_on_signal
from zkconsumer.connector.subscription_state import Subscription
from zkconsumer.core.registration import SHARE_KEY
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException, ForkedProcessError
from zkconsumer.model import ConsumerId
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.streams import KafkaStream, MergedStreams
from zkconsumer.streams.decoders import Decoder, K, V
from zkconsumer.wiring import GroupMember
from zkconsumer.wiring.sharing_access import share_keys, sharing_access

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

log = logging.getLogger(__name__)

Handler = Callable[[Any], object]
DEFAULT_LIMIT = FailureLimit()
JOIN_WITHIN = 5.0
"""Seconds that an interrupted run waits for handlers to return."""
SLICE = 0.5
"""Seconds after which who waits for workers looks whether a signal has come."""
HURRIED = -1
"""Stands for the number of a worker that has ended, where workers are waited for no more."""
SHORTEST_TIMEOUT = 0.05
"""Seconds of the shortest ``consumer.timeout.ms`` of a worker, which would look without a pause otherwise."""


class RunLoop:
    """The part of :class:`zkconsumer.ZookeeperConsumerConnector` that reads all of its streams."""

    config: ConsumerConfig
    consumer_id: ConsumerId
    _member: GroupMember | None
    _end: Closing
    _forked: ForkedProcessError | None
    _created: bool
    _run_order: Order | None = None
    _balanced = False
    """Whether messages are finished in any order: the first run had ``concurrency``."""
    _merged: MergedStreams[Any, Any] | None = None
    _running: _Run | BalancedRun | None = None
    _advertised: dict[str, object]
    _subscription: Subscription

    def messages(self, streams: Sequence[KafkaStream[K, V]] | None = None) -> MergedStreams[K, V]:
        """Return all streams of this connector as one, to be read in one thread: ``for message in
        connector.messages()``.

        Streams are served in turn, so that none starves; the order of each partition stays. A message is finished when
        the next one is asked for; commits, errors and timeouts are those of streams. The streams of topics that are
        added or unsubscribed later come and go. Each call returns the same object, which goes on where it was. Its
        ``get()`` returns one message. ``next()`` loses its message if a signal handler raises right after it.

        Arguments: ``streams`` reads these alone, through an object of its own.
        Raises: ValueError if no streams were created, or while :meth:`run` reads them;
        :class:`ConnectorClosedException`.
        """
        if streams is not None:
            chosen = list(streams)
            return self._merge(lambda: chosen, self._timeout_s(), lasting=lambda: False)
        if self._running is not None:
            raise ValueError("run() is reading the streams")
        if self._balanced:
            raise ValueError("this connector has been run with concurrency: its streams cannot be read otherwise")
        delivery = self._serving_member().delivery
        if self._merged is None:
            self._merged = self._merge(lambda: [stream for _, _, stream in delivery.streams()], self._timeout_s())
        return self._merged

    def run(
        self,
        handler: Handler,
        topics: str | Iterable[str] | Mapping[str, int] | TopicFilter | None = None,
        *,
        concurrency: int | None = None,
        order: Literal["key", "partition", "none"] = "key",
        executor: Literal["threads", "processes", "asyncio"] | Executor = "threads",
        batch: int = 1,
        retry: Retry | None = None,
        dead_letter: DeadLetterTarget = None,
        failure_limit: FailureLimit | None = DEFAULT_LIMIT,
        until: Any = None,
        workers: int = 1,
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
        stop_on: Iterable[int] = (),
        shutdown_timeout: float = CLOSE_WITHIN,
        tracer: Tracer | bool | None = None,
    ) -> RunSummary:
        """Call ``handler(message)`` for each message, on ``workers`` threads, until the connector is shut down.

        The messages of a partition come one after the other, in order; those of different partitions may come at the
        same time. A message is finished when the handler has returned, and is committed as with streams
        (``auto.commit.enable``, or ``commit_offsets()`` inside the handler, which counts its message as finished).

        An exception of the handler ends the run. Its message is not committed, and the other workers finish theirs.
        Then the connector is shut down, and the exception is raised here, with a note that tells the position.
        Exceptions of streams (a message that cannot be read, a refused login) and KeyboardInterrupt do the same.
        ``shutdown()`` from anywhere, also from the handler or a signal handler, lets this return when all handlers have
        returned. So does a signal of ``stop_on``: messages in hand are finished and committed. After a second signal no
        handler is waited for any more; a third does what it did before. Offsets that could not be committed are raised
        here.
        When no worker had a message for ``consumer.timeout.ms``, it raises ConsumerTimeoutException (or returns, with
        ``consumer.timeout.action=end``). The connector lives on, and may be run again.

        With ``concurrency`` the messages are balanced one by one: up to so many handlers run at the same time, and
        those of one key come in order (``order``). An exception of the handler then ends nothing: the message comes
        again (``retry``, a default :class:`Retry`), is parked, or becomes a dead letter. A BaseException ends the run.
        A partition stops, visibly, at its ``failure_limit``. ``commit_offsets()`` in a handler does not count its
        message. A handler may run longer than ``max.poll.interval.ms``: it blocks its key alone. ``batch`` above 1
        gives the handler lists; it may return a list with one outcome (or exception) for each. See
        ``docs/message-balance.md``.

        With ``until`` (and ``concurrency``) it returns when everything before an end is finished, parked or a dead
        letter in each partition that this member owns, and commits that. The connector lives on. ``until="end"`` is the
        log ends as of now; or a mapping from (topic, partition) to offsets, for all partitions of the topics; or a time
        that is over, as a datetime or in milliseconds since 1970. No message from there on is handled. A member that
        owns nothing returns when the committed offsets of the group have reached the ends. Partitions of a deleted
        topic do not count: with a warning in the log, the run ends without them.

        Arguments: ``topics``: one, or several, with a stream for each worker; or a mapping to the numbers of streams as
        for ``create_message_streams``; or a filter; None: the streams that were created before. ``workers`` threads
        share the streams; more than there are streams are of no use. Decoders as for ``create_message_streams``.
        ``stop_on`` by number (``(SIGTERM, SIGINT)``), in the main thread only, with ``shutdown_timeout`` seconds for
        the shutdown, as for :func:`zkconsumer.shutdown_on_signal`. ``tracer`` is an OpenTelemetry tracer (True: that of
        the global provider), which gets a ``process`` span around each call of the handler; see ``zkconsumer.tracing``.
        Returns: what was handled, and why it ended.
        Raises: as ``create_message_streams``; ValueError and TypeError for arguments that make no sense;
        :class:`OffsetCommitError` naming the offsets that a shutdown could not commit; MissingExtraError for a tracer
        without the extra ``otel``.
        """
        self._check_run(order, workers, concurrency, topics, key_decoder, value_decoder)
        check_options(concurrency, order, executor, batch, retry, failure_limit, dead_letter)
        end = checked_end(until, concurrency, topics, time_ns() // 1_000_000)
        handler, executor = self._fitting(handler, executor, concurrency, batch, (key_decoder, value_decoder), tracer)
        options = concurrency and BalancedOptions(
            concurrency, order_named(order), executor, batch, retry or Retry(), failure_limit, dead_letter=dead_letter
        )
        signals = (stop_on,) if isinstance(stop_on, int) else tuple(stop_on)
        guard = shutdown_on_signal(self, *signals, timeout=shutdown_timeout) if signals else None
        self._advertised.update(share_keys(self.config, options or None))
        with guard or nullcontext():
            try:
                if topics is not None:
                    self._create_streams(topics, workers, key_decoder, value_decoder)
                made = self._made_run(handler, workers, options or None, end)
            except ConnectorClosedException:
                if guard is not None and guard.received is not None:
                    return RunSummary(ended="signal")  # it came while the group was joined
                raise
            return made.summary(self._complete(made, guard))

    def _check_run(self, order: str, workers: int, concurrency: int | None, topics: object, *decoders: object) -> None:
        check_workers(workers, concurrency)
        if self._running is not None:
            raise ValueError("this connector is being run already")
        if topics is None and decoders != (None, None):
            raise ValueError("decoders are given where streams are created: here, with topics, or there")
        balanced = concurrency is not None
        if balanced != self._balanced and self._created:
            raise ValueError(
                "the streams of this connector were created without concurrency: give topics to run(), on another one"
                if balanced
                else "this connector has been run with concurrency: run it so again, or make another one"
            )
        if topics is None and balanced and not self._created:
            raise ValueError("there are no streams yet: with concurrency, give topics to run()")
        self._balanced, self._run_order = balanced, kept_order(order, self._run_order if self._created else None)

    def _fitting(
        self, handler: Handler, executor: Any, concurrency: int | None, batch: int, decoders: Decoders, tracer: Any
    ) -> tuple[Handler, Any]:
        """Return the handler to call and its executor. Raises TypeError and ValueError for what does not fit."""
        traced = tracer is not None and tracer is not False
        check_handler(handler, concurrency, executor, traced=traced)
        if executor != "processes":  # those pickle the handler, and do the same in the worker
            handler = ends_forked_child(handler)
        if traced:  # here, so that the loop has no branch for it
            from zkconsumer.tracing import ProcessSpans  # here, because nobody else needs the library

            handler = ProcessSpans(tracer, self.config).around(handler)
        if concurrency is None:
            return handler, executor
        return handler, executor_named(executor, handler, concurrency, batch, self.config, self.consumer_id, decoders)

    def _complete(self, run: _Run | BalancedRun, guard: Any) -> RunEnd:
        """Run to the end, and return its cause. Raises what went wrong."""
        self._running = run
        if isinstance(run, BalancedRun):
            self._serving_member().settle_balanced = run.settle_in_hand
        try:
            run.until_the_end()
            self._end.raise_failure()
            if isinstance(run, BalancedRun) and run.reached_end and self.config.auto_commit_enable:
                self.commit_offsets()
            signal = guard is not None and guard.received is not None
            return "until" if not self._end.begun else "signal" if signal else "shutdown"
        except ConsumerTimeoutException as e:
            if getattr(e, "__notes__", None) or self.config.consumer_timeout_action != "end":
                raise
            return "timeout"
        finally:
            self._running = None

    def _made_run(
        self, handler: Handler, workers: int, options: BalancedOptions | None, end: RunEndRequest | None
    ) -> _Run | BalancedRun:
        member = self._serving_member()
        member.parts.balanced = self._balanced
        if options is None:
            return _Run(self, handler, member, workers)
        if end is not None:
            options = replace(options, until=watch_end(end, member))
        return BalancedRun(self._access(member), handler, options)

    def _access(self, member: GroupMember) -> MemberAccess:
        config = self.config
        return MemberAccess(
            consumer=self.consumer_id,
            group=config.group_id,
            lookup=member.parts.message_lookup(),
            delivery=member.delivery,
            positions=member.positions,
            wake_fetchers=member.fetching.wake,
            gate=member.parts.gate,
            budget=member.parts.budget,
            window=config.unfinished_max_offsets,
            parks=not config.coordinated_by_brokers,
            stores=config.auto_commit_enable,
            timeout=self._timeout_s(),
            closing=lambda: self._end.begun,
            closed=lambda: self._end.over,
            shut_down=lambda: self._shut_down(finished=False),
            sharing=sharing_access(member, self._subscription.registration, shares=SHARE_KEY in self._advertised),
            handler_timeout=config.handler_timeout_ms / 1000 if config.handler_timeout_ms > 0 else None,
        )

    def _create_streams(
        self, topics: Any, workers: int, key_decoder: Decoder[K] | None, value_decoder: Decoder[V] | None
    ) -> None:
        if isinstance(topics, TopicFilter):
            self.create_message_streams_by_filter(topics, workers, key_decoder, value_decoder)
            return
        named = [topics] if isinstance(topics, str) else topics
        wanted = named if isinstance(named, Mapping) else dict.fromkeys(named, workers)
        if not wanted:
            raise ValueError("no topics: name at least one, or leave them out to read the streams created before")
        self.create_message_streams(wanted, key_decoder, value_decoder)

    def _serving_member(self) -> GroupMember:
        if self._end.begun:
            raise self._forked or ConnectorClosedException("the connector was shut down")
        if self._member is None:
            raise ValueError("there are no streams yet: create them first, or give topics to run()")
        return self._member

    def _timeout_s(self) -> float | None:
        timeout = self.config.consumer_timeout_ms
        return timeout / 1000 if timeout >= 0 else None

    def _merge(
        self,
        streams: Callable[[], Sequence[KafkaStream[Any, Any]]],
        timeout: float | None,
        *,
        may_end: bool = True,
        lasting: Callable[[], bool] | None = None,
    ) -> MergedStreams[Any, Any]:
        end, ends = self._end, may_end and self.config.consumer_timeout_action == "end"
        lasts = lasting or (lambda: not end.begun)
        merged = MergedStreams(
            streams, timeout=timeout, ends_on_timeout=ends, ended=end.await_stream_end, lasting=lasts
        )
        self._serving_member().delivery.add_merged(merged)
        return merged

    # ---- of the connector

    def create_message_streams(
        self, topics: Mapping[str, int], key_decoder: Decoder[K] | None = None, value_decoder: Decoder[V] | None = None
    ) -> dict[str, list[KafkaStream[K | None, V | None]]]:
        """See the connector."""
        raise NotImplementedError

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        streams: int = 1,
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
    ) -> list[KafkaStream[K | None, V | None]]:
        """See the connector."""
        raise NotImplementedError

    def commit_offsets(self) -> None:
        """See the connector."""
        raise NotImplementedError

    def _shut_down(self, *, finished: bool, timeout: float = CLOSE_WITHIN) -> None:
        raise NotImplementedError

    def _begin_shutdown(self, timeout: float) -> None:
        raise NotImplementedError

    def _hurry(self) -> None:
        raise NotImplementedError

    def _restores(self, restore: Callable[[], None]) -> None:
        raise NotImplementedError


class _Run:
    """One call of ``run``: its workers, who reads what, and what went wrong."""

    def __init__(self, connector: RunLoop, handler: Handler, member: GroupMember, workers: int) -> None:
        self._connector = connector
        self._handler = handler
        self._member = member
        self._lock = InterruptibleLock()
        self._readers: dict[KafkaStream[Any, Any], int] = {}
        self._failures: list[BaseException] = []
        self._timeout: ConsumerTimeoutException | None = None
        self._idle: set[int] = set()
        self._handled = [0] * workers
        self._over: SimpleQueue[int] = SimpleQueue()
        timeout = connector._timeout_s()
        timeout = None if timeout is None else max(timeout, SHORTEST_TIMEOUT)
        self._merged = [
            connector._merge(partial(self._streams_of, number), timeout, may_end=False) for number in range(workers)
        ]
        self._threads = [
            Thread(target=self._work, args=(n,), name=f"{connector.consumer_id}-worker-{n}", daemon=True)
            for n in range(workers)
        ]

    def _streams_of(self, worker: int) -> list[KafkaStream[Any, Any]]:
        """The streams that a worker reads. Whoever looks first deals new ones out: each to the one with the fewest."""
        streams = [stream for _, _, stream in self._member.delivery.streams()]
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
            if self._connector._end.begun:
                self._connector._shut_down(finished=False)  # somebody began it: wait until it is done
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
            self._connector._end.raise_failure()
            raise self._timeout

    def hurry(self) -> None:
        """Wait for no handler any more. Any thread, also a signal handler."""
        self._over.put(HURRIED)

    def summary(self, ended: RunEnd) -> RunSummary:
        """Return what the run has done. Arguments: ``ended`` is the cause of its end."""
        return RunSummary(sum(self._handled), ended=ended)

    def _interrupted(self) -> None:
        """Ctrl-C, or a signal handler that raised: leave the group, and wait for handlers a while."""
        self._connector._shut_down(finished=False)
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
            self._connector._shut_down(finished=False)
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
