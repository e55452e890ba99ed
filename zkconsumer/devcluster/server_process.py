"""A server process: its port, start, readiness, signals, stop, and the files that configure its logging.

``ServerProcess`` is the base of the ZooKeeper and the Kafka server. One thread at a time may use a server, which starts
no thread. Another program can take a chosen port before the server binds it. The choice makes that unlikely, and
``ServerProcess`` tries again with another port. The child runs under ``launcher.py``, which ends it when this process
exits, crashes or is killed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from time import sleep
from typing import Literal, Self, TypedDict, Unpack

from zkconsumer.devcluster import launcher
from zkconsumer.devcluster.cluster_errors import ServerStartError, ServerStopError
from zkconsumer.devcluster.jars import Progress
from zkconsumer.runtime.deadline import Deadline

LOOPBACK = "127.0.0.1"
_LOWEST = 20000
_HIGHEST = 32768
_TRIES = 200


def _first_ephemeral_port() -> int:
    """Return the first port of outgoing connections. Such a port could be taken when a server restarts on it."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return _HIGHEST


def is_free(port: int) -> bool:
    """Return whether a server could bind the port now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def accepts(port: int, timeout: float = 1.0) -> bool:
    """Return whether a program listens on the port. ``timeout`` is in seconds."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout):
            return True
    except OSError:
        return False


def free_port() -> int:
    """Return a port that is free now, if possible outside the range of outgoing connections. Raises OSError."""
    highest = min(_HIGHEST, _first_ephemeral_port())
    if highest - _LOWEST >= 1000:
        for _ in range(_TRIES):
            port = random.randrange(_LOWEST, highest)
            if is_free(port):
                return port
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 15.0
_KILL_TIMEOUT_S = 10.0
_LAUNCH_TIMEOUT_S = 20.0
_POLL_S = 0.03
_PORT_TRIES = 5
_TAIL_LINES = 25
_BIND_FAILED = re.compile(r"Address already in use|BindException|Socket server failed to bind")
_SESSION_LOST = re.compile(r"SessionExpiredException")
"""A broker on a busy machine ends if its session with ZooKeeper expires while it starts."""
_BACKSLASH = 92
_LOG4J_1 = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %m (%c)%n
"""
_LOG4J_2 = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def as_deadline(deadline: Deadline | float) -> Deadline:
    """Return a deadline so many seconds from now. A running deadline is returned as it is."""
    return deadline if isinstance(deadline, Deadline) else Deadline(deadline)


def tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """Return the last lines of a log, empty if there is no log."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


class Launched:
    """A running launcher and its child."""

    def __init__(
        self, command: Sequence[str], log: Path, *, remove: Sequence[Path] = (), output: int | None = None
    ) -> None:
        """Start ``command``.

        Arguments: ``log`` gets its output, except that standard output goes to the descriptor ``output`` if given.
        The launcher removes the directories ``remove`` if this process dies. Raises: OSError.
        """
        arguments = [sys.executable, "-I", "-S", launcher.__file__, "--owner", str(os.getpid()), "--log", str(log)]
        for directory in remove:
            arguments += ["--remove", str(directory)]
        if output is not None:
            arguments += ["--output", str(output)]
        self._launcher = subprocess.Popen(
            [*arguments, "--", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            start_new_session=True,
            cwd="/",
            pass_fds=() if output is None else (output,),
        )
        try:
            self.pid = int(self._answer(_LAUNCH_TIMEOUT_S))
        except BaseException as error:  # also an interrupt: nobody else knows the launcher yet
            self._launcher.kill()
            self.wait(_KILL_TIMEOUT_S)
            if isinstance(error, OSError | ValueError):
                raise OSError(f"cannot start {command[0]}") from error
            raise

    def _answer(self, timeout: float) -> bytes:
        assert self._launcher.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._launcher.stdout, selectors.EVENT_READ)
            deadline, line = Deadline(timeout), b""
            while not line.endswith(b"\n"):
                if not selector.select(deadline.remaining()):
                    raise TimeoutError("the launcher does not answer")
                part = self._launcher.stdout.read(1)
                if not part:
                    raise BrokenPipeError("the launcher is gone")
                line += part
        return line

    @property
    def running(self) -> bool:
        """Whether the child exists. A suspended child does."""
        return self._launcher.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Send TERM, KILL, STOP or CONT to the child's process group, unless it has ended."""
        (request,) = (key for key, value in launcher.SIGNALS.items() if value == number)
        assert self._launcher.stdin is not None
        if self._launcher.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self._launcher.stdin.write(request)
            self._answer(_LAUNCH_TIMEOUT_S)

    def wait(self, timeout: float) -> bool:
        """Wait for the child's end. Return whether it came within ``timeout`` seconds."""
        try:
            self._launcher.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        for pipe in (self._launcher.stdin, self._launcher.stdout):
            if pipe is not None:
                pipe.close()
        return True


def check_options(of: object, given: Iterable[str], known: frozenset[str]) -> None:
    """Raise TypeError for a name that is not known, as a signature does; else a misspelt option would have no effect.

    Arguments: ``of`` is the object whose constructor was given these names.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"{type(of).__name__}() got an unexpected keyword argument {name!r}")


class ProcessOptions(TypedDict, total=False):
    """The options of an embedded server's process."""

    port: int | None
    """Default: a free one."""
    keep: bool | None
    """Whether to keep the directory at the end. Default: if it was given."""
    heap_mb: int
    progress: Progress | None
    """Called with short texts during downloads."""


class ServerProcess:
    """The base of the embedded servers. A subclass provides the configuration and the test for readiness.

    A stopped or killed server keeps its port and its data, and can be started again. ``close()``, or the end of the
    ``with`` block, stops the server. It removes the server's directory unless the caller named the directory.
    """

    kind = "server"
    heap_mb = 128
    """The size of the heap of Java, unless it is given."""

    def __init__(self, directory: Path | str | None = None, **options: Unpack[ProcessOptions]) -> None:
        """Arguments: ``directory`` for data, configuration and log (a temporary one unless given). No I/O."""
        check_options(self, options, ProcessOptions.__optional_keys__)
        port, keep = options.get("port"), options.get("keep")
        self._heap_mb = options.get("heap_mb", self.heap_mb)
        self._progress = options.get("progress")
        self._given_directory = Path(directory).absolute() if directory is not None else None
        self._keep = keep if keep is not None else directory is not None
        self._directory: Path | None = None
        self._port = port
        self._port_is_fixed = port is not None
        self._process: Launched | None = None
        self.removed_after_crash: Path | None = None
        """The directory to remove if this process ends without ``close``. Default: its own, unless it is kept."""

    # provided by subclasses

    def _configure(self, directory: Path, port: int) -> Sequence[str]:
        """Write the configuration and return the command."""
        raise NotImplementedError

    def _is_ready(self, deadline: Deadline) -> bool:
        """Return whether the server is ready. Asks it once."""
        raise NotImplementedError

    def _before_start(self, deadline: Deadline) -> None:
        """Wait for the conditions of a start."""

    # for callers

    @property
    def directory(self) -> Path:
        """The directory of data, configuration and log. Raises: RuntimeError before the first start."""
        if self._directory is None:
            raise RuntimeError(f"the {self.kind} was never started")
        return self._directory

    @property
    def port(self) -> int:
        """The port on 127.0.0.1. Raises: RuntimeError before the first start, unless it was given."""
        if self._port is None:
            raise RuntimeError(f"the {self.kind} was never started")
        return self._port

    @property
    def pid(self) -> int | None:
        """The process id of the server, None if it does not run."""
        return self._process.pid if self._process is not None and self._process.running else None

    @property
    def running(self) -> bool:
        """Whether the process exists. A suspended process does."""
        return self.pid is not None

    @property
    def log(self) -> Path:
        """The file with the server's output."""
        return self.directory / "server.log"

    def start(self, deadline: Deadline | float = START_TIMEOUT_S) -> Self:
        """Start the server unless it runs, and return once it is ready.

        Raises: ServerStartError with the tail of the log, JavaNotFoundError, JarResolutionError.
        """
        if self.running:
            return self
        deadline = as_deadline(deadline)
        self._before_start(deadline)
        atexit.unregister(self.close_at_exit)  # one that was stopped before is registered still
        atexit.register(self.close_at_exit, os.getpid())
        if self._directory is None:
            if self._given_directory is not None:
                self._given_directory.mkdir(parents=True, exist_ok=True)
            self._directory = self._given_directory or Path(tempfile.mkdtemp(prefix=f"zkconsumer-{self.kind}-"))
        for _ in range(_PORT_TRIES):
            port = self._port if self._port is not None else free_port()
            if self._start_once(port, deadline):
                self._port, self._port_is_fixed = port, True  # clients know it from now on
                return self
        raise ServerStartError(f"the {self.kind} did not start in {_PORT_TRIES} tries:\n{tail(self.log)}")

    def _start_once(self, port: int, deadline: Deadline) -> bool:
        """Start the server on a port. Return False if the next try may do better."""
        if not is_free(port):  # a broker registers before it listens, so the other program would pass for the broker
            return self._give_port_up(port)
        command = self._configure(self.directory, port)
        written = self.log.stat().st_size if self.log.exists() else 0
        doomed = self.removed_after_crash or (None if self._keep else self.directory)
        try:
            self._process = Launched(command, self.log, remove=[doomed] if doomed is not None else [])
            self._port = port
            while not self._is_ready(deadline):
                if not self._process.running:
                    said = self._log_from(written)
                    if _BIND_FAILED.search(said):
                        self._ended()
                        return self._give_port_up(port)
                    if _SESSION_LOST.search(said):
                        self._ended()
                        return False
                    raise ServerStartError(f"the {self.kind} ended while starting:\n{tail(self.log)}")
                if deadline.expired:
                    raise ServerStartError(f"the {self.kind} was not ready in time:\n{tail(self.log)}")
                sleep(deadline.bounded(_POLL_S))
        except BaseException:
            self.kill()
            raise
        return True

    def _give_port_up(self, port: int) -> Literal[False]:
        """Let the next try take another port. Raises: ServerStartError if the port was given."""
        if self._port_is_fixed:
            raise ServerStartError(
                f"the {self.kind} cannot have port {port}, which another program uses (Address already in use):"
                " end that one, or choose another port"
            )
        self._port = None
        return False

    def _log_from(self, position: int) -> str:
        with self.log.open(errors="replace") as file:
            file.seek(position)
            return file.read()

    def _ended(self) -> None:
        if self._process is not None:
            self._process.wait(_KILL_TIMEOUT_S)
        self._process = None

    def stop(self, deadline: Deadline | float = STOP_TIMEOUT_S) -> None:
        """End the server: SIGTERM, then SIGKILL after the deadline. Port and data stay for another start."""
        if self._process is not None:
            self._process.send(signal.SIGCONT)  # a suspended process would not react to SIGTERM
            self._process.send(signal.SIGTERM)
            if not self._process.wait(as_deadline(deadline).bounded(STOP_TIMEOUT_S)):
                self.kill()
            self._ended()

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash does. Raises: ServerStopError if it survives."""
        if self._process is not None:
            self._process.send(signal.SIGKILL)
            if not self._process.wait(_KILL_TIMEOUT_S):
                raise ServerStopError(f"the {self.kind} (process {self._process.pid}) survived SIGKILL")
            self._ended()

    def suspend(self) -> None:
        """Suspend the server (SIGSTOP). Connections stay, without answers. Raises: RuntimeError if it does not run."""
        self._require_running().send(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a suspended server (SIGCONT). Raises: RuntimeError if it does not run."""
        self._require_running().send(signal.SIGCONT)

    def _require_running(self) -> Launched:
        if self._process is None or not self._process.running:
            raise RuntimeError(f"the {self.kind} is not running")
        return self._process

    def close(self, deadline: Deadline | float = STOP_TIMEOUT_S) -> None:
        """Stop the server and remove its directory, unless it is kept. May be called again."""
        self.stop(deadline)
        atexit.unregister(self.close_at_exit)
        if self._directory is not None and not self._keep:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def close_at_exit(self, owner: int) -> None:
        """Close the server at the exit of the process that started it."""
        if os.getpid() == owner:  # otherwise the exit of a forked child would end its parent's servers
            self.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def log4j_options(directory: Path, levels: Mapping[str, str]) -> list[str]:
    """Write the configuration files of log4j 1 and 2, and return the JVM options that name them.

    Arguments: ``levels`` of single loggers, by name. A server has one of the two log4j, which ignores the other's file.
    """
    one, two = directory / "log4j.properties", directory / "log4j2.properties"
    one.write_text(_LOG4J_1 + "".join(f"log4j.logger.{name}={level}\n" for name, level in levels.items()))
    two.write_text(
        _LOG4J_2
        + "".join(
            f"logger.l{number}.name = {name}\nlogger.l{number}.level = {level.lower()}\n"
            for number, (name, level) in enumerate(levels.items())
        )
    )
    return [f"-Dlog4j.configuration={one.as_uri()}", f"-Dlog4j2.configurationFile={two.as_uri()}"]


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    """Write a Java properties file. Values are converted by ``str`` and escaped."""
    path.write_text("".join(f"{key}={_escaped(str(value))}\n" for key, value in properties.items()), encoding="ascii")


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(code) if 32 <= code < 127 and code != _BACKSLASH else f"\\u{code:04x}" for code in codes)
