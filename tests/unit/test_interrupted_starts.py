"""An interrupt (Ctrl-C, or a failure) in the middle of a start leaves no thread, no session and no process behind.

``tests/interrupts`` raises at the boundaries of a connector's first calls. Here each start of a thread is interrupted,
before and after the thread has begun.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

from tests.internals import member_of
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import WakeFlag
from zkconsumer.runtime.withdrawable_request import Answer
from zkconsumer.testing import FakeCluster
from zkconsumer.wiring import GroupMember
from zkconsumer.zookeeper.cluster_admin import Admin
from zkconsumer.zookeeper.server_connection import ServerConnection

BEGIN = Thread.start
OF_A_RUN = ("-worker-0", "-worker-1", "-reader", "-parked", "-dead-letters")
"""The ends of the names of a run's threads."""


def interrupted_at(start: int, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, begun: bool) -> bool:
    """Interrupt the thread that acts when it starts its ``start``-th thread; return whether it came to that.

    Arguments: ``begun`` says that the started thread runs by then.
    """
    me, count = threading.current_thread(), 0

    def interrupting(thread: Thread) -> None:
        nonlocal count
        count += threading.current_thread() is me
        now = count == start and threading.current_thread() is me
        if begun or not now:
            BEGIN(thread)
        if now:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", interrupting)
        try:
            act()
        except KeyboardInterrupt:
            return True
    return False


def check_all_starts(act: Callable[[], object], end: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Interrupt ``act`` at each start of a thread, and look that no thread is left. Return how many starts there are.

    Arguments: ``end`` ends what ``act`` has made if it is not interrupted.
    """
    for begun in (False, True):
        before, start = set(threading.enumerate()), 1
        while interrupted_at(start, act, monkeypatch, begun=begun):
            eventually(
                lambda known=before: set(threading.enumerate()) <= known,  # type: ignore[misc]
                5,
                lambda known=before: f"the end of {set(threading.enumerate()) - known}",  # type: ignore[misc]
            )
            start += 1
        end()
    return start - 1


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_a_connector_leaves_nothing_of_a_start(coordination: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[ZookeeperConsumerConnector] = []
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t")
        properties = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g"}

        def joins() -> None:
            made.append(ZookeeperConsumerConnector(properties, group_coordination=coordination))
            made[-1].set_consumer_rebalance_listener(ConsumerRebalanceListener())
            made[-1].create_message_streams({"t": 1})

        def leaves() -> None:
            made[-1].shutdown()
            served = cluster.zookeeper_server
            eventually(lambda: served is not None and not served.sessions, 5, "the end of all sessions")

        assert check_all_starts(joins, leaves, monkeypatch) >= 6


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_a_start_waits_by_what_may_be_interrupted(coordination: str) -> None:
    """It waited by a future and an event of the standard library. An interrupt in them could leave their locks locked.

    Then the group's thread, or kazoo's, hung in answering for ever, and kept the member in its group.
    """
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t")
        properties = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g"}
        with ZookeeperConsumerConnector(properties, group_coordination=coordination) as connector:
            connector.create_message_streams({"t": 1})
            assert isinstance(member_of(connector).engine.first_round, Answer)
    server = ServerConnection(KazooClient(), KazooRetry())
    server.prepare("ZooKeeper", None)
    assert isinstance(server.settled, WakeFlag)


def test_a_cluster_in_memory_leaves_nothing_of_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test run that was interrupted in a fixture went on with the servers' threads, and with their ports."""
    made: list[FakeCluster] = []

    def starts() -> None:
        made.append(FakeCluster(2, zookeeper=True))
        made[-1].start()

    assert check_all_starts(starts, lambda: made[-1].stop(), monkeypatch) >= 5
    assert not any(broker.running for cluster in made for broker in cluster.brokers.values())


def test_an_admin_leaves_nothing_of_its_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """``with Admin(...)`` does not end what it has not entered: kazoo's threads reconnected for ever."""
    original = KazooClient.start_async

    def interrupted(client: KazooClient) -> None:
        original(client)
        raise KeyboardInterrupt

    monkeypatch.setattr(KazooClient, "start_async", interrupted)
    before = set(threading.enumerate())
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(KeyboardInterrupt):
        Admin(f"127.0.0.1:{silent.getsockname()[1]}").open(Deadline(scaled(10)))
    eventually(lambda: set(threading.enumerate()) <= before, 10, "the end of kazoo's threads")


@pytest.mark.parametrize("options", [{"workers": 2}, {"concurrency": 2}], ids=["workers", "concurrency"])
def test_a_run_that_is_interrupted_twice_leaves_no_thread(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second Ctrl-C came in the shutdown after the first one. The run's own threads read on without an end."""
    before, closes, original = set(threading.enumerate()), 0, GroupMember.close

    def interrupted(member: GroupMember, deadline: Deadline, *, finished: bool) -> None:
        nonlocal closes
        closes += 1
        if closes == 1:
            raise KeyboardInterrupt
        original(member, deadline, finished=finished)

    def handle(_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def own() -> list[str]:
        return [one.name for one in threading.enumerate() if one.name.endswith(OF_A_RUN)]

    monkeypatch.setattr(GroupMember, "close", interrupted)
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t")
        cluster.append("t", 0, [b"v"])
        properties = {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"}
        connector = ZookeeperConsumerConnector(properties)
        with pytest.raises(KeyboardInterrupt):
            connector.run(handle, "t", **options)
        assert closes == 1
        eventually(lambda: not own(), 10, lambda: f"the end of {own()}")
        connector.shutdown()
    eventually(lambda: set(threading.enumerate()) <= before, 10, "the end of all threads")
