"""One JSON line an event, one file a process: how members, watcher, producer and driver tell what happened.

A line is written with one system call and nothing is buffered, so that a process that is killed loses nothing of what
it did. Times are ``time.monotonic_ns()``, whose clock all processes of a machine share. A log may be written by several
threads of its process; it is read by anybody at any time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from time import monotonic_ns
from typing import Any

Event = dict[str, Any]
SUFFIX = ".events"


class EventLog:
    """Writes events. Arguments: ``who`` is named in each event that is read back; ``about`` goes into the first."""

    def __init__(self, path: Path, who: str, **about: Any) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self("start", who=who, pid=os.getpid(), **about)

    def __call__(self, kind: str, /, **fields: Any) -> None:
        """Something happened now."""
        self.at(monotonic_ns(), kind, **fields)

    def at(self, time_ns: int, kind: str, /, **fields: Any) -> None:
        """Something happened at that time."""
        line = json.dumps({"t": time_ns, "e": kind, **fields}, separators=(",", ":"))
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Nothing more is written."""
        os.close(self._descriptor)


class Tail:
    """Reads a log while it is written; a line that is not whole yet comes with the next look. One thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self._position = 0
        self._about: Event = {}

    def look(self) -> list[Event]:
        """All events so far, each with ``who`` and ``pid`` of its process (the last one that wrote this file)."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return self.events
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            if event["e"] == "start":
                self._about = {"who": event["who"], "pid": event["pid"]}
            self.events.append({**self._about, **event})
        return self.events

    def last(self, kind: str) -> Event | None:
        """The latest event of a kind."""
        return next((event for event in reversed(self.look()) if event["e"] == kind), None)


def read_all(directory: Path) -> list[Event]:
    """Every event of every log in a directory, in the order of time."""
    logs: Iterable[Path] = sorted(directory.glob(f"*{SUFFIX}"))
    return sorted((event for path in logs for event in Tail(path).look()), key=lambda event: event["t"])
