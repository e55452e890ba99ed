"""The event logs of members, watcher, producer and driver: one file for each process, one JSON line for each event.

Each line is written at once with one system call. So a killed process loses no event. Times are
``time.monotonic_ns()``, whose clock all processes of a machine share. Several threads of a process may write its log,
and any process may read it at any time.
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
    """A writer of events. Arguments: ``who`` is the name in each event; ``about`` goes into the first event."""

    def __init__(self, path: Path, who: str, **about: Any) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self("start", who=who, pid=os.getpid(), **about)

    def __call__(self, kind: str, /, **fields: Any) -> None:
        """Log an event with the present time."""
        self.at(monotonic_ns(), kind, **fields)

    def at(self, time_ns: int, kind: str, /, **fields: Any) -> None:
        """Log an event with the given time."""
        line = json.dumps({"t": time_ns, "e": kind, **fields}, separators=(",", ":"))
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)


class Tail:
    """A reader of a log that is still growing. An incomplete line comes with the next read. Used by one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self._position = 0
        self._about: Event = {}

    def look(self) -> list[Event]:
        """Return all events so far, each with ``who`` and ``pid`` of the process that wrote the event."""
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
        """Return the latest event of a kind."""
        return next((event for event in reversed(self.look()) if event["e"] == kind), None)


def read_all(directory: Path) -> list[Event]:
    """Return all events of all logs in a directory, in the order of time."""
    logs: Iterable[Path] = sorted(directory.glob(f"*{SUFFIX}"))
    return sorted((event for path in logs for event in Tail(path).look()), key=lambda event: event["t"])
