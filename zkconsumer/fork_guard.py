"""What becomes of connectors in a process that was forked: nothing of theirs works there, and it says so.

A forked process has a copy of everything but the threads. Without this its readers would hand out again what the
parent hands out, then wait for ever, and a shutdown in it would cut the connections that it shares with the parent.

Threads: what Python calls after a fork runs in the child's only thread, and takes none of our locks: another thread
may have held one. The original knows no forks; a JVM cannot.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Shared(Protocol):
    """What threads, connections and a session belong to."""

    def left_to_parent(self, parent: int) -> None:
        """Become an empty shell that says so: the process was just forked from ``parent``."""


_shared: WeakSet[Shared] = WeakSet()


def watch(owner: Shared) -> None:
    """From now on tell it of a fork, as long as it lives."""
    _shared.add(owner)


def _after_fork() -> None:
    for owner in list(_shared):
        owner.left_to_parent(os.getppid())
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork)
