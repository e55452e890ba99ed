"""The handler of the services under test: prints each message before and after its work, and waits where told."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Event
from typing import Any

_GATE = Path(os.environ["SERVICE_GATE"])
_FAILS_AT = int(os.environ["SERVICE_FAILS_AT"])
_pause = Event()


def work(message: Any) -> None:
    """Handle a message. Each line is one write, because a line of another process could cut it."""
    _say("begun", message)
    if message.offset == _FAILS_AT:
        raise RuntimeError("the work of this message fails")
    while _GATE.exists():
        _pause.wait(0.01)
    _say("finished", message)


def _say(word: str, message: Any) -> None:
    os.write(1, f"{word} {message.partition} {message.offset}\n".encode())
