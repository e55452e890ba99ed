"""The waits of the application's threads. Each step is one call in C, so that an interrupt leaves nothing locked."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from threading import Thread, get_ident
from time import monotonic
from types import FrameType

import pytest

from tests.signal_gate import Interrupted, interrupting
from tests.timing import scaled
from zkconsumer.kafka.connection import Connection
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import SLICE, WakeFlag
from zkconsumer.runtime.withdrawable_request import Answer, Request
from zkconsumer.streams.stream_queue import StreamQueue
from zkconsumer.zookeeper.lease import Lease


def test_a_flag_is_up_until_it_was_waited_for() -> None:
    flag = WakeFlag()
    assert not flag.wait(0)
    flag.set()
    flag.set()
    assert flag.wait(None)
    assert not flag.wait(0)
    flag.set()
    flag.clear()
    flag.clear()
    assert not flag.wait(0.001)


def test_an_answer_is_had_more_than_once_and_raises_in_time() -> None:
    answer: Answer[int] = Answer()
    with pytest.raises(TimeoutError):
        answer.result(0.001)
    Thread(target=lambda: answer.set_result(7), name="answering").start()
    assert [answer.result(scaled(5)), answer.result(0)] == [7, 7]
    failed: Answer[int] = Answer()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        failed.result()


def in_the_lock(wait: Callable[[], object]) -> None:
    """Call it, and have a signal come right after any function in C whose name is that of entering a lock."""
    entered = {"__enter__", "acquire"}

    def profile(_frame: FrameType, event: str, function: object) -> None:
        if event == "c_return" and getattr(function, "__name__", "") in entered:
            sys.setprofile(None)
            signal.pthread_kill(get_ident(), signal.SIGUSR1)

    sys.setprofile(profile)
    try:
        with interrupting(), suppress(Interrupted):
            wait()
    finally:
        sys.setprofile(None)


def finishes(work: Callable[[], object]) -> bool:
    thread = Thread(target=work, name="another", daemon=True)
    thread.start()
    thread.join(scaled(5))
    return not thread.is_alive()


def test_no_lock_stays_held_after_an_interrupt_in_it() -> None:
    """An interrupt inside ``Condition.__enter__`` left the lock held: fetchers, or the committer, hung for ever."""
    queue = StreamQueue(1, lambda: None)
    in_the_lock(queue.wake_revocation)
    assert finishes(queue.close)
    lease = Lease()
    in_the_lock(lambda: lease.wait(Deadline(0.01)))
    assert finishes(lease.void)
    answer: Answer[int] = Answer()
    in_the_lock(lambda: answer.result(0.01))
    assert finishes(lambda: answer.set_result(1))
    flag = WakeFlag()
    in_the_lock(lambda: flag.wait(0.01))
    assert finishes(flag.set)
    connection = Connection("a broker", "127.0.0.1", 1)
    in_the_lock(connection.close)
    assert finishes(connection.drop)


def test_a_wait_may_be_longer_than_a_lock_can_wait() -> None:
    flag = WakeFlag()
    flag.set()
    assert flag.wait(threading.TIMEOUT_MAX * 1e6)


@pytest.mark.parametrize("seconds", [None, 600.0])
def test_a_handler_runs_in_a_wait_that_no_signal_interrupts(seconds: float | None) -> None:
    """A SIGTERM came just before the main thread waited for a message: its handler ran when the next message came.

    Here the signal goes to another thread, which has the same effect each time.
    """
    flag, came = WakeFlag(), threading.Event()
    in_vain: list[bool] = []

    def signal_here() -> None:
        came.wait(0.2)  # until the main thread waits
        signal.pthread_kill(get_ident(), signal.SIGUSR1)
        if not came.wait(scaled(20)):
            in_vain.append(True)
            flag.set()  # so that the test ends

    def handler(_number: int, _frame: FrameType | None) -> None:
        came.set()
        flag.set()

    before = signal.signal(signal.SIGUSR1, handler)
    thread = Thread(target=signal_here, name="another")
    try:
        thread.start()
        assert flag.wait(seconds)
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join(scaled(30))
    assert not in_vain


def test_the_main_thread_waits_as_long_as_it_is_told() -> None:
    flag = WakeFlag()
    began = monotonic()
    assert not flag.wait(2.5 * SLICE)
    assert monotonic() - began >= 2.5 * SLICE
    flag.set()
    assert flag.wait(2.5 * SLICE)


def test_a_caller_and_the_asked_thread_agree_about_a_request() -> None:
    """A caller whose time ended just then read that its request had begun, and the asked thread dropped the request."""
    seen: list[tuple[bool, bool]] = []  # a caller that adds the topic again is refused by either

    class Ending(Deadline):
        @property
        def expired(self) -> bool:
            if not seen:
                seen.append((False, False))
                seen[0] = (request.withdrawn, request.may_be_withdrawn)
            return True

    request = Request[None](Ending(1.0))
    begins = request.begin()
    assert (begins, seen) == (False, [(True, True)])
