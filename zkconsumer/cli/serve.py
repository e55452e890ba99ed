"""``zkconsumer serve``: a page, metrics and JSON about groups, over HTTP."""

from __future__ import annotations

import argparse
import logging
import platform
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from types import FrameType

from zkconsumer.cli.source_arguments import add_source_arguments, open_source
from zkconsumer.errors import ConfigException
from zkconsumer.operations.serving.bounded_http import ListenAddress, listen_address
from zkconsumer.operations.serving.group_history import GroupHistory
from zkconsumer.operations.serving.history_file import DAY, Limits
from zkconsumer.operations.serving.http_server import AccessRules, GroupServer, Routes, ServeOptions, checked_token
from zkconsumer.operations.serving.metrics_text import MetricsLevel
from zkconsumer.operations.serving.poller import Poller

DESCRIPTION = """\
Reads all groups again and again, and answers over HTTP. It writes nothing to ZooKeeper
or Kafka, and to disk only the FILE of --history.

  zkconsumer serve --zookeeper HOST:2181/CHROOT --listen 127.0.0.1:8089

  /              a live page                  /metrics    for Prometheus
  /api/groups    JSON of all groups           /v3/kafka   Burrow's paths and JSON
  /api/groups/G  JSON of one group            /healthz    /readyz
  /prometheus-alerts.yml  alerting rules      /grafana-dashboard.json  a dashboard

On an address that other machines reach, every request but those of probes needs the
token in --token-file: as "Authorization: Bearer TOKEN", or as ?token=TOKEN once in a
browser. The connection is not encrypted: put a proxy with TLS before it.

Ends at Ctrl-C and SIGTERM. Exit codes: 0 after SIGTERM, 130 after Ctrl-C, 1 if it
cannot start, 2 wrong usage.
"""

_DEFAULT_LISTEN = "127.0.0.1:8089"
_CLOSE_SECONDS = 5.0
_CUT_SHORT = "ended before a server or the disk had answered; the file of --history may lack the last minute"
_MALLOC = (-8, 1), (-3, 1 << 17), (-1, 1 << 17)  # M_ARENA_MAX, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD of malloc.h
_MOST_TOKEN_BYTES = 4096
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".yml": "application/yaml; charset=utf-8",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--listen", default=_DEFAULT_LISTEN, metavar="HOST:PORT", help="default: %(default)s; port 0 takes a free one"
    )
    parser.add_argument("--token-file", metavar="FILE", help="a file with the token; needed off loopback")
    parser.add_argument(
        "--interval", type=_seconds, default=10.0, metavar="S", help="seconds between readings (default: %(default)g)"
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="G",
        help="watch this group only; may be repeated (default: all)",
    )
    parser.add_argument(
        "--no-time-lag", action="store_true", help="do not read the messages at the committed offsets for lags in time"
    )
    parser.add_argument(
        "--metrics-level",
        choices=[level.name.lower() for level in reversed(MetricsLevel)],
        default="partition",
        help="how far down the samples of /metrics go (default: %(default)s)",
    )
    parser.add_argument(
        "--cluster-name", default="local", metavar="NAME", help="the cluster in Burrow's paths (default: %(default)s)"
    )
    _add_history_arguments(parser)
    add_source_arguments(parser)


def _add_history_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--history", metavar="FILE", help="keep lags, rates, rebalances and findings in this SQLite file"
    )
    parser.add_argument(
        "--history-days",
        type=_number,
        default=8,
        metavar="D",
        help="delete what is older than so many days (default: %(default)s)",
    )
    parser.add_argument(
        "--history-size",
        type=_number,
        default=256,
        metavar="MB",
        help="the most megabytes of the file; the oldest part gives way (default: %(default)s)",
    )


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and 1 <= int(text) <= 100_000):
        raise argparse.ArgumentTypeError(f"{text!a} is no number from 1 to 100000")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!a} is no number of seconds from 1 to 86400")
    return seconds


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal. Return the exit code. Raises: ConfigException, KeyboardInterrupt."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    logging.getLogger("zkconsumer.zookeeper.kazoo").setLevel(logging.ERROR)  # it warns at each try to connect
    return_memory()
    address = listen_address(arguments.listen)
    rules = AccessRules(address, _token(arguments.token_file))
    with open_source(arguments):
        pass  # wrong options are told now, and not by a thread later
    server = _server(arguments, address, rules)
    with _until_terminated() as terminated:
        try:
            server.start()
            print(f"Serving on {server.url}", flush=True)
            while not terminated.wait(1.0):
                pass
        finally:
            if not server.close(_CLOSE_SECONDS):
                print(f"zkconsumer serve: {_CUT_SHORT}", file=sys.stderr)
    return 0


def return_memory() -> None:
    """Let glibc give freed memory back. With its own settings it keeps a heap for each thread, and large blocks."""
    with suppress(ImportError, OSError, AttributeError):  # a Python without libffi, another C library
        import ctypes

        for option, value in _MALLOC:
            ctypes.CDLL(None).mallopt(option, value)


def _server(arguments: argparse.Namespace, address: ListenAddress, rules: AccessRules) -> GroupServer:
    """Return the server, not yet started. Raises: ConfigException if the port cannot be had."""
    poller = Poller(
        lambda: open_source(arguments),
        arguments.interval,
        arguments.group,
        message_times=not arguments.no_time_lag,
        histories=bool(arguments.snapshots),
    )
    limits = Limits(arguments.history_size * 1_000_000, arguments.history_days * DAY)
    history = GroupHistory(lambda: poller.board, arguments.history, limits)
    options = ServeOptions(
        arguments.cluster_name,
        platform.node(),
        arguments.interval,
        page_files(),
        as_taken=bool(arguments.snapshots),
        metrics_level=MetricsLevel[arguments.metrics_level.upper()],
    )
    return GroupServer(address, Routes(lambda: poller.board, rules, options, history), poller, history)


@contextmanager
def _until_terminated() -> Iterator[threading.Event]:
    """Yield the event that SIGTERM sets."""
    terminated = threading.Event()

    def terminate(number: int, frame: FrameType | None) -> None:
        terminated.set()

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)


def _token(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        with Path(name).open("rb") as file:
            content = file.read(_MOST_TOKEN_BYTES)
        return checked_token(content.decode("ascii"), name)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise ConfigException("--token-file", f"{name} cannot be read: {why}") from None


def page_files() -> dict[str, tuple[bytes, str]]:
    """Return the files of the page, and those for Prometheus and Grafana, with their types, by name."""
    found = {}
    for folder in ("page", "monitoring"):
        files = resources.files("zkconsumer.operations.serving") / folder
        for file in files.iterdir() if files.is_dir() else ():
            kind = _TYPES.get(Path(file.name).suffix)
            if kind is not None and file.is_file():
                found[file.name] = file.read_bytes(), kind
    return found
