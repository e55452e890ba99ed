"""Requests of an application's thread to another thread of its member, which nobody performs once the caller has gone.

Threads: the caller's, and the one that is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import WakeFlag

T = TypeVar("T")


class Answer(Future[T]):
    """A future whose waiter may be interrupted. One thread waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._flag = WakeFlag()
        self.add_done_callback(lambda _: self._flag.set())  # nobody else knows this future yet

    def result(self, timeout: float | None = None) -> T:
        """Return the result. Raises TimeoutError after ``timeout`` seconds (None: never), and what was set."""
        if not self._flag.wait(timeout):
            raise TimeoutError
        self._flag.set()  # for the next one who asks
        return super().result(0)


class Request(Answer[T]):
    """A request of an application's thread to another thread of its member.

    It is begun before the deadline, or never. A caller that leaves its call by a time limit or an exception withdraws a
    request that has not begun. So nothing acts for a caller that has gone.

    Arguments: ``deadline`` ends the caller's time. The other thread may use this deadline for its own steps.
    """

    def __init__(self, deadline: Deadline) -> None:
        super().__init__()
        self.deadline = deadline
        self._decided: dict[str, bool] = {}  # whether it begins: whoever sets this first decides, in one step

    def begin(self) -> bool:
        """Return whether to do it. False: the time is over, or the caller has gone. Only the thread that is asked."""
        return self._decided.setdefault("begins", not self.deadline.expired)

    @property
    def withdrawn(self) -> bool:
        """Whether it was not begun in time, and never will be."""
        return self.deadline.expired and not self._decided.setdefault("begins", False)

    @property
    def may_be_withdrawn(self) -> bool:
        """Whether the request has not begun: the deadline or the caller may withdraw it still, or has just done so."""
        return not self._decided.get("begins") and self.deadline.at is not None

    def ask(self, send: Callable[[], object]) -> T:
        """Have ``send`` hand this over to the other thread, and return the result.

        Leaving the call in any other way withdraws the request. Raises: TimeoutError at the deadline; what was set.
        """
        try:
            send()
            return self.result(self.deadline.remaining())
        except BaseException:
            self.deadline.expire()
            raise
