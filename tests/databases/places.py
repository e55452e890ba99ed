"""A database with a row for each consumed place, and the store of one member in this database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from zkconsumer import DatabaseOffsets
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.offsets.store import StoreMember

GROUP = "g"
TP = TopicPartition("t", 0)
TIMEOUT = 10.0


class Message:
    """A message at an offset of the partition."""

    topic, partition = TP

    def __init__(self, offset: int) -> None:
        self.offset = offset


class Places:
    """The database. ``connect`` makes a connection, ``mark`` is its placeholder of a value."""

    def __init__(self, connect: Callable[[], Any], mark: str) -> None:
        self.connect = connect
        self.mark = mark
        with closing(connect()) as connection:
            connection.cursor().execute("CREATE TABLE IF NOT EXISTS places (part INTEGER, place BIGINT)")
            connection.commit()

    def insert(self, connection: Any, offset: int, partition: int = 0) -> None:
        """Write a row in the connection's transaction."""
        connection.cursor().execute(f"INSERT INTO places VALUES ({self.mark}, {self.mark})", (partition, offset))

    def query(self, statement: str) -> list[Any]:
        """Return the rows of a query."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall())

    def written(self) -> list[int]:
        """Return the written places of all partitions, in order."""
        return [row[0] for row in self.query("SELECT place FROM places ORDER BY part, place")]

    def next_offset(self, topic: str = "t") -> int:
        """Return the recorded offset of the one partition of a topic."""
        return int(self.query(f"SELECT next_offset FROM zkconsumer_offsets WHERE topic = '{topic}'")[0][0])


def on_sqlite(path: Path) -> Places:
    """Return a database of SQLite in a file. It does not wait for the disk, since no machine fails here."""

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=10, check_same_thread=False)  # the test closes them all
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    return Places(connect, "?")


def no_gap(tp: TopicPartition, start: int, end: int) -> str:
    """Say that the log has a message."""
    return f"the log has a message at offset {start}"


class ClaimedStore:
    """The store that a member's connector uses, and the connection that the member's application uses."""

    def __init__(
        self, places: Places, owner: str, missing: Callable[[TopicPartition, int, int], str] | None = None
    ) -> None:
        self.places = places
        self.store = DatabaseOffsets(places.connect)
        self.name = self.store.open(StoreMember(GROUP, ConsumerId(f"{GROUP}_{owner}"), missing or no_gap), TIMEOUT)
        self.connection = places.connect()

    def claim(self, epoch: int) -> int:
        """Claim the partition; a first claim starts at 0. Return where it begins."""
        found = self.store.claim({TP: epoch}, TIMEOUT)
        if TP not in found:
            assert not self.store.commit({TP: 0}, TIMEOUT)
        return found.get(TP, 0)

    def record(self, *offsets: int) -> None:
        """Write rows and record their messages in one transaction; roll back and raise on an error."""
        try:
            for offset in offsets:
                self.places.insert(self.connection, offset)
            self.store.record(self.connection, *map(Message, offsets))
        except BaseException:
            self.connection.rollback()
            raise
        self.connection.commit()

    def close(self) -> None:
        """Close store and connection."""
        self.store.close()
        with suppress(Exception):
            self.connection.close()
