"""A connector that is shut down while it joins its group, by a signal handler or another thread, leaves nothing behind.

What happened: ``create_message_streams`` looked once, at its beginning, whether the connector was shut down. A shutdown
that came later closed what there was and returned; what was opened after that stayed: a registered member with
partitions and threads that no further ``shutdown()`` could end. And a handler that called ``shutdown()`` while its own
thread was shutting down waited for itself until the time was up.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from time import monotonic
from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.connector import lifecycle
from zkconsumer.errors import ConnectorClosedException
from zkconsumer.wiring import GroupMember
from zkconsumer.wiring.member_parts import MemberParts


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A ZooKeeper that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def connector(silent: socket.socket) -> Iterator[ZookeeperConsumerConnector]:
    before = set(threading.enumerate())
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    made = ZookeeperConsumerConnector(
        {"zookeeper.connect": address, "group.id": "g", "zookeeper.connection.timeout.ms": 600_000}
    )
    yield made
    made.shutdown()
    eventually(lambda: set(threading.enumerate()) <= before, 5, "the end of all threads")


@pytest.mark.parametrize(
    ("part", "moment"),
    [(GroupMember, "__init__"), (GroupMember, "open"), (GroupMember, "prepare"), (MemberParts, "committer")],
)
def test_what_is_opened_after_a_shutdown_is_closed_again(
    connector: ZookeeperConsumerConnector, monkeypatch: pytest.MonkeyPatch, part: type, moment: str
) -> None:
    original = getattr(part, moment)

    def interrupted(self: Any, *arguments: Any, **options: Any) -> Any:
        connector.shutdown()
        return original(self, *arguments, **options)

    monkeypatch.setattr(part, moment, interrupted)
    if moment == "committer":
        monkeypatch.setattr("zkconsumer.zookeeper.session.Session.open", lambda *_: None)
    with pytest.raises(ConnectorClosedException):
        connector.create_message_streams({"t": 1})


def test_a_shutdown_ends_the_wait_for_zookeeper(connector: ZookeeperConsumerConnector, silent: socket.socket) -> None:
    silent.settimeout(scaled(10))

    def shut_down() -> None:
        connection, _ = silent.accept()
        with connection:
            connector.shutdown()

    thread = threading.Thread(target=shut_down)
    thread.start()
    with pytest.raises(ConnectorClosedException):
        connector.create_message_streams({"t": 1})
    thread.join(scaled(10))


def test_an_interrupted_wait_keeps_the_end_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took the answer along, and another thread that waited for the end did so until the time was up."""
    came: SimpleQueue[bool] = SimpleQueue()

    class Interrupted:
        put = came.put

        def get(self, timeout: float) -> bool:
            came.get(timeout=timeout)
            raise KeyboardInterrupt

    monkeypatch.setattr(lifecycle, "SimpleQueue", Interrupted)
    end = lifecycle.Closing()
    end.begin(0, 60.0)
    end.end()
    with pytest.raises(KeyboardInterrupt):
        end.wait()
    assert not came.empty()


def test_a_shutdown_inside_a_shutdown_waits_for_nothing(
    connector: ZookeeperConsumerConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler that interrupts the shutdown of its own thread would wait for itself."""
    original = GroupMember.close

    def interrupted(self: GroupMember, *arguments: Any, **options: Any) -> None:
        connector.shutdown()
        original(self, *arguments, **options)

    monkeypatch.setattr(GroupMember, "open", lambda *_: None)
    connector.create_message_streams({"t": 1})
    monkeypatch.setattr(GroupMember, "close", interrupted)
    began = monotonic()
    connector.shutdown()
    assert monotonic() - began < 4.5  # of the 5.3 s of a whole wait
