"""The protocol of a store of offsets, and the error of a refused commit.

``ZooKeeperOffsets``, ``KafkaOffsets`` and a user's own object (``offset_store=`` of the connector) promise the same;
``tests/contract/test_offset_stores.py`` is the promise as a suite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple, Protocol

from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.message_pointers import Pointer
from zkconsumer.errors import OffsetCommitError, OffsetStoreConflictError
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.ownership.balanced_ledger import CommitPoint
from zkconsumer.zookeeper.ownership_transactions import Outcome

Failures = Mapping[TopicPartition, Exception]
"""Partitions that were not written, with the reasons."""
NO_FAILURES: Failures = {}


Notes = Mapping[TopicPartition, FinishedNote]
"""What is finished beyond offsets."""
NO_NOTES: Notes = {}

Points = Mapping[TopicPartition, CommitPoint]
"""What is written with the offsets of partitions whose messages are finished in any order."""
NO_POINTS: Points = {}
ReadPointers = Mapping[TopicPartition, Mapping[int, Pointer]]
"""Pointers of partitions as read."""


class NotingStore(ABC):
    """A store that can keep a note beside each offset: Kafka, in the metadata."""

    @abstractmethod
    def fetch_noted(
        self, partitions: Collection[TopicPartition], timeout: float
    ) -> tuple[Mapping[TopicPartition, int], Notes]:
        """Return the stored offsets, as :meth:`OffsetStore.fetch` does, and the notes that belong to them."""

    @abstractmethod
    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float, notes: Notes = NO_NOTES) -> Failures:
        """Write offsets, as :meth:`OffsetStore.commit` does, with their notes."""


class OffsetStore(Protocol):
    """Where the offsets of one group live.

    A store of your own, here a file::

        class FileOffsets:
            def __init__(self, path):
                self.path = Path(path)
            def fetch(self, partitions, timeout):
                stored = json.loads(self.path.read_text()) if self.path.exists() else {}
                return {tp: stored[str(tp)] for tp in partitions if str(tp) in stored}
            def commit(self, offsets, timeout):
                stored = json.loads(self.path.read_text()) if self.path.exists() else {}
                stored |= {str(tp): offset for tp, offset in offsets.items()}
                self.path.with_suffix(".new").write_text(json.dumps(stored))
                self.path.with_suffix(".new").replace(self.path)
            def close(self):
                pass

        ZookeeperConsumerConnector(config, offset_store=FileOffsets("/shared/offsets.json"))

    (Each partition has one writer, the owner, but several members write. A store must not lose a member's commit to
    another member's commit, as this file would without a lock.)

    A store promises three things. After ``commit`` returned, every member's ``fetch`` sees that value or a later one.
    It raises for an unknown offset and never guesses one. It keeps to the timeouts.

    ``fetch`` and ``commit`` are called by one thread of the connector, never at the same time; ``close`` once, at the
    end, from any thread, and should make a call that is blocked raise. A store outside ZooKeeper cannot be fenced:
    within the time of one request a member that has just lost the partition may still write.
    """

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Return the stored offsets; a partition without one is left out (or negative).

        Arguments: ``timeout`` in seconds. Raises: anything, if the offset of any of them is unknown; it is asked
        again after ``offsets.channel.backoff.ms``.
        """

    def commit(
        self, offsets: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, Exception] | None:
        """Write offsets. Returns those that were not written with the reason; empty or None: all are.

        Arguments: ``timeout`` in seconds. Raises: anything, if nothing is known to be written. Except on the timer
        it is tried again after ``offsets.channel.backoff.ms``, up to ``offsets.commit.max.retries`` times.
        """

    def close(self) -> None:
        """Close connections, and make a waiting call raise."""


class StoreMember(NamedTuple):
    """The member that uses a :class:`FencedStore`.

    ``missing(partition, start, end)`` reads the log and says in words why messages between these offsets are missing in
    the store. It returns an empty text if the log has none there. It raises BrokerError. Any thread.
    """

    group: str
    consumer: ConsumerId
    missing: Callable[[TopicPartition, int, int], str]


class FencedStore(ABC):
    """A store that refuses former owners itself: the user's transactions write the offsets, and commits do not.

    It is an :class:`OffsetStore` too. ZooKeeper gets a copy of the offsets, which nobody starts from.
    """

    @abstractmethod
    def open(self, member: StoreMember, timeout: float) -> str:
        """Return a text that is the same for all members that use the same store. Raises the store's errors."""

    @abstractmethod
    def claim(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """Refuse records of earlier epochs from now on, and return the stored offsets as :meth:`OffsetStore.fetch`.

        Arguments: ``epochs`` grow with each claim of a partition in ZooKeeper. Raises: anything, if that is not known
        to be done; FencedRecordError if the store has seen a later epoch.
        """

    @abstractmethod
    def suspend(self, error: OffsetStoreConflictError | None) -> None:
        """Raise this error in place of recording; None ends that. Any thread."""

    @abstractmethod
    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Return the stored offsets as :meth:`OffsetStore.fetch` does."""

    @abstractmethod
    def commit(
        self, offsets: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, Exception] | None:
        """Store the starts of claimed partitions that have no offset. Any other offset is only taken note of."""

    @abstractmethod
    def close(self) -> None:
        """Forget all claims, and make a waiting call raise."""


class CommitRefusedError(OffsetCommitError):
    """ZooKeeper refused the commit of one partition. Arguments: ``outcome`` says why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.value)
        self.outcome = outcome


def refusals(outcomes: Mapping[TopicPartition, Outcome]) -> dict[TopicPartition, Exception]:
    """Return the outcomes that are not done, as exceptions."""
    return {tp: CommitRefusedError(outcome) for tp, outcome in outcomes.items() if outcome is not Outcome.DONE}
