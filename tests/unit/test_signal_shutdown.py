"""Signals: a process that is told to end finishes the message in hand, commits it, and loses and repeats nothing.

What happened: ``shutdown()`` in a signal handler committed the message that the handler had interrupted, so a SIGKILL
that followed lost it. A handler of ``run`` that took longer than 1.5 s was committed by nobody, and nobody said so.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from tests.internals import member_of
from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from zkconsumer import ZookeeperConsumerConnector, shutdown_on_signal
from zkconsumer.connector.lifecycle import in_signal_handler
from zkconsumer.errors import ConfigException, ConnectorClosedException, OffsetCommitError
from zkconsumer.member import close_times
from zkconsumer.member.connector_state import Phase
from zkconsumer.testing import FakeCluster

STEPS = [(close_times, name) for name in ("LEAVING", "SPARE", "A_STEP", "FORCED", "SHORTEST")]
"""The times of a close that shrink with it."""
COORDINATIONS = ["zookeeper", "kafka", "bridge"]
Handle = Callable[[Any], None]
Read = Callable[[ZookeeperConsumerConnector, Handle, float], None]
cluster = cluster_with({"t": [[]]})


def properties(cluster: FakeCluster, coordination: str = "zookeeper", **more: Any) -> dict[str, Any]:
    found = {"group.id": "g", "auto.offset.reset": "smallest", "zookeeper.connect": cluster.zookeeper_connect, **more}
    if coordination != "zookeeper":
        found |= {"group.coordination": "kafka", "heartbeat.interval.ms": 100}
    if coordination == "kafka":
        found["bootstrap.servers"] = cluster.bootstrap_servers
    if coordination == "bridge":
        found["group.migration"] = True
    return found


def committed(cluster: FakeCluster, coordination: str = "zookeeper") -> int | None:
    if coordination == "kafka":
        return cluster.committed("g").get(("t", 0))
    node = cluster.zookeeper.node("/consumers/g/offsets/t/0")
    return None if node is None else int(node.data)


@pytest.fixture
def restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def in_a_loop(connector: ZookeeperConsumerConnector, handle: Handle, timeout: float) -> None:
    with connector, shutdown_on_signal(connector, signal.SIGUSR1, timeout=timeout):
        for message in connector.create_message_streams({"t": 1})["t"][0]:
            handle(message)


def by_run(connector: ZookeeperConsumerConnector, handle: Handle, timeout: float) -> None:
    connector.run(handle, "t", stop_on=(signal.SIGUSR1,), shutdown_timeout=timeout)


def with_a_handler_of_its_own(connector: ZookeeperConsumerConnector, handle: Handle, timeout: float) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: connector.shutdown(timeout=timeout))
    with connector:
        for message in connector.create_message_streams({"t": 1})["t"][0]:
            handle(message)


def send_signal() -> None:
    """Send it to the process: a handler of ``run`` has a thread of its own."""
    os.kill(os.getpid(), signal.SIGUSR1)


def streams_have_ended(connector: ZookeeperConsumerConnector) -> bool:
    return all(position.revoked for position in member_of(connector).positions().values())


def has_left(cluster: FakeCluster) -> bool:
    return cluster.zookeeper.tree("/consumers/g/ids") == {}


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("read", [in_a_loop, by_run, with_a_handler_of_its_own])
@pytest.mark.parametrize("coordination", COORDINATIONS)
def test_a_signal_lets_the_message_in_hand_be_finished(cluster: FakeCluster, coordination: str, read: Read) -> None:
    cluster.append("t", 0, [b"x"] * 10)
    connector, taken = ZookeeperConsumerConnector(properties(cluster, coordination)), list[int]()

    def handle(message: Any) -> None:
        taken.append(message.offset)
        if message.offset == 1:
            send_signal()
            eventually(lambda: streams_have_ended(connector), 30, "the end of the streams")

    read(connector, handle, 60.0)
    assert taken == [0, 1]
    assert committed(cluster, coordination) == 2


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("read", [in_a_loop, by_run, with_a_handler_of_its_own])
def test_a_message_that_takes_too_long_is_told_of(cluster: FakeCluster, read: Read) -> None:
    """It was committed by nobody, silently."""
    cluster.append("t", 0, [b"x"] * 10)

    def handle(_: Any) -> None:
        send_signal()
        eventually(lambda: has_left(cluster), 30, "the leave")

    with pytest.raises(OffsetCommitError, match="consumed again, for they are not committed: t-0 at 0"):
        read(ZookeeperConsumerConnector(properties(cluster)), handle, 2.0)
    assert committed(cluster) in (None, 0)


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("read", [in_a_loop, by_run])
def test_a_second_signal_waits_for_no_message(cluster: FakeCluster, read: Read) -> None:
    cluster.append("t", 0, [b"x"] * 10)

    def handle(message: Any) -> None:
        if message.offset == 1:
            send_signal()
            eventually(lambda: committed(cluster) == 1, 30, "a commit of what is finished")
            send_signal()
            eventually(lambda: has_left(cluster), 30, "the leave")

    with pytest.raises(OffsetCommitError, match="consumed again, for they are not committed: t-0 at 1"):
        read(ZookeeperConsumerConnector(properties(cluster)), handle, 600.0)
    assert committed(cluster) == 1


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("coordination", COORDINATIONS)
def test_a_handler_may_commit_while_it_is_waited_for(cluster: FakeCluster, coordination: str) -> None:
    """It raised ConnectorClosedException as soon as the signal had come."""
    cluster.append("t", 0, [b"x"] * 10)
    connector = ZookeeperConsumerConnector(properties(cluster, coordination, **{"auto.commit.enable": False}))

    def handle(_: Any) -> None:
        send_signal()
        eventually(lambda: streams_have_ended(connector), 30, "the end of the streams")
        connector.commit_offsets()

    by_run(connector, handle, 60.0)
    assert committed(cluster, coordination) == 1


class Interrupted:
    """A stream whose reader is in the middle of a message."""

    def __init__(self, cluster: FakeCluster, **options: Any) -> None:
        cluster.append("t", 0, [b"x"] * 5)
        self.connector = ZookeeperConsumerConnector(properties(cluster), **options)
        self.stream = self.connector.create_message_streams({"t": 1})["t"][0]
        assert self.stream.get(timeout=scaled(30)).offset == 0
        assert self.stream.get(timeout=scaled(30)).offset == 1


def handler_of(kind: str, call: Any) -> Any:
    def function(number: int, frame: FrameType | None) -> None:
        call()

    def with_more(more: str, number: int, frame: FrameType | None) -> None:
        call()

    def wrapped(*arguments: Any, **options: Any) -> Any:
        return function(*arguments, **options)

    class Handler:
        def __call__(self, number: int, frame: FrameType | None) -> None:
            call()

    return {
        "function": function,
        "lambda": lambda *_: call(),
        "partial": functools.partial(with_more, "more"),
        "wrapped": wrapped,
        "object": Handler(),
    }[kind]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("kind", ["function", "lambda", "partial", "wrapped", "object"])
def test_a_handler_is_known_as_one(kind: str) -> None:
    found: list[bool] = []
    signal.signal(signal.SIGUSR1, handler_of(kind, lambda: found.append(in_signal_handler())))
    signal.raise_signal(signal.SIGUSR1)
    assert found == [True]
    assert not in_signal_handler()
    handler_of(kind, lambda: found.append(in_signal_handler()))(signal.SIGUSR1, None)
    assert found == [True, False]


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("finished", [True, False])
def test_leaving_the_with_ends_the_wait_for_the_message(cluster: FakeCluster, finished: bool) -> None:
    """A handler shuts down, then the loop is left: nobody asks for the next message, and nobody waits for that."""
    reading = Interrupted(cluster)
    signal.signal(signal.SIGUSR1, lambda *_: reading.connector.shutdown(timeout=600.0))
    signal.raise_signal(signal.SIGUSR1)
    reading.connector.__exit__(*((None, None, None) if finished else (ValueError, ValueError(), None)))
    assert committed(cluster) == (2 if finished else 1)


def closed() -> bool:
    """Whether the thread that a handler left the shutdown to has ended."""
    return not any(thread.name.endswith("-closing") for thread in threading.enumerate())


@pytest.mark.usefixtures("restored")
def test_a_second_shutdown_in_a_handler_waits_for_nothing(cluster: FakeCluster) -> None:
    reading = Interrupted(cluster)
    signal.signal(signal.SIGUSR1, lambda *_: reading.connector.shutdown(timeout=600.0))
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    eventually(closed, 30, "the end")
    assert committed(cluster) == 1
    with pytest.raises(OffsetCommitError, match="t-0 at 1"):
        reading.connector.shutdown()
    reading.connector.shutdown()  # it is raised once


@pytest.mark.parametrize("timeout", [0.0, 0.5, 1.0, 1.8])
def test_a_short_timeout_still_commits(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, timeout: float) -> None:
    """Finished messages need no drain. Below 1.8 s the steps shrink; with 0 only the end is promised.

    All these times are stretched alike: a commit has 0.17 s of the shortest close, and a busy machine may need longer.
    """
    stretched = scaled(20)
    for module, name in STEPS:
        monkeypatch.setattr(module, name, getattr(module, name) * stretched)
    reading = Interrupted(cluster)
    try:
        reading.connector.shutdown(timeout * stretched)
    except OffsetCommitError:
        assert timeout == 0.0
    with pytest.raises(ConnectorClosedException):
        reading.stream.get()
    if timeout:
        assert committed(cluster) == 2


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf")])
def test_a_timeout_must_be_a_time(timeout: float) -> None:
    connector = ZookeeperConsumerConnector(zookeeper_connect="z", group_id="g")
    with pytest.raises(ValueError, match="seconds from 0 on are wanted"):
        connector.shutdown(timeout)
    with pytest.raises(TypeError, match="a number of seconds is wanted, not '5'"):
        connector.shutdown("5")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="seconds"):
        shutdown_on_signal(connector, signal.SIGTERM, timeout=timeout)
    connector.shutdown()


@pytest.mark.usefixtures("restored")
def test_handlers_are_restored() -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    connector = ZookeeperConsumerConnector(zookeeper_connect="z", group_id="g")
    with shutdown_on_signal(connector, signal.SIGTERM, signal.SIGUSR1):
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before
    shutdown_on_signal(connector, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    connector.shutdown()
    assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM], "without with, the end restores them"
    third = shutdown_on_signal(connector, signal.SIGTERM)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    third.restore()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN, "somebody else's"
    eventually(lambda: not [t for t in threading.enumerate() if t.name.endswith("-signals")], 10, "their threads' end")


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("begun", [True, False])
def test_handlers_are_restored_after_a_failed_start(
    error: type[BaseException], begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handlers stayed, and signals were written to the number of a closed socket, which may be another file's."""
    before, original = signal.getsignal(signal.SIGTERM), threading.Thread.start

    def failing(thread: threading.Thread) -> None:
        if begun:
            original(thread)
        raise error

    connector = ZookeeperConsumerConnector(zookeeper_connect="z", group_id="g")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", failing)
        with pytest.raises(error):
            shutdown_on_signal(connector, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1
    eventually(lambda: not [t for t in threading.enumerate() if t.name.endswith("-signals")], 10, "their threads' end")


@pytest.mark.usefixtures("restored")
def test_a_signal_shuts_down_without_another_thread(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gave no thread for the shutdown. The thread of the signals died of that, and nobody closed."""
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.endswith("-closing"):
            raise RuntimeError("can't start new thread")
        original(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    connector = ZookeeperConsumerConnector(properties(cluster))
    with shutdown_on_signal(connector, signal.SIGTERM, timeout=scaled(5)) as guard:
        stream = connector.create_message_streams({"t": 1})["t"][0]
        signal.raise_signal(signal.SIGTERM)
        assert list(stream) == []
        assert guard.received == signal.SIGTERM
    assert connector.state.phase is Phase.CLOSED
    eventually(lambda: not cluster_sessions(cluster), 10, "the end of the session")


def cluster_sessions(cluster: FakeCluster) -> list[int]:
    return [] if cluster.zookeeper_server is None else cluster.zookeeper_server.sessions


@pytest.mark.usefixtures("restored")
def test_handlers_are_restored_after_a_refused_run() -> None:
    """``run(stop_on=...)`` set them before it had looked at all of its arguments."""
    before = signal.getsignal(signal.SIGTERM)
    connector = ZookeeperConsumerConnector(zookeeper_connect="z", group_id="g", share_partitions=True)
    with pytest.raises(ConfigException, match="order='partition'"):
        connector.run(print, "t", concurrency=2, order="partition", stop_on=[signal.SIGTERM])
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("case", ["closed", "dropped", "forked"])
def test_a_signal_that_has_nothing_to_shut_down_is_passed_on(case: str) -> None:
    came: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    connector = ZookeeperConsumerConnector(zookeeper_connect="z", group_id="g")
    guard = shutdown_on_signal(connector, signal.SIGUSR1)
    if case == "closed":
        thread = threading.Thread(target=connector.shutdown)
        thread.start()
        thread.join()
    elif case == "forked":
        connector.lifecycle.left_to_parent(os.getppid())
    else:
        del connector
        gc.collect()
    signal.raise_signal(signal.SIGUSR1)
    assert came == [signal.SIGUSR1]
    assert guard.received is None
    guard.restore()


@pytest.mark.usefixtures("restored")
def test_a_signal_before_streams_are_created(cluster: FakeCluster) -> None:
    connector = ZookeeperConsumerConnector(properties(cluster))
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    with shutdown_on_signal(connector, signal.SIGUSR1) as guard:
        signal.raise_signal(signal.SIGUSR1)
        eventually(lambda: connector.state.phase is Phase.CLOSED, 10, "the end")
        with pytest.raises(ConnectorClosedException):
            connector.create_message_streams({"t": 1})
    assert guard.received == signal.SIGUSR1


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize("reading", ["stream", "merged", "run"])
def test_a_signal_whose_handler_cannot_run_ends_a_loop(cluster: FakeCluster, reading: str) -> None:
    """The main thread waits for a lock, and the system gives the signal to another thread: no wait is interrupted.

    The same is so where the signal comes just before the wait. ``run`` never heard of it.
    """
    connector = ZookeeperConsumerConnector(properties(cluster))

    def signal_here() -> None:
        eventually(lambda: cluster.requests_of("Fetch"), 30, "a member that waits for messages")
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)

    thread = threading.Thread(target=signal_here)
    thread.start()
    if reading == "run":
        connector.run(print, "t", stop_on=(signal.SIGUSR1,))
    else:
        with connector, shutdown_on_signal(connector, signal.SIGUSR1):
            streams = connector.create_message_streams({"t": 1})["t"]
            assert list(connector.messages() if reading == "merged" else streams[0]) == []
    thread.join(scaled(10))
    assert connector.state.phase is Phase.CLOSED


def signal_while_main_waits(*effects: Callable[[], object]) -> None:
    """Send a signal for each effect, and wait for it. The main thread waits meanwhile, and nothing interrupts it."""
    ended = threading.Event()

    def signal_here() -> None:
        ended.wait(0.2)  # until the main thread waits
        for effect in effects:
            signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            eventually(effect, 10, "the effect of a signal")
        ended.set()

    thread = threading.Thread(target=signal_here)
    thread.start()
    assert ended.wait(scaled(30))
    thread.join(scaled(10))


@pytest.mark.usefixtures("restored")
def test_a_signal_whose_handler_runs_late_goes_no_further(cluster: FakeCluster) -> None:
    """On a busy machine the connector ended before the main thread ran the handler.

    The handler took the signal for one that comes when nothing is left to shut down, and passed it on. By default
    that killed the process.
    """
    passed_on: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: passed_on.append(number))
    connector = ZookeeperConsumerConnector(properties(cluster))
    with shutdown_on_signal(connector, signal.SIGUSR1):
        connector.create_message_streams({"t": 1})
        signal_while_main_waits(lambda: connector.state.phase is Phase.CLOSED and closed())
        assert passed_on == []
        signal.raise_signal(signal.SIGUSR1)
        assert passed_on == [signal.SIGUSR1], "nothing is left to shut down"


@pytest.mark.usefixtures("restored")
def test_a_third_signal_counts_although_two_have_merged(cluster: FakeCluster) -> None:
    """Two signals came before the main thread ran a handler, which makes one call of it. The third did nothing."""
    passed_on: list[int] = []
    signal.signal(signal.SIGUSR1, lambda number, _: passed_on.append(number))
    reading = Interrupted(cluster)
    (position,) = member_of(reading.connector).in_hand(threading.get_native_id())
    guard = shutdown_on_signal(reading.connector, signal.SIGUSR1, timeout=600.0)
    signal_while_main_waits(
        lambda: position.revoked, lambda: reading.connector.state.phase is Phase.CLOSED and closed()
    )
    signal.raise_signal(signal.SIGUSR1)
    eventually(lambda: passed_on, 10, "the third signal")
    assert passed_on == [signal.SIGUSR1]
    assert guard.received == signal.SIGUSR1
    with pytest.raises(OffsetCommitError, match="t-0 at 1"):
        reading.connector.shutdown()


@pytest.mark.usefixtures("restored")
def test_a_wakeup_descriptor_of_others_stays_theirs(cluster: FakeCluster) -> None:
    """Asyncio sets one. The handler writes to our own socket then."""
    theirs, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno())
    connector = ZookeeperConsumerConnector(properties(cluster))
    try:
        with connector, shutdown_on_signal(connector, signal.SIGUSR1) as guard:
            stream = connector.create_message_streams({"t": 1})["t"][0]
            signal.raise_signal(signal.SIGUSR1)
            assert list(stream) == []
        assert guard.received == signal.SIGUSR1
        assert theirs.recv(10) == bytes([signal.SIGUSR1])
        assert signal.set_wakeup_fd(before) == written.fileno()
    finally:
        signal.set_wakeup_fd(before)
        theirs.close()
        written.close()


@pytest.mark.usefixtures("restored")
def test_a_signal_ends_several_connectors(cluster: FakeCluster) -> None:
    cluster.create_topic("u", 1)
    one = ZookeeperConsumerConnector(properties(cluster))
    two = ZookeeperConsumerConnector(properties(cluster, **{"group.id": "h"}))
    before = signal.getsignal(signal.SIGUSR1)
    with one, two, shutdown_on_signal(one, signal.SIGUSR1), shutdown_on_signal(two, signal.SIGUSR1):
        streams = [one.create_message_streams({"t": 1})["t"][0], two.create_message_streams({"u": 1})["u"][0]]
        signal.raise_signal(signal.SIGUSR1)
        assert [list(stream) for stream in streams] == [[], []]
    assert signal.getsignal(signal.SIGUSR1) == before


def test_what_makes_no_sense_is_refused() -> None:
    connector = ZookeeperConsumerConnector(zookeeper_connect="z", group_id="g")
    with pytest.raises(ValueError, match="no signals"):
        shutdown_on_signal(connector)
    for number in (0, 4711, True, "SIGTERM"):
        with pytest.raises(ValueError, match="no signal of this system"):
            shutdown_on_signal(connector, number)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no handler can be set for SIGKILL"):
        shutdown_on_signal(connector, signal.SIGKILL)
    found: list[str] = []

    def elsewhere() -> None:
        for call in (
            lambda: shutdown_on_signal(connector, signal.SIGTERM),
            lambda: connector.run(print, "t", stop_on=(signal.SIGTERM,)),
        ):
            with pytest.raises(ValueError, match="main thread only") as raised:
                call()
            found.append(str(raised.value))

    thread = threading.Thread(target=elsewhere, name="my-thread")
    thread.start()
    thread.join()
    assert len(found) == 2
    assert "'my-thread'" in found[0]
    assert "stop_on" in found[0]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("-signals")]
