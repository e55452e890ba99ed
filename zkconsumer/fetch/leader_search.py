"""Asks the brokers for the leaders of partitions, and leaders for the ends of their logs.

Threads: the leader finder asks; any thread may close. The lock guards the connection that is open, so that a close can
interrupt a request.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import monotonic

from zkconsumer.errors import BrokerAuthenticationError, BrokerError, RegistryError
from zkconsumer.fetch.broker_fetch import FetchSettings
from zkconsumer.kafka import BrokerChannel, error_codes
from zkconsumer.model import LATEST, Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

log = logging.getLogger(__name__)

METADATA_TIMEOUT = 10.0
FIRST_TIMEOUT = 3.0
"""Seconds for a broker that is asked while there are other brokers to ask."""

Directory = Callable[[Deadline], Sequence[Endpoint]]
"""Reads the registered brokers and the address of each."""


class LeaderSearch:
    """Asks the brokers for the leaders of partitions.

    Arguments: ``directory`` reads the registered brokers; ``let_in`` is called when a broker accepts our login.
    """

    def __init__(self, settings: FetchSettings, directory: Directory, let_in: Callable[[], None]) -> None:
        self._settings = settings
        self._directory = directory
        self._let_in = let_in
        self._lock = InterruptibleLock()
        self._unknown: Mapping[str, tuple[float, float]] = {}
        self._known: Sequence[Endpoint] = ()
        self._failed: set[int] = set()
        self._asking: BrokerChannel | None = None
        self._closed = False

    def close(self) -> None:
        """Ask no more; a request that waits for its answer fails. Any thread."""
        with self._lock:
            self._closed = True
            asking = self._asking
        if asking is not None:
            asking.close()

    def brokers(self) -> Sequence[Endpoint]:
        """Return the registered brokers, as last seen while ZooKeeper is away. Raises RegistryError, BrokerError."""
        try:
            self._known = self._directory(Deadline(METADATA_TIMEOUT))
        except RegistryError:
            # ZooKeeper is away: go on with the known brokers; they change seldom, and a wrong address fails by itself
            if not self._known:
                raise
        if not self._known:
            raise BrokerError("no broker is registered in ZooKeeper under /brokers/ids; waiting for one")
        return self._known

    def find(
        self, topics: Sequence[str], brokers: Sequence[Endpoint], waiting: Collection[str] = ()
    ) -> Mapping[TopicPartition, int]:
        """Ask broker after broker for leaders, in random order, until a broker answers.

        Brokers that failed last time come last. So a slow broker, or a response that never ends, delays the other
        brokers' partitions only once. Topics that are ``waiting`` are asked for again later.
        """
        failure: BrokerError | None = None
        order = sorted(random.sample(list(brokers), len(brokers)), key=lambda each: each.broker_id in self._failed)
        for number, endpoint in enumerate(order, 1):
            limit = METADATA_TIMEOUT if number == len(order) else FIRST_TIMEOUT
            try:
                with self._connected(endpoint, limit) as (channel, deadline):
                    told = channel.metadata(topics, deadline)
                self._failed.discard(endpoint.broker_id)
                self._note_unknown(topics, told.errors, waiting)
                return told.leaders
            except BrokerError as e:
                self._failed.add(endpoint.broker_id)
                # a refusal says more than a broker that is away, which may accept our login when it is back
                failure = failure if isinstance(failure, BrokerAuthenticationError) else e
        raise failure or BrokerError("no broker could be asked")

    @contextmanager
    def _connected(self, endpoint: Endpoint, limit: float) -> Iterator[tuple[BrokerChannel, Deadline]]:
        """Connect to a broker for one request, and give both ``limit`` seconds. Raises BrokerError."""
        channel = self._settings.channel(endpoint)
        with self._lock:
            if self._closed:
                raise BrokerError("the member ends")
            self._asking = channel
        deadline = Deadline(min(limit, self._settings.socket_timeout))
        try:
            channel.connect(deadline)
            self._let_in()
            yield channel, deadline
        finally:
            self._asking = None
            channel.close()

    def log_ends(self, partitions: Collection[TopicPartition], waiting: Collection[str]) -> dict[TopicPartition, int]:
        """Ask the leaders for the ends of logs. A log without an answer is left out; one leader holds up no other.

        Raises: BrokerError, RegistryError.
        """
        brokers = self.brokers()
        leaders = self.find(sorted({tp.topic for tp in partitions}), brokers, waiting)
        found: dict[TopicPartition, int] = {}
        level, overall = self._settings.isolation_level, Deadline(METADATA_TIMEOUT)
        for endpoint in brokers:
            wanted = {tp: LATEST for tp in partitions if leaders.get(tp, -1) == endpoint.broker_id}
            if not wanted or overall.expired:
                continue
            try:
                with self._connected(endpoint, overall.bounded(FIRST_TIMEOUT)) as (channel, deadline):
                    told = channel.list_offsets(wanted, deadline, isolation_level=level)
            except BrokerError as e:
                log.debug("the log ends that broker %d knows are not known: %s", endpoint.broker_id, e)
                continue
            found |= {tp: answer.offset for tp, answer in told.items() if answer.error == error_codes.NONE}
        return found

    def _note_unknown(
        self, topics: Sequence[str], errors: Mapping[str | TopicPartition, int], waiting: Collection[str]
    ) -> None:
        now, before = monotonic(), self._unknown
        kept = {topic: times for topic, times in before.items() if topic in waiting and topic not in topics}
        unknown = [topic for topic in topics if errors.get(topic) == error_codes.UNKNOWN_TOPIC_OR_PARTITION]
        self._unknown = kept | {topic: (before.get(topic, (now,))[0], now) for topic in unknown}

    def unknown_for(self, topic: str) -> float:
        """Return the seconds between the first and the last answer of brokers that do not know a topic. Any thread."""
        first, last = self._unknown.get(topic, (0.0, 0.0))
        return last - first
