"""The leader finder, and the fetchers that it feeds; ``replica_choice`` says which replica a partition is fetched from.

Threads: the group's thread calls ``start``, ``forget`` and ``close``; any thread calls ``wake``. The leader finder is a
thread of :class:`FetcherManager`, which also starts and ends the fetchers. Each class has one lock, for the partitions
without a leader and the table of fetchers. No lock is held during network calls;
the original holds its lock during metadata requests.

Mirrors the original's ``ConsumerFetcherManager``. There a rebalance stops and starts it as a whole. Here a single
partition comes or goes, and all other partitions are fetched on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import Condition, Thread
from time import monotonic

from zkconsumer.assignors.assignor import java_hash
from zkconsumer.errors import BrokerAuthenticationError, BrokerError, RegistryError
from zkconsumer.fetch.broker_failures import FailureLog, RefusedLogins
from zkconsumer.fetch.broker_fetch import FetchConnection, FetchSettings
from zkconsumer.fetch.fetcher import Fetcher
from zkconsumer.fetch.leader_search import Directory, LeaderSearch
from zkconsumer.fetch.replica_choice import source_of
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.ownership.fetch_cursor import LEADER, Budget, FetchCursor, Sink
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.runtime.metrics import Metrics

log = logging.getLogger(__name__)

REPORT_EVERY = 30.0
NEVER = float("inf")


def fetcher_number(tp: TopicPartition, fetchers: int) -> int:
    """Return the number of the fetcher thread for a partition.

    The hash is the original's, made non-negative (KAFKA-1178).
    """
    mixed = java_hash(tp.topic, 0) * 31 + tp.partition & 0xFFFFFFFF
    signed = mixed - (1 << 32) if mixed >= 1 << 31 else mixed
    return 0 if signed == -(1 << 31) else abs(signed) % fetchers


class Fetchers:
    """The running fetchers of one member, by the id of their broker and their number.

    Arguments: as for :class:`FetcherManager`; ``give_back`` takes the partitions whose leader must be found again, on
    a fetcher's thread.
    """

    def __init__(
        self,
        name: str,
        settings: FetchSettings,
        metrics: Metrics,
        budget: Budget,
        *,
        resolved: Callable[[Mapping[PartitionPosition, int]], None],
        give_back: Callable[[Sequence[FetchCursor]], None],
        logins: RefusedLogins,
        failures: FailureLog,
    ) -> None:
        self._name = name
        self._settings = settings
        self._metrics = metrics
        self._budget = budget
        self._resolved = resolved
        self._give_back = give_back
        self._logins = logins
        self._failures = failures
        self._lock = InterruptibleLock()
        self._running: dict[tuple[int, int], Fetcher] = {}
        self._stopping = False

    @property
    def running(self) -> Sequence[Fetcher]:
        """The fetchers now (a copy). Any thread; takes no lock."""
        return list(self._running.values())

    def fetcher_for(self, key: tuple[int, int], endpoint: Endpoint) -> Fetcher | None:
        """Return the running fetcher of that (broker id, number); a new one if the broker has another address.

        None: the member ends.
        """
        known = self._running.get(key)
        if known is not None and known.endpoint == endpoint:
            return known
        fetcher = Fetcher(
            f"ConsumerFetcherThread-{self._name}-{key[1]}-{key[0]}",
            FetchConnection(endpoint, self._settings, self._budget, self._metrics),
            self._settings,
            give_back=self._give_back,
            resolved=self._resolved,
            logins=self._logins,
            failures=self._failures,
        )
        with self._lock:
            if self._stopping:
                return None
            fetcher.thread.start()  # first: partitions of a fetcher whose thread failed to start would stall
            self._running[key] = fetcher
        if known is not None:
            self._stop([known])  # the broker came back at another address (KAFKA-474)
        return fetcher

    def retire_idle(self) -> None:
        """End the fetchers without partitions."""
        with self._lock:
            idle = [key for key, fetcher in self._running.items() if fetcher.partitions.drop_revoked()]
            fetchers = [self._running.pop(key) for key in idle]
        self._stop(fetchers)

    def _stop(self, fetchers: Iterable[Fetcher]) -> None:
        """End fetchers that are no longer in the table. The metrics of a broker without any fetcher left are removed;
        in the original they stay.
        """
        with self._lock:
            live = {fetcher.endpoint for fetcher in self._running.values()}
        for fetcher in fetchers:
            fetcher.stop()
            if fetcher.endpoint not in live:
                fetcher.metrics.remove()

    def close(self, deadline: Deadline) -> None:
        """End all fetchers, together and not one after the other (KAFKA-4319); never waits beyond the deadline."""
        with self._lock:
            self._stopping = True
            fetchers = self.running
        for fetcher in fetchers:
            fetcher.stop()
        for fetcher in fetchers:
            if not fetcher.join(deadline):
                log.warning("a fetcher of broker %d did not end in time", fetcher.endpoint.broker_id)

    @property
    def slowest_rate(self) -> float:
        """Requests per second of the fetcher that sends the fewest (``MinFetchRate``); 0 without fetchers."""
        return min((fetcher.metrics.request_rate for fetcher in self.running), default=0.0)

    @property
    def followed(self) -> list[FetchCursor]:
        """The partitions that are read from a follower."""
        return [cursor for fetcher in self.running for cursor in fetcher.partitions.followed]

    def load(self) -> Mapping[int, int]:
        """Return the number of partitions fetched from each broker, by its id."""
        load: dict[int, int] = {}
        for fetcher in self.running:
            broker = fetcher.endpoint.broker_id
            load[broker] = load.get(broker, 0) + len(fetcher.partitions)
        return load


class FetcherManager:
    """Fetches every owned partition from its leader.

    Arguments: ``name`` begins the names of all threads; ``directory`` reads the registered brokers (may raise
    RegistryError or BrokerError); ``resolved`` takes the start offsets of partitions that had none; ``refused`` takes
    the error when every broker refuses our login, and None when one accepts it again, on the leader finder's thread;
    ``budget`` is shared with the streams.
    """

    def __init__(
        self,
        name: str,
        settings: FetchSettings,
        directory: Directory,
        *,
        fetchers_per_broker: int = 1,
        resolved: Callable[[Mapping[PartitionPosition, int]], None],
        refused: Callable[[BrokerAuthenticationError | None], None] = lambda _: None,
        metrics: Metrics,
        budget: Budget,
    ) -> None:
        self._logins = RefusedLogins()
        self._failures = FailureLog()
        self._refused = refused
        self._shut_out = False
        self._backoff = settings.backoff
        self._per_broker = fetchers_per_broker
        self.leaders = LeaderSearch(settings, directory, self._on_login)
        self.fetchers = Fetchers(
            name,
            settings,
            metrics,
            budget,
            resolved=resolved,
            give_back=self._take_back,
            logins=self._logins,
            failures=self._failures,
        )
        self._lock = InterruptibleLock()  # code enters the lock itself, not the condition; see streams.stream_queue
        self._changed = Condition(self._lock)
        self._leaderless: dict[FetchCursor, None] = {}  # in order, unlike a set
        self._stopping = False
        self._trouble = ""
        self._ends_due = 0.0
        self._thread = Thread(target=self._run, name=f"{name}-leader-finder-thread", daemon=True)

    # ---- for the group's thread ----

    def open(self) -> None:
        """Start the leader finder."""
        self._thread.start()

    def start(self, partitions: Iterable[tuple[PartitionPosition, Sink]]) -> None:
        """Fetch these partitions from now on."""
        with self._lock:
            self._drop_revoked()
            for position, sink in partitions:
                self._leaderless[position.cursor.deliver_to(sink)] = None
            self._changed.notify_all()

    def forget(self) -> None:
        """Stop fetching revoked positions. A chunk that is on its way is dropped when it arrives."""
        with self._lock:
            self._drop_revoked()
        self.wake()

    def _drop_revoked(self) -> None:
        for fetch in [fetch for fetch in self._leaderless if fetch.position.revoked]:
            del self._leaderless[fetch]

    def wake(self) -> None:
        """Wake the fetchers: a stream has room again, or a start position is known."""
        for fetcher in self.fetchers.running:
            fetcher.partitions.wake()

    def close(self, deadline: Deadline) -> None:
        """End all threads; never waits beyond the deadline."""
        with self._lock:
            self._stopping = True
            self._leaderless.clear()
            self._changed.notify_all()
        self.leaders.close()
        self.fetchers.close(deadline)
        if self._thread.is_alive():
            self._thread.join(deadline.remaining())

    @property
    def threads(self) -> Sequence[Thread]:
        """The threads that should run now, unless this is closed. Any thread; takes no lock."""
        return [self._thread, *(fetcher.thread for fetcher in self.fetchers.running)]

    @property
    def leaderless(self) -> frozenset[TopicPartition]:
        """The partitions whose leader is not known now, or cannot be reached."""
        with self._lock:
            return frozenset(fetch.tp for fetch in self._leaderless)

    @property
    def trouble(self) -> str:
        """Why partitions are not fetched, for the user; empty if all are."""
        with self._lock:
            waiting = next((fetch.trouble for fetch in self._leaderless if fetch.trouble), "")
        fetched = (fetcher.partitions.trouble for fetcher in self.fetchers.running)
        told = (self._trouble, self._logins.trouble, waiting, *fetched)
        return next(filter(None, told), "")

    # ---- the leader finder ----

    def _run(self) -> None:
        while not self._stopping:
            try:
                self.step()
            except BrokerAuthenticationError as e:
                self._on_refusal(e)
            except (BrokerError, RegistryError) as e:
                if not self._stopping:  # else close() has only closed its channel
                    self._report(str(e))
                self._back_off()
            except Exception:
                log.exception("the leader finder failed unexpectedly and goes on")
                self._back_off()

    def _report(self, trouble: str) -> None:
        known, self._trouble = self._trouble, trouble
        if trouble and trouble != known:
            self._failures.failed(trouble, f"looking for partition leaders: {trouble}")

    def _back_off(self) -> None:
        with self._lock:
            if not self._stopping:
                self._changed.wait(self._backoff)

    def _on_refusal(self, error: BrokerAuthenticationError) -> None:
        """Handle the refusal of our login by every broker. The user hears of it, unless partitions are still fetched
        over older connections.
        """
        pause = self._logins.refused(self, error)
        self._trouble = str(error)
        flowing = any(not fetcher.partitions.drop_revoked() for fetcher in self.fetchers.running)
        if not flowing and not self._shut_out and not self._stopping:
            self._shut_out = True
            self._refused(error)
        with self._lock:
            self._changed.wait_for(lambda: self._stopping, pause)

    def _on_login(self) -> None:
        self._logins.accepted(self)
        if self._shut_out:
            self._shut_out = False
            self._refused(None)

    def step(self) -> None:
        """Do one round: find the leaders of partitions without a fetcher, and hand these partitions to fetchers.

        Without such a partition the call waits.
        """
        with self._lock:
            wanted = self._due()
            if not wanted and not self._stopping:
                self._changed.wait(self._until_due())
                wanted = self._due()
            if self._stopping:
                return
            waiting = {fetch.tp.topic for fetch in self._leaderless}
        if wanted:
            brokers = self.leaders.brokers()
            leaders = self.leaders.find(sorted({fetch.tp.topic for fetch in wanted}), brokers, waiting)
            by_id = {endpoint.broker_id: endpoint for endpoint in brokers}
            sources = {fetch: source_of(fetch, leaders.get(fetch.tp, -1), by_id) for fetch in wanted}
            self.hand_over([(fetch, by_id[broker]) for fetch, broker in sources.items() if broker in by_id])
            missing = [fetch for fetch, broker in sources.items() if broker not in by_id]
            self._report(
                "no leader for " + ", ".join(sorted(str(fetch.tp) for fetch in missing)[:5]) if missing else ""
            )
            self._put_off(missing)
        self.fetchers.retire_idle()
        self._look_at_ends(waiting)

    def _look_at_ends(self, waiting: Collection[str]) -> None:
        """Ask the leaders for the log ends of partitions that are read from followers, which may be behind."""
        if monotonic() < self._ends_due:
            return
        self._ends_due = monotonic() + REPORT_EVERY
        followed = self.fetchers.followed
        try:
            ends = self.leaders.log_ends({fetch.tp for fetch in followed}, waiting) if followed else {}
        except (BrokerError, RegistryError) as e:
            log.debug("the log ends of partitions that are read from followers are not known: %s", e)
            return
        for fetch in followed:
            if fetch.replica != LEADER:
                fetch.leader_end = ends.get(fetch.tp, fetch.leader_end)  # unanswered: what was known

    def _due(self) -> list[FetchCursor]:
        """Return the partitions whose leader is to be looked for now. The caller holds the lock."""
        now = monotonic()
        return [f for f in self._leaderless if f.retry_at <= now and not f.position.revoked]

    def _until_due(self) -> float:
        first = min((fetch.retry_at for fetch in self._leaderless), default=NEVER)
        return min(max(first - monotonic(), 0.001), REPORT_EVERY)

    def _put_off(self, fetches: Iterable[FetchCursor]) -> None:
        """Allow no new try before the back-off is over (KAFKA-1461: failed fetches were repeated at once)."""
        now = monotonic()
        for fetch in fetches:
            fetch.retry_at = now + max(self._backoff, fetch.pause)

    def hand_over(self, found: Sequence[tuple[FetchCursor, Endpoint]]) -> None:
        """Give partitions to the fetchers of their leaders."""
        batches: dict[tuple[int, int], list[FetchCursor]] = {}
        for fetch, endpoint in found:
            key = (endpoint.broker_id, fetcher_number(fetch.tp, self._per_broker))
            batches.setdefault(key, []).append(fetch)
        endpoints = {endpoint.broker_id: endpoint for _, endpoint in found}
        for key, fetches in batches.items():
            fetcher = self.fetchers.fetcher_for(key, endpoints[key[0]])
            if fetcher is None:
                return
            with self._lock:
                handed = [fetch for fetch in fetches if fetch in self._leaderless]
                for fetch in handed:
                    del self._leaderless[fetch]
            fetcher.partitions.add(handed)

    def _take_back(self, fetches: Sequence[FetchCursor]) -> None:
        with self._lock:
            if self._stopping:
                return
            self._put_off(fetch for fetch in fetches if fetch.trouble)  # the others only go to another replica
            for fetch in fetches:
                if not fetch.position.revoked:
                    self._leaderless[fetch] = None
            self._changed.notify_all()
