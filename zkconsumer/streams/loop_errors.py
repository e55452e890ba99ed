"""Errors and log lines for loops that begin at the wrong moment or on the wrong thread; names for tab completion.

Threads: the application's thread that reads the stream. Nothing here runs for each message.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterable
from threading import get_native_id

from zkconsumer.core.partition_position import PartitionPosition


def public_names(names: Iterable[str], internal: Collection[str]) -> list[str]:
    """Return the names that completion shows: all public ones but the ``internal``, and Python's own."""
    return [name for name in names if name not in internal and (not name.startswith("_") or name.startswith("__"))]


def read_already(name: str, holder: int) -> str:
    """Return the words for a stream that is asked while thread ``holder`` (its native identifier) asks it."""
    if holder == get_native_id():
        return f"{name} is being asked by this very thread: a signal handler must not read a stream that it interrupts"
    return (
        f"{name} is being read by another thread: a stream is read by one thread at a time; create more streams"
        " (one for each thread), or use run(handler, workers=n)"
    )


def tell_of_message_in_hand(log: logging.Logger, name: str, position: PartitionPosition) -> None:
    """Log that the message in hand counts as finished when a new loop goes on.

    It is a warning where the session is interactive (a notebook) and has just shown a KeyboardInterrupt.
    """
    interrupted = isinstance(getattr(sys, "last_value", None), KeyboardInterrupt)
    log.log(
        logging.WARNING if interrupted else logging.INFO,
        "%s: a new loop begins: %s at offset %s, which is still in hand, counts as finished; to have it again,"
        " connector.seek(%r, %s) first",
        name,
        position.tp,
        position.consumed,
        tuple(position.tp),
        position.consumed,
    )
