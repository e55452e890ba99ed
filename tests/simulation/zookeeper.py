"""The kit's ZooKeeper in a simulated world: sessions that ping, expire and lose answers, and events on a thread.

A session of the kit calls watches on the thread of the change. A real client calls them on a thread of its own process,
which may be frozen or dead. So each session here has a task for events and one for pings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any

from tests.simulation.scheduler import Process, world
from zkconsumer.errors import RegistryUnavailableError, SessionLostError
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper import FakeSession, FakeZooKeeper
from zkconsumer.zookeeper.node_values import Watch
from zkconsumer.zookeeper.session import SessionChanged

_LATENCIES = (0.003, 0.003, 0.2)  # seconds that half a request takes at most, of which the seed chooses one
_SILENCE = 2.0  # seconds between two looks at the sessions at most
_PATIENCE = 0.5  # seconds in which a client gives an unanswered request up, at most


class SimulatedZooKeeper(FakeZooKeeper):
    """The server. ``changed`` is called after each change of the tree, before any other task runs."""

    reachable = True
    silent = (0.0, 0.0)  # when the last time without a quorum began, and when it ended, or until now

    def __init__(self, *, session_timeout: float) -> None:
        super().__init__(session_timeout=session_timeout)
        self.sessions: list[SimulatedSession] = []
        self.changed: Callable[[], None] = lambda: None
        self.renewed: Callable[[Process], None]
        """Called with a process that has a session again after a former one has ended."""
        self.latency = world().random.choice(_LATENCIES)

    def session(self, on_change: Callable[[SessionChanged], None] = lambda _: None) -> SimulatedSession:
        made = SimulatedSession(self, on_change)
        self.sessions.append(made)
        return made

    @contextmanager
    def at_once(self) -> Iterator[None]:
        before = self.zxid
        with super().at_once():
            yield
            if self._depth == 1 and self.zxid != before:
                self.changed()

    def watch(self, kind: str, path: str, watch: Watch | None, owner: Any) -> None:
        if watch is not None:
            super().watch(kind, path, owner.on_own_thread(watch), owner)

    def expire_silent(self) -> None:
        """End the sessions that the server has not heard of for the session timeout."""
        if not self.reachable:
            began, end = self.silent
            self.silent = (began if end > world().now - _SILENCE else world().now, world().now)
            for session in self.sessions:
                session.heard = world().now  # a new leader gives every session its whole timeout
            return
        for session in self.sessions:
            if self._is_silent(session):
                with self.at_once():  # a process that stands still amid a request holds the server up
                    if self._is_silent(session):  # otherwise an answer since then would be of a session that has ended
                        world().note(f"server expires session {session.session_id} of {session.process}")
                        session.expire_unnoticed()

    def _is_silent(self, session: SimulatedSession) -> bool:
        return session.session_id != 0 and world().now - session.heard > self.session_timeout


class SimulatedSession(FakeSession):
    """A member's session."""

    _server: SimulatedZooKeeper
    cut_until = slow_until = 0.0
    lose_next = ""
    """Which answer gets lost next, with the connection: ``any``, or a ``claim``, a transaction but a commit's."""

    def __init__(self, server: SimulatedZooKeeper, on_change: Callable[[SessionChanged], None]) -> None:
        self._events: SimpleQueue[Callable[[], object]] = SimpleQueue()
        super().__init__(server, lambda change: self._events.put(lambda: on_change(change)))
        self.process, self.heard = world().current.process, world().now
        self._wrapped: dict[Watch, Watch] = {}

    def open(self, deadline: Deadline) -> None:
        """Connect, and start the client's two threads. Raises RegistryUnavailableError."""
        if not self._reaches():
            raise RegistryUnavailableError("no ZooKeeper server answered within the connection timeout")
        super().open(deadline)
        self.heard = world().now
        for role, body in (("events", self._deliver), ("pings", self._ping)):
            Thread(target=body, name=f"{self.process}-zookeeper-{role}", daemon=True).start()

    def close(self, deadline: Deadline) -> None:
        super().close(deadline)
        self._events.put(lambda: None)

    def _deliver(self) -> None:
        while not self._closed:
            self._events.get()()
        self._events.put(lambda: None)  # a second thread of events, of a session that was opened again, ends too

    def _reaches(self) -> bool:
        return self._server.reachable and world().now >= self.cut_until

    def _ping(self) -> None:
        """Renew the lease as answers to pings do, and reconnect after a cut."""
        while not self._closed:
            sent = world().now
            world().sleep(world().random.random() * 0.01)
            if self._closed:
                return
            if self._reaches():
                if self.session_id:
                    self.heard = world().now
                if not self._up or not self.session_id:
                    if self._up:
                        self.suspend()
                    self.resume()
                    self.heard = world().now
                    world().note(f"{self.process} has session {self.session_id}")
                    self._server.renewed(self.process)
                else:
                    self.lease.renew(sent, self.timeout)
            elif self._up and sent - self.heard > self.timeout * 2 / 3:
                self.suspend()
            world().sleep(self.timeout / 3 if self._up else 0.2)

    def cut(self, seconds: float) -> None:
        """Keep this client from the server for some seconds; it notices by a reset."""
        self.cut_until = world().now + seconds
        if self._up:
            self.suspend()

    @contextmanager
    def request(self, kind: str, count: int = 1) -> Iterator[FakeZooKeeper]:
        here = world()
        latency, session_id = self._server.latency, self._id
        here.sleep(here.random.random() * (0.4 if here.now < self.slow_until else latency))
        if not self._closed and self._up and not self._reaches():
            here.sleep(_PATIENCE)
            raise RegistryUnavailableError("ZooKeeper did not answer in time")
        if self._up and not self._closed and (not self._id or self._id != session_id):
            if not self._id:
                self.suspend()
            raise SessionLostError("the session ended during the request")
        claims = kind == "transaction" and "committer" not in here.current.name
        lost = self.lose_next == "any" or (self.lose_next == "claim" and claims)
        if lost:
            self.lose_next = ""
        with super().request(kind, count) as server:
            self.heard = here.now
            yield server
        if lost:
            here.note(f"{self.process}: the answer to a {kind} is lost")
            self.cut(0.1)
            raise RegistryUnavailableError(f"{kind}: the connection was lost")
        here.sleep(here.random.random() * (0.4 if here.now < self.slow_until else latency))

    def on_own_thread(self, watch: Watch) -> Watch:
        """Return the wrapper of a watch, always the same one, which puts the events on the client's queue."""
        return self._wrapped.setdefault(watch, lambda event: self._events.put(lambda: watch(event)))
