"""``report_health``: what probes, systemd and the log get of a connector on a cluster in memory."""

from __future__ import annotations

import logging
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.values import present
from zkconsumer import Health, ZookeeperConsumerConnector, service
from zkconsumer.errors import ConfigException
from zkconsumer.service import report_health
from zkconsumer.testing import FakeCluster


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Iterator[ZookeeperConsumerConnector]:
    """A connector whose streams are not created yet."""
    monkeypatch.setattr(service, "INTERVAL", 0.02)
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", 2)
        made = ZookeeperConsumerConnector(
            zookeeper_connect=cluster.zookeeper_connect, group_id="g", consumer_id="a", auto_offset_reset="smallest"
        )
        with made:
            yield made


def ask(url: str | None, path: str, method: str = "GET") -> tuple[int, str]:
    """Return the status and the text of an answer."""
    assert url is not None
    request = urllib.request.Request(url + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=scaled(10)) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


class Systemd:
    """The other end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self._came: SimpleQueue[list[str]] = SimpleQueue()
        self._thread = threading.Thread(target=self._receive, daemon=True)
        self._thread.start()
        self.heard: list[list[str]] = []

    def _receive(self) -> None:
        """Take each message at once: ten that wait fill the socket, and the next one would be lost."""
        while message := self._socket.recv(4096):
            self._came.put(message.decode().splitlines())

    def hear(self) -> list[str]:
        """Wait for the next message, and return its lines."""
        self.heard.append(self._came.get(timeout=scaled(10)))
        return self.heard[-1]

    def hear_until(self, line: str) -> list[str]:
        """Wait for a message that has this line."""
        while line not in self.hear():
            assert len(self.heard) < 5000, f"{line} does not come; the last one was {self.heard[-1]}"
        return self.heard[-1]

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)  # ends the thread's wait
        self._thread.join(scaled(10))
        self._socket.close()


@pytest.fixture(params=["file", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Systemd]:
    address = str(tmp_path / "notify") if request.param == "file" else f"@zkconsumer-test-{os.getpid()}"
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    made = Systemd(address)
    yield made
    made.close()


def test_probes_tell_the_states_of_a_member(connector: ZookeeperConsumerConnector) -> None:
    with report_health(connector, "127.0.0.1:0") as url:
        assert ask(url, "healthz") == (200, "live, not ready: no streams were created yet\n")
        assert ask(url, "readyz") == (503, "live, not ready: no streams were created yet\n")
        connector.create_message_streams({"t": 1})
        eventually(lambda: ask(url, "readyz") == (200, "ready\n"), 20, "a ready member")
        assert ask(url, "healthz?verbose") == (200, "ready\n")
        connector.shutdown()
        for path in ("healthz", "readyz"):
            assert ask(url, path) == (503, "not live: the connector was shut down\n")


def test_other_paths_and_methods_are_refused(connector: ZookeeperConsumerConnector) -> None:
    with report_health(connector, "127.0.0.1:0") as url:
        assert ask(url, "") == (404, "/healthz and /readyz are answered here\n")
        assert ask(url, "healthz", "POST")[0] == 405
        assert ask(url, "healthz", "HEAD") == (200, "")


def test_the_port_and_the_threads_end_with_the_block(connector: ZookeeperConsumerConnector) -> None:
    with report_health(connector, "127.0.0.1:0") as url:
        assert ask(url, "healthz")[0] == 200
    with pytest.raises(OSError, match="refused"):
        ask(url, "healthz")

    def left() -> list[str]:
        names = [thread.name for thread in threading.enumerate()]
        return [name for name in names if name.endswith(("-health", "-accept", "-request"))]

    eventually(lambda: not left(), 10, lambda: f"the end of {left()}")  # each may still be on its last lines


@pytest.mark.parametrize("listen", ["8080", "127.0.0.1", "127.0.0.1:99999", ""])
def test_an_address_that_is_none_is_refused(connector: ZookeeperConsumerConnector, listen: str) -> None:
    with pytest.raises(ConfigException, match=r"^listen: .* is no HOST:PORT"), report_health(connector, listen):
        pass


def test_a_port_in_use_is_refused(connector: ZookeeperConsumerConnector) -> None:
    with report_health(connector, "127.0.0.1:0") as url:
        assert url is not None
        address = url.removeprefix("http://").rstrip("/")
        with pytest.raises(OSError, match="in use"), report_health(connector, address):
            pass


def test_systemd_hears_of_the_start_and_the_end(connector: ZookeeperConsumerConnector, systemd: Systemd) -> None:
    with report_health(connector) as url:
        assert url is None
        assert systemd.hear() == [
            "STATUS=live, not ready: no streams were created yet",
            "WATCHDOG=1",
            "EXTEND_TIMEOUT_USEC=30000000",
        ]
        connector.create_message_streams({"t": 1})
        assert systemd.hear_until("READY=1") == ["STATUS=ready", "WATCHDOG=1", "READY=1"]
        assert systemd.hear() == ["STATUS=ready", "WATCHDOG=1"]
    systemd.hear_until("STOPPING=1")
    assert sum("READY=1" in lines for lines in systemd.heard) == 1


def test_the_watchdog_hears_nothing_of_a_dead_member(connector: ZookeeperConsumerConnector, systemd: Systemd) -> None:
    connector.create_message_streams({"t": 1})
    with report_health(connector):
        systemd.hear_until("READY=1")
        connector.shutdown()
        assert systemd.hear_until("STATUS=not live: the connector was shut down") == [
            "STATUS=not live: the connector was shut down"
        ]
        assert systemd.hear() == systemd.heard[-1]


def test_a_watchdog_of_another_process_is_not_ours() -> None:
    def watchdog(**variables: str) -> float | None:
        found = present(service.Systemd.of({"NOTIFY_SOCKET": "/run/x", **variables}, 7))
        return found.watchdog

    assert watchdog(WATCHDOG_USEC="8000000") == 8.0
    assert watchdog(WATCHDOG_USEC="8000000", WATCHDOG_PID="7") == 8.0
    assert watchdog(WATCHDOG_USEC="8000000", WATCHDOG_PID="8") is None
    assert [watchdog(WATCHDOG_USEC=text) for text in ("", "0", "-1", "x", "²")] == [None] * 5
    assert watchdog() is None


@pytest.mark.parametrize("address", ["", "vsock:2:1", "relative"])
def test_without_a_socket_of_systemd_nothing_is_sent(address: str) -> None:
    assert service.Systemd.of({"NOTIFY_SOCKET": address}, 7) is None


def test_the_look_is_at_least_four_times_the_watchdog(
    connector: ZookeeperConsumerConnector, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a watchdog of 0.4 s messages come although the usual interval is a day."""
    monkeypatch.setattr(service, "INTERVAL", 86_400.0)
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    with report_health(connector):
        assert all("WATCHDOG=1" in systemd.hear() for _ in range(5))


def test_a_socket_that_is_gone_is_logged_once(
    connector: ZookeeperConsumerConnector, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    looks: list[Health] = []

    class Watched:
        consumer_id = connector.consumer_id

        def health(self) -> Health:
            looks.append(connector.health())
            return looks[-1]

    with report_health(Watched()):
        eventually(lambda: len(looks) >= 4, 10, "three looks and their messages")
    assert [record.message for record in caplog.records if "cannot be told" in record.message] == [
        "systemd cannot be told of the health, on NOTIFY_SOCKET: [Errno 2] No such file or directory"
    ]


def test_a_start_that_was_not_heard_is_told_again(tmp_path: Path) -> None:
    """Otherwise systemd ends a ready service at TimeoutStartSec. It was busy, or its socket was made anew."""
    address = str(tmp_path / "notify")
    ours = service.Systemd(address, None)
    ours.tell(Health())
    systemd = Systemd(address)
    ours.tell(Health())
    assert systemd.hear() == ["STATUS=ready", "WATCHDOG=1", "READY=1"]
    ours.tell(Health())
    assert systemd.hear() == ["STATUS=ready", "WATCHDOG=1"]
    systemd.close()


def test_changes_are_logged_with_their_reasons(connector: ZookeeperConsumerConnector, caplog: Any) -> None:
    caplog.set_level(logging.INFO, service.__name__)

    def logged() -> list[tuple[str, str]]:
        return [(one.levelname, one.message) for one in caplog.records if one.name == service.__name__]

    with report_health(connector):
        eventually(lambda: ("INFO", "g_a is live, not ready: no streams were created yet") in logged(), 10, "a start")
        connector.create_message_streams({"t": 1})
        eventually(lambda: logged()[-1] == ("INFO", "g_a is ready"), 20, lambda: f"a ready member: {logged()}")
        connector.shutdown()
        dead = ("ERROR", "g_a is not live: the connector was shut down")
        eventually(lambda: logged()[-1] == dead, 10, lambda: f"a dead member: {logged()}")
