"""The processes of a run: the driver starts, commands, freezes and kills them, and reads their logs.

Each runs under the launcher of the embedded servers, so none outlives the driver. One thread at a time uses them.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Self

from tests.faults.events import SUFFIX, Event, EventLog, Tail
from tests.timing import eventually, scaled
from zkconsumer.devcluster.server_process import Launched

READY_S = 30.0
END_S = 20.0


class Recorded:
    """A Python process of ours that writes an event log: ``python -m tests.faults.MODULE CONFIG``."""

    module = ""

    def __init__(self, directory: Path, name: str, life: int = 0, **config: Any) -> None:
        """Arguments: ``directory`` of the run; ``life``, the number of the process among those with the same name."""
        self.name = name
        self.base = f"{name}-{life}"
        self.log_path = directory / f"{self.base}{SUFFIX}"
        self.errors = directory / f"{self.base}.log"
        self.tail = Tail(self.log_path)
        self.config = {**config, "name": name, "log": str(self.log_path)}
        self._directory = directory
        self._process: Launched | None = None

    def start(self) -> Self:
        """Start the process."""
        path = self._directory / f"{self.base}.json"
        path.write_text(json.dumps(self.config))
        # a test process's own options (coverage, warnings) are not the member's
        self._process = Launched([sys.executable, "-m", f"tests.faults.{self.module}", str(path)], self.errors)
        return self

    @property
    def running(self) -> bool:
        """Whether the process exists. A frozen process does."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int:
        """The process id, also after the end."""
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def events(self) -> list[Event]:
        """Return the events so far."""
        return self.tail.look()

    def wait_for(self, kind: str, seconds: float = READY_S) -> Event:
        """Wait for an event of a kind and return the latest."""
        found = eventually(lambda: self._last_or_dead(kind), seconds, f"{kind} of {self.name}")
        assert found is not None
        return found

    def _last_or_dead(self, kind: str) -> Event | None:
        ended = not self.running  # before the look, or its last words are missed
        found = self.tail.last(kind)
        if found is None and ended:
            raise RuntimeError(f"{self.name} ended without {kind}:\n{self.errors_text()}")
        return found

    def errors_text(self, lines: int = 60) -> str:
        """Return the last lines of its standard error."""
        try:
            return "\n".join(self.errors.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def signal(self, number: signal.Signals) -> None:
        """Send TERM, KILL, STOP or CONT."""
        assert self._process is not None, "not started"
        self._process.send(number)

    def wait_end(self, seconds: float = END_S) -> bool:
        """Wait for the end. Return whether it came in time."""
        return self._process is None or self._process.wait(scaled(seconds))

    def end(self, seconds: float = END_S) -> None:
        """End the process cleanly, and kill it if that fails."""
        if self.running:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
            self.wait_end(seconds)
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            if self._process.running:
                self.signal(signal.SIGKILL)
            self.wait_end()  # which also closes the pipes to one that ended by itself


class MemberProcess(Recorded):
    """A member process of our connector."""

    module = "member"

    def start(self) -> Self:
        control = self._directory / f"{self.base}.control"
        os.mkfifo(control)
        self.config["control"] = str(control)
        self._control = os.open(control, os.O_RDWR)  # so that writing never waits for the member
        return super().start()

    @property
    def consumer(self) -> str:
        """The consumer id."""
        properties = self.config["properties"]
        return f"{properties['group.id']}_{properties['consumer.id']}"

    @property
    def session(self) -> tuple[int, bytes]:
        """The id and password of its last known ZooKeeper session."""
        event = self.wait_for("session")
        return event["id"], bytes.fromhex(event["password"])

    @property
    def state(self) -> str:
        """Return the last text of ``connector.state``."""
        event = self.tail.last("state")
        return "" if event is None else str(event["text"])

    def tell(self, do: str, **arguments: Any) -> None:
        """Send it a command."""
        os.write(self._control, json.dumps({"do": do, **arguments}).encode() + b"\n")

    def hand_outs(self, since_ns: int = 0) -> list[Event]:
        """Return its hand-outs since that time."""
        return [event for event in self.events if event["e"] == "h" and event["t"] >= since_ns]

    def kill(self) -> None:
        super().kill()
        if getattr(self, "_control", -1) >= 0:
            os.close(self._control)
            self._control = -1


class Watcher(Recorded):
    """The watcher process."""

    module = "watcher"


class Producer(Recorded):
    """The producer process."""

    module = "producer"


def driver_log(directory: Path) -> EventLog:
    """Return the driver's event log."""
    return EventLog(directory / f"driver{SUFFIX}", "driver", role="driver")
