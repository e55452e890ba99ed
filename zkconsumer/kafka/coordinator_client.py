"""Finds a group's coordinator, and reads and writes the group's offsets there, on brokers from 0.8.2 to 3.9.

The search asks the least loaded broker, then the next, until one knows. Called by one thread; any may ``close`` it, and
a waiting search raises. Mirrors the Java consumer's ``lookupCoordinator``. Differs on purpose: the coordinator is
reached at the address at which we know its broker, by our address map and listener. The address in the response is used
only if we do not know the broker.

:class:`OffsetClient` mirrors the original's part of ``ZookeeperConsumerConnector`` and ``ClientUtils``. Differs on
purpose: the original searches for the coordinator without an end, takes the error of a partition for "no offset", and
since 0.10.2 ignores an error of the whole response.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    CoordinatorUnavailableError,
    RegistryError,
)
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.broker_channel import BrokerChannel
from zkconsumer.kafka.error_codes import ErrorAction, action_for
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.kafka.group_schemas import OffsetAndMetadata
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

CONNECT_WITHIN = 3.0
"""Seconds for one broker that is only asked for the coordinator: there are others to ask."""


class CoordinatorSearch:
    """Finds the coordinator of one group, and keeps the open connections, to close them.

    Arguments: ``brokers`` returns the brokers of the cluster (may raise RegistryError, BrokerError); ``channel`` makes
    a channel to one, not yet connected; ``load`` returns how busy each broker is with us, by id. With ``offsets_only``
    the channels are for offsets alone, and a coordinator that is not among ``brokers`` is refused: its age, which old
    brokers do not tell, and its address under our map would be unknown.
    """

    def __init__(
        self,
        group: str,
        brokers: Callable[[Deadline], Sequence[Endpoint]],
        channel: Callable[[Endpoint], BrokerChannel],
        load: Callable[[], Mapping[int, int]] = dict,
        *,
        offsets_only: bool = False,
    ) -> None:
        self.group = group
        self._offsets_only = offsets_only
        self._brokers = brokers
        self._channel = channel
        self._load = load
        self._known: Sequence[Endpoint] = ()
        self._failed: set[int] = set()
        self._lock = InterruptibleLock()  # guards _open and _closed
        self._open: set[GroupChannel] = set()
        self._interrupted = 0
        self._closed = False

    def find(self, deadline: Deadline) -> GroupChannel:
        """Return a channel to the coordinator, connected.

        Raises CoordinatorUnavailableError if it cannot be found now; BrokerResponseError, BrokerAuthenticationError if
        the brokers refuse us.
        """
        before = self._interrupted
        brokers = self._registered(deadline)
        trouble: object = "no broker is known"
        load = self._load()
        shuffled = random.sample(list(brokers), len(brokers))
        for endpoint in sorted(shuffled, key=lambda e: (e.broker_id in self._failed, load.get(e.broker_id, 0))):
            if deadline.expired or self._interrupted != before:
                break
            try:
                return self._ask(endpoint, brokers, deadline)
            except BrokerResponseError as e:
                if not error_codes.retriable(e.code):
                    raise
                raise CoordinatorUnavailableError(str(e)) from e  # the other brokers would answer the same
            except BrokerAuthenticationError:
                raise  # the others would refuse us as well
            except BrokerError as e:
                trouble = e
        raise CoordinatorUnavailableError(f"the coordinator of group {self.group!r} was not found: {trouble}")

    def connect(self, endpoint: Endpoint, deadline: Deadline) -> GroupChannel:
        """Return a channel to this broker, connected. Raises BrokerError."""
        channel = GroupChannel(self._channel(endpoint), offsets_only=self._offsets_only)
        with self._lock:
            if self._closed:
                raise CoordinatorUnavailableError("closed")
            self._open.add(channel)
        try:
            channel.connect(deadline)
        except BaseException:
            self._failed.add(endpoint.broker_id)
            self.discard(channel)
            raise
        self._failed.discard(endpoint.broker_id)
        return channel

    def discard(self, channel: GroupChannel) -> None:
        """Close a channel and forget it."""
        channel.close()
        with self._lock:
            self._open.discard(channel)

    def is_open(self, channel: GroupChannel) -> bool:
        """Return whether the channel is open."""
        with self._lock:
            return channel in self._open

    def interrupt(self) -> None:
        """Close every connection, so that a waiting call raises. Others may be opened after that."""
        with self._lock:
            channels, self._open = self._open, set()
            self._interrupted += 1
        for channel in channels:
            channel.close()

    def close(self) -> None:
        """Close every connection, for good."""
        with self._lock:
            self._closed = True
        self.interrupt()

    def _registered(self, deadline: Deadline) -> Sequence[Endpoint]:
        try:
            self._known = self._brokers(deadline)
        except BrokerAuthenticationError:
            raise
        except (RegistryError, BrokerError) as e:
            # go on with the known brokers: they change seldom, and a wrong address shows itself
            if not self._known:
                raise CoordinatorUnavailableError(str(e)) from e
        return self._known

    def _ask(self, endpoint: Endpoint, brokers: Sequence[Endpoint], deadline: Deadline) -> GroupChannel:
        asked = self.connect(endpoint, Deadline(deadline.bounded(CONNECT_WITHIN)))
        try:
            found = asked.find_coordinator(self.group, Deadline(deadline.bounded(CONNECT_WITHIN)))
        except BaseException:
            self.discard(asked)
            raise
        if found.broker_id == endpoint.broker_id:
            return asked
        self.discard(asked)
        known = next((other for other in brokers if other.broker_id == found.broker_id), None)
        if known is None and self._offsets_only:
            raise BrokerUnavailableError(f"broker {found.broker_id}, which coordinates, is not registered in ZooKeeper")
        return self.connect(known or found, deadline)


log = logging.getLogger(__name__)

T = TypeVar("T")


class OffsetClient:
    """The offsets of one group in Kafka.

    Each call is one try; the caller repeats it. The client searches for the coordinator at the first call, and again
    after the coordinator failed or moved. One thread calls; any thread may close, and a waiting call raises.

    Arguments: ``search`` belongs to this client alone.
    """

    def __init__(self, search: CoordinatorSearch) -> None:
        self.group = search.group
        self._search = search
        self._coordinator: GroupChannel | None = None

    def fetch(
        self, partitions: Collection[TopicPartition] | None, deadline: Deadline
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the stored offsets of these partitions, or of all (None, from 0.10.2 on).

        A partition without an offset is left out. Raises BrokerError if the offset of any partition is unknown.
        """
        stored = self.ask(lambda coordinator: coordinator.offsets(self.group, partitions, deadline), deadline)
        for tp, one in stored.items():
            if one.error:
                raise error_codes.error(one.error, f"the offset of {tp} in group {self.group!r}")
        return {tp: one for tp, one in stored.items() if one.offset >= 0}

    def commit(
        self,
        who: Membership,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        deadline: Deadline,
        answer: float | None = None,
    ) -> dict[TopicPartition, BrokerResponseError]:
        """Write offsets in one request. Returns the partitions that the coordinator refused. Raises BrokerError.

        Arguments: ``answer`` is the time limit of the answer in seconds after sending (default: ``deadline``).
        """
        codes = self.ask(lambda coordinator: coordinator.commit(who, offsets, deadline, answer), deadline)
        asked = f"an offset commit of group {self.group!r}"
        return {tp: error_codes.error(code, asked) for tp, code in codes.items() if code}

    def ask(self, question: Callable[[GroupChannel], T], deadline: Deadline) -> T:
        """Put a question to the coordinator, and forget a coordinator that cannot answer it. Raises BrokerError."""
        coordinator = self._coordinator = self._coordinator or self._search.find(deadline)
        try:
            return question(coordinator)
        except BrokerError as e:
            # after any error but a response of the coordinator itself the connection is of no use
            if not isinstance(e, BrokerResponseError) or action_for(e) is ErrorAction.FIND_COORDINATOR:
                log.info("broker %d is not (or no longer) taken for the coordinator", coordinator.endpoint.broker_id)
                self._coordinator = None
                self._search.discard(coordinator)
            raise

    def close(self) -> None:
        """Close all connections, for good."""
        self._search.close()
