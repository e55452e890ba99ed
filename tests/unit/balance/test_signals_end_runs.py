"""Signals end a balanced run in a process of its own: nothing is lost, and no process stays behind.

The cluster is in that process, which prints at its end what is committed and what was handled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.timing import eventually, scaled

pytestmark = pytest.mark.tier("standard")

ROOT = Path(__file__).resolve().parents[3]
MESSAGES, HANDLERS = 40, 4
EXECUTORS = ["threads", "processes", "asyncio"]

PROGRAM = """
import json, signal, sys
from pathlib import Path
from tests.unit.balance import waiting_handlers
from contextlib import suppress
from zkconsumer import OffsetCommitError, ZookeeperConsumerConnector
from zkconsumer.core.finished_note import FinishedNote, decode_note
from zkconsumer.core.key_slots import slot_of_offset
from zkconsumer.testing import FakeCluster

def main(executor, stop_on):
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("events", 1)
        cluster.append("events", 0, [b"v"] * MESSAGES)
        connector = ZookeeperConsumerConnector({
            "zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": 60000,
        })
        handler = waiting_handlers.soon if executor == "asyncio" else waiting_handlers.wait
        ended = "returned"
        try:
            connector.run(handler, "events", concurrency=4, order="none", executor=executor, stop_on=stop_on)
        except BaseException as error:
            ended = type(error).__name__
        with suppress(OffsetCommitError):
            connector.shutdown()
        tree = cluster.zookeeper.tree("/consumers/g/offsets/events")
        committed = int(tree.get("/consumers/g/offsets/events/0", b"0"))
        notes = cluster.zookeeper.tree("/consumers/g/acks")
        note = decode_note(notes.get("/consumers/g/acks/events/0", b"")) or FinishedNote(committed)
        finished = [n for n in range(MESSAGES) if n < committed or note.covers(n, slot_of_offset(n))]
        print(json.dumps([ended, finished]), flush=True)

if __name__ == "__main__":
    main(sys.argv[1], [int(number) for number in sys.argv[2:]])
"""


class Program:
    """The process, and what its handlers did."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self._folder, self.process = folder, process

    def begun(self) -> set[int]:
        return {int(path.stem) for path in self._folder.glob("*.begun")}

    def done(self) -> set[int]:
        return {int(path.stem) for path in self._folder.glob("*.done")}

    def release(self) -> None:
        (self._folder / "go").touch()

    def wait_in_hand(self) -> None:
        eventually(lambda: len(self.begun()) == HANDLERS, 40, lambda: f"{HANDLERS} in hand: {self.begun()}")

    def end(self) -> tuple[str, set[int]]:
        """Wait for its end. Return how the run ended, and the offsets that ZooKeeper says are finished.

        Workers with several messages each leave gaps, so the committed offset alone is not enough.
        """
        out, errors = self.process.communicate(timeout=scaled(40))
        assert out, errors
        ended, offsets = json.loads(out.splitlines()[-1])
        finished = set(offsets)
        assert finished <= self.done(), "lost"
        eventually(lambda: not self._others(), 10, lambda: f"the end of its processes {self._others()}")
        return ended, finished

    def _others(self) -> list[int]:
        """Return the processes of its session that live on."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == self.process.pid and fields[0] != "Z":
                found.append(int(path.parent.name))
        return found


@contextmanager
def running(folder: Path, executor: str, *signals: int) -> Iterator[Program]:
    script = folder / "script.py"
    script.write_text(PROGRAM.replace("MESSAGES", str(MESSAGES)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "ZKCONSUMER_TEST_FOLDER": str(folder)}
    command = [sys.executable, str(script), executor, *(str(int(number)) for number in signals)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            yield Program(folder, process)
        finally:
            (folder / "go").touch()
            process.kill()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_signal_finishes_what_is_in_hand(tmp_path: Path, executor: str) -> None:
    with running(tmp_path, executor, signal.SIGTERM) as program:
        program.wait_in_hand()
        program.process.send_signal(signal.SIGTERM)
        program.release()
        ended, finished = program.end()
        assert ended == "returned"
        assert finished == program.done() == program.begun()


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_second_signal_waits_for_no_handler(tmp_path: Path, executor: str) -> None:
    """The handlers do not return by themselves, so the process ends because of the second signal."""
    with running(tmp_path, executor, signal.SIGTERM) as program:
        program.wait_in_hand()
        program.process.send_signal(signal.SIGTERM)
        eventually(lambda: taken(program, signal.SIGTERM), 10, "the first signal")
        program.process.send_signal(signal.SIGTERM)
        ended, finished = program.end()
        assert ended in ("returned", "OffsetCommitError")
        assert not finished
        assert len(program.begun()) == HANDLERS


def taken(program: Program, number: int) -> bool:
    """Return whether no signal is pending for the process: two at once count as one."""
    status = Path(f"/proc/{program.process.pid}/status").read_text()
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd", "ShdPnd"))]
    return not any(mask >> (number - 1) & 1 for mask in pending)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_ctrl_c_ends_a_run_without_stop_on(tmp_path: Path, executor: str) -> None:
    """The first one waits for handlers a while, the second one for nothing."""
    with running(tmp_path, executor) as program:
        program.wait_in_hand()
        os.killpg(program.process.pid, signal.SIGINT)  # as a terminal does, so that worker processes get it too
        eventually(lambda: taken(program, signal.SIGINT), 10, "the first Ctrl-C")
        os.killpg(program.process.pid, signal.SIGINT)
        ended, finished = program.end()
        assert ended == "KeyboardInterrupt"
        assert not finished
        assert len(program.begun()) == HANDLERS
