"""Offsets in the application's database, SQLite: each message has one row in the end, whatever happens.

A busy database is waited for in virtual time. A transaction of a dead process ends, as the system would end it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.simulation.faults import Faults
from tests.simulation.members import CALL, Member, StreamsApplication
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Interrupted, world
from zkconsumer.errors import FencedRecordError, RecordRefusedError, ZkConsumerError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.database_store import DatabaseOffsets

_PATIENCE = 5.0  # seconds that a connection of the application waits for another one's transaction


class DatabaseFaults(Faults):
    kinds = (*Faults.kinds, "full", "lost commit", "locked")

    def _other(self, fault: str, member: Any) -> None:
        scenario: Any = self._scenario
        until = world().now + world().random.choice([0.5, 3.0, 12.0])
        if fault == "full":
            scenario.full_until = until
        elif fault == "lost commit":
            scenario.lost_until = until
        else:
            world().spawn("locker", partial(self._lock, scenario, until), world().system)

    @staticmethod
    def _lock(scenario: DatabaseScenario, until: float) -> None:
        other = scenario.connect()
        try:
            other.execute("BEGIN IMMEDIATE")
            world().sleep(max(0.0, until - world().now))
        except sqlite3.OperationalError:
            pass
        other.close()


class DatabaseScenario(Scenario):
    """A group with a database, which is looked at after each COMMIT."""

    faults_class = DatabaseFaults
    full_until = lost_until = 0.0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        directory = self.at_end.enter_context(TemporaryDirectory(prefix="zkconsumer-simulation-"))
        self._path = Path(directory) / "rows.db"
        self._connections: list[SimulatedConnection] = []
        self._reader = sqlite3.connect(self._path, isolation_level=None)
        self._reader.execute("PRAGMA journal_mode = WAL")
        self._reader.execute("CREATE TABLE rows (part INTEGER, place INTEGER)")

    def connect(self) -> SimulatedConnection:
        """Return a connection of the present process."""
        made: SimulatedConnection = sqlite3.connect(self._path, timeout=0, factory=SimulatedConnection)
        made.scenario, made.process = self, world().current.process
        sqlite3.Connection.execute(made, "PRAGMA synchronous = OFF")
        self._connections.append(made)
        return made

    def execute(self, connection: SimulatedConnection, statement: str, do: Callable[[], Any]) -> Any:
        """Execute a statement. Waits for other transactions as long as the connection has patience."""
        here = world()
        here.sleep(here.random.random() * 0.003)
        end, ends = here.now + connection.patience, statement == "COMMIT"
        while True:
            if connection.interrupted:
                raise sqlite3.OperationalError("interrupted")
            if here.now < self.full_until and (ends or statement.startswith(("INSERT", "UPDATE"))):
                raise sqlite3.OperationalError("database or disk is full")
            try:
                done = do()
                break
            except sqlite3.OperationalError as e:
                if "locked" not in str(e) or here.now >= end:
                    raise
            self._end_transactions_of_the_dead()
            here.sleep(0.01 + here.random.random() * 0.05)
        if ends:
            self._look()
            if here.now < self.lost_until and here.random.random() < 0.3:
                raise sqlite3.OperationalError("disk I/O error")
            here.sleep(here.random.random() * 0.003)
        return done

    def _end_transactions_of_the_dead(self) -> None:
        for connection in self._connections:
            if not connection.process.alive:
                connection.close()
        self._connections = [each for each in self._connections if each.process.alive]

    def _look(self) -> None:
        """Compare rows and offsets: each partition has the rows of the messages below its offset, each once."""
        counted = "SELECT part, count(*), count(DISTINCT place), max(place) + 1 FROM rows GROUP BY part"
        rows = {part: numbers for part, *numbers in self._reader.execute(counted)}
        columns = "topic, partition_id, next_offset FROM zkconsumer_offsets WHERE group_id <> ''"
        for topic, part, offset in self._reader.execute(f"SELECT {columns}").fetchall():
            found, seen = rows.get(part, [0, 0, 0]), self.observer.partitions[TopicPartition(topic, part)]
            if found != [offset or 0] * 3:
                self.observer.broke(f"{topic}-{part}: {found} rows, different ones, end; the offset is {offset}")
            elif offset != seen.committed["database"]:
                seen.finished.update(range(seen.below, offset))
                self.observer.committed("database", TopicPartition(topic, part), offset)


class SimulatedConnection(sqlite3.Connection):
    """A connection that waits in virtual time."""

    scenario: DatabaseScenario
    process: Any
    patience = _PATIENCE
    interrupted = False

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor)

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        if sql.startswith("PRAGMA busy_timeout = "):
            self.patience = int(sql.rpartition(" ")[2]) / 1000
            return None
        return self.cursor().execute(sql, parameters)

    def commit(self) -> None:
        if self.in_transaction:
            self.execute("COMMIT")

    def interrupt(self) -> None:
        self.interrupted = True


class _Cursor(sqlite3.Cursor):
    connection: SimulatedConnection

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        return self.connection.scenario.execute(self.connection, sql, partial(super().execute, sql, parameters))


class DatabaseApplication(StreamsApplication):
    """Writes each message and its offset in one transaction, as ``zkconsumer/docs/databases.md`` says."""

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        scenario: Any = self.scenario
        self._connect = scenario.connect
        self._store = DatabaseOffsets(self._connect)
        self._connections: dict[Any, SimulatedConnection] = {}
        self.arguments = {"offset_store": self._store}

    def begin(self) -> None:
        """Make the streams. A database that is away at the start ends the process."""
        try:
            super().begin()
        except sqlite3.Error as e:
            raise ZkConsumerError(str(e)) from e

    def _sometimes(self, held: list[Any], asked: float) -> None:
        chance, task = self.world.random.random(), self.world.current
        if task not in self._connections:
            self._connections[task] = self._connect()
        left = list(held)
        while left and not self.member.ended:
            left = self._write(self._connections[task], left)
        if chance < 0.02:
            self.member.call("commit", lambda: self.member.connector.commit_offsets(timeout=CALL), CALL)

    def _write(self, database: SimulatedConnection, held: list[Any]) -> list[Any]:
        """Write messages, and return those that are to be tried again."""
        chance = self.world.random
        try:
            with self.world.interrupts(self.scenario.setting.interrupts):
                for message in held:
                    database.execute("INSERT INTO rows VALUES (?, ?)", (message.partition, message.offset))
                self._store.record(database, *held)
                if chance.random() < 0.01:
                    self.world.sleep(chance.random() * 8.0)
                database.commit()
            return []
        except RecordRefusedError as e:
            self.world.note(f"{type(e).__name__}: {e}")
            if isinstance(e, FencedRecordError):
                self._look_at_fence(e)
            return [one for one in held if not e.covers(one.topic, one.partition, one.offset)]
        except (sqlite3.Error, Interrupted) as e:
            self.world.note(f"try again: {type(e).__name__}: {e}")
            return held
        except ZkConsumerError as e:
            self.observer.broke(f"a message could not be recorded: {type(e).__name__}: {e}")
            return []
        finally:
            database.rollback()
            if chance.random() < 0.1:
                self.world.sleep(0.1)

    def _look_at_fence(self, error: FencedRecordError) -> None:
        """The owner itself must be able to record, once its claim is there."""
        seen = self.observer.partitions[error.partition]
        me = self.member.consumer
        if seen.owner == me and self.world.now - seen.owned[me].began > 60.0 and not self.member.left:
            self.observer.broke(f"{error.partition}: its owner of more than a minute was refused")
