"""A Kafka cluster in memory: brokers on loopback sockets, topics and groups, and the faults that a test injects.

Threads: those of the brokers (``fake_broker``), ``fake-cluster-clock`` for timeouts (none with a ManualClock), and the
test's, which may call everything here. ``_lock`` guards topics and coordinators. A thread that holds it may take a
group's locks, never the other way round. No thread waits under it.
Differs from a real cluster on purpose: all brokers share the messages and groups. So a new leader or coordinator has
everything, and only waiting requests fail. Replication and controllers, which no client sees, are missing.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from threading import Event, RLock, Thread
from types import TracebackType
from typing import Self, Unpack
from zlib import crc32

from zkconsumer.model import TopicPartition
from zkconsumer.testing import group_states as errors
from zkconsumer.testing.committed_offsets import JournalRecord, OffsetsTopic
from zkconsumer.testing.fake_broker import BrokerRegistration, FakeBroker
from zkconsumer.testing.fake_clock import Clock, ManualClock, SystemClock
from zkconsumer.testing.fake_coordinator import GroupCoordinator
from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.testing.fake_zookeeper_server import FakeZooKeeperServer
from zkconsumer.testing.faults import Faults
from zkconsumer.testing.group_states import CoordinatorRules, FakeGroupView, GroupRules
from zkconsumer.testing.partition_log import Follower, PartitionLog, encode_batch
from zkconsumer.testing.pending_requests import Arrivals

VERSIONS = ("3.9", "1.1")
_LONGEST_SLEEP = 60.0
_OFFSETS = "__consumer_offsets"
_JOIN_S = 10.0


class GroupTimeouts:
    """Runs the timeouts of groups on a thread, or on the thread that advances a ManualClock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._coordinators: list[GroupCoordinator] = []
        self._due = Event()
        self._stopping = Event()
        self._thread: Thread | None = None

    def coordinator(self, rules: CoordinatorRules, journal: OffsetsTopic) -> GroupCoordinator:
        """Return a new coordinator whose timeouts are run. Called before the start."""
        made = GroupCoordinator(rules, self._clock, journal, self._due.set)
        self._coordinators.append(made)
        return made

    def start(self) -> None:
        """Run timeouts from now on."""
        self._stopping.clear()
        if isinstance(self._clock, ManualClock):
            self._clock.listen(self._tick)
        elif self._thread is None:
            self._thread = Thread(target=self._keep_time, name="fake-cluster-clock", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        if isinstance(self._clock, ManualClock):
            self._clock.forget(self._tick)
        self._stopping.set()
        self._due.set()
        if self._thread is not None:
            if self._thread.ident is not None:  # an interrupted start leaves one that has not begun
                self._thread.join(_JOIN_S)
            self._thread = None

    def _tick(self) -> None:
        for groups in self._coordinators:
            groups.tick()

    def _keep_time(self) -> None:
        while not self._stopping.is_set():
            self._due.clear()
            times = [groups.due() for groups in self._coordinators]
            next_time = min((time for time in times if time is not None), default=None)
            left = _LONGEST_SLEEP if next_time is None else min(next_time - self._clock.now(), _LONGEST_SLEEP)
            if left > 0:
                self._due.wait(left)
            else:
                self._tick()


class FakeCluster(Faults):
    """A cluster for tests. A context manager that starts and stops it::

        with FakeCluster(zookeeper=True) as cluster:
            cluster.create_topic("events", partitions=2)
            print(cluster.zookeeper_connect)

    Arguments, with times in seconds:

    - ``brokers``: the number of brokers. Their ids begin with 0.
    - ``version``: "3.9" or "1.1", for the versions of requests and the rules of groups.
    - ``clock``: a ManualClock for the timeouts of groups, None for real time. Sockets and waiting fetches always use
      real time.
    - ``zookeeper``: whether to add a ZooKeeper in memory with a port, for a ZookeeperConsumerConnector; or one that is
      there, in which the brokers register.
    - ``rules``: those of :class:`GroupRules`, such as ``max_members=2``.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        version: str = "3.9",
        clock: Clock | None = None,
        zookeeper: bool | FakeZooKeeper = False,
        **rules: Unpack[GroupRules],
    ) -> None:
        if version not in VERSIONS:
            raise ValueError(f"version must be one of {', '.join(VERSIONS)}, not {version!r}")
        if brokers < 1:
            raise ValueError(f"a cluster needs at least one broker, not {brokers}")
        super().__init__()
        modern = version != "1.1"
        self.clock: Clock = clock or SystemClock()
        rules.setdefault("offsets_retention", (7 if modern else 1) * 86400.0)
        self.rules = CoordinatorRules(modern=modern, **rules)
        self.journal_of_all = OffsetsTopic()
        self._timeouts = GroupTimeouts(self.clock)
        self.brokers = {
            number: FakeBroker(number, self, self._timeouts.coordinator(self.rules, self.journal_of_all))
            for number in range(brokers)
        }
        self.zookeeper_server = FakeZooKeeperServer() if zookeeper is True else None
        registry = self.zookeeper_server.zookeeper if self.zookeeper_server is not None else zookeeper
        self._registration = BrokerRegistration(registry, modern) if isinstance(registry, FakeZooKeeper) else None
        self._lock = RLock()
        self._topics: dict[str, list[PartitionLog]] = {}
        self._coordinators: dict[str, int] = {}
        self._loading: set[str] = set()
        self._producer_ids = itertools.count(1000)
        self.arrivals = Arrivals()

    # ---- life ----

    def start(self) -> Self:
        """Start all brokers. After an exception, or an interrupt, nothing of the cluster runs."""
        try:
            return self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> Self:
        if self.zookeeper_server is not None:
            self.zookeeper_server.start()
        if self._registration is not None:
            self._registration.prepare()
        self._timeouts.start()
        for broker_id in self.brokers:
            self.start_broker(broker_id)
        return self

    def stop(self) -> None:
        """Stop all brokers and end every thread."""
        if self.zookeeper_server is not None:
            self.zookeeper_server.stop()
        for broker in self.brokers.values():
            broker.stop()
        self._timeouts.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of all running brokers, as in ``bootstrap.servers``."""
        return ",".join(f"{host}:{port}" for _, host, port in self.addresses())

    @property
    def zookeeper(self) -> FakeZooKeeper:
        """The fake ZooKeeper. Raises ValueError if the cluster has none."""
        return self._served().zookeeper

    @property
    def zookeeper_connect(self) -> str:
        """The value for ``zookeeper.connect``. Raises ValueError if the cluster has no ZooKeeper."""
        return self._served().connect

    def _served(self) -> FakeZooKeeperServer:
        if self.zookeeper_server is None:
            raise ValueError("this cluster has no ZooKeeper: make it with zookeeper=True")
        return self.zookeeper_server

    # ---- topics ----

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic. Its leaders are spread over the brokers. Raises ValueError if it exists."""
        with self._lock:
            if name in self._topics:
                raise ValueError(f"topic {name!r} exists")
            self._topics[name] = []
        self.add_partitions(name, partitions)

    def add_partitions(self, name: str, total: int) -> None:
        """Enlarge a topic to ``total`` partitions. Raises KeyError for an unknown topic."""
        with self._lock:
            logs, alive = self._topics[name], [broker_id for broker_id, *_ in self.addresses()] or [-1]
            for number in range(len(logs), total):
                logs.append(PartitionLog(TopicPartition(name, number), alive[number % len(alive)]))
            told = list(logs)
        if self._registration is not None:
            self._registration.topic(name, told)

    def delete_topic(self, name: str) -> None:
        """Delete a topic, with all groups' offsets of it. Raises KeyError for an unknown topic."""
        with self._lock:
            count = len(self._topics.pop(name))
        places = [(name, number) for number in range(count)]
        for broker in self.brokers.values():
            broker.groups.forget_places(places)
        self.journal_of_all.forget(places)
        if self._registration is not None:
            self._registration.topic_deleted(name)
        self.arrivals.add()

    def topics(self) -> list[str]:
        """Return the names of the topics."""
        with self._lock:
            return sorted(self._topics)

    def append(
        self, topic: str, partition: int, values: Sequence[bytes | None], keys: Sequence[bytes | None] = ()
    ) -> int:
        """Append messages to a partition as one batch. Return the offset of the first."""
        log = self._existing(topic, partition)
        done = log.append(encode_batch(values, int(self.clock.wall() * 1000), keys))
        assert not done.error, done
        self.arrivals.add()
        return done.offset

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """Return the values of all messages of a partition."""
        return self._existing(topic, partition).values()

    def end_offset(self, topic: str, partition: int) -> int:
        """Return the log end offset of a partition."""
        return self._existing(topic, partition).end

    def truncate_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete older messages, as retention does (whole batches only)."""
        self._existing(topic, partition).truncate_before(offset)

    def truncate(self, topic: str, partition: int, offset: int) -> None:
        """Delete a partition's messages from ``offset`` on, as an unclean leader election does.

        The next leader epoch begins there, and later messages get the same offsets again.
        """
        log = self._existing(topic, partition)
        log.truncate(offset)
        self._lead_changed(log)

    def recreate(self, topic: str, partitions: int | None = None) -> None:
        """Delete a topic and create it again at once, with as many ``partitions`` as before unless given.

        Groups lose their offsets in the brokers and keep those in ZooKeeper. Raises KeyError for an unknown topic.
        """
        logs = self.logs(topic)
        if logs is None:
            raise KeyError(topic)
        with self.zookeeper_server.zookeeper.at_once() if self.zookeeper_server is not None else nullcontext():
            self.delete_topic(topic)
            self.create_topic(topic, len(logs) if partitions is None else partitions)

    def compact(self, topic: str, partition: int, offset: int) -> None:
        """Delete the batch with ``offset``, as compaction does. Later batches keep their offsets. Raises KeyError."""
        self._existing(topic, partition).compact(offset)

    def corrupt(self, topic: str, partition: int, offset: int) -> None:
        """Change a byte of the batch with ``offset``, so that its checksum is wrong. Raises KeyError."""
        self._existing(topic, partition).corrupt(offset)

    def logs(self, topic: str) -> list[PartitionLog] | None:
        """Return the logs of a topic, None for an unknown topic."""
        with self._lock:
            logs = self._topics.get(topic)
            return None if logs is None else list(logs)

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """Return the log of a partition, None for an unknown partition."""
        logs = self.logs(topic)
        return logs[partition] if logs is not None and 0 <= partition < len(logs) else None

    def _existing(self, topic: str, partition: int) -> PartitionLog:
        log = self.log(topic, partition)
        if log is None:
            raise KeyError(f"{topic}-{partition}")
        return log

    # ---- looking ----

    def group(self, group_id: str) -> FakeGroupView:
        """Return the present state of a group. An unknown group is Dead."""
        coordinator = self.coordinator(group_id)
        return self.brokers[coordinator if coordinator is not None else 0].groups.view(group_id)

    def committed(self, group_id: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of a group, by topic and partition."""
        coordinator = self.coordinator(group_id)
        kept = self.brokers[coordinator if coordinator is not None else 0].groups.committed(group_id)
        return {place: committed.offset for place, committed in kept.items() if committed is not None}

    def journal(self, group_id: str) -> list[JournalRecord]:
        """Return a group's records in the offsets topic, oldest first, with tombstones (value None)."""
        return self.journal_of_all.records(group_id)

    # ---- faults ----

    def drop_connections(self, *, client_id: str | None = None, broker: int | None = None) -> int:
        """Close all connections, or only a client's or a broker's. Return the number of closed connections."""
        chosen = self.brokers.values() if broker is None else [self.brokers[broker]]
        return sum(one.drop_connections(client_id) for one in chosen)

    def move_leader(self, topic: str, partition: int, to: int) -> None:
        """Move a partition to another leader, -1 for none. The old leader follows, and refuses requests for leaders."""
        log = self._existing(topic, partition)
        with self._lock:
            log.move(to)
        self._lead_changed(log)

    def add_follower(self, topic: str, partition: int, broker: int, *, rack: str, end: int | None = None) -> None:
        """Have the leader send consumers of a rack to a follower (KIP-392), or change that follower.

        Its log ends at ``end``, None: where the leader's ends. :meth:`remove_follower` takes it away.
        """
        self._existing(topic, partition).followers[broker] = Follower(rack, end)
        self.arrivals.add()

    def remove_follower(self, topic: str, partition: int, broker: int) -> None:
        """Send nobody to that follower any more; it refuses to be read."""
        self._existing(topic, partition).followers.pop(broker, None)
        self.arrivals.add()

    def _lead_changed(self, log: PartitionLog) -> None:
        if self._registration is not None:
            self._registration.leader(log)
        self.arrivals.add()

    def coordinator(self, group_id: str) -> int | None:
        """Return the id of the broker that coordinates a group, None while no broker runs."""
        with self._lock:
            found = self._coordinators.get(group_id)
            if found is not None:
                return found
            alive = [broker_id for broker_id, *_ in self.addresses()]
            if not alive:
                return None
            first = not self._coordinators
            found = self._coordinators[group_id] = alive[crc32(group_id.encode()) % len(alive)]
        if first and self._registration is not None:  # as the first search makes the controller do
            self._registration.topic(_OFFSETS, [PartitionLog(TopicPartition(_OFFSETS, 0), found)])
        return found

    @property
    def keeps_groups(self) -> bool:
        """Whether a client ever asked for a coordinator."""
        with self._lock:
            return bool(self._coordinators)

    def move_coordinator(self, group_id: str, to: int, *, loading: bool = False) -> None:
        """Move a group to another coordinator, which loads it from the offsets topic.

        Waiting requests get an error, a rebalance that is going on is lost, and members of a stable group stay. With
        ``loading`` the new coordinator answers that it is loading, until :meth:`finish_loading`.
        """
        before = self.coordinator(group_id)
        with self._lock:
            self._coordinators[group_id] = to
            self._loading.add(group_id)
        if before is not None:
            self.brokers[before].groups.unload(group_id)
        if not loading:
            self.finish_loading(group_id)

    def finish_loading(self, group_id: str) -> None:
        """Finish the loading of a group."""
        coordinator = self.coordinator(group_id)
        if coordinator is not None:
            self.brokers[coordinator].groups.load(group_id)
        with self._lock:
            self._loading.discard(group_id)

    def stop_broker(self, broker_id: int) -> None:
        """Stop a broker. The other running brokers take over its partitions and groups.

        Groups of the last running broker have no coordinator, and no member's session ends, until a broker starts.
        """
        self.brokers[broker_id].stop()
        if self._registration is not None:
            self._registration.broker_stopped(broker_id)
        alive = [other for other, *_ in self.addresses()]
        with self._lock:
            led = [log for logs in self._topics.values() for log in logs if log.leader == broker_id]
            groups = [group_id for group_id, other in self._coordinators.items() if other == broker_id]
        for number, log in enumerate(led):
            self.move_leader(*log.where, alive[number % len(alive)] if alive else -1)
        for number, group_id in enumerate(groups):
            if alive:
                self.move_coordinator(group_id, alive[number % len(alive)])
            else:
                self.brokers[broker_id].groups.unload(group_id)

    def start_broker(self, broker_id: int) -> None:
        """Start a broker again on its old port. It leads and coordinates all partitions and groups that nobody has.

        The broker loads these groups, and the sessions of their members begin again.
        """
        broker = self.brokers[broker_id]
        with self._lock:
            groups = [group_id for group_id, other in self._coordinators.items() if not self.brokers[other].running]
        for group_id in groups:
            self.move_coordinator(group_id, broker_id, loading=True)
        broker.start()
        if self._registration is not None:
            self._registration.broker_started(broker_id, broker.host, broker.port)
        with self._lock:
            orphans = [log.where for logs in self._topics.values() for log in logs if log.leader < 0]
        for where in orphans:
            self.move_leader(*where, broker_id)
        for group_id in groups:
            self.finish_loading(group_id)

    def expire_member(self, group_id: str, member_id: str) -> None:
        """End a member's session now, as if its heartbeats were missing. Raises KeyError for an unknown member."""
        coordinator = self.coordinator(group_id)
        if coordinator is None:
            raise KeyError(group_id)
        self.brokers[coordinator].groups.expire(group_id, member_id)

    # ---- called by the brokers ----

    def addresses(self) -> list[tuple[int, str, int]]:
        """Return (id, host, port) of the running brokers."""
        return [(broker.id, broker.host, broker.port) for broker in self.brokers.values() if broker.running]

    def address(self, broker_id: int) -> tuple[str, int]:
        """Return the host and port of a broker."""
        broker = self.brokers[broker_id]
        return broker.host, broker.port

    def group_error(self, broker_id: int, group_id: str, *, may_be_empty: bool = False) -> int:
        """Return the error of a broker that does not coordinate a group now, 0 if it does."""
        if not group_id and not may_be_empty:
            return errors.INVALID_GROUP_ID
        with self._lock:
            if self.coordinator(group_id) != broker_id:
                return errors.NOT_COORDINATOR
            return errors.LOADING if group_id in self._loading else errors.NONE

    def next_producer_id(self) -> int:
        """Return an unused producer id."""
        return next(self._producer_ids)
