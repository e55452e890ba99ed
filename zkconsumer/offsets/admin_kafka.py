"""A whole group's offsets in Kafka, to be read, written and put back from outside the group.

For ``zkconsumer migrate``; used by one thread. Writes are commits of somebody who is no member, which the coordinator
itself refuses as long as the group has members of the new protocol. Retriable errors are asked again until the
deadline: what is written is the same each time, and nobody else writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from time import sleep
from typing import TypeVar

from zkconsumer.core.migration.model import Entry, Store
from zkconsumer.core.migration.planning import Step, Verdict
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    NoBrokersError,
    RegistryUnavailableError,
)
from zkconsumer.kafka import BrokerChannel, error_codes
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_channel import GroupChannel, Membership, StoredOffset
from zkconsumer.kafka.offset_client import OffsetClient
from zkconsumer.model import Endpoint, TopicPartition

T = TypeVar("T")

_PAUSE = 0.2
_OLDEST = 2
"""The node version of brokers of 0.9, the first that coordinate groups."""


class KafkaSide:
    """What a group's coordinator keeps.

    Arguments: ``brokers`` reads the registered brokers; ``channel`` makes a channel to one, not yet connected;
    ``partitions`` tells all that exist, for brokers before 0.10.2, which do not say what they hold.
    """

    store = Store.KAFKA

    def __init__(
        self,
        group: str,
        brokers: Callable[[Deadline], Sequence[Endpoint]],
        channel: Callable[[Endpoint], BrokerChannel],
        partitions: Callable[[Deadline], Collection[TopicPartition]],
    ) -> None:
        self._group = group
        self._brokers = brokers
        self._partitions = partitions
        self._known: Sequence[Endpoint] = ()
        self._client = OffsetClient(CoordinatorSearch(group, lambda _: self._known, channel))

    def close(self) -> None:
        """Close the connections, for good."""
        self._client.close()

    def read(self, deadline: Deadline) -> dict[TopicPartition, Entry]:
        """All offsets of the group. Raises BrokerError where that of any partition is unknown."""
        found = self._ask(lambda coordinator: self._offsets(coordinator, deadline), deadline)
        return {
            tp: Entry(stored.offset, metadata=stored.metadata, leader_epoch=stored.leader_epoch)
            for tp, stored in sorted(found.items())
        }

    def _offsets(self, coordinator: GroupChannel, deadline: Deadline) -> Mapping[TopicPartition, StoredOffset]:
        wanted = None if coordinator.versions["OffsetFetch"] >= 2 else self._partitions(deadline)
        return self._client.fetch(wanted, deadline)

    def members(self, deadline: Deadline) -> list[str]:
        """The members, each by its client.id and host, as the coordinator describes them."""
        return self._ask(lambda coordinator: coordinator.describe([self._group], deadline), deadline)[self._group].who

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        """One commit for all that is written, one request for all that is removed. Returns what was refused."""
        wanted = {
            step.partition: StoredOffset(step.after.offset, 0, step.after.metadata, step.after.leader_epoch)
            for step in steps
            if step.verdict is Verdict.WRITE and step.after is not None and step.after.offset is not None
        }
        removed = [step.partition for step in steps if step.verdict is Verdict.REMOVE]
        refused: dict[TopicPartition, str] = {}
        if wanted:
            nobody = Membership(self._group)
            codes = self._ask(lambda coordinator: coordinator.commit(nobody, wanted, deadline), deadline)
            refused = {tp: error_codes.name(code) for tp, code in codes.items() if code}
        if removed:
            refused |= self._remove(removed, deadline)
        return refused

    def _remove(self, removed: Collection[TopicPartition], deadline: Deadline) -> dict[TopicPartition, str]:
        def remove(coordinator: GroupChannel) -> Mapping[TopicPartition, str]:
            if "OffsetDelete" in coordinator.versions:
                codes = coordinator.delete_offsets(self._group, removed, deadline)
                return {tp: error_codes.name(code) for tp, code in codes.items() if code}
            if "DeleteGroups" in coordinator.versions and set(self._offsets(coordinator, deadline)) <= set(removed):
                coordinator.delete_group(self._group, deadline)
                return {}
            return dict.fromkeys(removed, "brokers before 2.4 can delete a group's offsets all together only")

        return dict(self._ask(remove, deadline))

    def _ask(self, question: Callable[[GroupChannel], T], deadline: Deadline) -> T:
        """Ask the coordinator, and ask again what may pass. Raises the last error at the deadline."""
        trouble: BrokerError | None = None
        while True:
            try:
                self._known = self._known or self._registered(deadline)
                return self._client.ask(question, deadline)
            except BrokerResponseError as e:
                if not error_codes.retriable(e.code):
                    raise
                trouble = e
            except (BrokerUnavailableError, NoBrokersError) as e:
                trouble = e
            except RegistryUnavailableError:
                if trouble is None:
                    raise
            self._known = ()  # others may be there by now
            sleep(deadline.bounded(_PAUSE))
            if deadline.expired:
                raise trouble

    def _registered(self, deadline: Deadline) -> Sequence[Endpoint]:
        brokers = self._brokers(deadline)
        if not brokers:
            raise NoBrokersError("no broker is registered in ZooKeeper under /brokers/ids")
        for endpoint in brokers:
            if endpoint.generation < _OLDEST:
                raise BrokerError(
                    f"broker {endpoint.broker_id} is of 0.8, which cannot say whether a group has members; there, let"
                    " the members themselves move the offsets, with offsets.storage=kafka and dual.commit.enabled=true"
                )
        return brokers
