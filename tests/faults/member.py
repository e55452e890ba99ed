"""A member process that logs all its actions: ``python -m tests.faults.member CONFIG``.

CONFIG is a JSON file:
- ``name`` and ``log``; ``control``, a named pipe with one JSON command in each line
- ``properties`` of the connector; ``topics`` (name -> streams), or ``whitelist`` with ``streams``
- ``work``: seconds of work for each message; ``limits``: resource limits by name

Each stream has its own thread, and the main thread waits for SIGTERM or a command. Two threads belong to the harness:
one reads the commands, the other logs each change of the connector's state.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.faults.events import EventLog
from tests.internals import find_kazoo_client, find_member
from zkconsumer import ConsumerRebalanceListener, ConsumerTimeoutException, Whitelist, ZookeeperConsumerConnector
from zkconsumer.zookeeper import ownership_transactions

LOOK_EVERY_S = 0.025
USAGE_EVERY_S = 2.0
LEAVING_S = 3.0
_real_time = time.time


class Listener(ConsumerRebalanceListener):
    """A listener that logs its calls."""

    def __init__(self, log: EventLog) -> None:
        self.log = log

    def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        self.log("releasing", tps=_flat(partitions))

    def on_partitions_lost(self, partitions: Mapping[str, frozenset[int]]) -> None:
        self.log("lost", tps=_flat(partitions))


def _flat(partitions: Mapping[str, frozenset[int]]) -> list[str]:
    return [f"{topic}-{number}" for topic, numbers in partitions.items() for number in sorted(numbers)]


def note_writes(log: EventLog) -> None:
    """Log every claim, commit and release with its result."""

    def noted(name: str, write: Callable[..., dict[Any, ownership_transactions.Outcome]]) -> Callable[..., Any]:
        def call(session: Any, group: str, wanted: Any, deadline: Any) -> Any:
            begin = time.monotonic_ns()
            try:
                outcomes = write(session, group, wanted, deadline)
            except Exception as error:
                log.at(begin, name, tps={str(one.partition): _offset(one) for one in wanted}, error=repr(error))
                raise
            refused = {
                str(tp): outcome.name
                for tp, outcome in outcomes.items()
                if outcome is not ownership_transactions.Outcome.DONE
            }
            if wanted:
                took = time.monotonic_ns() - begin
                log.at(
                    begin, name, tps={str(one.partition): _offset(one) for one in wanted}, refused=refused, took=took
                )
            return outcomes

        return call

    for name in ("claim", "commit", "release"):
        setattr(ownership_transactions, name, noted(name, getattr(ownership_transactions, name)))


def _offset(wanted: Any) -> int | None:
    return wanted.known.offset if isinstance(wanted, ownership_transactions.Claim) else wanted.offset


def descriptors() -> dict[str, str]:
    """Return the target of each open descriptor of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 (no descriptor stays open)
        with contextlib.suppress(OSError):
            found[name] = str(Path(f"/proc/self/fd/{name}").readlink())
    return {name: target for name, target in found.items() if not target.startswith("/proc/")}


def threads() -> list[str]:
    """Return the names of all threads except the harness's."""
    return sorted(t.name for t in threading.enumerate() if not t.name.startswith(("harness-", "MainThread")))


class LoggingMember:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.log = EventLog(Path(config["log"]), config["name"], role="member")
        self.work = float(config.get("work", 0.0))
        self.once: deque[tuple[str, float]] = deque()  # what befalls the next messages
        self.ended = threading.Event()
        self.connector = ZookeeperConsumerConnector(config["properties"])
        self.connector.set_consumer_rebalance_listener(Listener(self.log))
        self.failed = False
        self.readers: list[threading.Thread] = []

    # ---- life ----

    def run(self) -> None:
        signal.signal(signal.SIGTERM, lambda *_: self.ended.set())
        control = os.open(self.config["control"], os.O_RDWR)  # so that it never ends
        self._start("harness-control", self._control, control)
        before = (threads(), descriptors())
        self.log("baseline", threads=before[0], fds=len(before[1]))
        for name, limit in self.config.get("limits", {}).items():
            number = getattr(resource, f"RLIMIT_{name}")
            resource.setrlimit(number, (limit, resource.getrlimit(number)[1]))
        if self.config.get("no_threads"):
            _refuse_threads(int(self.config["no_threads"]))
        note_writes(self.log)
        self._start("harness-sampler", self._sample)
        try:
            streams = self._streams()
        except BaseException as error:
            self.failed = True
            self.log("failed", error=repr(error))
        else:
            self.log("ready", consumer=self.connector.consumer_id, streams=[s.name for s in streams])
            self._read_all(streams)
        self._close()
        self._leave(*before)

    def _streams(self) -> list[Any]:
        if "whitelist" in self.config:
            whitelist = Whitelist(self.config["whitelist"])
            return list(self.connector.create_message_streams_by_filter(whitelist, self.config.get("streams", 1)))
        made = self.connector.create_message_streams(self.config["topics"])
        return [stream for streams in made.values() for stream in streams]

    def _read_all(self, streams: list[Any]) -> None:
        for number, stream in enumerate(streams):
            self.readers.append(self._start(f"harness-reader-{number}", self._read, stream, number))
        while not self.ended.wait(0.2) and any(reader.is_alive() for reader in self.readers):
            pass

    def _close(self) -> None:
        """Shut down and log the time it took."""
        begin = time.monotonic_ns()
        self.log.at(begin, "close_begin", where="main")
        try:
            self.connector.shutdown()
        except BaseException as error:
            self.log("error", where="shutdown", error=repr(error))
        self.log("close_end", where="main", seconds=(time.monotonic_ns() - begin) / 1e9)
        self.ended.set()

    def _leave(self, threads_before: list[str], descriptors_before: dict[str, str]) -> None:
        for reader in self.readers:
            reader.join(2 * LEAVING_S)
        stuck = [reader.name for reader in self.readers if reader.is_alive()]
        end = time.monotonic() + LEAVING_S
        while True:
            # a thread may end a moment after the wait for it: only a thread that never ends is a leak
            leaked = [name for name in threads() if name not in threads_before]
            now = descriptors()
            sockets = sorted(set(now.values()) - set(descriptors_before.values()))
            if (not leaked and not sockets) or time.monotonic() > end:
                break
            time.sleep(0.02)
        self.log("leftover", threads=leaked, fds=sockets, stuck=stuck, failed=self.failed)

    def _start(self, name: str, target: Callable[..., None], *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        thread.start()
        return thread

    # ---- reading ----

    def _read(self, stream: Any, number: int) -> None:
        while True:
            try:
                for message in stream:
                    at = time.monotonic_ns()
                    tp, value = f"{message.topic}-{message.partition}", (message.value or b"").decode(errors="replace")
                    self.log.at(at, "h", tp=tp, o=message.offset, v=value[:40], th=number)
                    self._handle(tp, message.offset)
                    self.log("d", tp=tp, o=message.offset, th=number)
                self.log("stream_end", th=number)
                return
            except ConsumerTimeoutException:
                continue
            except _HandlerFailed as failure:
                # what an application does whose handler fails: leave the connector's block by the exception
                self.log("error", where="handler", error=repr(failure))
                begin = time.monotonic_ns()
                self.log.at(begin, "close_begin", where="exception")
                self.connector.__exit__(type(failure), failure, None)
                self.log("close_end", where="exception", seconds=(time.monotonic_ns() - begin) / 1e9)
                self.ended.set()
                return
            except Exception as error:
                self.log("error", where="stream", error=repr(error), th=number)
                if self.ended.wait(0.2):
                    return

    def _handle(self, tp: str, offset: int) -> None:
        if self.once:
            what, seconds = self.once.popleft()
            self.log("befallen", what=what, tp=tp, o=offset, seconds=seconds)
            if what == "raise":
                raise _HandlerFailed(f"cannot handle {tp} {offset}")
            time.sleep(seconds)
        if self.work:
            time.sleep(self.work)

    # ---- the harness ----

    def _sample(self) -> None:
        seen: tuple[Any, ...] = ()
        usage_due = 0.0
        while True:
            state = self.connector.state
            session = self._identity()
            now = (state.phase, state.owned, state.wanted, state.rebalances, str(state), session)
            if now != seen:
                if session != (seen[-1] if seen else None) and session is not None:
                    self.log("session", id=session[0], password=session[1], timeout=self._timeout())
                seen = now
                self.log(
                    "state", phase=state.phase.value, owned=state.owned, wanted=state.wanted, rounds=state.rebalances,
                    text=str(state)[:2000], session=session[0] if session else 0,
                )  # fmt: skip
            if time.monotonic() >= usage_due:
                usage_due = time.monotonic() + USAGE_EVERY_S
                self._usage()
            time.sleep(LOOK_EVERY_S)

    def _usage(self) -> None:
        mine = time.thread_time()
        with Path("/proc/self/statm").open() as statm:
            pages = int(statm.read().split()[1])
        self.log(
            "usage", cpu=time.process_time() - mine, rss=pages * os.sysconf("SC_PAGE_SIZE"),
            threads=threading.active_count(), fds=len(descriptors()),
        )  # fmt: skip

    def _session(self) -> Any:
        member = find_member(self.connector)
        return None if member is None else member.coordination.session

    def _client(self) -> Any:
        session = self._session()
        return None if session is None else find_kazoo_client(session)

    def _identity(self) -> tuple[int, str] | None:
        client = self._client()
        identity = None if client is None else client.client_id
        return None if not identity or not identity[0] else (_signed(identity[0]), identity[1].hex())

    def _timeout(self) -> float:
        session = self._session()
        return 0.0 if session is None else float(session.timeout)

    def _control(self, descriptor: int) -> None:
        with os.fdopen(descriptor) as lines:
            for line in lines:
                command = json.loads(line)
                self.log("command", **command)
                try:
                    getattr(self, f"_do_{command.pop('do')}")(**command)
                except BaseException as error:
                    self.log("error", where="command", error=repr(error))

    def _do_befall(self, what: str, seconds: float = 0.0, times: int = 1) -> None:
        self.once.extend([(what, seconds)] * times)

    def _do_forget_session(self) -> None:
        """Make kazoo believe that its session has expired, although it has not."""
        from kazoo.protocol.connection import _SESSION_EXPIRED

        client = self._client()
        client._call(_SESSION_EXPIRED, client.handler.async_result())

    def _do_clock(self, step: float = 0.0, slew: float = 1.0, freeze: bool = False) -> None:
        """Change the wall clock of this process."""
        begin = _real_time()

        def lie() -> float:
            return begin + step if freeze else begin + step + (_real_time() - begin) * slew

        time.time = lie
        time.time_ns = lambda: int(lie() * 1e9)

    def _do_commit(self, timeout: float = 2.0, times: int = 1, pause: float = 0.5) -> None:
        """Call the user's methods and log the time of each call."""

        def calls() -> None:
            for _ in range(times):
                for name, call, limit in (
                    ("commit_offsets", lambda: self.connector.commit_offsets(timeout=timeout), timeout),
                    ("state", lambda: self.connector.state, 0.1),
                    ("assignment", self.connector.assignment, 0.1),
                ):
                    begin = time.monotonic_ns()
                    try:
                        call()
                        outcome = "done"
                    except Exception as error:
                        outcome = repr(error)[:200]
                    seconds = (time.monotonic_ns() - begin) / 1e9
                    self.log("call", name=name, seconds=seconds, limit=limit, outcome=outcome)
                time.sleep(pause)

        self._start("harness-caller", calls)


class _HandlerFailed(Exception):
    pass


def _refuse_threads(after: int) -> None:
    """Refuse the start of further threads beyond a number, without the harness's."""
    start, lock, started = threading.Thread.start, threading.Lock(), [0]

    def refusing(thread: threading.Thread) -> None:
        if not thread.name.startswith("harness-"):
            with lock:
                started[0] += 1
                if started[0] > after:
                    raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refusing  # type: ignore[method-assign, assignment]


def _signed(number: int) -> int:
    return number - (1 << 64) if number >= 1 << 63 else number


def main() -> None:
    config = json.loads(Path(sys.argv[1]).read_text())
    # the format of a test's own, with the clock of the events
    logging.Formatter.default_time_format = "%H:%M:%S"
    level = getattr(logging, config.get("log_level", "INFO"))
    logging.basicConfig(level=level, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    LoggingMember(config).run()


if __name__ == "__main__":
    main()
