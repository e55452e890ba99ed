"""A whole group's offsets in Kafka, to be read, written and put back from outside the group.

For ``zkconsumer migrate``; used by one thread. Writes are commits of somebody who is no member, which the coordinator
itself refuses as long as the group has members of the new protocol. Retriable errors are asked again until the
deadline: what is written is the same each time, and nobody else writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from time import sleep
from typing import TypeVar

from zkconsumer.core.migration.planning import Entry, Step, Store, Verdict
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    CoordinatorUnavailableError,
    NoBrokersError,
    RegistryUnavailableError,
)
from zkconsumer.kafka import BrokerChannel, error_codes
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.kafka.offset_requests import StoredOffset
from zkconsumer.model import Endpoint, TopicPartition

T = TypeVar("T")

_PAUSE = 0.2
_CONNECT_WITHIN = 5.0
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
        self._channel = channel
        self._partitions = partitions
        self._coordinator: GroupChannel | None = None

    def close(self) -> None:
        """Close the connection."""
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            coordinator.close()

    def read(self, deadline: Deadline) -> dict[TopicPartition, Entry]:
        """All offsets of the group. Raises BrokerError where that of any partition is unknown."""
        answered = self._ask(lambda coordinator: self._offsets(coordinator, deadline), deadline)
        return {
            tp: Entry(stored.offset, metadata=stored.metadata, leader_epoch=stored.leader_epoch)
            for tp, stored in sorted(answered.items())
            if stored.offset >= 0
        }

    def _offsets(self, coordinator: GroupChannel, deadline: Deadline) -> Mapping[TopicPartition, StoredOffset]:
        wanted = None if coordinator.versions["OffsetFetch"] >= 2 else self._partitions(deadline)
        answered = coordinator.offsets(self._group, wanted, deadline)
        for tp, stored in answered.items():
            if stored.error:
                raise error_codes.error(stored.error, f"the offset of {tp} in group {self._group!r}")
        return answered

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
        codes: dict[TopicPartition, int] = {}
        if wanted:
            nobody = Membership(self._group)
            codes.update(self._ask(lambda coordinator: coordinator.commit(nobody, wanted, deadline), deadline))
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

    # ---- the coordinator ----

    def _ask(self, question: Callable[[GroupChannel], T], deadline: Deadline) -> T:
        """Ask the coordinator, and again what may pass. Raises the last trouble at the deadline."""
        trouble: BrokerError | None = None
        while True:
            try:
                return question(self._found(deadline))
            except BrokerAuthenticationError:
                raise
            except BrokerResponseError as e:
                self.close()
                if not error_codes.retriable(e.code):
                    raise
                trouble = e
            except (BrokerUnavailableError, NoBrokersError) as e:
                self.close()
                trouble = e
            except RegistryUnavailableError:
                if trouble is None:
                    raise
            sleep(deadline.bounded(_PAUSE))
            if deadline.expired:
                raise trouble

    def _found(self, deadline: Deadline) -> GroupChannel:
        if self._coordinator is None:
            self._coordinator = self._find(deadline)
        return self._coordinator

    def _find(self, deadline: Deadline) -> GroupChannel:
        brokers = list(self._brokers(deadline))
        trouble: BrokerError = NoBrokersError("no broker is registered in ZooKeeper under /brokers/ids")
        for endpoint in random.sample(brokers, len(brokers)):
            try:
                asked = self._connect(endpoint, deadline)
            except BrokerUnavailableError as e:
                trouble = e
                continue
            try:
                coordinator = asked.find_coordinator(self._group, deadline).broker_id
            except BaseException:
                asked.close()
                raise
            if coordinator == endpoint.broker_id:
                return asked
            asked.close()
            for other in brokers:
                if other.broker_id == coordinator:
                    return self._connect(other, deadline)
            trouble = CoordinatorUnavailableError(f"broker {coordinator}, which coordinates, is not registered")
        raise trouble

    def _connect(self, endpoint: Endpoint, deadline: Deadline) -> GroupChannel:
        if endpoint.generation < _OLDEST:
            raise BrokerError(
                f"broker {endpoint.broker_id} is of 0.8, which cannot say whether a group has members; there, let the"
                " members themselves move the offsets, with offsets.storage=kafka and dual.commit.enabled=true"
            )
        channel = GroupChannel(self._channel(endpoint))
        try:
            channel.connect(Deadline(deadline.bounded(_CONNECT_WITHIN)))
        except BaseException:
            channel.close()
            raise
        return channel
