"""The server over real sockets: paths, who may ask, bounds, event streams and the end."""

from __future__ import annotations

import gc
import gzip
import http.client
import importlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.group_snapshots import NOW
from tests.timing import eventually, scaled
from tests.unit.operations.serving.watched import at, watched
from zkconsumer.errors import ConfigException, RegistryUnavailableError
from zkconsumer.operations.group_snapshot import GroupSnapshot, Problem
from zkconsumer.operations.serving import bounded_http, group_history, http_server
from zkconsumer.operations.serving.api import judged_later
from zkconsumer.operations.serving.bounded_http import BoundedServer, ListenAddress, Response, listen_address
from zkconsumer.operations.serving.group_history import GroupHistory
from zkconsumer.operations.serving.history_file import read_history
from zkconsumer.operations.serving.http_server import (
    AccessRules,
    GroupServer,
    Routes,
    ServeOptions,
    checked_token,
    request_of,
)
from zkconsumer.operations.serving.observed_group import ObservedGroup
from zkconsumer.operations.serving.poller import POINT_VALUES, Board, Poller, pause
from zkconsumer.operations.snapshot_file import FileSource, write_snapshots
from zkconsumer.runtime.deadline import Deadline

TOKEN = "0123456789abcdef"
LOOPBACK = ListenAddress("127.0.0.1", 0)
FILES = {"index.html": (b"<!doctype html>", "text/html; charset=utf-8"), "page.js": (b"//", "text/javascript")}


class Groups:
    """A source of snapshots that a test changes while it is read."""

    def __init__(self) -> None:
        self.known: dict[str, GroupSnapshot] = {"g": at(int(time.time()) - NOW // 1000, 100, 110)}
        self.failure: Exception | None = None
        self.opened = 0
        self.reading = threading.Event()
        self.go_on: threading.Event | None = None

    @contextmanager
    def open(self) -> Iterator[Groups]:
        self.opened += 1
        yield self

    def groups(self) -> Sequence[str]:
        if self.failure is not None:
            raise self.failure
        return sorted(self.known)

    def snapshot(self, group: str, *, message_times: bool = False) -> GroupSnapshot:
        assert message_times
        self.reading.set()
        if self.go_on is not None:
            self.go_on.wait(scaled(20))
        if self.failure is not None:
            raise self.failure
        return replace(self.known.get(group, GroupSnapshot(group, 1)), taken=time.time_ns() // 1_000_000)

    def history(self, group: str) -> Sequence[GroupSnapshot]:
        return [self.known[group]]

    def close(self) -> None:
        """Nothing is open."""


def serves(
    source: Callable[[], Any],
    interval: float,
    rules: AccessRules | None = None,
    *,
    files: bool = False,
    history: Path | None = None,
) -> tuple[GroupServer, Poller]:
    """Return a server, not yet started; ``files``: the source is files of snapshots, shown as of their time."""
    poller = Poller(source, interval, histories=files)
    rules = rules or AccessRules(LOOPBACK)
    kept = None if history is None else GroupHistory(lambda: poller.board, str(history))
    routes = Routes(lambda: poller.board, rules, ServeOptions("local", "here", interval, FILES, as_taken=files), kept)
    return GroupServer(LOOPBACK, routes, poller, kept), poller


@contextmanager
def serving(
    groups: Groups | Callable[[], Any], interval: float = 0.02, rules: AccessRules | None = None, **more: Any
) -> Iterator[GroupServer]:
    server, poller = serves(groups.open if isinstance(groups, Groups) else groups, interval, rules, **more)
    try:
        server.start()
        poller.wait(lambda board: board.polls, 0, scaled(10))
        yield server
    finally:
        assert server.close(scaled(20))


@pytest.fixture(scope="module")
def server() -> Iterator[GroupServer]:
    """A server on loopback whose group does not change."""
    with serving(Groups(), interval=3600) as found:
        yield found


def connection(server: GroupServer) -> http.client.HTTPConnection:
    host, port = server.url.removeprefix("http://").strip("/").split(":")
    return http.client.HTTPConnection(host, int(port), timeout=scaled(10))


def ask(
    server: GroupServer, path: str, headers: Mapping[str, str] = {}, method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers by lower-case name, and body."""
    client = connection(server)
    try:
        client.request(method, path, headers=dict(headers))
        answer = client.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
    finally:
        client.close()


def asked(server: GroupServer, path: str) -> Any:
    status, _, body = ask(server, path)
    assert status == 200, body
    return json.loads(body)


def test_each_path_has_its_answer(server: GroupServer) -> None:
    for path, kind in {
        "/": "text/html; charset=utf-8",
        "/page.js": "text/javascript",
        "/metrics": "text/plain; version=0.0.4; charset=utf-8",
        "/healthz": "text/plain; charset=utf-8",
        "/readyz": "text/plain; charset=utf-8",
        "/burrow/admin": "text/plain; charset=utf-8",
        "/burrow/admin/ready": "text/plain; charset=utf-8",
        "/v3/kafka": "application/json",
        "/v3/kafka/local/consumer/g/lag": "application/json",
        "/api/groups": "application/json",
        "/api/groups/g": "application/json",
    }.items():
        status, headers, body = ask(server, path)
        assert (status, headers["content-type"]) == (200, kind), path
        assert body
        assert headers["content-security-policy"].startswith("default-src 'none'")
        assert headers["x-content-type-options"] == "nosniff"
    assert asked(server, "/api/groups")["groups"][0]["group"] == "g"
    assert asked(server, "/api/groups/g?since=99999999999999")["history"]["times"] == []
    assert ask(server, "/burrow/admin")[2] == b"GOOD"
    assert ask(server, "/burrow/admin/ready")[2] == b"READY"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/none", 404),
        ("/api/groups/none", 404),
        ("/api/groups/none/events", 404),
        ("/api/groups/g?since=-1", 400),
        ("/api/groups/g/history", 404),
        ("/api/groups/g/history?span=year", 400),
        ("/metrics?group=none", 404),
        ("/metrics?group=none&group=g", 200),
        ("/v3/kafka/local/none", 404),
        ("/..%2f..%2fetc%2fpasswd", 404),
        ("/page.js/", 200),
        ("/api/groups/%1b%5b2J%00", 404),
    ],
)
def test_other_paths_are_refused(server: GroupServer, path: str, status: int) -> None:
    found, _, body = ask(server, path)
    assert found == status
    assert b"\x1b" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_reading_is_allowed(server: GroupServer, method: str) -> None:
    status, headers, _ = ask(server, "/v3/kafka/local/consumer/g", method=method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_head_has_the_headers_of_get_without_the_body(server: GroupServer) -> None:
    status, headers, body = ask(server, "/page.js", method="HEAD")
    assert (status, headers["content-length"], body) == (200, "2", b"")


def test_large_answers_are_packed_if_wanted(server: GroupServer) -> None:
    _, headers, body = ask(server, "/api/groups/g", {"Accept-Encoding": "gzip"})
    assert headers["content-encoding"] == "gzip"
    assert json.loads(gzip.decompress(body))["group"] == "g"


@pytest.mark.parametrize(("version", "chunked"), [("1.1", True), ("1.0", False)])
def test_a_large_answer_comes_in_chunks_and_whole_to_old_clients(
    server: GroupServer, version: str, chunked: bool
) -> None:
    """Its text was made twice, the first time for its length, and Prometheus waited for both."""
    with raw(server) as client:
        client.sendall(f"GET /metrics HTTP/{version}\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = read_all(client).partition(b"\r\n\r\n")
    assert (b"Transfer-Encoding: chunked" in head) is chunked
    assert (b"Content-Length: " in head) is not chunked
    assert body.endswith(b"\r\n0\r\n\r\n") is chunked
    assert body.startswith(b"# HELP") is not chunked
    _, _, text = ask(server, "/metrics")
    names = [line for line in text.decode().splitlines() if line.startswith("# HELP")]
    assert [line for line in body.decode().splitlines() if line.startswith("# HELP")] == names


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "a b", "10.0.0.1"])
def test_a_foreign_host_header_is_refused_on_loopback(server: GroupServer, host: str) -> None:
    """A page of evil.example may resolve that name to 127.0.0.1 and read what its own origin answers."""
    assert ask(server, "/metrics", {"Host": host})[0] == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1:8089", "[::1]:8089", "127.8.8.8"])
def test_any_loopback_name_is_answered(server: GroupServer, host: str) -> None:
    assert ask(server, "/metrics", {"Host": host})[0] == 200


def test_a_token_is_asked_for_as_bearer_parameter_or_cookie() -> None:
    with serving(Groups(), 3600, AccessRules(LOOPBACK, TOKEN)) as server:
        assert ask(server, "/healthz")[0] == ask(server, "/readyz")[0] == 200
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"zkconsumer_token={TOKEN}"}):
            status, told, body = ask(server, "/api/groups", headers)
            assert (status, told["www-authenticate"]) == (401, "Bearer")
            assert TOKEN.encode() not in body
        assert ask(server, "/api/groups", {"Authorization": f"bearer {TOKEN}"})[0] == 200
        assert ask(server, f"/metrics?token={TOKEN}")[0] == 200
        status, headers, _ = ask(server, f"/?token={TOKEN}&group=g")
        assert (status, headers["location"]) == (303, "/?group=g")
        assert "HttpOnly; SameSite=Strict" in headers["set-cookie"]
        assert TOKEN not in headers["set-cookie"]
        assert ask(server, "/api/groups", {"Cookie": headers["set-cookie"].partition(";")[0]})[0] == 200


@pytest.mark.parametrize("text", ["8089", "host", "host:99999", "http://host:1", "[::1", "::1:80", "a b:1", ""])
def test_a_wrong_listen_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigException, match="--listen"):
        listen_address(text)


@pytest.mark.parametrize("text", ["", "short", "two words 1234567890", "line\n1234567890123456", "ä" * 20])
def test_a_weak_token_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ConfigException) as refused:
        checked_token(text, "/etc/token")
    assert "/etc/token" in str(refused.value)
    assert not text or text not in str(refused.value)


def test_listen_address_and_token() -> None:
    """Off loopback a token is needed."""
    with pytest.raises(ConfigException, match="--token-file"):
        AccessRules(ListenAddress("0.0.0.0", 0))
    AccessRules(ListenAddress("0.0.0.0", 0), TOKEN)
    assert listen_address("[::1]:8089") == ListenAddress("::1", 8089)
    assert listen_address("localhost:0").loopback
    assert checked_token(f"{TOKEN}\n", "f") == TOKEN


def read_all(raw: socket.socket) -> bytes:
    found = b""
    while part := raw.recv(65536):
        found += part
    return found


def raw(server: GroupServer) -> socket.socket:
    client = connection(server)
    return socket.create_connection((client.host, client.port), timeout=scaled(10))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        pytest.param(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"", id="request line"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 200 + b"\r\n", b" 431 ", id="number of headers"),
        pytest.param(b"GET / HTTP/1.1\r\n" + (b"x: " + b"y" * 9000 + b"\r\n") * 9, b" 431 ", id="size of headers"),
        pytest.param(b"\x00\xff\x1b nonsense\r\n\r\n", b"Bad Request", id="no HTTP"),
        pytest.param(b"GET http://evil/ HTTP/1.1\r\nHost: localhost\r\n\r\n", b" 400 ", id="a proxy's request"),
    ],
)
def test_a_request_that_is_too_large_or_wrong_ends(server: GroupServer, sent: bytes, status: bytes) -> None:
    with raw(server) as client:
        try:
            client.sendall(sent)
            found = read_all(client)
        except ConnectionError:  # the server closed with bytes unread
            found = status
    assert status in found.partition(b"\r\n")[0]
    assert b"nonsense" not in found


def test_a_slow_client_loses_its_connection(monkeypatch: pytest.MonkeyPatch, server: GroupServer) -> None:
    monkeypatch.setattr(bounded_http, "READ_SECONDS", 0.05)
    with raw(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: ")
        assert read_all(client) == b""


def test_half_open_connections_never_starve_the_health(server: GroupServer) -> None:
    """200 connections without a request made ``/healthz`` answer 503, so that a scheduler restarts the server."""
    with ExitStack() as stack:
        waiting = [stack.enter_context(raw(server)) for _ in range(200)]
        for client in waiting:
            with suppress(OSError):  # the oldest ones have given way
                client.sendall(b"GET / HTTP/1.1\r\n")
        for path in ("/healthz", "/api/groups"):
            assert ask(server, path)[0] == 200
        kept = waiting[-bounded_http.MOST_WAITING // 2 :]
        for client in kept:
            client.sendall(b"Host: 127.0.0.1\r\n\r\n")
        assert all(b" 200 " in read_all(client).partition(b"\r\n")[0] for client in kept), "younger ones are served"


def test_the_history_is_read_by_its_own_thread(tmp_path: Path) -> None:
    """What the present minute has is written at the end."""
    with serving(Groups(), history=tmp_path / "history") as server:
        eventually(lambda: [one["curve"][-1] for one in asked(server, "/api/groups")["groups"]] == [60], 20, "a curve")
        for span in ("day", "week"):
            found = asked(server, f"/api/groups/g/history?span={span}")
            assert found["samples"]["time"] == []
        assert asked(server, "/api/groups/g")["kept"]["failure"] is None
        assert b"zkconsumer_serve_history_success 1" in ask(server, "/metrics")[2]
    with closing(read_history(str(tmp_path / "history"))) as file:
        assert [one.lag for one in file.samples("g", 0, 2**40)][-1] == 60


def test_a_history_needs_the_token_whatever_its_name(tmp_path: Path) -> None:
    name = "<script>/'; DROP TABLE groups--\x00\n\"\\é"
    groups, path = Groups(), quote(name, safe="")
    groups.known = {name: replace(groups.known["g"], group=name)}
    given = {"Authorization": f"Bearer {TOKEN}"}
    with serving(groups, 0.02, AccessRules(LOOPBACK, TOKEN), history=tmp_path / "history") as server:
        for one in (f"/api/groups/{path}/history", f"/metrics?group={path}", "/prometheus-alerts.yml"):
            assert (ask(server, one)[0], ask(server, one, {**given, "Host": "evil.example"})[0]) == (401, 403)
        status, headers, body = ask(server, f"/api/groups/{path}/history?span=week", given)
        assert (status, headers["content-type"]) == (200, "application/json")
        assert json.loads(body)["group"] == name
        assert body.isascii()
        status, _, body = ask(server, f"/metrics?group=none&group={path}", given)
        assert status == 200
        assert rb"""consumergroup="<script>/'; DROP TABLE groups--\\x00\\n\"\\""" in body
        assert ask(server, f"/metrics?{'group=g&' * 65}", given)[0] == 400
    with closing(read_history(str(tmp_path / "history"))) as file:
        assert file.groups() == [name]


def test_requests_for_the_history_leave_places_to_others() -> None:
    """A file system that hangs keeps each of them for seconds."""
    assert group_history.ASKED + http_server.MOST_LISTENERS < bounded_http.MOST_CONNECTIONS
    never_started = GroupHistory(Board, "file")
    assert {never_started.graph("g", "day", 0) for _ in range(group_history.ASKED + 1)} == {"it is busy"}


@contextmanager
def streaming(server: GroupServer, path: str = "/api/events") -> Iterator[http.client.HTTPResponse]:
    """An open event stream."""
    with closing(connection(server)) as client:
        client.request("GET", path)
        with client.getresponse() as answer:
            assert (answer.status, answer.getheader("content-type")) == (200, "text/event-stream")
            yield answer


@pytest.mark.parametrize(
    ("module", "limit", "path", "seconds"),
    [
        (bounded_http, "MOST_CONNECTIONS", "/api/groups", bounded_http.RETRY_SECONDS),
        (http_server, "MOST_LISTENERS", "/api/events", 30),
    ],
    ids=["answers", "event streams"],
)
def test_beyond_the_limit_clients_are_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch, module: Any, limit: str, path: str, seconds: int
) -> None:
    """The health is answered all the same, and a later client finds the free place."""
    monkeypatch.setattr(module, limit, 1)
    monkeypatch.setattr(http_server, "HEARTBEAT_SECONDS", 0.02)
    with serving(Groups(), interval=3600) as server:
        with streaming(server) as stream:
            assert next(line for line in stream if line.startswith(b":")) == b": still here\n"
            status, headers, _ = ask(server, path)
            assert (status, headers["retry-after"]) == (503, str(seconds))
            assert ask(server, "/healthz")[0] == ask(server, "/readyz")[0] == 200
        eventually(lambda: ask(server, "/api/groups")[0] == 200, 5, "an answer")


def test_200_event_streams_are_served_or_told_to_come_back() -> None:
    with serving(Groups(), interval=3600) as server, ExitStack() as stack:
        clients = []
        for _ in range(200):
            clients.append(stack.enter_context(raw(server)))
            clients[-1].sendall(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answers = [client.recv(65536) for client in clients]
        served = [one for one in answers if one.startswith(b"HTTP/1.1 200 ")]
        told = [one for one in answers if one.startswith(b"HTTP/1.1 503 ") and b"\r\nRetry-After: " in one]
        assert (len(served), len(told)) == (http_server.MOST_LISTENERS, 200 - http_server.MOST_LISTENERS)
        assert ask(server, "/healthz")[0] == ask(server, "/api/groups")[0] == 200


def events(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The data of the events of a stream, until it ends."""
    for line in answer:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


def test_events_tell_each_reading_and_end_with_the_server() -> None:
    with ExitStack() as stack:
        with serving(Groups()) as server:
            told = events(stack.enter_context(streaming(server, "/api/groups/g/events")))
            first, second = next(told), next(told)
            assert first["group"] == "g"
            assert second["serial"] > first["serial"]
        assert all(event["group"] == "g" for event in told)  # ends: the server has closed


def test_values_stay_while_nothing_can_be_read() -> None:
    """Readiness says so, values stay with their age, and a new source is opened until one works again."""
    groups = Groups()
    with serving(groups) as server:
        groups.failure = RegistryUnavailableError("no server answers")
        eventually(lambda: ask(server, "/readyz")[0] == 503, 10, "not ready")
        assert ask(server, "/burrow/admin/ready")[2] == b"STARTING"
        assert ask(server, "/healthz")[0] == 200
        row = asked(server, "/api/groups")["groups"][0]
        assert row["failure"] == "no server answers"
        assert row["lag"] == 60
        eventually(lambda: groups.opened > 2, 10, "another source")
        groups.failure = None
        eventually(lambda: ask(server, "/readyz")[0] == 200, 10, "ready")
        assert asked(server, "/api/groups")["groups"][0]["failure"] is None


def test_a_snapshot_of_nothing_but_problems_is_no_reading() -> None:
    groups = Groups()
    with serving(groups) as server:
        groups.known["g"] = GroupSnapshot("g", 1, problems=(Problem("ZooKeeper", "not connected"),))
        eventually(lambda: ask(server, "/readyz")[0] == 503, 10, "not ready")
        row = asked(server, "/api/groups")["groups"][0]
        assert (row["failure"], row["lag"]) == ("ZooKeeper: not connected", 60)


@pytest.mark.parametrize("what", ["/consumers/a", "brokers' group 'a'"])
def test_a_forbidden_group_hides_no_other(what: str) -> None:
    """Group ``a`` comes first. A failure that counted for all groups would keep ``g`` from being read."""
    groups = Groups()
    groups.known["a"] = GroupSnapshot("a", 1, problems=(Problem(what, "forbidden"),))
    with serving(groups) as server:
        eventually(lambda: asked(server, "/api/groups")["polls"] > 2, 10, "polls")
        first, other = asked(server, "/api/groups")["groups"]
        assert (first["group"], first["failure"], first["lag"]) == ("a", f"{what}: forbidden", None)
        assert (other["group"], other["failure"], other["lag"]) == ("g", None, 60)
        assert ask(server, "/readyz")[0] == 200


def test_a_history_is_shorter_if_its_points_take_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand groups of few partitions: the points themselves take more memory than the lags."""
    partitions = len(Groups().known["g"].partitions())
    bound = 12 * (POINT_VALUES + partitions)
    monkeypatch.setattr("zkconsumer.operations.serving.poller.HISTORY_VALUES", bound)
    with serving(Groups()) as server:
        eventually(lambda: asked(server, "/api/groups")["polls"] > 12, 10, "polls")
        assert len(asked(server, "/api/groups/g")["history"]["times"]) == 12


def test_a_group_that_is_deleted_leaves() -> None:
    groups = Groups()
    with serving(groups) as server:
        groups.known.clear()
        eventually(lambda: asked(server, "/api/groups")["groups"] == [], 10, "no group")


def test_one_unreadable_group_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    groups = Groups()
    groups.known["broken"] = None  # type: ignore[assignment]
    with serving(groups, interval=3600) as server:
        rows = {row["group"]: row for row in asked(server, "/api/groups")["groups"]}
        assert rows["g"]["failure"] is None
        assert "dataclass instance" in rows["broken"]["failure"]
        assert ask(server, "/metrics")[0] == 200
    assert "broken" in caplog.text


def test_files_are_shown_with_their_history_as_of_their_time(tmp_path: Path) -> None:
    name = str(tmp_path / "g.jsonl")
    write_snapshots(name, [at(second, 100 + second, 110 + 2 * second) for second in (0, 10, 20)])
    with serving(lambda: closing(FileSource([name])), files=True) as server:
        eventually(lambda: asked(server, "/api/groups")["polls"] > 2, 10, "polls")
        found = asked(server, "/api/groups/g")
        assert found["history"]["times"] == [NOW, NOW + 10_000, NOW + 20_000]
        assert found["now"] == found["taken"] == NOW + 20_000
        assert asked(server, "/v3/kafka/local/consumer/g/status")["status"]["totallag"] == 6 * 30 + 4


class Batches(Groups):
    """A source that reads each group as a batch of its own, and ``h`` only as often as permitted."""

    differences = 0

    def __init__(self) -> None:
        super().__init__()
        self.known["h"] = replace(self.known["g"], group="h")
        self.permitted = threading.Semaphore(1)

    def snapshots(self, groups: Sequence[str], *, message_times: bool = False) -> Iterator[Sequence[Any]]:
        for group in groups:
            if group == "h":
                self.permitted.acquire(timeout=scaled(20))
            yield [(group, self.snapshot(group, message_times=message_times))]

    def snapshots_once(self, groups: Sequence[str], *, message_times: bool = False) -> Iterator[Any]:
        raise NotImplementedError


def test_a_batch_is_shown_while_the_next_one_is_read() -> None:
    """A change in the first batch was not shown before the last batch had been read."""
    groups = Batches()
    with serving(groups) as server:
        try:
            with streaming(server, "/api/groups/g/events") as stream:
                assert next(one for one in events(stream) if one["serial"] == 2)["polls"] == 1
            found = asked(server, "/api/groups")
            assert ([row["serial"] for row in found["groups"]], found["polls"], found["missing"]) == ([2, 1], 1, 0)
        finally:
            groups.permitted.release(1_000_000)


@contextmanager
def before_the_second_group() -> Iterator[tuple[Batches, Poller, GroupServer]]:
    """A server that has read one group and waits for permission to read the next."""
    groups = Batches()
    groups.permitted = threading.Semaphore(0)
    server, poller = serves(groups.open, 3600)
    server.start()
    try:
        poller.wait(lambda board: len(board.groups), 0, scaled(10))
        yield groups, poller, server
    finally:
        assert server.close(scaled(20))


def test_the_poller_gives_way_to_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both took turns at the interpreter, so an answer about a thousand groups took twice its time."""
    judged: dict[str, float] = {}

    def judge(found: ObservedGroup, before: Any) -> Any:
        judged[found.group] = time.monotonic()
        return judged_later(found, before)

    monkeypatch.setattr("zkconsumer.operations.serving.poller.judged_later", judge)
    with before_the_second_group() as (groups, poller, _):
        with poller.making_answer():
            time.sleep(0.2)  # the poller waits no longer than it has worked
            permitted = time.monotonic()
            groups.permitted.release()
            time.sleep(0.1)
            made = time.monotonic()
        poller.wait(lambda board: board.polls, 0, scaled(10))
        assert judged["h"] >= min(made, permitted + 0.2)


def test_answers_without_end_do_not_stop_the_poller() -> None:
    server, poller = serves(Groups().open, 0.02)
    with poller.making_answer():
        server.start()
        try:
            eventually(lambda: poller.board.polls > 3, 10, "polls")
        finally:
            assert server.close(scaled(20))


def test_each_part_of_an_answer_keeps_the_poller() -> None:
    told = []

    @contextmanager
    def making() -> Iterator[None]:
        told.append("begin")
        yield
        told.append("end")

    def answer(target: str, headers: Mapping[str, str]) -> Response:
        return Response(200, target.encode(), more=[lambda: b" and", lambda: bytes(told.count("begin"))])

    server = BoundedServer(LOOPBACK, "test", answer, making=making)
    server.start()
    try:
        client = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=scaled(10))
        client.request("GET", "/a")
        assert client.getresponse().read() == b"/a and" + bytes(3)
        client.close()
    finally:
        assert server.end(Deadline(scaled(10)))
    assert told == ["begin", "end"] * 3


def test_groups_are_missing_until_they_were_read() -> None:
    """After a first poll that could read nothing, the first batch of the next poll said that no group was missing."""
    groups = Batches()
    groups.permitted = threading.Semaphore(0)
    groups.failure = RegistryUnavailableError("no server answers")
    with serving(groups) as server:
        try:
            groups.failure = None
            eventually(lambda: asked(server, "/api/groups")["groups"], 10, "the first batch")
            assert asked(server, "/api/groups")["missing"] == 1
        finally:
            groups.permitted.release(1_000_000)
        eventually(lambda: asked(server, "/api/groups")["missing"] == 0, 10, "the second batch")


def test_an_open_page_keeps_no_earlier_board() -> None:
    """It kept the board of its group's batch until the group was read again, with the other groups' old readings."""
    with (
        before_the_second_group() as (groups, poller, server),
        streaming(server, "/api/groups/g/events") as stream,
    ):
        assert next(events(stream))["serial"] == 1
        groups.permitted.release()
        present = poller.wait(lambda board: board.polls, 0, scaled(10)).groups["g"]

        def boards() -> int:
            return sum(isinstance(one, Board) and one.groups.get("g") is present for one in gc.get_objects())

        eventually(lambda: boards() == 1, 10, "the latest board alone")


def test_a_group_made_anew_has_its_own_details() -> None:
    """It counts its readings anew, and so may have had the number of a reading whose details were kept."""
    boards = [Board({"g": watched(one)}) for one in (at(0, 1, 2), at(60, 1, 2, owners={}))]

    def told(present: Board, routes: Routes) -> Any:
        latest[0] = present
        return json.loads(routes.answer(request_of("/api/groups/g", {"host": "localhost"})).body)["events"]

    latest = boards[:1]
    kept, fresh = (
        Routes(lambda: latest[0], AccessRules(LOOPBACK), ServeOptions("local", "here", 1, {})) for _ in range(2)
    )
    before = told(boards[0], kept)
    assert told(boards[1], kept) == told(boards[1], fresh) != before


def test_a_clock_set_back_does_not_keep_judgements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings that depend on the time stayed until the clock had come back to the time of their judgement."""
    groups, judged, clock = Groups(), list[int](), [NOW]

    def judge(found: ObservedGroup, before: Any) -> Any:
        judged.append(found.snapshot.taken)
        return judged_later(found, before)

    monkeypatch.setattr("zkconsumer.operations.serving.poller.judged_later", judge)
    monkeypatch.setattr(groups, "snapshot", lambda name, *, message_times: replace(groups.known[name], taken=clock[0]))
    with serving(groups):
        clock[0] = NOW - 3_600_000
        eventually(lambda: len(judged) == 2, 10, "another judgement")
    assert judged == [NOW, NOW - 3_600_000]


def test_a_python_without_ctypes_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    monkeypatch.delitem(sys.modules, "zkconsumer.cli.serve", raising=False)
    importlib.import_module("zkconsumer.cli.serve").return_memory()


@pytest.mark.parametrize(
    ("spent", "slowest", "rest"),
    [
        (0.1, 0.1, 7.8),  # a change just after this poll began is shown after 8 s
        (4.5, 0.5, 3.0),
        (4.5, 4.5, 4.5),  # one batch that takes this long does not come more often
        (9.0, 1.0, 1.0),
        (30.0, 1.0, 1.0),
    ],
)
def test_polls_follow_each_other_within_an_interval(spent: float, slowest: float, rest: float) -> None:
    assert pause(10.0, spent, slowest) == pytest.approx(rest)


def test_closing_does_not_wait_for_a_hanging_read() -> None:
    groups = Groups()
    groups.go_on = threading.Event()
    server, poller = serves(groups.open, 3600)
    server.start()
    assert groups.reading.wait(scaled(10))
    assert not server.close(0.2)
    groups.go_on.set()
    assert poller.stop(scaled(10))
