"""A close ends in time, whatever stands still. In virtual time each wait takes its whole timeout.

Nothing here really waits. ZooKeeper never answers, so that a request takes its whole deadline, or until the connection
is closed. The same holds for the user's handlers, the listener, the store of offsets and threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from unittest.mock import Mock

import pytest

from tests.concurrency.group import SteppedMember, make_topic, settle
from tests.simulated_clock import Simulation
from zkconsumer.config import ConsumerConfig
from zkconsumer.connector.lifecycle import CLOSE_WITHIN
from zkconsumer.errors import RegistryUnavailableError, SessionLostError
from zkconsumer.member.close_times import A_STEP, FORCED, SPARE, CloseTimes
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import Event, StopRequested
from zkconsumer.member.group_thread import Inbox
from zkconsumer.member.listener import ConsumerRebalanceListener
from zkconsumer.model import ConsumerId
from zkconsumer.offsets import committer as committers
from zkconsumer.offsets.commit_schedule import CommitSettings
from zkconsumer.offsets.committer import Committer
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.wiring import build_member
from zkconsumer.zookeeper import server_connection
from zkconsumer.zookeeper.server_connection import Retired
from zkconsumer.zookeeper.session import Session

ENOUGH = 0.75 * A_STEP
"""Seconds that each step of a close must be given, whatever those before it took."""
REQUESTS = ("look", "read", "stat", "children", "create", "delete", "ensure", "write", "transact")


@pytest.fixture
def clock() -> Iterator[Simulation]:
    simulation = Simulation()
    with simulation.clocks():
        yield simulation


class Standing:
    """Threads and steps that never end by themselves: each takes whatever it is given."""

    def __init__(self, clock: Simulation) -> None:
        self.clock = clock
        self.given: list[tuple[str, float]] = []

    def take(self, what: str, seconds: float | None) -> None:
        assert seconds is not None, f"{what} may wait for ever"
        self.given.append((what, seconds))
        self.clock.now += seconds

    def step(self, what: str) -> Callable[[Deadline], bool]:
        def close(deadline: Deadline) -> bool:
            self.take(what, deadline.remaining())
            return False

        return close


class StandingThread:
    """A thread that does not end."""

    def __init__(self, standing: Standing, what: str) -> None:
        self.name = what
        self._standing = standing

    def is_alive(self) -> bool:
        return True

    def start(self) -> None:
        pass

    def join(self, timeout: float | None = None) -> None:
        self._standing.take(self.name, timeout)


# ---- the parts of a member, one after the other ----


def test_every_step_of_a_close_has_time_left_and_all_end_in_time(
    clock: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the group's thread took all there was, the session was closed after the deadline."""
    standing, member = (
        Standing(clock),
        build_member(ConsumerConfig(zookeeper_connect="zk", group_id="g"), ConsumerId("g_c")),
    )
    group = {"join": staticmethod(standing.step("group")), "positions": staticmethod(dict), "left": ()}
    member.engine = type("Group", (), group)()
    interrupted: list[float] = []
    member.committer = type(
        "Stores",
        (),
        {
            "copies": False,
            "interrupt": staticmethod(lambda: interrupted.append(clock.now)),
            "close": staticmethod(standing.step("committer")),
        },
    )()
    member.parts.listener = type("Listener", (), {"close": staticmethod(standing.step("listener"))})()
    monkeypatch.setattr(member.fetching, "close", standing.step("fetching"))
    monkeypatch.setattr(member.coordination, "disconnect", standing.step("session"))
    begin = clock.now
    member.close(Deadline(CLOSE_WITHIN), finished=True)
    assert clock.now - begin == pytest.approx(CLOSE_WITHIN - SPARE)
    steps = [what for what, _ in standing.given]
    assert steps == ["group", "session", "group", "fetching", "committer", "session", "listener"]
    assert all(seconds >= ENOUGH for _, seconds in standing.given), standing.given
    stop = member.events.get_nowait()
    assert stop.deadline.at == pytest.approx(begin + CLOSE_WITHIN - SPARE - FORCED)
    assert interrupted == [pytest.approx(stop.deadline.at)]


class SessionOfThreeClients(Session):
    """A session with a client, and with two former ones that stop."""

    def __init__(self) -> None:
        super().__init__("zk:1", timeout=4.0, on_change=lambda _: None)
        self._client, self._connection = client, self.wire = self._make_client()
        self._retired = [Retired(client, self.wire), Retired(client, self.wire)]


def test_a_session_whose_clients_do_not_stop_is_closed_in_time(
    clock: Simulation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each took half a second beyond the deadline, where that had passed."""
    standing = Standing(clock)
    monkeypatch.setattr(server_connection, "Thread", lambda **options: StandingThread(standing, options["name"]))
    for seconds in (4.0, 0.3, 0.0):
        session = SessionOfThreeClients()
        cuts: list[float] = []
        monkeypatch.setattr(session.wire, "cut", lambda cuts=cuts: cuts.append(clock.now))
        begin = clock.now
        session.close(Deadline(seconds))
        assert clock.now - begin <= seconds + 1e-9
        assert len(cuts) == 3


def test_a_committer_ends_in_time_beside_a_stuck_store(clock: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store neither answers nor closes."""
    standing = Standing(clock)
    monkeypatch.setattr(committers, "Thread", lambda **options: StandingThread(standing, options["name"]))
    store = Mock(releases=False, forgets=False, close=lambda: standing.take("store", None), tracked={})
    committer = Committer(
        "c",
        store,
        Session("zk:1", timeout=4.0, on_change=lambda _: None).lease,
        CommitSettings(interval=None, timeout=1.0),
        refused=lambda _: None,
    )
    begin = clock.now
    committer.close(Deadline(3.0))
    assert clock.now - begin <= 3.0 + 1e-9
    assert {what for what, _ in standing.given} == {"c-committer", "c-committer-closing"}


CLOSED_PARTS = ["delivery.end", "lookup.close", "fetching.close", "coordination.disconnect"]


@pytest.mark.parametrize("broken", CLOSED_PARTS)
def test_closing_goes_on_where_a_step_fails(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Each raises where the system gives it no thread to stop something with; the rest then stayed for good."""
    member = build_member(ConsumerConfig(zookeeper_connect="zk", group_id="g"), ConsumerId("g_c"))
    done: list[str] = []

    def step(name: str) -> None:
        done.append(name)
        if name == broken:
            raise RuntimeError("can't start new thread")

    for name in CLOSED_PARTS:
        part, method = name.split(".")
        monkeypatch.setattr(getattr(member, part), method, lambda *_, name=name: step(name))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        member.close(Deadline(1.0), finished=False)
    assert done == CLOSED_PARTS


# ---- the group's thread ----

RECEIVE = Inbox.wait


class Silence:
    """From the moment on at which the next wait begins nothing is answered any more, and the member is to close.

    ``limit`` is when the connection is taken away (monotonic seconds), from which on every request fails at once.
    """

    def __init__(self, clock: Simulation, member: SteppedMember, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.member = clock, member
        self.began: float | None = None
        self.limit = 0.0
        self.waits: list[str] = []
        self.of: tuple[str, ...] = REQUESTS

        def drain(positions: Any, deadline: Deadline) -> None:
            if self._on("drain") and any(position.held for position in positions):
                self.stand("drain", deadline.remaining())

        monkeypatch.setattr(member.delivery, "wait", drain)
        monkeypatch.setattr(Inbox, "wait", lambda inbox, seconds: self._wait(inbox, seconds))
        monkeypatch.setattr(committers, "wait", lambda _, seconds: self.stand("commit", seconds))
        for request in REQUESTS:
            monkeypatch.setattr(member.session, request, self._unanswered(request, getattr(member.session, request)))

    def begin(self, *of: str) -> None:
        """From now on, or from the first of these waits on."""
        self.of = of or REQUESTS
        if not of:
            self._start()

    def _start(self) -> None:
        self.began = self.clock.now
        times = CloseTimes.within(Deadline(CLOSE_WITHIN))
        patience, last = times.patience, times.before_last(4)
        assert patience.at is not None
        assert last.at is not None
        self.limit, self.end = patience.at, last.at
        self.member.events.put(StopRequested(deadline=patience))

    def _on(self, what: str) -> bool:
        if self.began is None and what in self.of and self.of is not REQUESTS:
            self._start()
        return self.began is not None

    def stand(self, what: str, seconds: float | None) -> None:
        assert seconds is not None, f"{what} may wait for ever"
        self.waits.append(what)
        self.clock.now += seconds

    def _wait(self, inbox: Inbox, seconds: float) -> Event | None:
        """Only who waits for the listener waits here: the tests step without waiting for events."""
        if seconds:
            self._on("listener")
            self.stand("listener", seconds)
        event: Event | None = RECEIVE(inbox, 0.0)
        return event

    def _unanswered(self, what: str, answer: Callable[..., Any]) -> Callable[..., Any]:
        def request(*arguments: Any, **options: Any) -> Any:
            if not self._on(what):
                return answer(*arguments, **options)
            if self.clock.now >= self.limit:
                raise SessionLostError("the connection was taken away")
            deadline = next(argument for argument in arguments if isinstance(argument, Deadline))
            self.stand(what, min(deadline.bounded(1e9), self.limit - self.clock.now))
            raise RegistryUnavailableError("no answer")

        return request


class Blocking(ConsumerRebalanceListener):
    """A listener whose thread is never started. No call of the listener returns."""


def silent(clock: Simulation, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[FakeZooKeeper, Silence]:
    server = FakeZooKeeper(session_timeout=6.0)
    make_topic(server, 4)
    with monkeypatch.context() as patch:
        patch.setattr("zkconsumer.member.listener.Thread", lambda **_: Mock(is_alive=lambda: False, ident=0))
        member = SteppedMember(server, "a", drain=60.0, **options)
    return server, Silence(clock, member, monkeypatch)


def closes_in_time(silence: Silence) -> None:
    """Step the member until it is closed. The end comes in time, and no wait on the way is endless."""
    rebalancer = silence.member.rebalancer
    for _ in range(20):
        if rebalancer.state.phase is Phase.CLOSED:
            break
        rebalancer.step(0.0)
    assert rebalancer.state.phase is Phase.CLOSED
    assert silence.began is not None, "it never came to that"
    assert silence.clock.now <= silence.end, (silence.clock.now - silence.began, silence.waits)


def holding(clock: Simulation, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[FakeZooKeeper, Silence]:
    """A member whose application is busy with a message of each of its partitions."""
    server, silence = silent(clock, monkeypatch, **options)
    settle([silence.member])
    for position in silence.member.owned.values():
        position.start_at(5)
        position.consumed, position.held_until = 6, 7
    return server, silence


def test_draining_in_a_round(clock: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    server, silence = holding(clock, monkeypatch)
    other = SteppedMember(server, "b")
    other.step(3)
    silence.begin("drain")
    closes_in_time(silence)
    assert silence.waits.count("drain") > 1


def test_waiting_for_the_listener_in_a_round(clock: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    server, silence = silent(clock, monkeypatch, listener=Blocking(), listener_limit=60.0)
    silence.begin("listener")
    closes_in_time(silence)
    assert "listener" in silence.waits
    del server


def test_waiting_for_everything_at_the_end(clock: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that blocks, a listener that does, and a ZooKeeper that is silent."""
    _, silence = silent(clock, monkeypatch, listener=Blocking())
    settle([silence.member], 2)
    for position in silence.member.owned.values():
        position.start_at(5)
        position.consumed, position.held_until = 6, 7
    silence.begin()
    closes_in_time(silence)
    assert {"drain", "listener", "transact"} <= set(silence.waits)


def test_committing_to_a_store_that_does_not_answer(clock: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    _, silence = holding(clock, monkeypatch)
    never: Future[Any] = Future()

    def result(timeout: float | None = None) -> Any:
        silence.stand("commit", timeout)
        raise TimeoutError

    monkeypatch.setattr(never, "result", result)
    monkeypatch.setattr(silence.member.committer, "submit", lambda _: never)
    silence.begin()
    closes_in_time(silence)
    assert "commit" in silence.waits


def test_the_silence_is_noticed(clock: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """That this file's tests can fail: with the drain of a round there is too little time."""
    _, silence = holding(clock, monkeypatch)
    monkeypatch.setattr("zkconsumer.member.close_times.LEAVING", -60.0)
    silence.begin()
    with pytest.raises(AssertionError):
        closes_in_time(silence)
