"""The subscription of a connector, and the streams that the subscription gives it.

A change counts from its request on, unless it is withdrawn: its caller left the call before the member began to tell
the group. So the subscription follows from the requests, and no caller has to take anything back.

Threads: the connector's lock guards all that adds or drops a change. Any thread may read the registration.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import get_native_id
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

from zkconsumer.connector.lifecycle import CLOSE_WITHIN, Lifecycle
from zkconsumer.connector.member_metrics import member_gauges
from zkconsumer.core.names import name_problem
from zkconsumer.core.registration import MAX_REGISTRATION_BYTES, RESERVED_BYTES, STATIC, Registration
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.errors import (
    ConnectorClosedException,
    ConsumerRebalanceFailedException,
    MessageStreamsExistException,
    RegistryError,
)
from zkconsumer.member.events import SubscriptionChanged
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.withdrawable_request import Request
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.streams.member_streams import ANY_TOPIC
from zkconsumer.streams.merged_streams import MergedStreams
from zkconsumer.streams.message import Decoder, message_class
from zkconsumer.wiring import GroupMember, build_member
from zkconsumer.wiring.member_parts import read_timeout

if TYPE_CHECKING:
    from zkconsumer.balance.dispatched_work import Work
    from zkconsumer.balance.message_order import Order
    from zkconsumer.member.listener import ConsumerRebalanceListener
    from zkconsumer.offsets.store import OffsetStore
    from zkconsumer.ownership.partition_position import Held
    from zkconsumer.streams.until import RunEndRequest

Streams = dict[str, list[KafkaStream[Any, Any]]]
Decoders = tuple[Decoder[object] | None, Decoder[object] | None]
"""The decoders of keys and of values; None: they stay bytes."""


class RunWay(NamedTuple):
    """The way in which the messages of a connector are finished, which its first streams decide.

    ``balanced``: in any order, by a run with ``concurrency``, whose ``order`` of messages this is. ``advertised`` are
    further keys of the registration.
    """

    balanced: bool = False
    order: Order | None = None
    advertised: Mapping[str, object] = MappingProxyType({})

    @property
    def slots_by_key(self) -> bool:
        """Whether the slots of messages are computed from their keys."""
        return self.order is None or self.order.value == "key"


READ = RunWay()
"""Streams that the application reads, or runs without ``concurrency``."""


class Subscription:
    """The subscription of one connector, and its streams.

    Arguments: ``offset_store`` is the user's own.
    """

    def __init__(self, lifecycle: Lifecycle, offset_store: OffsetStore | None) -> None:
        self.way = READ
        self._lifecycle = lifecycle
        self._offset_store = offset_store
        self._listener: ConsumerRebalanceListener | None = None
        self._joined = Registration(STATIC, {})
        self._changes: list[SubscriptionChanged] = []
        self._merged: MergedStreams[Any, Any] | None = None

    def set_listener(self, listener: ConsumerRebalanceListener | None) -> None:
        """Have an object told when partitions come and go. Raises MessageStreamsExistException."""
        with self._lifecycle.lock:
            if self._lifecycle.created:
                raise MessageStreamsExistException("the rebalance listener must be set before streams are created")
            self._listener = listener

    def registration(self) -> Registration:
        """Return the registration with all changes but those that were withdrawn."""
        subscription = self._joined.subscription
        for change in self._changes:
            if not change.done.withdrawn:
                subscription = change.revise(subscription)
        return replace(self._joined, subscription=subscription)

    # ---- joining

    def create(self, topics: Mapping[str, int], decoders: Decoders, until: Any = None, way: RunWay = READ) -> Streams:
        """Join the group, and return new streams of these topics, in thread order.

        Arguments: ``decoders`` of the messages; streams stop at ``until``, as for ``run``; ``way`` is that of
        the run which reads them.
        Raises: as :meth:`ZookeeperConsumerConnector.create_message_streams`.
        """
        check_topics(topics)
        end = None
        if until is not None:
            from zkconsumer.streams.until import requested_end

            end = requested_end(until, time.time_ns() // 1_000_000)
        registration = Registration(STATIC, dict(topics))
        member = self._create_once("message streams", way)
        streams = self._new_streams(member, topics, decoders)
        _deliver(member, streams)
        self._join(member, registration, end)
        return streams

    def create_by_filter(
        self, topic_filter: TopicFilter, count: int, decoders: Decoders, way: RunWay = READ
    ) -> list[KafkaStream[Any, Any]]:
        """Join the group, and return new streams of all topics that a filter allows. Raises: as :meth:`create`."""
        if not isinstance(topic_filter, TopicFilter):
            raise ValueError(f"a filter must be a Whitelist or a Blacklist, not {topic_filter!r}")
        check_subscribed(topic_filter.regex, count)
        registration = Registration(topic_filter.pattern, {topic_filter.regex: count})
        member = self._create_once("message streams by filter", way)
        streams = self._new_streams(member, {ANY_TOPIC: count}, decoders)
        _deliver(member, streams)
        self._join(member, registration)
        return streams[ANY_TOPIC]

    def _create_once(self, what: str, way: RunWay) -> GroupMember:
        life = self._lifecycle
        with life.lock:
            if life.end.begun:
                raise life.forked or ConnectorClosedException("the connector was shut down; make a new one")
            if life.created:
                raise MessageStreamsExistException(
                    f"{what}: this connector has created its streams, which can be done once; for more topics call"
                    " add_topics, or make another connector"
                )
            member = build_member(
                life.config, life.consumer_id, offset_store=self._offset_store, listener=self._listener
            )
            member.parts.balanced, member.parts.slots_by_key = way.balanced, way.slots_by_key
            # the member lives as long as its threads: it must not keep a connector that was dropped
            mine = ref(life)
            member.parts.metrics.gauges(lambda: member_gauges(member, None if (one := mine()) is None else one.balance))
            self.way = way
            life.begin(member)
            return member

    def _new_streams(self, member: GroupMember, topics: Mapping[str, int], decoders: Decoders) -> Streams:
        ended, message = self._lifecycle.end.await_stream_end, message_class(*decoders)
        return {topic: member.streams(topic, count, message, ended) for topic, count in topics.items()}

    def _join(self, member: GroupMember, registration: Registration, end: RunEndRequest | None = None) -> None:
        life = self._lifecycle
        self._joined = registration = replace(registration, extra={**registration.extra, **self.way.advertised})
        try:
            if life.end.begun:
                raise ConnectorClosedException("the connector was shut down before it joined the group")
            member.open(registration)
            if end is not None:
                from zkconsumer.streams.until import stop_streams_at

                stop_streams_at(end, member)
        except BaseException as e:
            interrupted = life.end.begun
            life.shut_down(finished=False)
            if interrupted:
                # whoever shut down meanwhile (a signal handler, another thread) could not see what came after
                member.close(Deadline(CLOSE_WITHIN), finished=False)
                if isinstance(e, RegistryError | ConsumerRebalanceFailedException):
                    raise ConnectorClosedException("the connector was shut down while it joined the group") from e
            raise

    # ---- changing

    def add(self, topics: Mapping[str, int], decoders: Decoders, deadline: Deadline, held: Held) -> Streams:
        """Subscribe to further topics, and return their streams once the group knows.

        Arguments: as for :meth:`create`; the messages that the caller ``held`` count as finished.
        Raises: as :meth:`ZookeeperConsumerConnector.add_topics`.
        """
        check_topics(topics)
        member, added, streams = self._lifecycle.live(), dict(topics), Streams()
        works = self._works_in_hand()

        def ask() -> Request[None]:
            self._check_new(added)
            streams.update(self._new_streams(member, added, decoders))
            made = [stream for some in streams.values() for stream in some]
            return self._ask(
                member,
                SubscriptionChanged(
                    lambda before: {**before, **added},
                    Request(deadline),
                    held=held,
                    in_handler=[work.ledger.position for work in works],
                    begun=lambda: _deliver(member, streams),  # former streams of these topics have ended by then
                    withdrawn=lambda: member.delivery.retire(made),
                ),
            )

        self._change(member, ask, deadline)
        return streams

    def leave(self, topics: Iterable[str], deadline: Deadline, held: Held) -> None:
        """Leave topics, which ends their streams, and wait until the group knows.

        Arguments: the messages of the topics that the caller ``held`` count as finished.
        Raises: as :meth:`ZookeeperConsumerConnector.unsubscribe`.
        """
        leaving = frozenset([topics] if isinstance(topics, str) else topics)
        member, run, works = self._lifecycle.live(), self._lifecycle.balanced_run, self._works_in_hand()
        done = [work for work in works if work.ledger.position.tp.topic in leaving]

        def finish() -> None:
            if done and run is not None:
                run.finish(done)  # the group thread waits for messages in hand

        def left() -> None:
            member.delivery.retire([stream for topic, _, stream in member.delivery.streams() if topic in leaving])

        def ask() -> Request[None]:
            strange = sorted(leaving - self._topics().keys())
            if strange:
                raise ValueError(f"not subscribed: {', '.join(strange)}")
            return self._ask(
                member,
                SubscriptionChanged(
                    lambda before: {topic: count for topic, count in before.items() if topic not in leaving},
                    Request(deadline),
                    leaving,
                    held,
                    [work.ledger.position for work in works],
                    finish=finish,
                    applied=left,
                ),
            )

        self._change(member, ask, deadline)

    def _works_in_hand(self) -> Sequence[Work]:
        """Return the messages of the calling handler, in a balanced run."""
        run = self._lifecycle.balanced_run
        return () if run is None else run.in_hand_of(get_native_id())

    def _change(self, member: GroupMember, ask: Callable[[], Request[None]], deadline: Deadline) -> None:
        try:
            with self._lifecycle.lock:
                asked = ask()
            member.await_change(asked)
        except BaseException:
            deadline.expire()  # before the member begins, nothing changes for a caller that has gone
            raise

    def _check_new(self, added: Mapping[str, int]) -> None:
        """Raise ValueError for a topic that is subscribed already or being left, and for a filter."""
        subscription = self._topics()
        known = sorted(added.keys() & subscription.keys())
        if known:
            raise ValueError(f"subscribed already: {', '.join(known)}")
        # a change that leaves them may still be withdrawn, and their former streams would stay beside the new ones
        doubtful = [change.leaving for change in self._changes if change.done.may_be_withdrawn]
        going = added.keys() & frozenset().union(*doubtful)
        if going:
            raise ValueError(f"being left by another call, wait for its end: {', '.join(sorted(going))}")
        check_topics({**subscription, **added})

    def _topics(self) -> Mapping[str, int]:
        """Return the subscribed topics with their numbers of streams. Raises ValueError for a filter."""
        if self._joined.pattern != STATIC:
            raise ValueError("this connector follows a filter: topics come and go with it, none can be added or left")
        # in place: a signal handler of this very thread may come here amid another change
        for change in [change for change in self._changes if change.done.withdrawn]:
            self._changes.remove(change)
        while self._changes and self._changes[0].done.done():
            # an interrupt between the two repeats changes in their order, which changes nothing
            self._joined = replace(self._joined, subscription=self._changes[0].revise(self._joined.subscription))
            self._changes.pop(0)
        return self.registration().subscription

    def _ask(self, member: GroupMember, change: SubscriptionChanged) -> Request[None]:
        asked = change.done  # the group thread may answer the caller and do the change later, with another request
        self._changes.append(change)
        member.ask(change)
        return asked

    # ---- reading several streams as one

    def serving_member(self) -> GroupMember:
        """Return the member. Raises: as :meth:`Lifecycle.check_open`; ValueError before streams are created."""
        self._lifecycle.check_open()
        if self._lifecycle.member is None:
            raise ValueError("there are no streams yet: create them first, or give topics to run()")
        return self._lifecycle.member

    def all_streams(self) -> MergedStreams[Any, Any]:
        """Return all streams as one, also those of topics that are added later. Each call returns the same object.

        Raises: as :meth:`ZookeeperConsumerConnector.messages`.
        """
        if self._lifecycle.running is not None:
            raise ValueError("run() is reading the streams")
        if self.way.balanced:
            raise ValueError("this connector has been run with concurrency: its streams cannot be read otherwise")
        delivery = self.serving_member().delivery
        if self._merged is None:
            timeout = read_timeout(self._lifecycle.config)
            self._merged = self.merge(lambda: [stream for _, _, stream in delivery.streams()], timeout)
        return self._merged

    def merge_chosen(self, streams: Sequence[KafkaStream[Any, Any]]) -> MergedStreams[Any, Any]:
        """Return these streams as one, which ends with the last of them. Raises: as :meth:`serving_member`."""
        chosen = list(streams)
        return self.merge(lambda: chosen, read_timeout(self._lifecycle.config), lasting=lambda: False)

    def merge(
        self,
        streams: Callable[[], Sequence[KafkaStream[Any, Any]]],
        timeout: float | None,
        *,
        may_end: bool = True,
        lasting: Callable[[], bool] | None = None,
    ) -> MergedStreams[Any, Any]:
        """Return these streams as one.

        Arguments: ``timeout`` in seconds; it may end the reading without an error if ``may_end``; ``lasting`` says
        whether further streams may come, by default until the shutdown. Raises: as :meth:`serving_member`.
        """
        end, ends = self._lifecycle.end, may_end and self._lifecycle.config.consumer_timeout_action == "end"
        lasts = lasting or (lambda: not end.begun)
        merged = MergedStreams(
            streams, timeout=timeout, ends_on_timeout=ends, ended=end.await_stream_end, lasting=lasts
        )
        self.serving_member().delivery.add_merged(merged)
        return merged


def _deliver(member: GroupMember, streams: Streams) -> None:
    """Let partitions of these topics flow into these streams."""
    for topic, of_topic in streams.items():
        member.delivery.add(topic, of_topic)


def check_topics(topics: Mapping[str, int]) -> None:
    """Raise ValueError for topics that cannot be subscribed to."""
    if not isinstance(topics, Mapping):
        raise ValueError(f"topics must be a mapping from names to numbers of streams, not {topics!r}")
    for topic, count in topics.items():
        check_subscribed(topic, count)
        problem = name_problem(topic)
        if problem is not None:
            raise ValueError(f"{topic!r} cannot be a topic: {problem}")
    size = sum(len(topic.encode()) + len(f'"":{count},') for topic, count in topics.items())
    if size > (most := MAX_REGISTRATION_BYTES - RESERVED_BYTES):
        raise ValueError(
            f"{len(topics)} topics take {size} bytes in the registration, more than {most}: subscribe to fewer, or by a"
            " filter"
        )


def check_subscribed(name: str, count: int) -> None:
    """Raise ValueError for a bad name or expression, or a bad number of streams."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"a topic or expression must be a non-empty text, not {name!r}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name}: the number of streams must be a whole number of at least 1, not {count!r}")
