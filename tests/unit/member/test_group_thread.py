"""The group thread: events in order, none lost by an error; requests that wait; the end."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any

import pytest

from zkconsumer.errors import ConnectorClosedException
from zkconsumer.member.connector_state import ConnectorState, Phase
from zkconsumer.member.events import SeekRequested, StopRequested, SubscriptionChanged
from zkconsumer.member.group_thread import GroupThread, Inbox
from zkconsumer.member.revocation import UserRequests
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.withdrawable_request import Request


class Counting:
    """A coordinator that notes events, fails at "bad" and closes at "end"."""

    waits_in_handlers = False
    sessions_lost = 0
    unsettled = ""
    needs_lease = True

    def __init__(self) -> None:
        self.state = ConnectorState(Phase.STARTING)
        self.first_round: Future[None] = Future()
        self.closed = False
        self.log: list[Any] = []

    def begin(self) -> None:
        self.log.append("begin")

    def handle(self, event: Any) -> None:
        if event == "bad":
            raise KeyError("a mistake of ours")
        self.log.append(event)
        self.closed = event == "end"

    def due(self) -> float:
        return 0.0

    def run_timers(self) -> None:
        self.log.append("timers")

    def step_failed(self, error: Exception) -> None:
        self.log.append(type(error).__name__)


@pytest.fixture
def events() -> SimpleQueue[Any]:
    return SimpleQueue()


def change(*leaving: str) -> SubscriptionChanged:
    return SubscriptionChanged(lambda before: before, Request(Deadline(None)), frozenset(leaving))


class Draining(Counting):
    """A coordinator whose handler serves the user while it waits, as in a drain."""

    waits_in_handlers = True

    def __init__(self, inbox: Inbox) -> None:
        super().__init__()
        self._inbox = inbox

    def handle(self, event: Any) -> None:
        super().handle(event)
        if event == "give up":
            owned: Any = Seeking()
            requests = UserRequests(self._inbox, owned)
            requests.serve(0.0)
            self.log.append(("stop heard", self._inbox.stop is not None))


class Seeking:
    """Owned partitions that answer each seek."""

    def __init__(self) -> None:
        self.positions: dict[Any, Any] = {}

    def answer_seek(self, request: SeekRequested) -> None:
        request.done.set_result(frozenset())


def test_a_wait_in_a_handler_serves_the_events_behind_it(events: SimpleQueue[Any]) -> None:
    """All events of a step were taken from the queue at once. A drain in a handler then ignored a shutdown behind it,
    and a seek of the thread whose message it waited for stood still until the drain's limit.
    """
    inbox = Inbox(events)
    coordinator = Draining(inbox)
    seek = SeekRequested({}, Request(Deadline(None)))
    for event in ("give up", seek, StopRequested()):
        events.put(event)
    GroupThread("g", inbox, coordinator).step(0.0)
    assert seek.done.done()
    assert coordinator.log == ["give up", ("stop heard", True), "timers"]


def test_an_error_in_one_event_loses_no_other(events: SimpleQueue[Any]) -> None:
    coordinator = Counting()
    thread = GroupThread("g", Inbox(events), coordinator)
    for event in (1, "bad", 2):
        events.put(event)
    with pytest.raises(KeyError):
        thread.step()
    thread.step()
    assert coordinator.log == [1, 2, "timers"]


def test_the_thread_goes_on_after_a_failure_until_the_end(
    events: SimpleQueue[Any], caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = Counting()
    thread = GroupThread("g", Inbox(events), coordinator)
    for event in ("bad", "end"):
        events.put(event)
    thread.start()
    assert thread.join(Deadline(10))
    assert coordinator.log == ["begin", "KeyError", "end", "timers"]
    assert "failed unexpectedly" in caplog.text


def test_postponed_events_come_before_new_ones(events: SimpleQueue[Any]) -> None:
    inbox = Inbox(events)
    events.put("new")
    inbox.postpone("later")
    inbox.put_back(["unfinished"])
    assert list(inbox.gather(0)) == ["unfinished", "later"]
    assert list(inbox.gather(0)) == ["new"]
    assert list(inbox.gather(0)) == []


def test_newer_events_count_once_and_are_kept(events: SimpleQueue[Any]) -> None:
    inbox = Inbox(events)
    events.put("matters")
    assert inbox.newer(lambda event: event == "matters")
    assert not inbox.newer(lambda event: event == "matters")
    events.put("noise")
    assert not inbox.newer(lambda event: event == "matters")
    assert list(inbox.gather(0)) == ["matters", "noise"]


def test_a_second_stop_hurries_the_first(events: SimpleQueue[Any]) -> None:
    inbox = Inbox(events)
    assert inbox.stop is None
    first = StopRequested(deadline=Deadline(60))
    inbox.postpone(first, StopRequested(hurried=True))
    assert inbox.stop is not None
    assert (inbox.stop.deadline, inbox.stop.hurried) == (first.deadline, True)


def test_waiting_requests_hear_of_the_end(events: SimpleQueue[Any]) -> None:
    inbox = Inbox(events)
    asked, postponed, seek, told = change(), change(), SeekRequested({}, Request(Deadline(None))), list[str]()
    asked.withdrawn, postponed.withdrawn = partial(told.append, "asked"), partial(told.append, "postponed")
    inbox.changes.ask(asked)
    inbox.postpone(postponed)
    events.put(seek)
    inbox.fail_requests()
    for done in (asked.done, postponed.done, seek.done):
        with pytest.raises(ConnectorClosedException):
            done.result(0)
    assert list(inbox.gather(0)) == []
    assert set(told) == {"asked", "postponed"}, "or their streams would stay open"


def test_a_change_waits_while_topics_leave(events: SimpleQueue[Any]) -> None:
    """It may want these topics again, and their streams must end before that."""
    changes = Inbox(events).changes
    first, second = change("t"), change()
    changes.ask(first)
    changes.ask(second)
    assert (changes.begin(), changes.begun, changes.waiting) == ([first], 1, False)
    assert changes.apply(), "the second may begin now"
    assert (first.done.done(), second.done.done(), changes.begun) == (True, False, 0)
    assert changes.begin() == [second]


def test_a_change_whose_caller_has_gone_is_dropped(events: SimpleQueue[Any]) -> None:
    changes = Inbox(events).changes
    told: list[str] = []
    gone, live = change("t"), change()
    gone.begun, gone.withdrawn = partial(told.append, "begun"), partial(told.append, "withdrawn")
    changes.ask(gone)
    changes.ask(live)
    gone.done.deadline.expire()
    assert changes.begin() == [live]
    assert (told, gone.done.withdrawn, live.done.withdrawn) == (["withdrawn"], True, False)
    with pytest.raises(TimeoutError):
        gone.done.result(0)


def test_a_change_that_has_begun_is_not_withdrawn(events: SimpleQueue[Any]) -> None:
    changes = Inbox(events).changes
    begun = change("t")
    changes.ask(begun)
    changes.begin()
    begun.done.deadline.expire()
    assert not begun.done.withdrawn
    changes.apply()
    assert begun.done.result(0) is None


def test_only_the_changes_that_a_join_told_come_into_force(events: SimpleQueue[Any]) -> None:
    changes = Inbox(events).changes
    first, second = change(), change()
    changes.ask(first)
    changes.ask(second)
    assert changes.begin() == [first, second]
    changes.apply(1)
    assert (first.done.done(), second.done.done(), changes.begun) == (True, False, 1)
