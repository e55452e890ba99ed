"""``DatabaseOffsets`` on real databases: who may record which message, whatever happens at the same time."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.databases.conftest import Claimed
from tests.databases.places import GROUP, TIMEOUT, TP, ClaimedStore, Message, Places, on_sqlite
from tests.databases.postgres import Server
from tests.faults.proxy import Proxy
from tests.timing import eventually, scaled
from zkconsumer import DatabaseOffsets, OffsetStoreConflictError
from zkconsumer.errors import (
    ConfigException,
    FencedRecordError,
    OffsetCommitError,
    RepeatedRecordError,
    SkippedRecordError,
)
from zkconsumer.model import ConsumerId
from zkconsumer.offsets.database_dialects import dialect_of
from zkconsumer.offsets.store import CommitRefusedError, StoreMember
from zkconsumer.zookeeper.ownership_transactions import Outcome

# ---- one member


def test_rows_and_offset_are_committed_together(places: Places, claimed: Claimed) -> None:
    member = claimed(1)
    member.record(0)
    member.record(1, 2)
    assert (places.written(), places.next_offset()) == ([0, 1, 2], 3)


def test_a_rollback_takes_the_offset_back(places: Places, claimed: Claimed) -> None:
    member = claimed(1)
    places.insert(member.connection, 0)
    member.store.record(member.connection, Message(0))
    member.connection.rollback()
    assert (places.written(), places.next_offset()) == ([], 0)
    member.record(0)
    assert (places.written(), places.next_offset()) == ([0], 1)


@pytest.mark.parametrize(
    ("offsets", "error"),
    [
        ([1], RepeatedRecordError),
        ([0], RepeatedRecordError),
        ([3], SkippedRecordError),
        ([2, 4], SkippedRecordError),
        ([1, 2], RepeatedRecordError),
    ],
)
def test_only_the_next_messages_are_recorded(
    places: Places, claimed: Claimed, offsets: list[int], error: type[RepeatedRecordError | SkippedRecordError]
) -> None:
    member = claimed(1)
    member.record(0, 1)
    with pytest.raises(error) as raised:
        member.record(*offsets)
    assert getattr(raised.value, "partition", None) == TP
    if isinstance(raised.value, RepeatedRecordError):
        assert [offset for offset in range(4) if raised.value.covers(*TP, offset)] == [0, 1]
        assert not raised.value.covers("t", 1, 0)
    assert (places.written(), places.next_offset()) == ([0, 1], 2)


def test_offsets_that_the_log_does_not_have_are_passed(places: Places, claimed: Claimed) -> None:
    asked: list[tuple[int, int]] = []

    def missing(_: object, start: int, end: int) -> str:
        asked.append((start, end))
        return "" if start < 20 else "the log has a message"

    member = claimed(1, "a", missing)
    member.record(3, 4, 9)
    member.record(12)
    assert (places.written(), places.next_offset()) == ([3, 4, 9, 12], 13)
    assert asked == [(5, 9), (0, 3), (10, 12)]
    member.record(*range(13, 20))
    with pytest.raises(SkippedRecordError, match=r"offset 20 is next to record, not 22: the log has a message"):
        member.record(22)


@pytest.mark.parametrize("offsets", [[-1], [1, 1], [2, 1]])
def test_offsets_must_ascend(claimed: Claimed, offsets: list[int]) -> None:
    member = claimed(1)
    with pytest.raises(ValueError, match="must ascend"):
        member.store.record_offsets(member.connection, *TP, offsets)


def test_nothing_is_recorded_without_a_claim(places: Places, claimed: Claimed) -> None:
    member = claimed(1)
    with pytest.raises(FencedRecordError, match="has not claimed it"):
        member.store.record_offsets(member.connection, "t", 5, [0])
    member.store.close()
    with pytest.raises(FencedRecordError, match="or is shut down"):
        member.record(0)
    assert not places.written()


def test_nothing_is_recorded_while_it_is_suspended(places: Places, claimed: Claimed) -> None:
    member = claimed(1)
    member.store.suspend(OffsetStoreConflictError("a Scala member"))
    with pytest.raises(OffsetStoreConflictError, match="a Scala member"):
        member.record(0)
    member.store.suspend(None)
    member.record(0)
    assert places.written() == [0]


def test_a_connection_that_commits_by_itself_is_refused(places: Places, claimed: Claimed) -> None:
    """Its UPDATE would be committed before the rows are, and lose them in a crash."""
    member = claimed(1)
    with closing(places.connect()) as connection:
        if isinstance(connection, sqlite3.Connection):
            connection.isolation_level = None
        else:
            connection.autocommit = True
        with pytest.raises(ConfigException, match="begin a transaction"):
            member.store.record(connection, Message(0))
        assert places.next_offset() == 0
        connection.execute("BEGIN")
        member.store.record(connection, Message(0))
        connection.execute("COMMIT")
    assert places.next_offset() == 1


def test_other_databases_are_refused() -> None:
    with pytest.raises(TypeError, match="sqlite3 or psycopg"):
        dialect_of(object())
    with pytest.raises(ValueError, match="plain|letters"):
        DatabaseOffsets(lambda: sqlite3.connect(":memory:"), table="x; DROP TABLE y")


def test_record_takes_the_messages_of_several_partitions(places: Places, claimed: Claimed) -> None:
    member = claimed(1)
    other: Any = Message(0)
    other.partition = 1
    member.store.claim({TP._replace(partition=1): 1}, TIMEOUT)
    assert not member.store.commit({TP._replace(partition=1): 0}, TIMEOUT)
    member.store.record(member.connection, Message(0), other, Message(1))
    member.connection.commit()
    both = [TP, TP._replace(partition=1)]
    assert list(member.store.fetch(both, TIMEOUT).values()) == [2, 1]


# ---- claims


def test_a_claim_continues_at_the_recorded_offset(claimed: Claimed) -> None:
    claimed(1).record(0, 1)
    assert claimed(2, "b").claim(2) == 2


def test_an_earlier_claim_is_refused_and_changes_nothing(claimed: Claimed) -> None:
    """A member that stood still between its claim in ZooKeeper and the one here must not take over again."""
    claimed(7)
    late = claimed(8, "b")
    with pytest.raises(FencedRecordError, match="g_b claimed it .* at epoch 8, after our claim at 7"):
        claimed(7, "c")
    late.record(0)


def test_a_claim_may_be_repeated(claimed: Claimed) -> None:
    member = claimed(3)
    member.record(0)
    assert member.claim(3) == 1
    member.record(1)


def test_epochs_are_forgotten_after_a_new_zookeeper(places: Places, claimed: Claimed) -> None:
    old = claimed(900)
    old.record(0)
    with closing(places.connect()) as connection:
        assert old.store.forget_epochs(connection, GROUP) == 1
        connection.commit()
    claimed(4, "b").record(1)
    with pytest.raises(OffsetCommitError, match="epoch 4, ours is 900"):
        old.record(2)


@pytest.mark.parametrize("restored", ["UPDATE zkconsumer_offsets SET epoch = 1", "DELETE FROM zkconsumer_offsets"])
def test_a_database_set_back_is_no_other_member(places: Places, claimed: Claimed, restored: str) -> None:
    """Nobody else writes its messages: an error to read on after would leave them all out until a restart."""
    member = claimed(2)
    member.record(0)
    with closing(places.connect()) as connection:
        connection.cursor().execute(restored)
        connection.commit()
    with pytest.raises(OffsetCommitError, match="restored from a backup"):
        member.record(1)
    assert places.written() == [0]


def test_an_old_snapshot_is_no_other_member(postgres_places: Places, claimed_in_postgres: Claimed) -> None:
    """The application has read in a transaction of REPEATABLE READ, and the partition was claimed after that."""
    member = claimed_in_postgres(1)
    member.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    member.connection.execute("SELECT count(*) FROM places")
    member.claim(2)
    with pytest.raises(OffsetCommitError, match="began before our claim"):
        member.store.record(member.connection, Message(0))
    member.connection.rollback()
    member.record(0)
    assert postgres_places.written() == [0]


def test_a_start_is_stored_once(places: Places, claimed: Claimed) -> None:
    first = ClaimedStore(places, "a")
    assert not first.store.claim({TP: 1}, TIMEOUT)
    second = ClaimedStore(places, "b")
    assert not second.store.claim({TP: 2}, TIMEOUT)
    (refused,) = first.store.commit({TP: 5}, TIMEOUT).values()
    assert isinstance(refused, CommitRefusedError)
    assert refused.outcome is Outcome.NOT_OURS
    assert not second.store.commit({TP: 6}, TIMEOUT)
    assert not second.store.commit({TP: 6}, TIMEOUT)
    assert second.store.fetch([TP], TIMEOUT) == {TP: 6}
    first.close()
    second.close()


def test_commits_move_nothing(places: Places, claimed: Claimed) -> None:
    """Only what is recorded counts; the commit writes a copy to ZooKeeper."""
    member = claimed(1)
    member.record(0, 1)
    assert not member.store.commit({TP: 9}, TIMEOUT)
    assert places.next_offset() == 2
    (failure,) = member.store.commit({TP._replace(partition=3): 9}, TIMEOUT).values()
    assert isinstance(failure, OffsetCommitError)


def test_an_operator_sets_offsets_before_and_later(places: Places, claimed: Claimed) -> None:
    with closing(places.connect()) as connection:
        operator = DatabaseOffsets(places.connect)
        operator.create_table(connection)
        operator.set_offset(connection, GROUP, *TP, 40)
        connection.commit()
    member = claimed(1)
    assert member.claim(1) == 40
    member.record(40)
    with closing(places.connect()) as connection:
        member.store.set_offset(connection, GROUP, *TP, 10)
        connection.commit()
    with pytest.raises(SkippedRecordError, match="offset 10 is next to record, not 41"):
        member.record(41)
    assert claimed(2, "b").claim(2) == 10


# ---- the store's own table


def test_members_of_one_database_agree_on_its_name(places: Places, tmp_path: Path) -> None:
    """All make the table at the same moment. In PostgreSQL they then fail each other."""
    with ThreadPoolExecutor(4) as pool:
        members = list(pool.map(lambda name: ClaimedStore(places, name), "abcd"))
    other = ClaimedStore(on_sqlite(tmp_path / "other.db"), "a")
    assert len({member.name for member in members}) == 1
    assert other.name != members[0].name
    for member in (*members, other):
        member.close()


def test_a_store_belongs_to_one_connector(claimed: Claimed) -> None:
    member = claimed(1)
    again = StoreMember(GROUP, ConsumerId("g_b"), lambda *_: "")
    with pytest.raises(ConfigException, match="another connector"):
        member.store.open(again, TIMEOUT)
    member.store.close()
    assert member.store.open(again, TIMEOUT) == member.name


def test_a_database_that_is_away_raises_its_error() -> None:
    store = DatabaseOffsets(lambda: sqlite3.connect("/nowhere/at/all.db"))
    for _ in range(2):  # nothing is left of the first try
        with pytest.raises(sqlite3.OperationalError):
            store.open(StoreMember(GROUP, ConsumerId("g_a"), lambda *_: ""), 1.0)


# ---- zombies


def test_a_zombie_cannot_record_and_its_rows_roll_back(places: Places, claimed: Claimed) -> None:
    zombie = claimed(1)
    zombie.record(0)
    heir = claimed(2, "b")
    with pytest.raises(FencedRecordError, match="g_b has claimed it since: epoch 2, ours is 1"):
        zombie.record(1)
    heir.record(1)
    assert (places.written(), places.next_offset()) == ([0, 1], 2)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_claim_inside_a_zombies_transaction_fences_it(
    postgres_places: Places, claimed_in_postgres: Claimed, level: str
) -> None:
    """The zombie wrote its row, stood still, and its partition was claimed and consumed by another member."""
    from psycopg.errors import SerializationFailure

    zombie = claimed_in_postgres(1)
    zombie.connection.execute(f"BEGIN ISOLATION LEVEL {level}")
    postgres_places.insert(zombie.connection, 0)
    heir = claimed_in_postgres(2, "b")
    heir.record(0)
    fenced = FencedRecordError if level == "READ COMMITTED" else SerializationFailure
    with pytest.raises(fenced):
        zombie.store.record(zombie.connection, Message(0))
    zombie.connection.rollback()
    with pytest.raises(FencedRecordError, match="g_b has claimed it since"):
        zombie.record(0)
    assert (postgres_places.written(), postgres_places.next_offset()) == ([0], 1)


@pytest.mark.parametrize("commits", [True, False])
def test_a_claim_waits_for_a_recorded_transaction(postgres_places: Places, *, commits: bool) -> None:
    places = postgres_places
    zombie, heir = ClaimedStore(places, "a"), ClaimedStore(places, "b")
    zombie.claim(1)
    places.insert(zombie.connection, 0)
    zombie.store.record(zombie.connection, Message(0))
    with ThreadPoolExecutor(1) as pool:
        begins = pool.submit(heir.claim, 2)
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        eventually(lambda: places.query(waits), 10, "a claim that waits for the row")
        assert not begins.done()
        if commits:
            zombie.connection.commit()
        else:
            zombie.connection.rollback()
        assert begins.result(scaled(10)) == int(commits)
    heir.record(int(commits))
    assert places.written() == list(range(int(commits) + 1))
    zombie.close()
    heir.close()


def test_a_claim_gives_up_at_its_deadline(places: Places, claimed: Claimed) -> None:
    """A zombie that hangs inside its transaction. The committer tries again later, with other requests between."""
    zombie, heir = claimed(1), ClaimedStore(places, "b")
    places.insert(zombie.connection, 0)
    zombie.store.record(zombie.connection, Message(0))
    with pytest.raises(Exception, match=r"locked|timeout"):
        heir.store.claim({TP: 2}, 0.3)
    zombie.connection.commit()
    assert heir.claim(2) == 1
    heir.close()


def test_a_close_waits_for_no_server(server: Server, postgres_places: Places) -> None:
    """The network to the server is cut during a claim. Otherwise the shutdown would hang with it."""
    import psycopg

    direct = postgres_places
    holder = ClaimedStore(direct, "a")
    holder.claim(1)
    holder.store.record(holder.connection, Message(0))
    with Proxy(("127.0.0.1", server.port)) as proxy, ThreadPoolExecutor(2) as pool:
        away = Places(lambda: psycopg.connect(server.address.replace(f"={server.port}", f"={proxy.port}")), "%s")
        heir = ClaimedStore(away, "b")
        claiming = pool.submit(heir.store.claim, {TP: 2}, scaled(300))
        waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        eventually(lambda: direct.query(waits), 10, "a claim that waits for the row")
        proxy.swallow()
        try:
            pool.submit(heir.store.close).result(scaled(10))
            with pytest.raises(Exception, match="connection"):
                claiming.result(scaled(10))
        finally:
            proxy.drop()
    holder.close()
    heir.connection.close()


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_pipeline_records(postgres_places: Places, claimed_in_postgres: Claimed, *, autocommit: bool) -> None:
    """Its counts of changed rows come later: a message must not be taken for one that was recorded before."""
    member = claimed_in_postgres(1)
    member.connection.autocommit = autocommit
    with member.connection.pipeline(), member.connection.transaction():
        postgres_places.insert(member.connection, 0)
        member.store.record(member.connection, Message(0))
        postgres_places.insert(member.connection, 1)
        member.store.record(member.connection, Message(1))
    assert (postgres_places.written(), postgres_places.next_offset()) == ([0, 1], 2)


def test_a_connection_of_asyncio_is_refused(server: Server) -> None:
    import psycopg

    async def record() -> None:
        async with await psycopg.AsyncConnection.connect(server.address) as connection:
            dialect_of(connection)

    with pytest.raises(TypeError, match="in a thread"):
        asyncio.run(record())


def test_sqlite_refuses_to_write_after_an_old_read(tmp_path: Path) -> None:
    """BEGIN DEFERRED, a read, and then the claim of another member: SQLite itself ends the transaction."""
    places = on_sqlite(tmp_path / "x.db")
    zombie, heir = ClaimedStore(places, "a"), ClaimedStore(places, "b")
    assert zombie.connection.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)
    zombie.claim(1)
    zombie.connection.execute("BEGIN DEFERRED")
    assert zombie.connection.execute("SELECT count(*) FROM places").fetchone() == (0,)
    heir.claim(2)
    heir.record(0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        zombie.store.record(zombie.connection, Message(0))
    zombie.connection.rollback()
    assert places.written() == [0]
    zombie.close()
    heir.close()
