"""The fork guard: connectors in a forked process are empty shells that say so.

A forked process has a copy of everything but the threads. Without the guard its readers would hand out the parent's
messages again, then wait for ever. A shutdown in it would cut the connections that it shares with the parent.

Threads: Python calls the guard in the child's only thread. It takes none of our locks, because another thread may have
held one. The original knows no forks; a JVM cannot.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Shared(Protocol):
    """The owner of threads, connections and a session."""

    def left_to_parent(self, parent: int) -> None:
        """Become an empty shell that says so: the process was just forked from ``parent``."""


_shared: WeakSet[Shared] = WeakSet()


def watch(owner: Shared) -> None:
    """Tell it of every fork from now on, as long as it lives."""
    _shared.add(owner)


def _after_fork() -> None:
    for owner in list(_shared):
        owner.left_to_parent(os.getppid())
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork)
