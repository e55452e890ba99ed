"""The witness of a group: sees when its processes and sessions end, and what the store tells of finished messages.

It writes into the directory of :mod:`tests.balance_recorder`. An end is written with the time at which the process or
session was last seen alive, so that no check takes a living one for dead, however slow the machine is.
"""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic_ns
from typing import Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.protocol.states import ZnodeStat

from tests.balance_recorder import SUFFIX, Lines
from tests.timing import scaled
from zkconsumer.core.message_pointers import PointerKind, decode_pointers
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

_PAUSE_S = 0.03


class Witness:
    """A context manager with a thread and a ZooKeeper client of its own, until its exit.

    Arguments: ``directory`` of the run; ``connect`` to ZooKeeper; ``topics`` maps names to numbers of partitions.
    """

    def __init__(self, directory: Path, connect: str, group: str, topics: dict[str, int]) -> None:
        self._directory = directory
        self._group = group
        self._partitions = [TopicPartition(topic, p) for topic, count in topics.items() for p in range(count)]
        self._client = KazooClient(connect, timeout=20.0)
        self._lines = Lines(directory, "witness")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)
        self._sessions: dict[int, int] = {}
        self._processes: dict[int, int] = {}
        self._gone: set[int] = set()
        self._told: dict[TopicPartition, object] = {}

    def _run(self) -> None:
        while not self._stop.wait(_PAUSE_S):
            self._look_at_processes()
            try:
                self._look_at_sessions()
                for partition in self._partitions:
                    self._look_at_note(partition)
            except (KazooException, TimeoutError, ValueError):
                continue  # ZooKeeper is away, or pointers are spoilt: what is not seen is not told

    def _look_at_processes(self) -> None:
        for path in self._directory.glob(f"*{SUFFIX}"):
            pid, now = int(path.stem.rpartition("-")[2]), monotonic_ns()
            if pid in self._gone:
                continue
            if _runs(pid):
                self._processes[pid] = now
            else:
                self._gone.add(pid)
                self._lines.write("process", pid=pid, alive=self._processes.get(pid, 0))

    def _look_at_sessions(self) -> None:
        now = monotonic_ns()
        living = set()
        try:
            for name in self._client.get_children(paths.ids(self._group)):
                stat = self._client.exists(paths.member(self._group, name))
                if stat is not None:
                    living.add(stat.ephemeralOwner)
        except NoNodeError:
            pass
        for session in self._sessions.keys() - living:
            self._lines.write("session", s=session, alive=self._sessions.pop(session))
        self._sessions |= dict.fromkeys(living, now)

    def _look_at_note(self, partition: TopicPartition) -> None:
        """Write down what a member that claims the partition now would believe."""
        offset, at = self._read(paths.offset(self._group, partition))
        note, noted_at = self._read(paths.ack(self._group, partition))
        pointers, _ = self._read(paths.pointers(self._group, partition))
        _, again = self._read(paths.offset(self._group, partition))
        if again != at:
            return  # written meanwhile: the next look sees all parts of it
        told: tuple[int | None, str] = (None, "")
        if at is not None and offset.isdigit():
            told = int(offset), note.hex() if noted_at == at else ""
        parked = sorted(one.offset for one in decode_pointers(pointers).values() if one.kind is PointerKind.PARKED)
        if self._told.get(partition) != (told, parked):
            self._told[partition] = told, parked
            where = {"topic": partition.topic, "partition": partition.partition}
            self._lines.write("note", **where, offset=told[0], note=told[1], parked=parked)

    def _read(self, path: str) -> tuple[bytes, int | None]:
        try:
            found: tuple[bytes, ZnodeStat] = self._client.get(path)
        except NoNodeError:
            return b"", None
        return found[0], found[1].mzxid

    def __enter__(self) -> Self:
        self._client.start(timeout=scaled(10))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(scaled(30))
        self._client.stop()
        self._client.close()
        self._lines.close()


def _runs(pid: int) -> bool:
    """Return whether a process exists and is not only waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
