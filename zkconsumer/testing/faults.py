"""The faults that a test puts into a fake cluster: error answers, forged answers, and parked requests.

Any thread may call everything. One lock guards the lists, and no thread waits under it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Event, Lock
from types import TracebackType
from typing import Any, NamedTuple, Self

from zkconsumer.testing.wire_types import Body

_SLICE = 0.05


class Recorded(NamedTuple):
    """A request that a broker received."""

    broker: int
    api: str
    version: int
    client_id: str | None
    body: Body


class AnswerFate(Enum):
    """The end of a parked request."""

    RELEASED = "released"
    DROPPED = "dropped"


@dataclass
class _Wanted:
    """A filter of requests. None means any."""

    api: str
    broker: int | None
    client_id: str | None

    def fits(self, request: Recorded) -> bool:
        return (
            self.api == request.api
            and self.broker in (None, request.broker)
            and self.client_id in (None, request.client_id)
        )


class Parked:
    """A place where one request, or its answer, waits until :meth:`release` or :meth:`drop`.

    As a context manager it releases the request at the end of the block, even after an error.
    """

    def __init__(self, wanted: Any, at: str) -> None:
        self.at = at
        self.request: Recorded | None = None
        self._wanted: _Wanted = wanted
        self._arrived = Event()
        self._decided = Event()
        self._fate = AnswerFate.RELEASED

    @property
    def decided(self) -> bool:
        """Whether the request was released or dropped."""
        return self._decided.is_set()

    def fits(self, request: Recorded, at: str) -> bool:
        """Return whether this request is to be parked here. Arguments: ``at`` is where the request is now."""
        return self.at == at and self._wanted.fits(request)

    def wait(self, timeout: float = 10.0) -> Recorded:
        """Wait at most ``timeout`` seconds for the request and return it. Raises TimeoutError."""
        if not self._arrived.wait(timeout):
            raise TimeoutError(f"no {self._wanted.api} came to be parked in {timeout:g} s")
        assert self.request is not None
        return self.request

    def release(self) -> None:
        """Release the request. If no request has arrived, none will be parked here any more."""
        self._decided.set()

    def drop(self) -> None:
        """Close the connection. The client never learns the result of its request."""
        self._fate = AnswerFate.DROPPED
        self._decided.set()

    def hold(self, request: Recorded, stop: Event) -> AnswerFate:
        """Park a request, on the broker's thread, until the test has decided or the broker stops."""
        self.request = request
        self._arrived.set()
        while not self._decided.wait(_SLICE):
            if stop.is_set():
                return AnswerFate.DROPPED
        return self._fate

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


@dataclass
class _FailingAnswers:
    wanted: _Wanted
    code: int
    left: int


@dataclass
class Forged:
    """Bytes to send in place of the real answer.

    ``data`` is the body, or a function that makes it from the real one. With ``whole`` it includes length and header.
    """

    wanted: _Wanted
    data: bytes | Callable[[bytes], bytes]
    whole: bool
    left: int

    def of(self, real: bytes) -> bytes:
        """Return the bytes to send instead of the ``real`` ones."""
        return self.data(real) if callable(self.data) else self.data


class Faults:
    """The faults of a cluster, and all requests so far. The base of ``FakeCluster``."""

    def __init__(self) -> None:
        self._faults_lock = Lock()
        self._failures: list[_FailingAnswers] = []
        self._forged: list[Forged] = []
        self._places: list[Parked] = []
        self._seen: list[Recorded] = []

    # ---- for tests ----

    @property
    def requests(self) -> list[Recorded]:
        """Every request so far, in the order of arrival."""
        with self._faults_lock:
            return list(self._seen)

    def requests_of(self, api: str, client_id: str | None = None) -> list[Recorded]:
        """Return the requests of a kind, such as "JoinGroup", of one client or of all clients."""
        return [r for r in self.requests if r.api == api and client_id in (None, r.client_id)]

    def fail(
        self, api: str, code: int, times: int = 1, *, broker: int | None = None, client_id: str | None = None
    ) -> None:
        """Answer the next ``times`` requests of a kind with an error, and do not perform them.

        Arguments: ``api`` is a name such as "OffsetCommit", ``code`` an error code of the protocol. ``broker`` and
        ``client_id`` restrict the requests.
        """
        with self._faults_lock:
            self._failures.append(_FailingAnswers(_Wanted(api, broker, client_id), code, times))

    def answer(
        self,
        api: str,
        data: bytes | Callable[[bytes], bytes],
        times: int = 1,
        *,
        broker: int | None = None,
        client_id: str | None = None,
        whole: bool = False,
    ) -> None:
        """Send chosen bytes in place of the answers to the next ``times`` requests of a kind, which are performed.

        Arguments: ``api`` is a name such as "Fetch". ``data`` is the body of the answer, or a function that makes it
        from the real one. With ``whole`` it includes length and header. ``broker`` and ``client_id`` restrict the
        requests.
        """
        with self._faults_lock:
            self._forged.append(Forged(_Wanted(api, broker, client_id), data, whole, times))

    def park(self, api: str, *, at: str = "answer", broker: int | None = None, client_id: str | None = None) -> Parked:
        """Park the next request of a kind. Later requests of its connection wait behind it.

        Arguments: ``at`` is "request" (the broker has done nothing yet) or "answer" (the broker has performed the
        request, and the client does not know it).
        """
        if at not in ("request", "answer"):
            raise ValueError(f'at must be "request" or "answer", not {at!r}')
        parked = Parked(_Wanted(api, broker, client_id), at)
        with self._faults_lock:
            self._places.append(parked)
        return parked

    # ---- for the brokers ----

    def forged_for(self, request: Recorded) -> Forged | None:
        """Return the forged answer to this request, None for the real answer."""
        with self._faults_lock:
            for forged in self._forged:
                if forged.left > 0 and forged.wanted.fits(request):
                    forged.left -= 1
                    return forged
        return None

    def record(self, request: Recorded) -> None:
        """Record a request."""
        with self._faults_lock:
            self._seen.append(request)

    def code_for(self, request: Recorded) -> int:
        """Return the error to answer to this request, 0 for none."""
        with self._faults_lock:
            for failure in self._failures:
                if failure.left > 0 and failure.wanted.fits(request):
                    failure.left -= 1
                    return failure.code
        return 0

    def place_for(self, request: Recorded, at: str) -> Parked | None:
        """Return the place where this request has to wait, or None. The place is then taken."""
        with self._faults_lock:
            self._places = [place for place in self._places if not place.decided]
            for place in self._places:
                if place.fits(request, at):
                    self._places.remove(place)
                    return place
        return None
