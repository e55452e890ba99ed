"""Worker processes: their messages, their answers, and the messages in hand when a process dies."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_python
from tests.timing import eventually, scaled
from tests.unit.balance import handlers
from tests.unit.balance.work_list import WorkList, new_works
from tests.values import present
from zkconsumer.balance.outcomes import DONE, NOT_STARTED, Failed
from zkconsumer.balance.process_executor import MOST_SUSPECTS, CrashSuspects, Place, ProcessExecutor
from zkconsumer.errors import HandlerTimeoutError, WorkerDiedError
from zkconsumer.runtime.deadline import Deadline

HANDLER_TIMEOUT = scaled(0.3)
"""Seconds in which a handler with nothing to do returns, also on a slow machine."""


@contextmanager
def running(
    source: WorkList, concurrency: int = 1, handler: Any = handlers.by_value, **options: Any
) -> Iterator[ProcessExecutor]:
    """Run an executor on the source."""
    executor = ProcessExecutor(handler, concurrency, name="g_c", **options)
    executor.start(source)
    try:
        yield executor
    finally:
        source.end()
        executor.stop(Deadline(scaled(5)))


def error_of(outcome: object) -> BaseException:
    """The error of a failed work."""
    assert isinstance(outcome, Failed), outcome
    return outcome.error


def test_a_death_costs_what_had_begun_one_attempt() -> None:
    """Later messages of the same trip do not fail. A new process takes the place of the dead one."""
    words = [b"fine"] * 8 + [b"kill"] + [b"fine"] * 30
    source = WorkList(new_works(words))
    with running(source) as executor:
        eventually(source.done, 20, lambda: f"all outcomes: {source.outcomes}")
        assert executor.workers[0].starts == 2
    # of handlers that returned; the one that died took no time that anybody knows
    assert sum(messages for messages, _ in source.times) == len(words) - 1
    assert all(seconds >= 0 for _, seconds in source.times)
    found = source.last()
    died = found.pop(8)
    assert isinstance(died, Failed)
    assert died.worker_died
    assert isinstance(died.error, WorkerDiedError)
    assert "killed by signal 9 with events-0 at offset 8 in hand" in str(died.error)
    assert set(found.values()) == {DONE}
    assert all(set(known) <= {NOT_STARTED, DONE} for offset, known in source.outcomes.items() if offset != 8)


@pytest.mark.parametrize("end", ["returns 0", "raises 1", "exits 3", "atexit 4"])
def test_a_forked_child_answers_for_nobody(end: str, tmp_path: Path) -> None:
    """The child returned from the handler, too. It told the parent's message as done, and handled later messages.

    The parent's handler waits for the child's end. So the child's answer would be the first.
    """
    out = tmp_path / "out"
    pid = f"pid {out}".encode()
    source = WorkList(new_works([f"fork {end}".encode(), *[pid] * 20]))
    with running(source) as executor:
        eventually(source.done, 30, lambda: f"all outcomes: {source.outcomes}")
        worker = executor.workers[0].pid
        assert executor.workers[0].starts == 1
    assert set(source.last().values()) == {DONE}
    assert {one for known in source.outcomes.values() for one in known} <= {NOT_STARTED, DONE}
    assert out.read_text().split() == [word for n in range(1, 21) for word in (str(n), str(worker))]


@pytest.mark.tier("standard")
def test_a_crashed_batch_is_halved_until_the_poison_is_alone() -> None:
    words = [b"fine"] * 5 + [b"die"] + [b"fine"] * 2
    source = WorkList(new_works(words), attempts=4)
    with running(source, handler=handlers.all_by_value, batch=8):
        eventually(source.done, 60, lambda: f"all outcomes: {source.outcomes}")  # five processes start in turn
    failed = {
        offset: sum(isinstance(one, Failed) for one in known) for offset, known in sorted(source.outcomes.items())
    }
    assert failed[5] == 4
    assert source.last()[5] is not DONE
    assert {outcome for offset, outcome in source.last().items() if offset != 5} == {DONE}
    # 8 together, then 4 with the poison, then 2, then the poison alone
    assert sorted(failed.values()) == [1, 1, 1, 1, 2, 2, 3, 4]


@pytest.mark.tier("standard")
def test_a_handler_beyond_the_timeout_is_killed() -> None:
    source = WorkList(new_works([b"fine", b"sleep 60", b"fine"]))
    with running(source, handler_timeout=HANDLER_TIMEOUT) as executor:
        running_now = eventually(lambda: executor.running(), 20, "a handler that runs")
        assert [work.offset for work, _ in running_now] in ([0], [1], [2])
        eventually(source.done, 20, lambda: f"all outcomes: {source.outcomes}")
    assert isinstance(error_of(source.last()[1]), HandlerTimeoutError)
    assert f"handler.timeout.ms ({HANDLER_TIMEOUT * 1000:.0f}) has passed" in str(error_of(source.last()[1]))
    assert (source.last()[0], source.last()[2]) == (DONE, DONE)


def test_works_behind_a_hanging_handler_go_elsewhere() -> None:
    """Messages of the same trip also go on. ``stop`` kills the worker, and its message counts no attempt."""
    source = WorkList(new_works([b"fine"] * 200 + [b"sleep 60"] + [b"fine"] * 99))
    with running(source, concurrency=2) as executor:
        eventually(lambda: source.settled == 299, 20, lambda: f"the others: {len(source.last())}")
        ((work, _),) = executor.running()
        assert work.offset == 200
        source.end()
        assert not executor.stop(Deadline(0.0))
    assert source.last()[200] is NOT_STARTED


@pytest.mark.tier("standard")
def test_a_stopped_process_is_killed_by_the_timeout() -> None:
    """SIGSTOP while it had nothing in hand: no message pays for it."""
    source = WorkList([])
    with running(source, handler_timeout=HANDLER_TIMEOUT) as executor:
        pid = present(executor.workers[0].pid)
        os.kill(pid, signal.SIGSTOP)
        source.add(new_works([b"fine"] * 3))
        eventually(source.done, 20, lambda: f"all outcomes: {source.outcomes}")
        assert executor.workers[0].pid != pid
    assert {one for known in source.outcomes.values() for one in known} == {NOT_STARTED, DONE}


def test_no_process_is_left_after_stop() -> None:
    """And while it runs, SIGTERM and SIGINT leave its processes alone."""
    source = WorkList(new_works([b"fine"]))
    with running(source) as executor:
        pid = present(executor.workers[0].pid)
        sockets = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
        assert sum(name.startswith("socket:") for name in sockets) == 1
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        eventually(source.done, 20, "all outcomes")
        source.add(new_works([b"fine"], first=1))
        eventually(lambda: source.settled == 2, 20, "the second")
        assert executor.workers[0].pid == pid

        source.halted = True
        source.add(new_works([b"die"], first=2))
        eventually(lambda: 2 in source.outcomes, 20, "what may not start to come back")
        assert source.last()[2] is NOT_STARTED
        source.end()
        assert executor.stop(Deadline(scaled(5)))
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_handler_that_no_process_can_import_is_named() -> None:
    def local(message: object) -> None: ...

    async def coroutine(message: object) -> None: ...

    with pytest.raises(TypeError, match=r"the handler .*<locals>.local cannot be pickled.*top level of a module"):
        ProcessExecutor(local, 1, name="g_c")
    with pytest.raises(TypeError, match=r'coroutine is a coroutine function: give executor="asyncio"'):
        ProcessExecutor(coroutine, 1, name="g_c")
    with pytest.raises(TypeError, match=r"the decoder .*lambda"):
        ProcessExecutor(handlers.by_value, 1, name="g_c", decoders=(None, lambda data: data))


_FIRST_PROCESS = """
import pickle, re, signal
from pathlib import Path
from zkconsumer.balance.worker_link import WorkerLink
from zkconsumer.balance.worker_process import WorkerSetup
from zkconsumer.streams.chunk_reader import ReadSettings

link = WorkerLink("first", WorkerSetup(pickle.dumps(print), pickle.dumps((None, None)), 1, ReadSettings()))
masks = re.findall(r"^Sig(?:Blk|Cgt):\\s*(\\w+)", Path(f"/proc/{link.pid}/status").read_text(), re.MULTILINE)
link.end(0.0)
safe = int(masks[0], 16) | int(masks[1], 16)
print(*(number.name for number in (signal.SIGINT, signal.SIGTERM) if safe >> number - 1 & 1))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the masks of signals from /proc")
def test_no_signal_ends_a_process_that_is_not_ready() -> None:
    """A SIGTERM to the whole group, as by a service manager, is the parent's matter from the first moment on."""
    done = run_python("-c", _FIRST_PROCESS)
    assert done.stdout.split() == ["SIGINT", "SIGTERM"], done.stderr


def places(*offsets: int) -> list[Place]:
    """Places in one partition."""
    return [("t", 0, offset) for offset in offsets]


def test_a_crashed_group_is_halved_down_to_one() -> None:
    suspects = CrashSuspects(nullcontext())
    group = places(*range(8))
    sizes = []
    for _ in range(5):
        group = group[: suspects.fitting(group)]
        sizes.append(len(group))
        suspects.crashed(group)
    assert sizes == [8, 4, 2, 1, 1]


def test_a_suspect_among_others_limits_their_number() -> None:
    suspects = CrashSuspects(nullcontext())
    suspects.crashed(places(3, 4, 5, 6))
    assert suspects.fitting(places(0, 1, 2)) == 3
    assert suspects.fitting(places(0, 1, 2, 3)) == 3  # it begins the next group
    assert suspects.fitting(places(3, 0, 1)) == 2
    assert suspects.fitting(places(0, 3, 1)) == 2
    assert suspects.fitting([]) == 0
    suspects.cleared(places(3, 4, 5, 6))
    assert suspects.fitting(places(3, 4, 5, 6)) == 4


def test_suspects_are_bounded() -> None:
    suspects = CrashSuspects(nullcontext())
    suspects.crashed(places(*range(MOST_SUSPECTS + 2)))
    suspects.crashed(places(0))
    assert suspects.fitting(places(1, 2, 0)) == 2
