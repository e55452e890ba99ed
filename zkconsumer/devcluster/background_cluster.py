"""The background cluster of ``zkconsumer dev up``, ``status`` and ``down``.

A supervisor process (``python -m zkconsumer.devcluster.background_cluster``) owns the cluster. While it lives, it holds
a lock on a file in the cache folder. This lock says whether the cluster is up; a process id could belong to another
process by now. A state file beside it describes the running servers. When the supervisor dies, its servers end with it
(``launcher.py``) and the lock is free. Then a remaining state file is stale.

Functions only. Each call is independent, from any process of the same user.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from threading import Event
from time import sleep, time

from zkconsumer.devcluster.cluster_errors import DevClusterError, OtherClusterError, ServerStartError, ServerStopError
from zkconsumer.devcluster.dev_cluster import DevCluster
from zkconsumer.devcluster.download_cache import cache_directory, locked, write_atomically
from zkconsumer.devcluster.kafka_server import DEFAULT_KAFKA, kafka_jars
from zkconsumer.devcluster.server_process import as_deadline, is_free, tail
from zkconsumer.devcluster.zookeeper_server import zookeeper_jars
from zkconsumer.runtime.deadline import Deadline

UP_TIMEOUT_S = 90.0
DOWN_TIMEOUT_S = 30.0
_POLL_S = 0.05
_LOCK_PATIENCE_S = 2.0  # a call of ``status`` holds the lock for a moment
_OLD_SERVERS_PATIENCE_S = 20.0
_LOG_TAIL_LINES = 40
_ALREADY_UP = 4


class ClusterHealth(Enum):
    """The health of the background cluster."""

    UP = "up"
    STARTING = "starting"
    BROKEN = "broken"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state file that the supervisor wrote once all servers were ready. ``started`` is in seconds since 1970."""

    pid: int
    zookeeper_connect: str
    bootstrap_servers: str
    servers: dict[str, int]
    directory: str
    kafka_version: str
    started: float


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The status of the background cluster.

    ``ended`` are servers that run no more. ``stale`` means that the last cluster ended without ``down``.
    """

    health: ClusterHealth
    state: ClusterState | None = None
    ended: tuple[str, ...] = ()
    stale: bool = False


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options of a background cluster.

    Defaults: the version ``DEFAULT_KAFKA``, free ports, a temporary directory. A cluster that is up already suits an
    option with its default, whatever it has.
    """

    kafka_version: str | None = None
    zookeeper_port: int = 0
    kafka_port: int = 0
    directory: str | None = None


def _home() -> Path:
    return cache_directory() / "dev"


def _lock_file() -> Path:
    return _home() / "supervisor.lock"


def _state_file() -> Path:
    return _home() / "state.json"


def log_file() -> Path:
    """Return the supervisor's log file. The servers' own logs are in the cluster's directory."""
    return _home() / "supervisor.log"


def _supervised() -> bool:
    """Return whether a supervisor holds the lock."""
    try:
        with _lock_file().open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def _read_state() -> ClusterState | None:
    try:
        return ClusterState(**json.loads(_state_file().read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def status() -> ClusterStatus:
    """Return the status of the background cluster. Takes milliseconds and changes nothing."""
    supervised = _supervised()
    state = _read_state()
    if not supervised:
        return ClusterStatus(ClusterHealth.DOWN, stale=state is not None)
    if state is None:
        return ClusterStatus(ClusterHealth.STARTING)
    ended = tuple(name for name, pid in state.servers.items() if not _exists(pid))
    return ClusterStatus(ClusterHealth.BROKEN if ended else ClusterHealth.UP, state, ended)


def up(options: ClusterOptions | None = None, deadline: Deadline | float = UP_TIMEOUT_S) -> tuple[ClusterState, bool]:
    """Start the background cluster unless it is up, and return once it serves.

    Returns: the cluster's state, and whether this call started the cluster. ``deadline`` (seconds) does not include the
    first download of the jars. Raises: OtherClusterError, ServerStartError, JavaNotFoundError, JarResolutionError.
    """
    options = options or ClusterOptions()
    present = status()
    if present.health is ClusterHealth.UP and present.state is not None:
        return _suitable(present.state, options), False
    if present.health is ClusterHealth.BROKEN:
        raise DevClusterError(f"the cluster is broken ({', '.join(present.ended)} ended): zkconsumer dev down, then up")
    zookeeper_jars()
    kafka_jars(options.kafka_version or DEFAULT_KAFKA)
    deadline = as_deadline(deadline)
    if present.stale:  # the servers of a dead supervisor may still have the ports and the directory
        _wait_for_old_servers()
    supervisor = None
    # an interrupt waits until we know the process that it is to end; the supervisor inherits that
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        supervisor = _start_supervisor(options)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        while True:
            code = supervisor.poll()
            now = status()
            if now.state is not None and now.health is not ClusterHealth.DOWN:
                if now.state.pid != supervisor.pid:
                    _end(supervisor)  # another supervisor came first, and ours must not become the next
                    return _suitable(now.state, options), False
                supervisor.returncode = 0  # the supervisor outlives this process, so Popen must not wait
                return now.state, True
            if code is not None and not (code == _ALREADY_UP and now.health is ClusterHealth.STARTING):
                raise ServerStartError(f"the cluster did not start:\n{tail(log_file(), _LOG_TAIL_LINES)}")
            if deadline.expired:
                raise ServerStartError(f"the cluster was not ready in time:\n{tail(log_file(), _LOG_TAIL_LINES)}")
            sleep(deadline.bounded(_POLL_S))
    except BaseException:  # also after Ctrl-C, a cluster that is not ready must not stay behind
        if supervisor is not None:
            _end(supervisor)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _suitable(state: ClusterState, options: ClusterOptions) -> ClusterState:
    """Return the state of the running cluster if it has all that the options ask for. Raises: OtherClusterError."""
    asked = {
        "--zookeeper-port": (options.zookeeper_port, _port(state.zookeeper_connect)),
        "--kafka-port": (options.kafka_port, _port(state.bootstrap_servers)),
        "--kafka-version": (options.kafka_version, state.kafka_version),
        "--directory": (options.directory and _real(options.directory), _real(state.directory)),
    }
    missing = [
        f"{name} {wanted} (it has {present})"
        for name, (wanted, present) in asked.items()
        if wanted and wanted != present
    ]
    if missing:
        raise OtherClusterError(
            f"another cluster is up, without {', '.join(missing)}. Nothing was started or changed.\n"
            f"It serves zookeeper.connect={state.zookeeper_connect} and bootstrap.servers={state.bootstrap_servers}"
            f" (Kafka {state.kafka_version}, process {state.pid}, data in {state.directory}).\n"
            "To end it: zkconsumer dev down"
        )
    return state


def _port(address: str) -> int:
    return int(address.rpartition(":")[2])


def _real(directory: str) -> str:
    return str(Path(directory).resolve())


def _end(supervisor: subprocess.Popen[bytes]) -> None:
    supervisor.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        supervisor.wait(DOWN_TIMEOUT_S)
        return
    supervisor.kill()
    supervisor.wait(_LOCK_PATIENCE_S)


def _start_supervisor(options: ClusterOptions) -> subprocess.Popen[bytes]:
    _home().mkdir(parents=True, exist_ok=True)
    with log_file().open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "zkconsumer.devcluster.background_cluster", json.dumps(asdict(options))],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )


def down(deadline: Deadline | float = DOWN_TIMEOUT_S) -> bool:
    """End every process of the background cluster. Return whether there was one.

    Raises: ServerStopError if the supervisor survives.
    """
    deadline = as_deadline(deadline)
    there = _supervised()
    for number in (signal.SIGTERM, signal.SIGKILL):
        supervisor = _supervisor_pid()
        if not _supervised() or supervisor is None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.kill(supervisor, number)
        patience = Deadline(deadline.bounded(DOWN_TIMEOUT_S) if number == signal.SIGTERM else _LOCK_PATIENCE_S)
        while _supervised() and not patience.expired:
            sleep(_POLL_S)
    if _supervised():
        raise ServerStopError(f"the cluster's supervisor does not end (process {_supervisor_pid()})")
    _wait_for_old_servers()
    return there


def _wait_for_old_servers() -> None:
    """Wait until the servers of a killed supervisor end too, and remove its state file.

    Other processes may have their ids by now. These are waited for only a moment if the ports are free.
    """
    state = _read_state()
    if state is not None:
        moment, gone = Deadline(_LOCK_PATIENCE_S), Deadline(_OLD_SERVERS_PATIENCE_S)
        while any(map(_exists, state.servers.values())) and not gone.expired:
            if moment.expired and is_free(_port(state.zookeeper_connect)) and is_free(_port(state.bootstrap_servers)):
                break
            sleep(_POLL_S)
        _state_file().unlink(missing_ok=True)


def _supervisor_pid() -> int | None:
    try:
        return int(_lock_file().read_text())
    except (FileNotFoundError, ValueError):
        return None


def _supervise(options: ClusterOptions, ended: Event) -> None:
    """Run the cluster until ``ended`` is set. Runs in the supervisor process, under its lock."""
    _state_file().unlink(missing_ok=True)
    _lock_file().write_text(str(os.getpid()))
    version = options.kafka_version or DEFAULT_KAFKA
    with DevCluster(
        directory=options.directory,
        kafka_version=version,
        zookeeper_port=options.zookeeper_port or None,
        broker_port=options.kafka_port or None,
        broker_properties={"auto.create.topics.enable": "true"},  # as in a broker with default settings
    ) as cluster:
        servers = {"zookeeper": cluster.zookeeper, **{f"kafka {b.broker_id}": b for b in cluster.brokers}}
        state = ClusterState(
            pid=os.getpid(),
            zookeeper_connect=cluster.zookeeper_connect,
            bootstrap_servers=cluster.bootstrap_servers,
            servers={name: server.pid or 0 for name, server in servers.items()},
            directory=str(cluster.directory),
            kafka_version=version,
            started=time(),
        )
        write_atomically(_state_file(), json.dumps(asdict(state), indent=2))
        try:
            ended.wait()
        finally:
            _state_file().unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the supervisor process. Its only argument is the options as JSON."""
    parser = argparse.ArgumentParser(description="hold a cluster up in the background; started by: zkconsumer dev up")
    parser.add_argument("options", type=json.loads)
    options = ClusterOptions(**parser.parse_args(arguments).options)

    def end(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the terminal that started it may close
    try:
        with locked(_lock_file(), Deadline(_LOCK_PATIENCE_S)):
            log_file().write_text("")
            _supervise(options, Event())
    except TimeoutError:
        return _ALREADY_UP
    except DevClusterError as error:
        print(error, file=sys.stderr)  # noqa: T201 - this is the supervisor's log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
