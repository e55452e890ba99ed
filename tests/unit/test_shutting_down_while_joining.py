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
from time import monotonic
from typing import Any

import pytest

from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.errors import ConnectorClosedException
from zkconsumer.wiring import Member


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a ZooKeeper that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def connector(silent: str) -> Iterator[ZookeeperConsumerConnector]:
    before = set(threading.enumerate())
    made = ZookeeperConsumerConnector(
        {"zookeeper.connect": silent, "group.id": "g", "zookeeper.connection.timeout.ms": 600_000}
    )
    yield made
    made.shutdown()
    eventually(lambda: set(threading.enumerate()) <= before, 5, "the end of all threads")


@pytest.mark.parametrize("moment", ["__init__", "open", "_check_open", "_committer"])
def test_what_is_opened_after_a_shutdown_is_closed_again(
    connector: ZookeeperConsumerConnector, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    original = getattr(Member, moment)

    def interrupted(self: Member, *arguments: Any, **options: Any) -> Any:
        connector.shutdown()
        return original(self, *arguments, **options)

    monkeypatch.setattr(Member, moment, interrupted)
    if moment == "_committer":
        monkeypatch.setattr("zkconsumer.zookeeper.session.Session.open", lambda *_: None)
    with pytest.raises(ConnectorClosedException):
        connector.create_message_streams({"t": 1})


def test_a_shutdown_ends_the_wait_for_zookeeper(connector: ZookeeperConsumerConnector) -> None:
    def shut_down() -> None:
        def client() -> Any:
            member: Any = connector._member
            return member is not None and member.session._client

        eventually(client, 10, "a client")
        connector.shutdown()

    thread = threading.Thread(target=shut_down)
    thread.start()
    with pytest.raises(ConnectorClosedException):
        connector.create_message_streams({"t": 1})
    thread.join(scaled(10))


def test_a_handler_that_interrupts_the_shutdown_of_its_thread_does_not_wait_for_itself(
    connector: ZookeeperConsumerConnector, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Member.close

    def interrupted(self: Member, *arguments: Any, **options: Any) -> None:
        connector.shutdown()
        original(self, *arguments, **options)

    connector._create_once("streams")
    monkeypatch.setattr(Member, "close", interrupted)
    began = monotonic()
    connector.shutdown()
    assert monotonic() - began < 3.0
