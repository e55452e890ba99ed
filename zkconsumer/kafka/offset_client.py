"""Reads and writes the offsets of one group at its coordinator, on brokers from 0.8.2 to 3.9.

Mirrors the original's part of ``ZookeeperConsumerConnector`` and ``ClientUtils``. Differs on purpose: the original
searches for the coordinator without an end, takes the error of a partition for "no offset", and since 0.10.2 ignores an
error of the whole response.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from zkconsumer.core.coordinator_error_actions import ErrorAction, action_for
from zkconsumer.errors import BrokerError, BrokerResponseError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.kafka.group_responses import OffsetAndMetadata
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline

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
        self, who: Membership, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], deadline: Deadline
    ) -> dict[TopicPartition, BrokerResponseError]:
        """Write offsets in one request. Returns the partitions that the coordinator refused. Raises BrokerError."""
        codes = self.ask(lambda coordinator: coordinator.commit(who, offsets, deadline), deadline)
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
