"""Kazoo's threads, by names that say whose they are."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler


class NamedHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's own handler, which leaves its threads without names. Their owner is the session, their end its close."""

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Thread:
        """Start a thread for one of kazoo's loops."""
        role = "connection" if getattr(func, "__name__", "") == "zk_loop" else "callbacks"
        thread = Thread(target=func, args=args, kwargs=kwargs, name=f"zkconsumer-zookeeper-{role}", daemon=True)
        thread.start()
        return thread
