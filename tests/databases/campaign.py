"""Kills and freezes processes that run the documented example, and compares the table with the topic."""

from __future__ import annotations

import random
import signal
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from tests.cluster.even_load import EvenLoad
from tests.documents import example
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster
from zkconsumer.devcluster.server_process import Launched

MEMBERS = 3
PARTITIONS = 4
SESSION_MS = 1500
FREEZE_S = (2.0, 4.0)
"""Seconds that a frozen process stands still: mostly longer than its session."""
PAUSE_S = (0.5, 2.0)
"""Seconds between two kills or freezes."""
FROZEN_SHARE = 0.25
PRODUCED_EVERY_S = 0.1
STALLED_S = 60.0
"""Seconds without a new row after which the rest is missing."""

Place = tuple[int, int]


@dataclass
class Outcome:
    """The outcome of a campaign. ``expected`` and ``rows`` count places (partition, offset)."""

    kills: int = 0
    freezes: int = 0
    restarts: int = 0
    seconds: float = 0.0
    expected: Counter[Place] = field(default_factory=Counter)
    rows: Counter[Place] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    @property
    def missing(self) -> list[Place]:
        """The messages that are not in the table."""
        return sorted((self.expected - self.rows).elements())

    @property
    def surplus(self) -> list[Place]:
        """The rows that are in the table twice, or for no message."""
        return sorted((self.rows - self.expected).elements())

    def __str__(self) -> str:
        return (
            f"{self.kills} kills and {self.freezes} freezes, {self.restarts} starts in {self.seconds:.0f} s;"
            f" {self.expected.total()} messages, {self.rows.total()} rows: {len(self.missing)} missing,"
            f" {len(self.surplus)} too many; {self.refused} transactions refused;"
            f" processes that ended with an error: {dict(self.errors)}"
        )


class Database:
    """The database of a campaign: how the example reaches it, and how the campaign reads it."""

    def __init__(self, name: str, connect: Callable[[], Any], replaced: dict[str, str]) -> None:
        self.name = name
        self.connect = connect
        self.replaced = replaced

    def rows(self) -> Counter[Place]:
        """Return how often each message is in the table."""
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT part, place FROM orders")
            return Counter((int(part), int(place)) for part, place in cursor.fetchall())


def sqlite(folder: Path) -> Database:
    """Return a database of SQLite in a folder."""
    path = folder / "orders.db"
    return Database("sqlite", lambda: sqlite3.connect(path, timeout=30), {'"orders.db"': repr(str(path))})


def postgres(address: str) -> Database:
    """Return a database of PostgreSQL; its table is empty."""
    import psycopg

    documented = "host=127.0.0.1 port=5432 user=orders dbname=orders connect_timeout=5"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS orders")
    return Database("postgres", lambda: psycopg.connect(address), {documented: address})


def program(database: Database, cluster: DevCluster, topic: str, group: str, slow: float = 0.0) -> str:
    """Return the documented example, for this cluster, topic and database, with short sessions.

    Arguments: ``slow`` in seconds is the time between the rows and the record, in each transaction. There are more
    transactions then, and one is open for most of the time.
    """
    code = example(database.name)
    if slow:
        code = "import time\n" + code.replace("store.record(", f"time.sleep({slow}); store.record(")
        code = code.replace("take(500", "take(20")
    session = f'"zookeeper.session.timeout.ms": {SESSION_MS}, "rebalance.backoff.ms": 500, '
    for written, there in {
        **database.replaced,
        '"zookeeper.connect": "127.0.0.1:2181"': f'{session}"zookeeper.connect": "{cluster.zookeeper_connect}"',
        '"events"': repr(topic),
        f'"to-{database.name}"': repr(group),
    }.items():
        assert written in code, written
        code = code.replace(written, there)
    return code


class Members:
    """The processes that run the example. One that ends is started again."""

    def __init__(self, folder: Path, code: str, outcome: Outcome) -> None:
        self._folder = folder
        self._script = folder / "example.py"
        self._script.write_text(code)
        self._outcome = outcome
        self._running: list[Launched] = []
        self._frozen: dict[Launched, float] = {}
        self._logs: list[Path] = []

    def fill(self) -> None:
        """Start processes in place of those that have ended."""
        ended = [process for process in self._running if not process.running]
        for process in ended:
            process.wait(scaled(10))
            self._running.remove(process)
        while len(self._running) < MEMBERS:
            log = self._folder / f"member-{len(self._logs)}.log"
            self._logs.append(log)
            self._running.append(Launched([sys.executable, "-u", str(self._script)], log))
            self._outcome.restarts += 1

    def awake(self) -> list[Launched]:
        """Return the processes that are not frozen."""
        return [process for process in self._running if process not in self._frozen]

    def kill(self, process: Launched) -> None:
        """Kill one process."""
        process.send(signal.SIGKILL)
        process.wait(scaled(10))

    def freeze(self, process: Launched, until: float) -> None:
        """Freeze one process until a time (monotonic seconds)."""
        process.send(signal.SIGSTOP)
        self._frozen[process] = until

    def thaw(self, now: float) -> None:
        """Let the frozen processes go on whose time has come."""
        for process in [process for process, until in self._frozen.items() if until <= now]:
            process.send(signal.SIGCONT)
            del self._frozen[process]

    def end(self) -> None:
        """Kill all, and read what they wrote."""
        for process in self._running:
            process.send(signal.SIGKILL)
            process.wait(scaled(10))
        for log in self._logs:
            text = log.read_text(errors="replace") if log.exists() else ""
            self._outcome.refused += text.count("not written:")
            if "Traceback" in text:
                self._outcome.errors[text.strip().splitlines()[-1][:160]] += 1


def campaign(
    cluster: DevCluster, topic: str, code: str, database: Database, folder: Path, *, kills: int, seed: int
) -> Outcome:
    """Run the program ``code`` in some processes, and kill or freeze one ``kills`` times. Return what came of it."""
    random_ = random.Random(seed)
    outcome, began, pause = Outcome(), monotonic(), Event()
    members = Members(folder, code, outcome)
    producing = EvenLoad(cluster.bootstrap_servers, topic, PARTITIONS, pause_s=PRODUCED_EVERY_S)
    try:
        members.fill()
        eventually(lambda: _some(database), 60, "the first rows")
        while outcome.kills + outcome.freezes < kills:
            pause.wait(random_.uniform(*PAUSE_S))
            members.thaw(monotonic())
            members.fill()
            awake = members.awake()
            if not awake:
                continue
            process = random_.choice(awake)
            if random_.random() < FROZEN_SHARE:
                outcome.freezes += 1
                members.freeze(process, monotonic() + random_.uniform(*FREEZE_S))
            else:
                outcome.kills += 1
                members.kill(process)
        members.thaw(float("inf"))
        outcome.expected = producing.stop()

        def more() -> bool:
            members.fill()
            before, outcome.rows = outcome.rows, database.rows()
            return outcome.rows.total() > before.total()

        while outcome.rows.total() < outcome.expected.total():
            eventually(more, STALLED_S, lambda: f"more rows: {outcome}")
    finally:
        members.thaw(float("inf"))
        producing.stop()
        members.end()
    outcome.rows, outcome.seconds = database.rows(), monotonic() - began
    return outcome


def _some(database: Database) -> bool:
    try:
        return bool(database.rows())
    except Exception:  # the table is not made yet
        return False
