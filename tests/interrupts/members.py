"""The operations of connectors that the sweep interrupts, on a cluster in memory.

The group, its ZooKeeper and its brokers are the kit's. A second member of the group reads on from the
offsets that the interrupted member committed. A message that neither member returned to its caller is lost.

Threads: the application's thread alone is interrupted; the member's own threads run as ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

from tests.interrupts.boundaries import untraced
from tests.interrupts.sweep import Aftermath
from tests.interrupts.world import Violation
from tests.timing import eventually, scaled
from zkconsumer import ConsumerTimeoutException, KafkaStream, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.testing import FakeCluster

TOPIC = "events"
PARTITIONS = 2
EACH = 5
PATIENCE_S = 5.0
"""Seconds after which a message that is there counts as one that does not come."""
DESCRIPTORS = Path("/proc/self/fd")
_groups = count()


class InterruptedMember:
    """The only member of a group, and the messages that the application was given.

    Arguments: ``reads`` is how many messages the application takes before the operation begins.
    """

    def __init__(self, cluster: FakeCluster, reads: int = 3) -> None:
        self.cluster = cluster
        self.group = f"g{next(_groups)}"
        self.returned: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}
        self.connector = self.join()
        self.stream: KafkaStream[Any, Any] = self.connector.create_message_streams({TOPIC: 1})[TOPIC][0]
        for _ in range(reads):
            self.took(self.stream.get(timeout=scaled(PATIENCE_S)))

    def join(self) -> ZookeeperConsumerConnector:
        """Another connector of the group, which has no streams yet."""
        return ZookeeperConsumerConnector(
            {
                "zookeeper.connect": self.cluster.zookeeper_connect,
                "group.id": self.group,
                "auto.offset.reset": "smallest",
                "auto.commit.enable": "false",
                "consumer.timeout.ms": 60,
                "consumer.timeout.action": "end",
            }
        )

    def took(self, message: Any) -> None:
        """A message was returned to its caller."""
        with untraced():
            self.returned[message.partition].append(message.offset)

    def first_unseen(self, partition: int) -> int:
        """The first message of a partition that was not handed out."""
        return min(set(range(EACH)) - set(self.returned[partition]), default=EACH)

    def committed(self, partition: int) -> int:
        """The committed offset of a partition; 0 where there is none."""
        tree = self.cluster.zookeeper.tree(f"/consumers/{self.group}/offsets/{TOPIC}")
        return int(tree.get(f"/consumers/{self.group}/offsets/{TOPIC}/{partition}", b"0"))

    def check_committed(self) -> None:
        """Nothing is committed that was not handed out. Raises: Violation."""
        for partition in range(PARTITIONS):
            offset, seen = self.committed(partition), self.first_unseen(partition)
            if offset > seen:
                raise Violation(f"committed unseen: {offset} of partition {partition}, and {seen} was not handed out")

    @property
    def all_seen(self) -> bool:
        """Whether every message was handed out."""
        return all(self.first_unseen(partition) == EACH for partition in range(PARTITIONS))

    def read_on(self) -> None:
        """Read all that was not handed out yet. Raises: Violation where it does not come."""
        while not self.all_seen:
            try:
                message = self.stream.get(timeout=scaled(PATIENCE_S))
            except ConsumerTimeoutException:
                raise Violation(f"stands still: of {EACH} messages each, only {self.returned} came") from None
            self.took(message)

    def next_owner(self) -> None:
        """Another member reads the rest, from the committed offsets on. Raises: Violation where something is lost."""
        if self.all_seen:
            return
        start = {partition: self.committed(partition) for partition in range(PARTITIONS)}
        with self.join() as other:
            stream = other.create_message_streams({TOPIC: 1})[TOPIC][0]
            while not self.all_seen:
                try:
                    message = stream.get(timeout=scaled(PATIENCE_S))
                except ConsumerTimeoutException:
                    raise Violation(f"lost: the next owner began at {start}, only {self.returned} came") from None
                self.took(message)

    def end(self) -> None:
        """Shut the connector down, which must be possible whatever was interrupted. Raises: Violation."""
        self.connector.shutdown()
        name = str(self.connector.consumer_id)

        def ended() -> bool:
            return not [thread for thread in threading.enumerate() if name in thread.name]

        try:
            eventually(ended, 3, "the threads of the member to end")
        except AssertionError:
            left = [thread.name for thread in threading.enumerate() if name in thread.name]
            raise Violation(f"stands still: after shutdown() there are threads: {left}") from None


@dataclass(frozen=True)
class MemberOperation:
    """Something that an application does with its connector.

    Arguments: ``act`` is interrupted; ``closes`` says that the member has left the group by it, or by being
    interrupted in it; ``reads`` as for :class:`InterruptedMember`.
    """

    name: str
    act: Callable[[InterruptedMember], None]
    closes: bool = False
    reads: int = 3

    def prepare(self) -> InterruptedMember:
        """A member of a group of its own."""
        return InterruptedMember(shared_cluster(), self.reads)

    def after(self, member: InterruptedMember, aftermath: Aftermath | None) -> int:
        """Read on, leave, and let another member read the rest. Raises: Violation."""
        try:
            member.check_committed()
            if not self.closes:
                _read_all_again(member)
            member.end()
        finally:
            member.connector.shutdown()
        member.check_committed()
        member.next_owner()
        return 0


def _read_all_again(member: InterruptedMember) -> None:
    member.connector.resume(member.connector.assignment())
    member.connector.seek(TopicPartition(TOPIC, 0), 0)
    member.returned[0].clear()
    member.read_on()
    member.connector.commit_offsets()
    member.check_committed()
    if any(member.committed(number) != EACH for number in range(PARTITIONS)):
        raise Violation(f"stands still: committed {[member.committed(number) for number in range(PARTITIONS)]}")


def _commits(member: InterruptedMember) -> None:
    member.connector.commit_offsets()


def _commits_given(member: InterruptedMember) -> None:
    member.connector.commit_offsets({TopicPartition(TOPIC, 0): min(2, member.first_unseen(0))})


def _seeks(member: InterruptedMember) -> None:
    with untraced():
        member.returned[0] = [offset for offset in member.returned[0] if offset < 1]
    member.connector.seek(TopicPartition(TOPIC, 0), 1)


def _seeks_to_the_beginning(member: InterruptedMember) -> None:
    member.connector.seek(TopicPartition(TOPIC, 0), "earliest")


def _seeks_to_a_time(member: InterruptedMember) -> None:
    with untraced():
        for offsets in member.returned.values():
            offsets.clear()
    member.connector.seek_to_timestamp(0)


def _pauses(member: InterruptedMember) -> None:
    tp = [TopicPartition(TOPIC, 0)]
    member.connector.pause(tp)
    member.connector.paused()
    member.connector.resume(tp)


def _pauses_and_reads(member: InterruptedMember) -> None:
    tp = [TopicPartition(TOPIC, 0)]
    member.connector.pause(tp)
    for message in member.stream:
        member.took(message)
    member.connector.resume(tp)
    member.took(member.stream.get(timeout=scaled(PATIENCE_S)))


def _shuts_down(member: InterruptedMember) -> None:
    member.connector.shutdown()


def _leaves_the_block(member: InterruptedMember) -> None:
    with member.connector:
        member.took(member.stream.get(timeout=scaled(PATIENCE_S)))


def _reads_and_commits(member: InterruptedMember) -> None:
    for message in member.connector.messages():
        member.took(message)
        member.connector.commit_offsets()


def _gets_and_commits(member: InterruptedMember) -> None:
    for _ in range(PARTITIONS * EACH - 3):
        member.took(member.connector.messages().get(timeout=scaled(PATIENCE_S)))
        member.connector.commit_offsets()


def _runs(member: InterruptedMember) -> None:
    member.connector.run(member.took)
    member.connector.shutdown()


class Newcomer:
    """A connector that has not joined its group yet, and what was open before."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.before = self.open()
        self.connector = ZookeeperConsumerConnector(
            {"zookeeper.connect": cluster.zookeeper_connect, "group.id": f"g{next(_groups)}"}
        )

    def open(self) -> set[str]:
        """What is open now: sessions, files, and threads but those of the cluster for each connection."""
        own = [thread.name for thread in threading.enumerate() if not thread.name.startswith("fake-")]
        sessions = self._cluster.zookeeper_server.sessions if self._cluster.zookeeper_server else []
        files = [str(file) for file in DESCRIPTORS.iterdir()] if DESCRIPTORS.exists() else []
        return {*own, *(f"session {number}" for number in sessions), *(f"file {n}" for n in range(len(files)))}


@dataclass(frozen=True)
class FirstOperation:
    """Something that an application does first. If it is interrupted, nothing that it has opened stays.

    Arguments: ``first`` is interrupted; ``joins`` says that without an interrupt the member is in its group then.
    """

    name: str
    first: Callable[[ZookeeperConsumerConnector], object]
    joins: bool = False

    def prepare(self) -> Newcomer:
        """A connector of a group of its own."""
        return Newcomer(shared_cluster())

    def act(self, member: Newcomer) -> None:
        """Do it."""
        self.first(member.connector)

    def after(self, member: Newcomer, aftermath: Aftermath | None) -> int:
        """Look what is left. Raises: Violation."""
        if self.joins and aftermath is None:
            member.connector.shutdown()
        try:
            eventually(lambda: member.open() <= member.before, 3, "the end of all that was opened")
        except AssertionError:
            raise Violation(f"left behind: {sorted(member.open() - member.before)}") from None
        finally:
            member.connector.shutdown()
        return 0


FIRST_OPERATIONS = (
    FirstOperation("create_message_streams", lambda new: new.create_message_streams({TOPIC: 1}), joins=True),
    FirstOperation("topics", ZookeeperConsumerConnector.topics),
)
OPERATIONS = (
    MemberOperation("unsubscribe", lambda member: member.connector.unsubscribe(TOPIC), closes=True),
    MemberOperation("commit_offsets", _commits),
    MemberOperation("commit_offsets(given)", _commits_given),
    MemberOperation("seek", _seeks),
    MemberOperation("seek(earliest)", _seeks_to_the_beginning),
    MemberOperation("seek_to_timestamp", _seeks_to_a_time),
    MemberOperation("pause and resume", _pauses),
    MemberOperation("pause, read, resume", _pauses_and_reads),
    MemberOperation("messages() and commit_offsets", _reads_and_commits),
    MemberOperation("messages().get and commit_offsets", _gets_and_commits),
    MemberOperation("run", _runs, closes=True, reads=0),
    MemberOperation("shutdown", _shuts_down, closes=True),
    MemberOperation("with connector", _leaves_the_block, closes=True),
)


@cache
def shared_cluster() -> FakeCluster:
    """A cluster with the members' messages, for as long as the process lives."""
    made = FakeCluster(zookeeper=True).start()
    made.create_topic(TOPIC, PARTITIONS)
    for partition in range(PARTITIONS):
        made.append(TOPIC, partition, [b"%d" % number for number in range(EACH)])
    return made


def end_cluster() -> None:
    """Stop it."""
    shared_cluster().stop()
    shared_cluster.cache_clear()
