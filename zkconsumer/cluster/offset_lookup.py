"""Looks up topics and partitions at any broker, and offsets at the partitions' leaders.

Applications, commands and the search for a message ask. Any thread may ask. Each lookup opens connections of its own
and closes them, so a lookup disturbs no fetcher. Lookups are seldom, so no answer is kept.
"""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from threading import Event
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from zkconsumer.errors import (
    BrokerAuthenticationError,
    BrokerError,
    BrokerUnavailableError,
    NoBrokersError,
    RegistryError,
    UnknownTopicError,
)
from zkconsumer.kafka import BrokerChannel, ClusterMetadata
from zkconsumer.kafka import error_codes as codes
from zkconsumer.kafka.cluster_metadata import topics_of
from zkconsumer.model import EARLIEST, LATEST, Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

if TYPE_CHECKING:
    from zkconsumer.core.offset_move_plan import LogRange

T = TypeVar("T")
_SIMILAR_WITHIN = 1.0
"""Seconds in which the names of all topics must come for an error to suggest some."""


class OffsetLookup:
    """Looks up offsets at the brokers.

    Arguments: ``directory`` returns the brokers of the cluster; ``channel`` makes a channel to one, not yet connected;
    ``backoff`` in seconds is the pause before another try; ``isolation_level`` 1 takes the last stable offset for a
    log's end.
    """

    def __init__(
        self,
        directory: Callable[[Deadline], Sequence[Endpoint]],
        channel: Callable[[Endpoint], BrokerChannel],
        backoff: float,
        isolation_level: int = 0,
    ) -> None:
        self._directory = directory
        self._channel = channel
        self._backoff = max(0.05, backoff)
        self._isolation_level = isolation_level
        self._closing = Event()

    def close(self) -> None:
        """End all waits: no lookup tries any further."""
        self._closing.set()

    def partitions(self, topics: Collection[str], deadline: Deadline) -> frozenset[TopicPartition]:
        """Return all partitions of these topics, also those without a leader.

        A failed request is repeated until the deadline. Raises: UnknownTopicError if a broker answered until then that
        it knows no such topic; BrokerUnavailableError if no broker has told of the partitions of some topic by then;
        BrokerAuthenticationError.
        """
        unknown: list[str] = []  # by the last answer: the last request may have had no time left

        def look() -> tuple[frozenset[TopicPartition] | None, str]:
            told = self._metadata(sorted(topics), list(self._directory(deadline)), deadline)
            found = {*told.leaders, *(tp for tp in told.errors if isinstance(tp, TopicPartition))}
            missing = sorted(set(topics) - {tp.topic for tp in found})
            reasons = {topic: told.errors.get(topic, codes.UNKNOWN_TOPIC_OR_PARTITION) for topic in missing}
            unknown[:] = (topic for topic, code in reasons.items() if code == codes.UNKNOWN_TOPIC_OR_PARTITION)
            words = ", ".join(f"{topic}: {codes.name(code)}" for topic, code in reasons.items())
            return None if missing else frozenset(found), words

        try:
            return self._repeated(look, "the partitions of topics", deadline)
        except BrokerUnavailableError as error:
            if unknown:
                raise UnknownTopicError(unknown, self._similar(unknown)) from error
            raise

    def _similar(self, unknown: Sequence[str]) -> list[str]:
        """Return the names of topics that may be meant, none if no broker tells them at once."""
        try:
            known = self.topics(Deadline(_SIMILAR_WITHIN))
        except (BrokerError, RegistryError):
            return []
        return list(dict.fromkeys(n for name in unknown for n in difflib.get_close_matches(name, sorted(known), n=2)))

    def missing(self, topics: Collection[str], deadline: Deadline) -> frozenset[str]:
        """Return those of these topics that a broker does not know. A broker that has just started may know none yet.

        Tries once. Raises: BrokerError, RegistryError.
        """
        told = self._metadata(sorted(topics), list(self._directory(deadline)), deadline)
        return frozenset(topic for topic in topics if told.errors.get(topic) == codes.UNKNOWN_TOPIC_OR_PARTITION)

    def topics(self, deadline: Deadline) -> frozenset[str]:
        """Return the names of all topics.

        A failed request is repeated until the deadline. Raises: BrokerUnavailableError, BrokerAuthenticationError.
        """

        def look() -> tuple[frozenset[str], str]:
            brokers = list(self._directory(deadline))
            seen = self._of_some_broker(brokers, deadline, lambda channel: topics_of(channel, None, deadline))
            return seen.unsure.union(seen.partitions), ""

        return self._repeated(look, "the topics", deadline)

    def _repeated(self, look: Callable[[], tuple[T | None, str]], what: str, deadline: Deadline) -> T:
        """Return the first answer that is not None; ``look`` returns it with the reason why there is none."""
        trouble = ""
        while True:
            try:
                found, trouble = look()
                if found is not None:
                    return found
            except BrokerAuthenticationError:
                raise
            except (BrokerError, RegistryError) as e:
                trouble = trouble or str(e)
            if deadline.expired or self._closing.wait(deadline.bounded(self._backoff)):
                raise BrokerUnavailableError(f"{what} could not be looked up: {trouble}")

    def find(
        self, wanted: Mapping[TopicPartition, int], deadline: Deadline, isolation_level: int | None = None
    ) -> dict[TopicPartition, int | None]:
        """Return the offset at a time for each partition, None if there is no such message.

        A time is in ms since 1970 and stands for the first message that is not older; -1 is the log's end, -2 its
        beginning. These two are never None. ``isolation_level`` as for :meth:`BrokerChannel.list_offsets`, by default
        the configured one. A failed request is repeated until the deadline. Raises: BrokerUnavailableError if a
        partition has no answer in time, BrokerAuthenticationError.
        """
        isolation_level = self._isolation_level if isolation_level is None else isolation_level
        found: dict[TopicPartition, int | None] = {}
        trouble = ""
        while True:
            left = {tp: time for tp, time in wanted.items() if tp not in found}
            if not left:
                return found
            try:
                trouble = self._ask(left, found, deadline, isolation_level) or trouble
            except BrokerAuthenticationError:
                raise
            except (BrokerError, RegistryError) as e:
                trouble = trouble or str(e)  # the first error tells more than the timeout in the end
            if len(found) < len(wanted) and (deadline.expired or self._closing.wait(deadline.bounded(self._backoff))):
                missing = ", ".join(str(tp) for tp in sorted(wanted) if tp not in found)
                raise BrokerUnavailableError(f"no offset could be looked up for {missing}: {trouble or 'no leader'}")

    def logs(self, partitions: Collection[TopicPartition], deadline: Deadline) -> dict[TopicPartition, LogRange]:
        """Return the log of each partition. Raises as :meth:`find`."""
        from zkconsumer.core.offset_move_plan import LogRange

        ends = self.find(dict.fromkeys(partitions, LATEST), deadline)
        starts = self.find(dict.fromkeys(partitions, EARLIEST), deadline)
        # the start may have moved beyond the end, which was read before it
        return {tp: LogRange(starts[tp] or 0, max(starts[tp] or 0, ends[tp] or 0)) for tp in partitions}

    def _ask(
        self,
        wanted: Mapping[TopicPartition, int],
        found: dict[TopicPartition, int | None],
        end: Deadline,
        isolation_level: int,
    ) -> str:
        """Try once, and put the answers into ``found``. Return the last error text."""
        brokers, leaders = self.leaders(sorted({tp.topic for tp in wanted}), end)
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, time in wanted.items():
            by_leader.setdefault(leaders.get(tp, -1), {})[tp] = time
        trouble = ""
        for leader, asked in by_leader.items():
            if leader not in brokers:
                trouble = f"no leader for {', '.join(map(str, sorted(asked)))}"
                continue
            with self._connected(brokers[leader], end) as channel:
                answers = channel.list_offsets(asked, end, isolation_level=isolation_level)
            for tp, answer in answers.items():
                if answer.error != codes.NONE:
                    trouble = f"{tp}: broker {leader} answered {codes.name(answer.error)}"
                elif answer.offset < 0 and asked.get(tp, 0) < 0:
                    trouble = f"{tp}: broker {leader} answered no offset"  # each log has a beginning and an end
                else:
                    found[tp] = answer.offset if answer.offset >= 0 else None
        return trouble

    def leaders(
        self, topics: Sequence[str], end: Deadline
    ) -> tuple[Mapping[int, Endpoint], Mapping[TopicPartition, int]]:
        """Return the brokers and the leaders of the topics' partitions. Raises BrokerError, RegistryError."""
        brokers = {endpoint.broker_id: endpoint for endpoint in self._directory(end)}
        if not brokers:
            raise NoBrokersError("no broker is registered in ZooKeeper under /brokers/ids")
        return brokers, self._metadata(topics, list(brokers.values()), end).leaders

    def _metadata(self, topics: Sequence[str], brokers: Sequence[Endpoint], end: Deadline) -> ClusterMetadata:
        """Return what the first broker that answers tells of the topics. Raises: BrokerError if none does."""
        return self._of_some_broker(brokers, end, lambda channel: channel.metadata(topics, end))

    def _of_some_broker(self, brokers: Sequence[Endpoint], end: Deadline, ask: Callable[[BrokerChannel], T]) -> T:
        failure: BrokerError | None = None
        for endpoint in random.sample(brokers, len(brokers)):
            try:
                with self._connected(endpoint, end) as channel:
                    return ask(channel)
            except BrokerError as e:
                failure = e
        raise failure or BrokerError("no broker could be asked")

    @contextmanager
    def _connected(self, endpoint: Endpoint, deadline: Deadline) -> Iterator[BrokerChannel]:
        with closing(self._channel(endpoint)) as channel:
            channel.connect(deadline)
            yield channel


class LogSpanSeen(NamedTuple):
    """The start and the end of a partition's log, None where ``problem`` says why."""

    start: int | None
    end: int | None
    problem: str = ""


def log_spans(
    channel: BrokerChannel, partitions: Sequence[TopicPartition], deadline: Deadline
) -> dict[TopicPartition, LogSpanSeen]:
    """Return the logs of partitions, as their leader at the other end of the channel tells them. Raises BrokerError."""
    ends = channel.list_offsets(dict.fromkeys(partitions, LATEST), deadline)
    starts = channel.list_offsets(dict.fromkeys(partitions, EARLIEST), deadline)
    found = {}
    for tp in partitions:
        both = starts.get(tp), ends.get(tp)
        start, end = (
            one.offset if one is not None and one.error == codes.NONE and one.offset >= 0 else None for one in both
        )
        failed = next((one.error for one in both if one is not None and one.error), None)
        problem = "" if start is not None and end is not None else "no answer" if failed is None else codes.name(failed)
        # the start may have moved beyond the end, which was read before it
        found[tp] = LogSpanSeen(start, end if end is None or start is None else max(start, end), problem)
    return found
