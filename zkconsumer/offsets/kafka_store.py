"""Offsets in Kafka (``offsets.storage=kafka``): the store that asks the group's coordinator.

Called by one thread (the committer's); ``close`` from any, which makes a call that waits for a broker raise. One call
is one try: whoever calls repeats. The coordinator is looked for when it is needed, kept, and dropped when it fails or
says that it is none any more.

Mirrors the original's part of ``ZookeeperConsumerConnector`` and ``ClientUtils``. Differs on purpose: there the
constructor waits for the coordinator without an end, the search hangs a rebalance or a shutdown in the same way, the
broker to ask is tried for ever without a pause, the error of a partition at a fetch counts as "no offset", and an error
of the whole answer is not looked at.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock

from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    CoordinatorUnavailableError,
    RegistryError,
)
from zkconsumer.kafka import BrokerChannel, CoordinatorChannel, error_codes
from zkconsumer.model import Endpoint, TopicPartition

log = logging.getLogger(__name__)

CONNECT_WITHIN = 3.0
"""Seconds for one broker that is only asked who coordinates: there are others."""

_LOST = frozenset({error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE})


class KafkaOffsets:
    """The offsets of one group as its coordinator keeps them (an ``OffsetStore``).

    Arguments: ``brokers`` reads the registered brokers (may raise RegistryError, BrokerError); ``channel`` makes a
    channel to one, not yet connected; ``sent`` is told how many offsets each answered commit had; ``load`` tells how
    busy each broker is with us, by id: the least busy one is asked who coordinates.
    """

    def __init__(
        self,
        group: str,
        brokers: Callable[[Deadline], Sequence[Endpoint]],
        channel: Callable[[Endpoint], BrokerChannel],
        sent: Callable[[int], None] = lambda _: None,
        load: Callable[[], Mapping[int, int]] = dict,
    ) -> None:
        self._sent = sent
        self._load = load
        self._group = group
        self._brokers = brokers
        self._channel = channel
        self._known: Sequence[Endpoint] = ()
        self._failed: set[int] = set()
        self._coordinator: CoordinatorChannel | None = None
        self._open: set[CoordinatorChannel] = set()
        self._closed = False
        self._lock = Lock()  # guards _open and _closed

    # ---- the store ----

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Read offsets. Raises BrokerError where that of any partition is unknown, whatever the reason."""
        deadline = Deadline(timeout)
        coordinator = self._find(deadline)
        try:
            answered = coordinator.fetch(self._group, partitions, deadline)
            for tp, stored in answered.items():
                if stored.error:
                    raise error_codes.error(stored.error, f"the offset of {tp} in group {self._group!r}")
        except BrokerError as e:
            self._drop_unless_answered(e)
            raise
        return {tp: stored.offset for tp, stored in answered.items() if stored.offset >= 0}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
        """Write offsets in one request. Returns what the coordinator refused. Raises BrokerError."""
        deadline = Deadline(timeout)
        coordinator = self._find(deadline)
        try:
            codes = coordinator.commit(self._group, offsets, deadline)
        except BrokerError as e:
            self._drop_unless_answered(e)
            raise
        self._sent(len(offsets))
        if _LOST & set(codes.values()):
            self._drop()
        who = f"broker {coordinator.endpoint.broker_id}, offset commit of group {self._group!r}"
        return {tp: error_codes.error(code, who) for tp, code in codes.items() if code}

    def close(self) -> None:
        """Close all connections, for good."""
        with self._lock:
            self._closed = True
            channels = list(self._open)
        for channel in channels:
            channel.close()

    # ---- the coordinator ----

    def _find(self, deadline: Deadline) -> CoordinatorChannel:
        """The coordinator, connected. Asks broker after broker until one knows: first those from which we fetch least,
        last those that failed before.

        Raises CoordinatorUnavailableError; BrokerResponseError, BrokerAuthenticationError where it is refused to us.
        """
        if self._coordinator is not None:
            return self._coordinator
        brokers = self._registered(deadline)
        trouble = "no broker is registered in ZooKeeper"
        load = self._load()
        shuffled = random.sample(list(brokers), len(brokers))
        for endpoint in sorted(shuffled, key=lambda e: (e.broker_id in self._failed, load.get(e.broker_id, 0))):
            if deadline.expired:
                break
            try:
                self._coordinator = self._ask(endpoint, brokers, deadline)
                return self._coordinator
            except BrokerResponseError as e:
                if not error_codes.retriable(e.code):
                    raise
                raise CoordinatorUnavailableError(str(e)) from e  # all brokers know the same
            except BrokerAuthenticationError:
                raise  # the others would refuse us as well
            except BrokerError as e:
                trouble = str(e)
        raise CoordinatorUnavailableError(f"the offset coordinator of group {self._group!r} was not found: {trouble}")

    def _registered(self, deadline: Deadline) -> Sequence[Endpoint]:
        try:
            self._known = self._brokers(deadline)
        except RegistryError as e:
            # ZooKeeper is away: brokers change seldom, and a wrong address shows itself
            if not self._known:
                raise CoordinatorUnavailableError(str(e)) from e
        return self._known

    def _ask(self, endpoint: Endpoint, brokers: Sequence[Endpoint], deadline: Deadline) -> CoordinatorChannel:
        asked = self._connect(endpoint, Deadline(deadline.bounded(CONNECT_WITHIN)))
        try:
            coordinator = asked.find_coordinator(self._group, deadline)
        except BaseException:
            self._discard(asked)
            raise
        if coordinator == endpoint.broker_id:
            return asked
        self._discard(asked)
        for other in brokers:
            if other.broker_id == coordinator:
                # by its registration and not by the answer, which knows neither our address map nor its version
                return self._connect(other, deadline)
        raise BrokerUnavailableError(f"broker {coordinator}, which coordinates, is not registered in ZooKeeper")

    def _connect(self, endpoint: Endpoint, deadline: Deadline) -> CoordinatorChannel:
        channel = CoordinatorChannel(self._channel(endpoint))
        with self._lock:
            if self._closed:
                raise CoordinatorUnavailableError("the store of offsets is closed")
            self._open.add(channel)
        try:
            channel.connect(deadline)
        except BaseException:
            self._failed.add(endpoint.broker_id)
            self._discard(channel)
            raise
        self._failed.discard(endpoint.broker_id)
        return channel

    def _drop_unless_answered(self, error: BrokerError) -> None:
        """The connection is of no use after any error but an answer that came from the coordinator itself."""
        if not isinstance(error, BrokerResponseError) or error.code in _LOST:
            self._drop()

    def _drop(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            log.info("broker %d is not (or no longer) taken for the offset coordinator", coordinator.endpoint.broker_id)
            self._discard(coordinator)

    def _discard(self, channel: CoordinatorChannel) -> None:
        channel.close()
        with self._lock:
            self._open.discard(channel)
