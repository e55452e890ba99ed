"""The differences between the databases that :mod:`zkconsumer.offsets.database_store` knows: SQLite and PostgreSQL.

Neither library is imported here: the class of the user's connection names the database. Any thread.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from inspect import iscoroutinefunction
from typing import Any, ClassVar, Protocol


class DatabaseConnection(Protocol):
    """A connection by DB-API 2.0 (PEP 249)."""

    def cursor(self) -> Any:
        """Return a cursor."""

    def close(self) -> None:
        """Close the connection."""


class Dialect(ABC):
    """The needs of one kind of database. Its methods take connections of that kind."""

    mark: ClassVar[str]
    """The placeholder of a value (the ``paramstyle`` of the library)."""
    begin: ClassVar[str]
    """Begins a transaction of the store's own."""

    @staticmethod
    @abstractmethod
    def own(connection: Any, timeout: float) -> None:
        """Prepare a connection of the store's own: explicit transactions, no call longer than ``timeout`` seconds."""

    @staticmethod
    @abstractmethod
    def cursor(connection: Any) -> Any:
        """Return a cursor whose rows are tuples, whatever rows the application wants."""

    @staticmethod
    @abstractmethod
    def commits_each_statement(connection: Any) -> bool:
        """Return whether no transaction is open and the next statement opens none."""

    @staticmethod
    @abstractmethod
    def changed(cursor: Any) -> int:
        """Return the number of rows that the cursor's last statement has changed."""

    @staticmethod
    @abstractmethod
    def interrupt(connection: Any) -> None:
        """Make a call raise that waits in another thread. Returns at once, also if the server does not answer."""


class SQLite(Dialect):
    """The library ``sqlite3``, with each of its ways to control transactions."""

    mark = "?"
    begin = "BEGIN IMMEDIATE"

    @staticmethod
    def own(connection: Any, timeout: float) -> None:  # noqa: D102
        if getattr(connection, "autocommit", None) is False:  # since Python 3.12
            connection.autocommit = True
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {max(1, int(timeout * 1000))}")

    @staticmethod
    def cursor(connection: Any) -> Any:  # noqa: D102
        cursor = connection.cursor()
        cursor.row_factory = None
        return cursor

    @staticmethod
    def commits_each_statement(connection: Any) -> bool:  # noqa: D102
        if connection.in_transaction:
            return False
        autocommit = getattr(connection, "autocommit", None)
        return autocommit is True or (autocommit is not False and connection.isolation_level is None)

    @staticmethod
    def changed(cursor: Any) -> int:  # noqa: D102
        return int(cursor.rowcount)

    @staticmethod
    def interrupt(connection: Any) -> None:  # noqa: D102
        connection.interrupt()


class PostgreSQL(Dialect):
    """The library ``psycopg`` 3."""

    mark = "%s"
    begin = "BEGIN ISOLATION LEVEL READ COMMITTED"
    _IDLE = 0

    @staticmethod
    def own(connection: Any, timeout: float) -> None:  # noqa: D102
        connection.autocommit = True
        limit = f"{max(1, int(timeout * 1000))}ms"
        connection.execute("SELECT set_config('statement_timeout', %s, false)", (limit,))

    @staticmethod
    def cursor(connection: Any) -> Any:  # noqa: D102
        return connection.cursor(row_factory=lambda _: tuple)

    @classmethod
    def commits_each_statement(cls, connection: Any) -> bool:  # noqa: D102
        return bool(connection.autocommit) and connection.info.transaction_status == cls._IDLE

    @staticmethod
    def changed(cursor: Any) -> int:  # noqa: D102
        if cursor.connection.pgconn.pipeline_status:
            with cursor.connection.pipeline():  # its end waits for the answers; the count is -1 until then
                pass
        return int(cursor.rowcount)

    @staticmethod
    def interrupt(connection: Any) -> None:  # noqa: D102
        # cancel() asks the server over a new connection, and would wait for one that is frozen or cut off
        with socket.socket(fileno=os.dup(connection.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)


_DIALECTS: dict[str, Dialect] = {"sqlite3": SQLite(), "psycopg": PostgreSQL()}


def dialect_of(connection: object) -> Dialect:
    """Return the dialect of a connection. Raises TypeError for one that is not of ``sqlite3`` or ``psycopg``."""
    if iscoroutinefunction(getattr(connection, "close", None)):
        raise TypeError(f"{type(connection)!r} is of asyncio: record in a thread, on a connection that blocks")
    for base in type(connection).__mro__:
        found = _DIALECTS.get(base.__module__.partition(".")[0])
        if found is not None:
            return found
    raise TypeError(f"connections of sqlite3 or psycopg (3) are known, not {type(connection)!r}")
