"""``ZookeeperConsumerConnector``, the class that applications use.

It has a lifecycle (``shutdown``), a subscription and a handler loop. ``wiring`` builds its member.

Threads: a connector may be used from several application threads; each stream by one at a time.
:meth:`ZookeeperConsumerConnector.shutdown` takes no lock on entry, so that a signal handler may call it.

Mirrors the original's class of this name. There the constructor connects; here nothing happens before streams are
created.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from threading import get_native_id
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector.cluster_queries import ClusterQueries
from zkconsumer.connector.lifecycle import CLOSE_WITHIN, Lifecycle
from zkconsumer.connector.partition_control import PartitionControl
from zkconsumer.core.foreign_names import NamesMissingMethods
from zkconsumer.errors import ConnectorClosedException

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from zkconsumer.balance.balance_state import BalanceState, RunSummary
    from zkconsumer.balance.dead_letters import DeadLetterTarget
    from zkconsumer.balance.dispatched_work import Executor
    from zkconsumer.balance.handler_check import (
        BalancedHandler,
        BalancedRunOptions,
        BatchHandler,
        CoroutineHandler,
        Handler,
        PlainHandler,
        RunOptions,
        RunTopics,
    )
    from zkconsumer.balance.retry_policy import Retry
    from zkconsumer.core.topic_filter import TopicFilter
    from zkconsumer.member.listener import ConsumerRebalanceListener
    from zkconsumer.offsets.store import OffsetStore
    from zkconsumer.streams.kafka_stream import KafkaStream
    from zkconsumer.streams.merged_streams import MergedStreams
    from zkconsumer.streams.message import Decoder, K, V

DEFAULT_LIMIT = FailureLimit()


class ZookeeperConsumerConnector(PartitionControl, ClusterQueries, NamesMissingMethods):
    """One member of a consumer group: coordinated through ZooKeeper, or by the brokers (``group.coordination=kafka``)::

        with ZookeeperConsumerConnector(zookeeper_connect="127.0.0.1:2181", group_id="readers") as connector:
            for message in connector.create_message_streams({"events": 1})["events"][0]:
                print(message.partition, message.offset, message.value)

    Arguments: a :class:`ConsumerConfig`, or what makes one (a mapping of properties, or keywords with underscores).
    ``offset_store`` keeps the group's offsets in place of ``offsets.storage``; see :class:`OffsetStore`.

    Leaving the ``with`` shuts down, and counts the message in the leaving thread's hands as finished unless an
    exception is what leaves. Nothing is connected or started before streams are created. One that is dropped
    gives a ResourceWarning: its threads live on, and it stays a member that nobody can end.
    """

    def __init__(
        self,
        config: ConsumerConfig | Mapping[str, Any] | None = None,
        /,
        *,
        offset_store: OffsetStore | None = None,
        **properties: Any,
    ) -> None:
        if isinstance(config, ConsumerConfig):
            self.config = config.replace(**properties) if properties else config
        else:
            self.config = ConsumerConfig(config, **properties)
        # Loaded here and not with the package. Later, a rebalance or a signal handler would wait for the import.
        from zkconsumer.connector.subscribed_streams import Subscription
        from zkconsumer.wiring.builder import consumer_id

        self.consumer_id = consumer_id(self.config)
        lifecycle = Lifecycle(self.config, self.consumer_id)
        PartitionControl.__init__(self, lifecycle)
        ClusterQueries.__init__(self, lifecycle)
        self._subscription = Subscription(lifecycle, offset_store)

    # ---- streams ----

    def set_consumer_rebalance_listener(self, listener: ConsumerRebalanceListener | None) -> None:
        """Have an object told when partitions come and go; None takes it back.

        Raises: :class:`MessageStreamsExistException` once streams were created.
        """
        self._subscription.set_listener(listener)

    def create_message_streams(
        self,
        topics: Mapping[str, int],
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
        until: Any = None,
    ) -> dict[str, list[KafkaStream[K | None, V | None]]]:
        """Join the group and return streams, for each topic as many as asked for, in thread order.

        Arguments: ``topics`` maps each topic to its number of streams (at least 1). A topic that does not exist yet
        is waited for. An empty mapping makes a member that owns nothing. ``key_decoder`` and ``value_decoder`` make of
        bytes what ``message.key`` and ``message.value`` give (``zkconsumer.StringDecoder()``, or any callable).
        With ``until`` a stream ends, as at a shutdown, when all before an end is finished in each of its partitions. It
        is given as for :meth:`run`; streams of topics that are added later do not stop there.
        Returns when the first rebalance has run; partitions that another member has not released yet come later by
        themselves.
        Raises: :class:`MessageStreamsExistException` when streams were created before;
        :class:`RegistryUnavailableError`, :class:`ChrootMissingError`, :class:`ConsumerIdInUseError`,
        :class:`MessageModelConflictError`, :class:`OffsetStoreConflictError`, :class:`BrokerUnavailableError`,
        :class:`ConsumerRebalanceFailedException` (the connector is shut down then); ValueError and TypeError.
        """
        return self._subscription.create(topics, (key_decoder, value_decoder), until)

    def add_topics(
        self,
        topics: Mapping[str, int],
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
        timeout: float | None = None,
    ) -> dict[str, list[KafkaStream[K | None, V | None]]]:
        """Subscribe to further topics on the live connector, and return their streams. Other streams flow on.

        One transaction makes the registration anew, so that Scala members see the change too. ``add_topics`` may be
        the first call, in place of :meth:`create_message_streams`.

        Arguments: as for :meth:`create_message_streams`; ``timeout`` in seconds to wait until the group knows, by
        default as long as a rebalance may take.
        Raises: ValueError for a bad topic, for one that is subscribed already, or if the connector follows a filter;
        :class:`RegistryUnavailableError` if the group could not be told in time, which says whether the member goes on
        to tell it; :class:`ConnectorClosedException`; as :meth:`create_message_streams` if it is the first call.
        """
        if not self.lifecycle.created:
            return self.create_message_streams(topics, key_decoder, value_decoder)
        member = self.lifecycle.live()
        deadline, held = member.change_deadline(timeout), member.held_by(get_native_id())
        return self._subscription.add(topics, (key_decoder, value_decoder), deadline, held)

    def unsubscribe(self, topics: Iterable[str], timeout: float | None = None) -> None:
        """Leave these topics, and end their streams.

        Messages in hand may be finished. Finished ones are committed (with ``auto.commit.enable``), then the partitions
        are released. A message of these topics that the calling thread holds counts as finished. The next owner reads
        what was fetched and not handed out. The last topic may go too; the member then owns nothing.

        Arguments: ``topics`` by name; ``timeout`` as for :meth:`add_topics`.
        Raises: ValueError for a topic that is not subscribed; otherwise as :meth:`add_topics`.
        """
        member = self.lifecycle.live()
        self._subscription.leave(topics, member.change_deadline(timeout), member.held_by(get_native_id()))

    def create_message_streams_by_filter(
        self,
        topic_filter: TopicFilter,
        streams: int = 1,
        key_decoder: Decoder[K] | None = None,
        value_decoder: Decoder[V] | None = None,
    ) -> list[KafkaStream[K | None, V | None]]:
        """Join the group for all topics that a filter allows, those to come included, and return ``streams`` streams
        over them.

        Arguments: decoders as for :meth:`create_message_streams`.
        Raises: as :meth:`create_message_streams`.
        """
        return self._subscription.create_by_filter(topic_filter, streams, (key_decoder, value_decoder))

    # ---- reading all streams ----

    def messages(self, streams: Sequence[KafkaStream[K, V]] | None = None) -> MergedStreams[K, V]:
        """Return all streams of this connector as one stream for one thread: ``for message in connector.messages()``.

        Streams are served in turn, so that none starves; the order of each partition stays. The streams of topics that
        are added or unsubscribed later come and go. Each call returns the same object, which goes on where it was.

        Arguments: ``streams`` reads these alone, through an object of its own.
        Raises: ValueError if no streams were created, or while :meth:`run` reads them;
        :class:`ConnectorClosedException`.
        """
        if streams is None:
            return self._subscription.all_streams()
        return self._subscription.merge_chosen(streams)

    @overload
    def run(
        self,
        handler: PlainHandler,
        topics: RunTopics = None,
        *,
        concurrency: None = None,
        **options: Unpack[RunOptions],
    ) -> RunSummary: ...

    @overload
    def run(
        self,
        handler: BalancedHandler,
        topics: RunTopics = None,
        *,
        concurrency: int,
        executor: Literal["threads", "processes"] | Executor = "threads",
        batch: Literal[1] = 1,
        **options: Unpack[BalancedRunOptions],
    ) -> RunSummary: ...

    @overload
    def run(
        self,
        handler: CoroutineHandler,
        topics: RunTopics = None,
        *,
        concurrency: int,
        executor: Literal["asyncio"],
        batch: Literal[1] = 1,
        **options: Unpack[BalancedRunOptions],
    ) -> RunSummary: ...

    @overload
    def run(
        self,
        handler: BatchHandler,
        topics: RunTopics = None,
        *,
        concurrency: int,
        executor: Literal["threads", "processes", "asyncio"] | Executor = "threads",
        batch: int,
        **options: Unpack[BalancedRunOptions],
    ) -> RunSummary: ...

    def run(
        self,
        handler: Handler,
        topics: RunTopics = None,
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
        """Call ``handler(message)`` for each message, on ``workers`` threads, until the connector is shut down::

            connector.run(handle, "events", workers=4, stop_on=(SIGTERM, SIGINT))
            connector.run(handle, "events", concurrency=64, retry=Retry(attempts=8), until="end")

        The messages of a partition come one after the other, in order; those of different partitions may come at the
        same time. A message is finished when the handler has returned, and is committed as with streams
        (``auto.commit.enable``, or ``commit_offsets()`` inside the handler, which counts its message as finished).

        An exception of the handler ends the run. Its message is not committed, and the other workers finish theirs.
        Then the connector is shut down, and the exception is raised here, with a note that tells the position.
        Exceptions of streams and KeyboardInterrupt do the same. ``shutdown()`` from anywhere lets this return when all
        handlers have returned. So does a signal of ``stop_on``; after a second one no handler is waited for any more.
        When no worker had a message for ``consumer.timeout.ms``, it raises ConsumerTimeoutException (or returns, with
        ``consumer.timeout.action=end``). The connector lives on, and may be run again.

        With ``concurrency`` up to so many handlers run at the same time, and messages of a key come in order
        (``order``). An exception of the handler then ends nothing: the message comes again (``retry``), is parked, or
        becomes a dead letter. A partition stops, visibly, at its ``failure_limit``. ``commit_offsets()`` in a handler
        does not count its message. ``batch`` above 1 gives the handler lists. See ``docs/message-balance.md``.

        With ``until`` (and ``concurrency``) it returns when everything before an end is finished, parked or a dead
        letter in each partition that this member owns, and commits that. The connector lives on. ``until="end"`` is the
        log ends as of now. It may also be a mapping from (topic, partition) to offsets, for all partitions of the
        topics, or a time that is over, as a datetime or in milliseconds since 1970.

        Arguments: ``topics``: one, or several, with a stream for each worker; or a mapping to the numbers of streams as
        for ``create_message_streams``; or a filter; None: the streams that were created before. ``stop_on`` by number,
        in the main thread only, with ``shutdown_timeout`` seconds for the shutdown, as for
        :func:`zkconsumer.shutdown_on_signal`. ``tracer`` is an OpenTelemetry tracer (True: that of the global
        provider), which gets a ``process`` span around each call of the handler; see ``zkconsumer.tracing``.
        Returns: what was handled, and why it ended.
        Raises: as ``create_message_streams``; ValueError and TypeError for arguments that make no sense;
        :class:`OffsetCommitError` naming the offsets that a shutdown could not commit; MissingExtraError.
        """
        from zkconsumer.balance.balance_state import RunSummary
        from zkconsumer.balance.balanced_run import BalancedOptions
        from zkconsumer.balance.handler_check import check_options
        from zkconsumer.balance.message_order import order_named
        from zkconsumer.balance.retry_policy import Retry
        from zkconsumer.connector.handler_loop import HandlerLoop, share_keys
        from zkconsumer.connector.signal_shutdown import shutdown_on_signal
        from zkconsumer.connector.subscribed_streams import RunWay
        from zkconsumer.streams.until import checked_end

        loop, decoders = HandlerLoop(self.lifecycle, self._subscription), (key_decoder, value_decoder)
        kept = loop.check(order, workers, concurrency, topics, decoders)
        check_options(concurrency, order, executor, batch, retry, failure_limit, dead_letter)
        end = checked_end(until, concurrency, topics, time.time_ns() // 1_000_000)
        handler, executor = loop.fitting(handler, executor, concurrency, batch, decoders, tracer)
        options = concurrency and BalancedOptions(
            concurrency, order_named(order), executor, batch, retry or Retry(), failure_limit, dead_letter=dead_letter
        )
        # all that may be refused comes before the handlers are set, and before the connector knows of this run
        way = RunWay(concurrency is not None, kept, share_keys(self.config, options or None))
        signals = (stop_on,) if isinstance(stop_on, int) else tuple(stop_on)
        guard = shutdown_on_signal(self, *signals, timeout=shutdown_timeout) if signals else None
        with guard or nullcontext():
            try:
                loop.create_streams(topics, workers, decoders, way)
                made = loop.made_run(handler, workers, options or None, end)
            except ConnectorClosedException:
                if guard is not None and guard.received is not None:
                    return RunSummary(ended="signal")  # it came while the group was joined
                raise
            return made.summary(loop.complete(made, guard))

    # ---- state ----

    @property
    def balance(self) -> BalanceState | None:
        """The state of a run with ``concurrency``, None while there is no such run. Any thread."""
        return self.lifecycle.balance

    # ---- the end ----

    def shutdown(self, timeout: float = CLOSE_WITHIN) -> None:
        """Leave the group: readers wake and end, offsets are committed, nodes deleted, threads ended.

        A message that the calling thread holds counts as finished. Other threads may finish theirs until 1.8 s before
        the timeout, and commit them. Messages that are not finished by then are logged, raised here, and consumed again
        by the next owner. A second call, from any thread, waits for the first.

        May be called from a signal handler, though :func:`zkconsumer.shutdown_on_signal` does it better. If the handler
        interrupted a reader, the call returns at once, and the message counts as finished only when that thread asks
        for the next one. A second call in a handler waits for no message any more.

        Arguments: ``timeout`` in seconds, in which this returns in any state of ZooKeeper and the brokers.
        Raises: :class:`OffsetCommitError` naming the offsets that could not be committed (with ``auto.commit.enable``),
        in one thread that waits; everything is closed then.
        """
        self.lifecycle.shut_down(finished=True, timeout=timeout)
        self.lifecycle.end.raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lifecycle.shut_down(finished=kind is None)
        if kind is None:
            self.lifecycle.end.raise_failure()

    def __repr__(self) -> str:
        return f"<ZookeeperConsumerConnector {self.consumer_id} {self.state}>"
