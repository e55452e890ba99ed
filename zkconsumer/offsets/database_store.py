"""Offsets in the user's own database, in the same transaction as the user's rows.

Each partition of a group has one row: the epoch of the last claim, and the next offset. The epoch is the number of the
ZooKeeper transaction that made the owner node (its ``czxid``), so a later claim has a higher one. A claim raises the
epoch and reads the offset in one transaction of its own. :meth:`DatabaseOffsets.record` moves the offset on in the
user's transaction, by one UPDATE that names the epoch and the present offset::

    UPDATE ... SET next_offset = 43 WHERE <this partition> AND epoch = 7 AND next_offset = 42

It must change one row. So the argument is short. The UPDATE locks the row until the user's transaction ends. A claim
that comes later waits for that end, and then reads the offset that the transaction left. A claim that came earlier has
changed the epoch, and the UPDATE changes no row. With REPEATABLE READ and SERIALIZABLE the database itself ends the
transaction if the claim came after the transaction's first statement. In SQLite a single transaction writes at a time.

Threads: :meth:`DatabaseOffsets.record` and its relatives are called by any threads, each with a connection of its own.
The committer calls :meth:`DatabaseOffsets.claim`, ``fetch`` and ``commit``. They open a connection for each call, so no
connection is shared. The lock guards the claims. Nothing waits while it is held.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from typing import Any, NoReturn, Protocol

from zkconsumer.errors import (
    ConfigException,
    FencedRecordError,
    OffsetCommitError,
    OffsetStoreConflictError,
    RepeatedRecordError,
    SkippedRecordError,
)
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.database_dialects import DatabaseConnection, Dialect, dialect_of
from zkconsumer.offsets.store import CommitRefusedError, FencedStore, StoreMember
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.zookeeper.ownership_transactions import Outcome

log = logging.getLogger(__name__)

TABLE = "zkconsumer_offsets"
IDENTITY = ("", "", -1)
"""The key of the row whose owner column holds a random name of the table, which members compare."""
MAKING_TRIES = 3
"""Times that the table is made. Members that make it at the same moment fail each other in PostgreSQL."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")


class Recordable(Protocol):
    """A message, as far as recording needs it."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def offset(self) -> int:
        """The offset."""


class _Rows:
    """The statements about the table, on one cursor."""

    def __init__(self, cursor: Any, dialect: Dialect, table: str, group: str) -> None:
        self._cursor = cursor
        self._dialect = dialect
        self._table = table
        self._group = group

    def run(self, statement: str, *values: object) -> None:
        """Execute a statement: ``@`` is the table, ``@KEY`` the condition on a key, ``?`` a value."""
        for short, long in (("@KEY", _KEY), ("@", self._table), ("?", self._dialect.mark)):
            statement = statement.replace(short, long)
        self._cursor.execute(statement, values)

    def update(self, statement: str, *values: object) -> int:
        """Execute a statement as :meth:`run` does, and return the number of changed rows."""
        self.run(statement, *values)
        return self._dialect.changed(self._cursor)

    def make(self) -> None:
        """Make the table, and name it."""
        self.run(
            "CREATE TABLE IF NOT EXISTS @ (group_id TEXT NOT NULL, topic TEXT NOT NULL, partition_id INTEGER NOT NULL,"
            " epoch BIGINT NOT NULL, next_offset BIGINT, owner TEXT NOT NULL,"
            " PRIMARY KEY (group_id, topic, partition_id))"
        )
        self.run("INSERT INTO @ VALUES (?, ?, ?, 0, NULL, ?) ON CONFLICT DO NOTHING", *IDENTITY, uuid.uuid4().hex)

    def name(self) -> str | None:
        """Return the table's random name."""
        self.run("SELECT owner FROM @ WHERE @KEY", *IDENTITY)
        row = self._cursor.fetchone()
        return None if row is None else str(row[0])

    def raise_epoch(self, tp: TopicPartition, epoch: int, owner: str) -> bool:
        """Raise the epoch of a partition; return False if it is higher already. The row is locked then."""
        self.run("INSERT INTO @ VALUES (?, ?, ?, ?, NULL, ?) ON CONFLICT DO NOTHING", *self._key(tp), epoch, owner)
        statement = "UPDATE @ SET epoch = ?, owner = ? WHERE @KEY AND epoch <= ?"
        return self.update(statement, epoch, owner, *self._key(tp), epoch) == 1

    def advance(self, tp: TopicPartition, epoch: int, present: int | None, following: int) -> bool:
        """Move the offset on, if epoch and present offset are these. The row is locked then."""
        statement = "UPDATE @ SET next_offset = ? WHERE @KEY AND epoch = ? AND next_offset "
        if present is None:
            return self.update(statement + "IS NULL", following, *self._key(tp), epoch) == 1
        return self.update(statement + "= ?", following, *self._key(tp), epoch, present) == 1

    def look(self, tp: TopicPartition) -> tuple[int, int | None, str] | None:
        """Return epoch, next offset and owner of a partition; None if it has no row."""
        self.run("SELECT epoch, next_offset, owner FROM @ WHERE @KEY", *self._key(tp))
        row = self._cursor.fetchone()
        return None if row is None else (int(row[0]), None if row[1] is None else int(row[1]), str(row[2]))

    def set_offset(self, tp: TopicPartition, offset: int) -> None:
        """Set the offset, whoever owns the partition."""
        self.run(
            "INSERT INTO @ VALUES (?, ?, ?, 0, ?, '') ON CONFLICT (group_id, topic, partition_id)"
            " DO UPDATE SET next_offset = excluded.next_offset",
            *self._key(tp),
            offset,
        )

    def forget_epochs(self) -> int:
        """Set all epochs of the group to 0."""
        return self.update("UPDATE @ SET epoch = 0 WHERE group_id = ?", self._group)

    def _key(self, tp: TopicPartition) -> tuple[str, str, int]:
        return self._group, tp.topic, tp.partition


_KEY = "group_id = ? AND topic = ? AND partition_id = ?"


class DatabaseOffsets(FencedStore):
    """Keeps the offsets of a group in a table of your database, in your own transactions::

        store = DatabaseOffsets(lambda: sqlite3.connect("orders.db"))
        connector = ZookeeperConsumerConnector(config, offset_store=store)

    Call :meth:`record` in the transaction that writes your rows. Then rows and offset are written together or not at
    all. Every member of the group must use the same database. See ``docs/databases.md``.

    Arguments: ``connect`` returns a new connection of ``sqlite3`` or ``psycopg`` (3). It is called on threads of the
    connector, and should not take longer than seconds. ``table`` is the name of the table, which is made if it is
    missing.
    Raises: ValueError for a name that is no plain SQL name.
    """

    def __init__(self, connect: Callable[[], DatabaseConnection], *, table: str = TABLE) -> None:
        if not _NAME.fullmatch(table):
            raise ValueError(f"the table's name must be letters, digits and _, maybe after a schema, not {table!r}")
        self._connect = connect
        self._table = table
        self._lock = InterruptibleLock()
        self._member: StoreMember | None = None
        self._epochs: dict[TopicPartition, int] = {}
        self._unset: set[TopicPartition] = set()
        self._working: DatabaseConnection | None = None
        self._suspended: OffsetStoreConflictError | None = None

    # ---- in the user's transaction

    def record(self, connection: DatabaseConnection, *messages: Recordable) -> None:
        """Record messages as consumed, in the open transaction of ``connection``. Commit it afterwards.

        Of each partition these must be the next messages, in order and none left out. For several messages this is one
        statement a partition.

        Any thread, with a connection that no other thread uses. It may read the log: only where offsets are missing,
        because of compaction or of producers' transactions.
        Raises: FencedRecordError, RepeatedRecordError, SkippedRecordError; OffsetStoreConflictError while the group has
        members that do not use the database; OffsetCommitError if the table does not have this member's claim any more;
        BrokerError if missing offsets cannot be looked up; ConfigException for a
        connection that commits each statement by itself; the database's errors. Roll back after any of these.
        """
        offsets: dict[TopicPartition, list[int]] = {}
        for message in messages:
            offsets.setdefault(TopicPartition(message.topic, message.partition), []).append(message.offset)
        for tp, of_partition in offsets.items():
            self.record_offsets(connection, tp.topic, tp.partition, of_partition)

    def record_offsets(
        self, connection: DatabaseConnection, topic: str, partition: int, offsets: Iterable[int]
    ) -> None:
        """Record the messages at these offsets of a partition, for example the offsets of rows in columns.

        Raises as :meth:`record`; ValueError for offsets that do not ascend.
        """
        tp, numbers = TopicPartition(topic, partition), list(offsets)
        if not numbers:
            return
        if numbers[0] < 0 or any(after <= before for before, after in pairwise(numbers)):
            raise ValueError(f"{tp}: offsets must ascend from 0 on")
        member, epoch = self._claimed(tp)
        dialect = dialect_of(connection)
        if dialect.commits_each_statement(connection):
            raise ConfigException(
                "offset_store", "this connection commits each statement by itself: begin a transaction before record()"
            )
        for before, after in pairwise(numbers):
            self._check_gap(member, tp, before + 1, after)
        with closing(dialect.cursor(connection)) as cursor:
            rows = _Rows(cursor, dialect, self._table, member.group)
            self._advance(rows, member, tp, epoch, numbers)

    def _claimed(self, tp: TopicPartition) -> tuple[StoreMember, int]:
        with self._lock:
            member, epoch, suspended = self._member, self._epochs.get(tp), self._suspended
        if suspended is not None:
            raise suspended
        if member is None or epoch is None:
            raise FencedRecordError(tp, "this member has not claimed it, or is shut down")
        return member, epoch

    def _advance(
        self, rows: _Rows, member: StoreMember, tp: TopicPartition, epoch: int, numbers: Sequence[int]
    ) -> None:
        first, following = numbers[0], numbers[-1] + 1
        if rows.advance(tp, epoch, first, following):
            return
        present = _present(rows, tp, epoch, first)
        self._check_gap(member, tp, present, first)
        if not rows.advance(tp, epoch, present, following):
            raise FencedRecordError(tp, "its row was changed at this moment")

    def _check_gap(self, member: StoreMember, tp: TopicPartition, start: int, end: int) -> None:
        """Raise SkippedRecordError unless the log has no message between these offsets."""
        if start >= end:
            return
        missing = member.missing(tp, start, end)
        if missing:
            raise SkippedRecordError(tp, f"offset {start} is next to record, not {end}: {missing}")

    # ---- what an operator may do

    def create_table(self, connection: DatabaseConnection) -> None:
        """Make the table if it is missing, in the open transaction of ``connection``.

        For databases in which members may not make tables, and for :meth:`set_offset` before the first start.
        """
        dialect = dialect_of(connection)
        with closing(dialect.cursor(connection)) as cursor:
            _Rows(cursor, dialect, self._table, "").make()

    def set_offset(self, connection: DatabaseConnection, group: str, topic: str, partition: int, offset: int) -> None:
        """Set the next offset of a partition, in the open transaction of ``connection``.

        Use it to take over a group's offsets, or to consume messages again after you deleted their rows. A member that
        owns the partition raises at its next message, and goes on at this offset after a restart.
        Raises: ValueError for a negative offset; the database's errors.
        """
        if offset < 0:
            raise ValueError(f"an offset must not be negative, not {offset}")
        dialect = dialect_of(connection)
        with closing(dialect.cursor(connection)) as cursor:
            _Rows(cursor, dialect, self._table, group).set_offset(TopicPartition(topic, partition), offset)

    def forget_epochs(self, connection: DatabaseConnection, group: str) -> int:
        """Forget the epochs of a group, in the open transaction of ``connection``. Return the number of partitions.

        Needed once after ZooKeeper was set up anew, because its transactions count from the beginning then. Stop all
        members before: a member of the old ZooKeeper would not be refused any more.
        """
        dialect = dialect_of(connection)
        with closing(dialect.cursor(connection)) as cursor:
            return _Rows(cursor, dialect, self._table, group).forget_epochs()

    # ---- what the connector calls

    def open(self, member: StoreMember, timeout: float) -> str:
        """Return the random name of the table, which is made if it is missing.

        Raises: ConfigException if another connector uses this object; the database's errors.
        """
        with self._lock:
            if self._member is not None:
                raise ConfigException("offset_store", "another connector uses this object; each needs its own")
            self._member = member
        for left in range(MAKING_TRIES, -1, -1):
            try:
                return self._read_name(timeout)
            except Exception as e:
                if not left:
                    self.close()
                    raise
                log.debug("the table %s cannot be read, making it: %s", self._table, e)
            with suppress(Exception), self._rows(timeout) as rows:  # else reading says what is wrong
                rows.make()
        raise AssertionError("unreachable")

    def _read_name(self, timeout: float) -> str:
        with self._rows(timeout) as rows:
            name = rows.name()
        if name is None:
            raise OffsetCommitError(f"the table {self._table} has lost its name: the row {IDENTITY}")
        return name

    def claim(self, epochs: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, int]:
        """Raise the epochs of claimed partitions and return their offsets; see :meth:`FencedStore.claim`."""
        member = self._opened()
        found: dict[TopicPartition, int | None] = {}
        with self._rows(timeout) as rows:
            for tp in sorted(epochs):  # sorted, so that two claims never wait for each other
                raised = rows.raise_epoch(tp, epochs[tp], member.consumer)
                row = rows.look(tp)
                if not raised or row is None:
                    self._refuse_claim(tp, epochs[tp], row)
                found[tp] = row[1]
        with self._lock:
            self._epochs.update(epochs)
            self._unset.difference_update(epochs)
            self._unset.update(tp for tp, offset in found.items() if offset is None)
        return {tp: offset for tp, offset in found.items() if offset is not None}

    def _refuse_claim(self, tp: TopicPartition, epoch: int, row: tuple[int, int | None, str] | None) -> NoReturn:
        seen, owner = (None, "nobody") if row is None else (row[0], row[2])
        raise FencedRecordError(
            tp,
            f"{owner} claimed it in the table {self._table} at epoch {seen}, after our claim at {epoch}; if ZooKeeper "
            "was set up anew since, stop the group and call forget_epochs()",
        )

    def suspend(self, error: OffsetStoreConflictError | None) -> None:
        """Raise this error in place of recording; None ends that. Any thread."""
        with self._lock:
            self._suspended = error

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        """Return the recorded offsets of these partitions."""
        self._opened()
        with self._rows(timeout) as rows:
            found = {tp: rows.look(tp) for tp in partitions}
        return {tp: row[1] for tp, row in found.items() if row is not None and row[1] is not None}

    def commit(self, offsets: Mapping[TopicPartition, int], timeout: float) -> Mapping[TopicPartition, Exception]:
        """Store the starts of claimed partitions that have no offset yet. Only :meth:`record` moves others on."""
        with self._lock:
            epochs = {tp: self._epochs.get(tp) for tp in offsets}
            unset = [tp for tp in offsets if tp in self._unset]
        reason = "its offset is in the database, where only record() and set_offset() change it"
        failures: dict[TopicPartition, Exception] = {
            tp: OffsetCommitError(reason) for tp, epoch in epochs.items() if epoch is None
        }
        stored = []
        if unset:
            with self._rows(timeout) as rows:
                for tp in unset:
                    epoch = epochs[tp] or 0
                    if not rows.advance(tp, epoch, None, offsets[tp]):
                        row = rows.look(tp)
                        if row is None or row[0] != epoch:
                            failures[tp] = CommitRefusedError(Outcome.NOT_OURS)
                            continue
                        if row[1] != offsets[tp]:
                            failures[tp] = CommitRefusedError(Outcome.OFFSET_MOVED)
                            continue
                    stored.append(tp)
        with self._lock:
            self._unset.difference_update(stored)
        return failures

    def close(self) -> None:
        """Forget all claims, and interrupt a call that waits for the database."""
        with self._lock:
            self._member = None
            self._epochs.clear()
            self._unset.clear()
            self._suspended = None
            if self._working is not None:  # under the lock nobody closes the connection or reuses the socket
                with suppress(Exception):  # its database is away
                    dialect_of(self._working).interrupt(self._working)

    def _opened(self) -> StoreMember:
        with self._lock:
            if self._member is None:
                raise OffsetCommitError("the store is closed")
            return self._member

    @contextmanager
    def _rows(self, timeout: float) -> Iterator[_Rows]:
        """Return the table on a connection of our own, in one transaction; ``timeout`` in seconds for a statement."""
        member = self._opened()
        with closing(self._connect()) as connection:
            dialect = dialect_of(connection)
            with self._lock:
                self._working = connection
            try:
                dialect.own(connection, timeout)
                cursor = dialect.cursor(connection)
                cursor.execute(dialect.begin)
                try:
                    yield _Rows(cursor, dialect, self._table, member.group)
                except BaseException:
                    with suppress(Exception):  # closing the connection does so too
                        cursor.execute("ROLLBACK")
                    raise
                cursor.execute("COMMIT")
            finally:
                with self._lock:
                    self._working = None


def _present(rows: _Rows, tp: TopicPartition, epoch: int, first: int) -> int:
    """Return the recorded offset if it is before ``first``, and the row is ours. Otherwise raise why it is not."""
    row = rows.look(tp)
    if row is None or row[0] < epoch:  # nobody has claimed it since, so nobody else writes the message
        raise OffsetCommitError(
            f"{tp}: the table does not have our claim: {'no row' if row is None else f'epoch {row[0]}'}, ours is "
            f"{epoch}; this transaction began before our claim, or the database was restored from a backup: roll back, "
            "and restart the process"
        )
    seen, present, owner = row
    if seen > epoch:
        raise FencedRecordError(tp, f"{owner or 'somebody'} has claimed it since: epoch {seen}, ours is {epoch}")
    if present is None:
        raise SkippedRecordError(tp, "no start is recorded")
    if present > first:
        raise RepeatedRecordError(tp, f"offset {first} is recorded already; {present} is next", present)
    if present == first:  # it changed between both looks
        raise FencedRecordError(tp, "its row was changed at this moment")
    return present
