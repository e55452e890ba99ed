"""Finds a group's coordinator: asks the least loaded broker, then the next, until one knows.

Called by one thread; any may ``close`` it, and a waiting search raises. Mirrors the Java consumer's
``lookupCoordinator``. Differs on purpose: the coordinator is reached at the address at which we know its broker, by our
address map and listener. The address in the response is used only if we do not know the broker.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

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
from zkconsumer.kafka.group_channel import GroupChannel
from zkconsumer.model import Endpoint
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
