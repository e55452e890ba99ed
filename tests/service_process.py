"""The program of docs/services.md as a process, started by the command of the systemd unit or of the manifest.

Program, unit and manifest are the text of the page. Replaced are the addresses, the topic and the group, the paths of
the interpreter and of the program, some times, and the line of the program that stands for the user's work.
"""

from __future__ import annotations

import configparser
import os
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import yaml

from tests.documents import ROOT, SERVICES, example, fenced
from tests.timing import eventually, scaled

WORK = "print(message.topic, message.partition, message.offset, flush=True)  # your work"
STAGED = "from tests.service_work import work\n\n    work(message)"
LAST_PROPERTY = "  # wait for ZooKeeper at the start, rather than exit\n"
SHUTDOWN = "SHUTDOWN_SECONDS = 20"
Place = tuple[int, int]
"""A partition and an offset."""


class Unit(configparser.ConfigParser):
    """The systemd unit of the page. ``environment`` has the variables that it sets."""

    def __init__(self) -> None:
        super().__init__(strict=False, interpolation=None)
        self.text = fenced(SERVICES, "ini")
        self.optionxform = str  # type: ignore[assignment,method-assign] # names keep their capitals
        self.read_string(self.text)
        pairs = [line.partition("=")[2] for line in self.text.splitlines() if line.startswith("Environment=")]
        self.environment = dict(pair.split("=", 1) for pair in pairs)

    def command(self) -> list[str]:
        """Return the words of ExecStart."""
        return shlex.split(self["Service"]["ExecStart"])

    def seconds(self, name: str) -> float:
        """Return a time of the unit."""
        return float(self["Service"][name])


def manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the documents of the Kubernetes manifest: the stateful set and the disruption budget."""
    first, second = yaml.safe_load_all(fenced(SERVICES, "yaml"))
    return first, second


def container() -> dict[str, Any]:
    """Return the container of the manifest."""
    (found,) = manifest()[0]["spec"]["template"]["spec"]["containers"]
    return dict(found)


class Service:
    """One process of the program. ``with`` kills it at the end."""

    def __init__(
        self,
        folder: Path,
        *,
        command: list[str] | None = None,
        shutdown_seconds: float | None = None,
        properties: Mapping[str, object] | None = None,
        fails_at: int | None = None,
        **environment: str,
    ) -> None:
        """Arguments: ``folder`` for files of this process; ``command`` of the page, by default that of the unit;
        ``shutdown_seconds`` in place of the program's; ``properties`` in addition to the program's; ``fails_at`` an
        offset at which the work raises; ``environment`` as in the unit, with ``GROUP`` and ``TOPIC`` for the names.
        """
        folder.mkdir(exist_ok=True)
        self._output, self.errors, self._gate = folder / "output", folder / "errors", folder / "gate"
        self._url = ""
        interpreter, *options, program = command or Unit().command()
        assert Path(interpreter).name == "python"
        assert program.endswith("/orders.py")
        told = {"GROUP": "orders", "TOPIC": "orders", **environment}
        file = folder / "orders.py"
        file.write_text(_program(told.pop("GROUP"), told.pop("TOPIC"), shutdown_seconds, properties or {}))
        self._command = [sys.executable, *options, str(file)]
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
            "SERVICE_GATE": str(self._gate),
            "SERVICE_FAILS_AT": str(-1 if fails_at is None else fails_at),
            "ORDERS_PROBES": "127.0.0.1:0",
            **{name: value for name, value in os.environ.items() if name.startswith("ZKCONSUMER_")},
            **told,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the process."""
        with self._output.open("ab") as output, self.errors.open("ab") as errors:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=errors, env=self._environment)
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.running:
            self.signal(signal.SIGKILL)
            self.exit_code()
        self.open_gate()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        assert self._process is not None
        self._process.send_signal(number)

    def exit_code(self, seconds: float = 30) -> int:
        """Wait for the end, and return the exit code."""
        assert self._process is not None
        return self._process.wait(scaled(seconds))

    def log(self) -> str:
        """Return its standard error."""
        return self.errors.read_text(errors="replace")

    # ---- probes

    def ask(self, path: str, timeout: float = 5) -> tuple[int, str]:
        """Return the status and the text of a probe's answer. Raises OSError while nothing answers."""
        try:
            with urllib.request.urlopen(self._address() + path, timeout=scaled(timeout)) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode().strip()

    def _address(self) -> str:
        """Return the address that the log tells."""
        if not self._url:
            told = [line.rpartition(" ")[2] for line in self.log().splitlines() if "answers probes at " in line]
            if not told:
                raise ConnectionRefusedError("the process does not listen yet")
            self._url = told[0].rstrip("/")
        return self._url

    def becomes(self, healthz: int, readyz: int, text: str = "", seconds: float = 30) -> None:
        """Wait until the manifest's probes answer with these statuses, and both answers have the text."""
        probes = container()
        live, ready = (probes[name]["httpGet"]["path"] for name in ("livenessProbe", "readinessProbe"))

        def answers() -> bool:
            try:
                told = [self.ask(live), self.ask(ready)]
            except OSError as failure:
                raise AssertionError(str(failure)) from failure
            assert [status for status, _ in told] == [healthz, readyz], told
            assert all(text in one for _, one in told), told
            return True

        eventually(answers, seconds, lambda: f"{healthz}, {readyz} and {text!r}; the log:\n{self.log()[-3000:]}")

    # ---- its work

    def close_gate(self) -> None:
        """From now on the handler waits inside of its message."""
        self._gate.touch()

    def open_gate(self) -> None:
        """Let the handler go on."""
        self._gate.unlink(missing_ok=True)

    def _places(self, word: str) -> list[Place]:
        lines = self._output.read_text().splitlines(keepends=True) if self._output.exists() else []
        whole = [line.split() for line in lines if line.endswith("\n")]
        return [(int(partition), int(offset)) for told, partition, offset in whole if told == word]

    @property
    def begun(self) -> list[Place]:
        """The messages that the handler got."""
        return self._places("begun")

    @property
    def finished(self) -> list[Place]:
        """The messages from which the handler returned."""
        return self._places("finished")

    def wait_in_hand(self) -> Place:
        """Wait until the handler waits at the gate, and return its message."""

        def in_hand() -> list[Place]:
            finished = Counter(self.finished)  # before the others: the handler goes on meanwhile
            return list((Counter(self.begun) - finished).elements())

        return eventually(in_hand, 30, lambda: f"a message in hand; the log:\n{self.log()[-3000:]}")[0]


def _program(group: str, topic: str, shutdown_seconds: float | None, properties: Mapping[str, object]) -> str:
    text = example("service")
    replaced = {
        WORK: STAGED,
        '"group.id": "orders"': f'"group.id": {group!r}',
        LAST_PROPERTY: f"\n            **{dict(properties)!r},\n",
        'run(handle, "orders"': f"run(handle, {topic!r}",
    }
    if shutdown_seconds is not None:
        replaced[SHUTDOWN] = f"SHUTDOWN_SECONDS = {shutdown_seconds}"
    for written, there in replaced.items():
        assert text.count(written) == 1, written
        text = text.replace(written, there)
    return text
