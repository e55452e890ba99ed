"""The databases of these tests: SQLite with both journals, and PostgreSQL where its programs are."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.databases import postgres
from tests.databases.places import ClaimedStore, Places, on_sqlite
from zkconsumer.model import TopicPartition


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """A PostgreSQL server for the session."""
    reason = postgres.why_none()
    if reason:
        pytest.skip(reason)
    with postgres.server() as running:
        yield running


@pytest.fixture(params=["sqlite", "sqlite-wal", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    """An empty database with a table of rows."""
    if request.param == "postgres":
        return on_postgres(request.getfixturevalue("server"))
    path = tmp_path / "places.db"
    if request.param == "sqlite-wal":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    return on_sqlite(path)


@pytest.fixture
def postgres_places(server: postgres.Server) -> Places:
    """An empty database of PostgreSQL with a table of rows."""
    return on_postgres(server)


def on_postgres(server: postgres.Server) -> Places:
    """Return the server's one database, emptied."""
    import psycopg

    with psycopg.connect(server.address, autocommit=True) as connection:
        # a failed test may have left a transaction open, for which the next statement would wait
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND backend_type = 'client backend'"
        )
        connection.execute("DROP TABLE IF EXISTS places, zkconsumer_offsets")
    return Places(lambda: psycopg.connect(server.address), "%s")


Claimed = Callable[..., ClaimedStore]
"""``claimed(epoch, owner)``: a store whose member has claimed the partition, with a start at 0."""


def _claims(places: Places) -> Iterator[Claimed]:
    opened: list[ClaimedStore] = []

    def make(epoch: int, owner: str = "a", missing: Callable[[TopicPartition, int, int], str] | None = None) -> Any:
        opened.append(ClaimedStore(places, owner, missing))
        opened[-1].claim(epoch)
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def claimed(places: Places) -> Iterator[Claimed]:
    """Claims in each database."""
    yield from _claims(places)


@pytest.fixture
def claimed_in_postgres(postgres_places: Places) -> Iterator[Claimed]:
    """Claims in PostgreSQL."""
    yield from _claims(postgres_places)
