"""The HTTP server of ``zkconsumer serve``: its paths, and its streams of events.

Each path is answered from the board of the last poll. Asking therefore never causes a request to ZooKeeper or a broker.
:class:`Routes` does no I/O, and any thread may call it.

:class:`~zkconsumer.operations.serving.bounded_http.BoundedServer` bounds the server's threads, times and sizes. The
threads are ``zkconsumer-serve-accept`` and ``zkconsumer-serve-request``. :meth:`GroupServer.close` ends them all.

A page of another site can make a browser on this machine send requests to 127.0.0.1. With a name of its own that
resolves to 127.0.0.1 it could even read the answers (DNS rebinding). So a server on loopback answers only requests that
name it by a loopback address, and a server on another address only requests with the token (:class:`AccessRules`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, unquote, urlencode

from zkconsumer.errors import ConfigException
from zkconsumer.operations.judgement import Judgement
from zkconsumer.operations.serving.api import Details, Document, details, group_document, groups_document
from zkconsumer.operations.serving.bounded_http import (
    TEXT,
    WRITE_SECONDS,
    BoundedServer,
    ListenAddress,
    RequestHandler,
    Response,
    names_loopback,
    text,
)
from zkconsumer.operations.serving.burrow_answers import BurrowCluster
from zkconsumer.operations.serving.group_history import SPANS, GroupHistory
from zkconsumer.operations.serving.group_trends import GroupTrend
from zkconsumer.operations.serving.metrics_text import CONTENT_TYPE, MetricsLevel, metrics_text
from zkconsumer.operations.serving.observed_group import ObservedGroup
from zkconsumer.operations.serving.poller import Board, Poller
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock

JSON = "application/json"
COOKIE = "zkconsumer_token"
LEAST_TOKEN = 16
"""The least length of a token in characters."""

_OPEN = {("healthz",), ("readyz",), ("burrow", "admin"), ("burrow", "admin", "ready")}
"""Paths for probes. They need no token, and tell nothing of the groups."""

_LATE = 3
"""A board is too old to be ready after this many intervals."""
_PARAMETERS = 64
"""The most parameters of a request, and so the most groups that one request for metrics names."""
_PATIENCE = 5.0
"""Seconds to wait while another thread makes the details of a group."""
_DETAILS = 64
"""The most groups whose details are kept between two readings."""


def checked_token(text: str, where: str) -> str:
    """Return the token in the content of a file. Raises ConfigException that names the file, never the token."""
    token = text.strip()
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigException(
            "--token-file", f"{where} needs one line of at least {LEAST_TOKEN} printable ASCII characters, no spaces"
        )
    return token


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules of one server. ``token`` is None on loopback without a token.

    Raises: ConfigException for an address off loopback without a token.
    """

    address: ListenAddress
    token: str | None = None

    def __post_init__(self) -> None:
        if self.token is None and not self.address.loopback:
            raise ConfigException(
                "--listen",
                f"{self.address.host} is reachable from other machines, so a token is needed: --token-file FILE",
            )

    def host_allowed(self, host: str | None) -> bool:
        """Return whether a request with this ``Host`` header may be answered."""
        # off loopback the token decides; the server cannot know all its names
        return names_loopback(host) or not self.address.loopback

    def token_given(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bool:
        """Return whether a request has the token: as ``Bearer``, as ``?token=`` or as the cookie of an earlier one.

        Arguments: ``headers`` by lower-case names, ``query`` the parameters.
        """
        if self.token is None:
            return True
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [bearer.strip()] if scheme.lower() == "bearer" else []
        given += [query["token"]] if "token" in query else []
        return any(_same(one, self.token) for one in given) or _same(_cookie(headers), self.cookie)

    @property
    def cookie(self) -> str:
        """The cookie's value. It is derived from the token, so that a stolen cookie does not reveal the token."""
        return hmac.new((self.token or "").encode(), COOKIE.encode(), hashlib.sha256).hexdigest()


def _cookie(headers: Mapping[str, str]) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return ""
    return "" if found is None else found.value


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time, so that the time of an answer does not tell how much of a guess is right."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), wanted.encode())


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request. ``path`` has the decoded elements, ``headers`` have lower-case names.

    ``groups`` are all values of the parameter ``group``; ``query`` has the last value of each parameter.
    """

    target: str
    path: tuple[str, ...]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    groups: tuple[str, ...] = ()


def request_of(target: str, headers: Mapping[str, str]) -> HttpRequest:
    """Return the request for the target of a request line. Raises ValueError for a target that is no path."""
    path, _, query = target.partition("?")
    if not path.startswith("/"):
        raise ValueError("a path is wanted")
    elements = tuple(unquote(element) for element in path.removesuffix("/").split("/")[1:])
    pairs = parse_qsl(query, max_num_fields=_PARAMETERS)
    return HttpRequest(path, elements, dict(pairs), headers, tuple(text for name, text in pairs if name == "group"))


def document(found: Document, status: int = 200) -> Response:
    """Return a JSON document. ASCII only: a reader escapes what a node's name may hold, and nothing breaks before."""
    return Response(status, json.dumps(found, separators=(",", ":")).encode(), JSON)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the answers depend on beside the board.

    ``cluster`` is the name in Burrow's paths, ``host`` that of this machine. ``interval`` is that of the polls in
    seconds. ``files`` are those of the page, and for Prometheus and Grafana, by name. ``as_taken`` answers as of the
    latest snapshot in place of now, for snapshots of the past. ``metrics_level`` is the level of ``/metrics``.
    """

    cluster: str
    host: str
    interval: float
    files: Mapping[str, tuple[bytes, str]]
    as_taken: bool = False
    metrics_level: MetricsLevel = MetricsLevel.PARTITION


class Routes:
    """Answers requests from the latest board.

    Arguments: ``board`` returns it. ``rules`` say who may ask. ``options`` are those of the answers. ``history``
    follows the board; without it nothing is known of rates and of the past.
    """

    def __init__(
        self, board: Callable[[], Board], rules: AccessRules, options: ServeOptions, history: GroupHistory | None = None
    ) -> None:
        self._board = board
        self._rules = rules
        self._options = options
        self._history = history
        self._details: dict[str, tuple[ObservedGroup, Details]] = {}
        self._making = InterruptibleLock()

    def answer(self, request: HttpRequest) -> Response:
        """Return the answer to a GET."""
        if not self._rules.host_allowed(request.headers.get("host")):
            return text(403, "this server answers only under a loopback name, such as 127.0.0.1 or localhost")
        if request.path in _OPEN:
            return self._probe(request)
        if not self._rules.token_given(request.headers, request.query):
            refused = text(401, "a token is needed: 'Authorization: Bearer TOKEN', or ?token=TOKEN once in a browser")
            return Response(401, refused.body, refused.content_type, {"WWW-Authenticate": "Bearer"})
        if "token" in request.query and not request.path:
            return self._remembered(request)
        return self._allowed(request)

    def _remembered(self, request: HttpRequest) -> Response:
        """Return a redirection that puts the token into a cookie, and so out of the address and the history."""
        rest = urlencode({name: value for name, value in request.query.items() if name != "token"})
        cookie = f"{COOKIE}={self._rules.cookie}; HttpOnly; SameSite=Strict; Path=/"
        return Response(303, headers={"Location": f"/?{rest}" if rest else "/", "Set-Cookie": cookie})

    def _probe(self, request: HttpRequest) -> Response:
        if request.path == ("burrow", "admin"):
            return Response(200, b"GOOD")
        board = self._board()
        if request.path == ("healthz",):
            return text(503, "the poller has ended") if board.ended else text(200, "ok")
        why = self._not_ready(board)
        if request.path == ("burrow", "admin", "ready"):
            return Response(503 if why else 200, b"STARTING" if why else b"READY")
        return text(503, why) if why else text(200, "ready")

    def _not_ready(self, board: Board) -> str:
        """Return why the answers are not to be relied on, empty if they are. It names no group and no address."""
        if board.ended:
            return "the poller has ended"
        if board.completed is None:
            return "the first poll has not completed" + (
                f": {board.missing} groups are missing" if board.missing else ""
            )
        if board.failure:
            return "the last poll could read nothing"
        late = _now() - board.completed > 1000 * (_LATE * self._options.interval + board.seconds)
        return "no poll has completed for several intervals" if late else ""

    def _allowed(self, request: HttpRequest) -> Response:
        path, board = request.path, self._board()
        now = self._time(board)
        match path:
            case ():
                return self._file("index.html")
            case ("metrics",):
                return self._metrics(board, request.groups)
            case ("api", "groups"):
                judged = {name: (watched, _judgement(board, name)) for name, watched in board.groups.items()}
                found = groups_document(judged, now, self._trends())
                found = {**found, "failure": board.failure or None, "polls": board.polls, "kept": self._kept()}
                counts = {"left_out": board.left_out, "missing": board.missing}
                return document({**found, "interval": self._options.interval, **counts})
            case ("api", "groups", group):
                return self._group(board, group, request.query, now)
            case ("api", "groups", group, "history"):
                return self._past(group, request.query) if group in board.groups else _unknown(group)
            case ("api", "events"):
                return Response(200, events="")
            case ("api", "groups", group, "events"):
                return Response(200, events=group) if group in board.groups else _unknown(group)
            case ("v3", "kafka", *rest):
                return self._burrow(board, request, rest, now)
            case (name,):
                return self._file(name)
        return text(404, "there is no such path")

    def _file(self, name: str) -> Response:
        content, kind = self._options.files.get(name, (b"", ""))
        return Response(200, content, kind) if kind else text(404, "there is no such path")

    def _metrics(self, board: Board, groups: Sequence[str]) -> Response:
        """Return the metrics of all groups, or of the named ones. If none of these is known, the scrape should fail."""
        if groups and board.completed is not None and not board.groups.keys() & set(groups):
            return text(404, "none of these groups is known")
        state = None if self._history is None else self._history.state
        found = metrics_text(board, self._options.metrics_level, groups or None, self._trends(), state)
        return Response(200, b"", CONTENT_TYPE, more=found)

    def _trends(self) -> Mapping[str, GroupTrend]:
        return {} if self._history is None else self._history.trends

    def _kept(self) -> Document | None:
        """Return the state of the history's file, None if there is none."""
        return None if self._history is None else self._history.state.document()

    def _past(self, group: str, query: Mapping[str, str]) -> Response:
        span = query.get("span", "day")
        if span not in SPANS:
            return document({"error": f"span: one of {', '.join(SPANS)} is wanted"}, 400)
        if self._history is None or self._kept() is None:
            return document({"error": "no history is kept: start the server with --history FILE"}, 404)
        found = self._history.graph(group, span)
        if isinstance(found, str):
            refused = document({"error": f"the history cannot be read now: {found}"}, 503)
            return Response(503, refused.body, JSON, {"Retry-After": "30"})
        return document(found)

    def _time(self, board: Board) -> int:
        """Return the time of the answers, in milliseconds since 1970."""
        taken = [watched.snapshot.taken for watched in board.groups.values()] if self._options.as_taken else []
        return max(taken, default=_now())

    def _group(self, board: Board, group: str, query: Mapping[str, str], now: int) -> Response:
        watched = board.groups.get(group)
        if watched is None:
            return _unknown(group)
        since = query.get("since", "0")
        if not (since.isascii() and since.isdecimal() and len(since) < 18):
            return document({"error": "since: milliseconds since 1970 are wanted"}, 400)
        judged = _judgement(board, group)
        trend = self._trends().get(group, GroupTrend())
        found = group_document(watched, judged, self._told(watched, judged), now, int(since), trend)
        return document({**found, "interval": self._options.interval, "kept": self._kept()})

    def _told(self, watched: ObservedGroup, judgement: Judgement) -> Details:
        """Return the details of a group, made once a reading.

        One thread at a time makes details, so that many open pages of a huge group cost no more than a single page.
        Other threads get the details of the reading before, or wait for the first details.
        """
        known = self._details.get(watched.group)
        if known is not None and known[0] is watched:  # a group made anew counts its readings anew
            return known[1]
        if not self._making.acquire(timeout=0 if known is not None else _PATIENCE):
            return Details() if known is None else known[1]
        try:
            known = self._details.get(watched.group)
            if known is None or known[0] is not watched:
                known = watched, details(watched, judgement, known)
                if len(self._details) >= _DETAILS:
                    self._details = {}
                self._details[watched.group] = known
            return known[1]
        finally:
            self._making.release()

    def _burrow(self, board: Board, request: HttpRequest, path: Sequence[str], now: int) -> Response:
        options = self._options
        cluster = BurrowCluster(options.cluster, board.groups, now, options.host, options.interval)
        answer = cluster.answer(request.target, path)
        if answer is None:
            return document({"error": True, "message": "invalid request type", "result": {}}, 404)
        return document(answer.document, answer.status)


def _judgement(board: Board, group: str) -> Judgement:
    return board.judgements.get(group, Judgement())


def _unknown(group: str) -> Response:
    return document({"error": f"there is no group {group!a}"}, 404)


def _now() -> int:
    return int(time.time() * 1000)


MOST_LISTENERS = 32
"""Event streams. Fewer than connections, so that open pages do not keep Prometheus out."""
HEARTBEAT_SECONDS = 15.0
APART_SECONDS = 1.0
"""The least time between two events of all groups: a poll of many groups publishes several boards a second."""


class _Handler(RequestHandler):
    """Sends answers, and events."""

    server: _Server

    def respond(self, answer: Response, *, packed: bool = False) -> None:
        """Send an answer, or the events of a group."""
        if answer.events is not None:
            self._stream(answer.events)
        else:
            super().respond(answer, packed=packed)

    def _stream(self, group: str) -> None:
        """Send an event after each reading of a group, or of all groups, until the client or the poller ends."""
        if self.command == "HEAD":
            self.begin(200, "text/event-stream", {})
            return
        if not self.server.listeners.acquire(blocking=False):
            self.respond(Response(503, b"too many event streams\n", TEXT, {"Retry-After": "30"}))
            return
        try:
            self.begin(200, "text/event-stream", {"X-Accel-Buffering": "no"})
            self.wfile.write(b"retry: 3000\n\n")
            told: int | None = -1
            while True:
                board = self.server.poller.wait(lambda one: _mark(one, group), told, HEARTBEAT_SECONDS)
                if board.ended:
                    return
                self.connection.settimeout(WRITE_SECONDS)
                self.wfile.write(b": still here\n\n" if _mark(board, group) == told else _event(board, group))
                told = _mark(board, group)
                del board  # an open page kept the other groups' earlier readings in memory while it waited
                if not group:
                    self.server.poller.wait(lambda _: None, None, APART_SECONDS)
        finally:
            self.server.listeners.release()


def _mark(board: Board, group: str) -> int | None:
    """Return a number that differs after each reading of a group, or of any with an empty name. None: it is gone."""
    watched = board.groups.get(group)
    return (None if watched is None else watched.serial) if group else board.serial


def _event(board: Board, group: str) -> bytes:
    """Return the event ``changed`` after a poll: of one group, or of all with an empty name."""
    watched = board.groups.get(group)
    told: dict[str, object] = {"polls": board.polls, "completed": board.completed, "failure": board.failure or None}
    if group:
        told |= {"group": group, "serial": None if watched is None else watched.serial}
        told["taken"] = None if watched is None else watched.snapshot.taken
    return f"event: changed\ndata: {json.dumps(told)}\n\n".encode()


class _Server(BoundedServer):
    """The server, with the poller and the listeners' bound for its handlers."""

    def __init__(self, address: ListenAddress, routes: Routes, poller: Poller) -> None:
        self.poller = poller
        self.listeners = threading.BoundedSemaphore(MOST_LISTENERS)

        def answer(target: str, headers: Mapping[str, str]) -> Response:
            return routes.answer(request_of(target, headers))

        super().__init__(address, "zkconsumer-serve", answer, _Handler, poller.making_answer)


class GroupServer:
    """The HTTP server over a poller and the history that follows it: opens the port, answers, and ends.

    Arguments: ``address`` to listen on, ``routes``, ``poller`` and ``history``.
    Raises: ConfigException if the port cannot be had.
    """

    def __init__(
        self, address: ListenAddress, routes: Routes, poller: Poller, history: GroupHistory | None = None
    ) -> None:
        self._poller = poller
        self._history = history
        try:
            self._server = _Server(address, routes, poller)
        except OSError as error:
            raise ConfigException("--listen", f"{address.host}:{address.port} cannot be used: {error}") from None

    @property
    def url(self) -> str:
        """The address of the page."""
        return self._server.url

    def start(self) -> None:
        """Start the history, the poller and the accepting thread. Raises: ConfigException for a wrong history file."""
        if self._history is not None:
            self._history.start()
        self._poller.start()
        self._server.start()

    def close(self, timeout: float = 5.0) -> bool:
        """End the poller, the listeners and the server. Return whether all threads ended within ``timeout`` seconds."""
        deadline = Deadline(timeout)
        ended = self._poller.stop(timeout * 0.6)
        ended = (self._history is None or self._history.stop(timeout * 0.2)) and ended
        return self._server.end(deadline) and ended
