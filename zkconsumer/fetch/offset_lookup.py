"""Offsets by time, asked of the partitions' leaders on behalf of the application.

Any thread may ask; each question opens connections of its own and closes them, so it disturbs no fetcher. Seldom used,
so nothing is kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from threading import Event

from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    NoBrokersError,
    RegistryError,
)
from zkconsumer.fetch.fetcher import FetchSettings
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka import error_codes as codes
from zkconsumer.model import Endpoint, TopicPartition


class OffsetLookup:
    """Asks brokers for offsets.

    Arguments: ``settings`` of the connections; ``directory`` reads the registered brokers.
    """

    def __init__(self, settings: FetchSettings, directory: Callable[[Deadline], Sequence[Endpoint]]) -> None:
        self._settings = settings
        self._directory = directory
        self._closing = Event()

    def close(self) -> None:
        """Let nobody try any further."""
        self._closing.set()

    def find(self, wanted: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, int | None]:
        """The offset at a time for each partition: the first message not older than so many ms since 1970, -1 the end,
        -2 the beginning; None where there is no such message.

        What fails is asked again until the deadline. Raises: BrokerUnavailableError where a partition was not answered
        in time, BrokerAuthenticationError.
        """
        found: dict[TopicPartition, int | None] = {}
        trouble = ""
        while True:
            left = {tp: time for tp, time in wanted.items() if tp not in found}
            if not left:
                return found
            try:
                trouble = self._ask(left, found, deadline) or trouble
            except BrokerAuthenticationError:
                raise
            except (BrokerError, RegistryError) as e:
                trouble = trouble or str(e)  # the first tells more than what runs out of time in the end
            if len(found) < len(wanted) and (
                deadline.expired or self._closing.wait(deadline.bounded(max(0.05, self._settings.backoff)))
            ):
                missing = ", ".join(str(tp) for tp in sorted(wanted) if tp not in found)
                raise BrokerUnavailableError(f"no offset could be looked up for {missing}: {trouble or 'no leader'}")

    def _ask(self, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, int | None], end: Deadline) -> str:
        """One try: what is answered goes to ``found``; returns the last trouble."""
        brokers = {endpoint.broker_id: endpoint for endpoint in self._directory(end)}
        if not brokers:
            raise NoBrokersError("no broker is registered in ZooKeeper under /brokers/ids")
        leaders = self._leaders(sorted({tp.topic for tp in wanted}), list(brokers.values()), end)
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, time in wanted.items():
            by_leader.setdefault(leaders.get(tp, -1), {})[tp] = time
        trouble = ""
        for leader, asked in by_leader.items():
            if leader not in brokers:
                trouble = f"no leader for {', '.join(map(str, sorted(asked)))}"
                continue
            with _Connected(self._channel(brokers[leader]), end) as channel:
                answers = channel.list_offsets(asked, end, isolation_level=self._settings.isolation_level)
            for tp, answer in answers.items():
                if answer.error == codes.NONE:
                    found[tp] = answer.offset if answer.offset >= 0 else None
                else:
                    trouble = f"{tp}: broker {leader} answered {codes.name(answer.error)}"
        return trouble

    def _leaders(
        self, topics: Sequence[str], brokers: Sequence[Endpoint], end: Deadline
    ) -> Mapping[TopicPartition, int]:
        failure: BrokerError | None = None
        for endpoint in random.sample(brokers, len(brokers)):
            try:
                with _Connected(self._channel(endpoint), end) as channel:
                    return channel.metadata(topics, end).leaders
            except BrokerError as e:
                failure = e
        raise failure or BrokerError("no broker could be asked")

    def _channel(self, endpoint: Endpoint) -> BrokerChannel:
        return BrokerChannel(
            endpoint,
            client_id=self._settings.client_id,
            socket_timeout=self._settings.socket_timeout,
            receive_buffer=self._settings.receive_buffer,
            security=self._settings.security,
        )


class _Connected:
    """A channel that is connected inside a ``with`` and closed after it."""

    def __init__(self, channel: BrokerChannel, end: Deadline) -> None:
        self._channel = channel
        self._end = end

    def __enter__(self) -> BrokerChannel:
        try:
            self._channel.connect(self._end)
        except BaseException:
            self._channel.close()
            raise
        return self._channel

    def __exit__(self, *_: object) -> None:
        self._channel.close()
