"""A broker that does what a test says, on a loopback socket: one script for each connection, in order."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self

from tests.timing import scaled
from zkconsumer.kafka.api_schema import ApiSchema, Field, FieldType
from zkconsumer.kafka.broker_schemas import API_VERSIONS, BROKER_MESSAGES, FETCH
from zkconsumer.kafka.group_schemas import TOOL_MESSAGES
from zkconsumer.model import Endpoint

RANGES: Mapping[int, tuple[int, int]] = {1: (0, 17), 2: (0, 9), 3: (0, 12), 18: (0, 4)}


_MESSAGES = {message.key: message for message in (*BROKER_MESSAGES, *TOOL_MESSAGES)}


class Asked(NamedTuple):
    """A request as it arrived."""

    api: int
    version: int
    correlation_id: int
    body: bytes

    @property
    def values(self) -> dict[str, Any]:
        """The values of a request whose version has no tagged fields."""
        message = _MESSAGES[self.api]
        return message.read(message.request, self.version, self.body)


def response(message: ApiSchema, version: int, *values: Any) -> bytes:
    """The body of a response. Values, also those of structures, stand in the order of the version's fields."""
    return message.write(message.response, version, _named(message.response, version, values))


def _named(fields: Sequence[Field], version: int, values: Sequence[Any]) -> dict[str, Any]:
    def one(field: Field, value: Any) -> Any:
        if isinstance(field.kind, FieldType) or value is None:
            return value
        kind = field.kind
        return [_named(kind, version, each) for each in value] if field.many else _named(kind, version, value)

    present = [field for field in fields if field.since <= version <= field.until]
    return {field.name: one(field, value) for field, value in zip(present, values, strict=True)}


class Peer:
    """The broker's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(scaled(20))

    def request(self) -> Asked:
        size = int.from_bytes(self.exactly(4), "big")
        data = self.exactly(size)
        api, version, correlation_id, length = struct.unpack_from(">hhih", data)
        return Asked(api, version, correlation_id, data[10 + length :])

    def requests(self) -> Iterator[Asked]:
        """Yield one request after the other, until the client is gone."""
        with suppress(ConnectionError):
            while True:
                yield self.request()

    def answer(self, correlation_id: int, body: bytes) -> None:
        self.send(struct.pack(">ii", len(body) + 4, correlation_id) + body)

    def versions(self, ranges: Mapping[int, tuple[int, int]] = RANGES) -> None:
        """Answer the question for versions, which every newer connection begins with."""
        asked = self.request()
        assert (asked.api, asked.version) == (18, 0)
        self.answer(asked.correlation_id, response(API_VERSIONS, 0, 0, [(k, *v) for k, v in ranges.items()]))

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def until_closed(self) -> None:
        """Wait until the other side is gone."""
        try:
            while self.sock.recv(65536):
                pass
        except OSError:
            pass

    def exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                raise ConnectionError("the client is gone")
            data += more
        return data


Script = Callable[[Peer], None]


def answers(*bodies: bytes) -> Script:
    """Return a script that answers the question for versions, then one request after the other."""

    def script(peer: Peer) -> None:
        peer.versions()
        for body in bodies:
            peer.answer(peer.request().correlation_id, body)
        peer.until_closed()

    return script


class ScriptedBroker:
    """Serves connections in turn on a thread of its own, and ends with the block."""

    def __init__(self, *scripts: Script) -> None:
        self.scripts = list(scripts)
        self.failure: BaseException | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(scaled(20))
        self._thread = threading.Thread(target=self._serve, name="scripted-broker")

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def endpoint(self, generation: int = 5) -> Endpoint:
        return Endpoint(7, "127.0.0.1", self.port, generation)

    def _serve(self) -> None:
        try:
            for script in self.scripts:
                sock, _ = self._listener.accept()
                with sock:
                    script(Peer(sock))
        except BaseException as failure:  # told by __exit__
            self.failure = failure

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._thread.join(scaled(30))
        self._listener.close()
        assert not self._thread.is_alive()
        if kind is None and self.failure is not None:
            raise self.failure


def fetched(records: bytes = b"", error: int = 0, **top: Any) -> bytes:
    """The answer to a fetch, version 10, with one partition."""
    partition = (top.get("partition", 3), error, 100, 100, 0, None, records)
    return response(FETCH, 10, 0, top.get("error_code", 0), 0, [("t", [partition])])
