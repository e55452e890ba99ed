"""What kazoo takes from its surroundings: threads, by names that say whose they are, and the wait for sockets."""

from __future__ import annotations

import select
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

Files = Sequence[Any]


class NamedHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's own handler, which leaves its threads without names. Their owner is the session, their end its close."""

    def start(self) -> None:
        """Start the two threads for callbacks, or none. Raises RuntimeError where the system gives no more threads."""
        try:
            super().start()
        except RuntimeError:
            self._running = True  # or it would not stop the one that was started
            self.stop()
            raise

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Thread:
        """Start a thread for one of kazoo's loops."""
        role = "connection" if getattr(func, "__name__", "") == "zk_loop" else "callbacks"
        thread = Thread(
            target=func,
            args=args,
            kwargs=kwargs,
            name=f"zkconsumer-zookeeper-{role}",
            daemon=True,
        )
        thread.start()
        return thread

    def select(
        self, rlist: Files, wlist: Files, xlist: Files, timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until one of these can be read or written, at most ``timeout`` seconds, as ``select.select`` does.

        One system call; kazoo makes an ``epoll`` object for each look, and closes it again. Raises ValueError for what
        is closed.
        """
        del xlist  # never used by kazoo
        wanted: dict[int, int] = {}
        for files, kind in ((rlist, select.POLLIN), (wlist, select.POLLOUT)):
            for file in files:
                wanted[_number(file)] = wanted.get(_number(file), 0) | kind
        poller = select.poll()
        for number, kinds in wanted.items():
            poller.register(number, kinds)
        # an error or a hang-up counts as both, for reading and writing tell of it
        ready = dict(poller.poll(None if timeout is None else timeout * 1000))
        return (
            [file for file in rlist if ready.get(_number(file), 0) & ~select.POLLOUT],
            [file for file in wlist if ready.get(_number(file), 0) & ~select.POLLIN],
            [],
        )


def _number(file: Any) -> int:
    number = file if isinstance(file, int) else file.fileno()
    if number < 0:
        raise ValueError("the file is closed")
    return int(number)
