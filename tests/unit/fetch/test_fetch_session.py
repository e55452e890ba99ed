"""Fetch sessions (KIP-227), with a model of the broker's side and on a socket."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.unit.fetch.one_partition import OnePartition
from tests.unit.kafka.scripted import Peer, response
from tests.unit.kafka.sets import Batch
from zkconsumer.errors import BrokerResponseError, BrokerUnavailableError
from zkconsumer.fetch.broker_fetch import FetchSession, SessionRequest
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.broker_schemas import FETCH
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.fetch_cursor import FetchRange
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.streams.byte_budget import QueueBudget

ONE, TWO, THREE = (TopicPartition("t", n) for n in range(3))
PLACE = st.builds(FetchRange, st.integers(0, 3), st.sampled_from([1000, 2000]))
WANTED = st.dictionaries(st.sampled_from([ONE, TWO, THREE, TopicPartition("u", 0)]), PLACE, max_size=4)


class Remembered:
    """A model of the broker: the meaning of a request after the earlier ones of its session."""

    def __init__(self) -> None:
        self.id = 0
        self.epoch = 0
        self.partitions: dict[TopicPartition, FetchRange] = {}
        self.made = 0

    def asked(self, said: SessionRequest, *, room: bool = True) -> tuple[int, int, dict[TopicPartition, FetchRange]]:
        """Returns: the error, the session id of the answer, and what is fetched."""
        named = {TopicPartition(p.topic, p.partition): FetchRange(p.offset, p.max_bytes) for p in said.positions}
        if said.epoch == 0:
            self.id = 0
            if room:
                self.made += 1
                self.id, self.epoch, self.partitions = 100 + self.made, 1, dict(named)
            return error_codes.NONE, self.id, named
        if said.session_id != self.id:
            return error_codes.FETCH_SESSION_ID_NOT_FOUND, 0, {}
        if said.epoch != self.epoch:
            return error_codes.INVALID_FETCH_SESSION_EPOCH, 0, {}
        self.epoch += 1
        for tp in said.forgotten:
            del self.partitions[tp]
        self.partitions.update(named)
        return error_codes.NONE, self.id, dict(self.partitions)


class AnySession(RuleBasedStateMachine):
    """However requests, refusals and losses follow one another, the broker fetches exactly what is wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.session = FetchSession()
        self.broker = Remembered()
        self.fetched: dict[TopicPartition, FetchRange] | None = None
        self.wanted: dict[TopicPartition, FetchRange] = {}

    @rule(wanted=WANTED, room=st.booleans())
    def ask(self, wanted: dict[TopicPartition, FetchRange], room: bool) -> None:
        before, self.wanted, self.fetched = self.wanted, dict(wanted), None
        told = self.session.incremental
        self.answer(self.session.next(wanted), room, before if told else {})

    @precondition(lambda self: self.session.incremental)
    @rule(changes=WANTED)
    def ask_for_changes(self, changes: dict[TopicPartition, FetchRange]) -> None:
        """No partition comes or goes."""
        before, self.fetched = self.wanted, None
        changes = {tp: place for tp, place in changes.items() if tp in before and before[tp] != place}
        self.wanted = {**before, **changes}
        self.answer(self.session.next_changes(changes), True, before)

    def answer(self, said: SessionRequest, room: bool, before: dict[TopicPartition, FetchRange]) -> None:
        error, session_id, fetched = self.broker.asked(said, room=room)
        if error:
            assert self.session.refused()
            return
        self.session.answered(session_id)
        self.fetched = fetched
        assert all(before.get(TopicPartition(p.topic, p.partition)) != (p.offset, p.max_bytes) for p in said.positions)

    @rule()
    def connection_lost(self) -> None:
        self.session.forget()

    @precondition(lambda self: self.broker.id)
    @rule()
    def broker_needs_the_room(self) -> None:
        self.broker.id = -1

    @precondition(lambda self: self.broker.id)
    @rule()
    def request_that_came_twice(self) -> None:
        self.broker.epoch += 1

    @invariant()
    def what_is_wanted_is_fetched(self) -> None:
        assert self.fetched is None or self.fetched == self.wanted


TestAnySession = AnySession.TestCase
TestAnySession.settings = settings(max_examples=200, stateful_step_count=20, deadline=None)


def test_epochs_begin_again_after_the_last() -> None:
    session = FetchSession()
    session.next({})
    session.answered(7)
    session.epoch = 2**31 - 1
    session.next({})
    session.answered(7)
    assert session.next({})[2:] == (7, 1)


def test_an_answer_of_another_session_is_not_believed() -> None:
    session = FetchSession()
    session.next({ONE: FetchRange(0, 1)})
    session.answered(7)
    session.next({ONE: FetchRange(0, 1)})
    session.answered(8)
    assert not session.incremental


# ---- through a fetcher, on a socket


class Said(NamedTuple):
    """A request as the broker read it."""

    session_id: int
    epoch: int
    offsets: dict[int, int]
    forgotten: list[int]


class Remembering:
    """A broker with one partition (3) that keeps a session, and refuses requests as the test says."""

    def __init__(self, *refusals: int) -> None:
        self.said: list[Said] = []
        self.refusals = list(refusals)

    def __call__(self, peer: Peer) -> None:
        peer.versions()
        for asked in peer.requests():
            told = asked.values
            offsets = {p["partition"]: p["fetch_offset"] for topic in told["topics"] for p in topic["partitions"]}
            forgotten = [partition for topic in told["forgotten_topics_data"] for partition in topic["partitions"]]
            self.said.append(Said(told["session_id"], told["session_epoch"], offsets, forgotten))
            refusal = self.refusals.pop(0) if self.refusals else 0
            parts = []
            if not refusal and offsets:
                data = Batch().encode(offsets[3])[0] if offsets[3] < 2 else b""
                parts = [("t", [(3, 0, 2, 2, 0, None, data)])] if data or told["session_epoch"] == 0 else []
            peer.answer(asked.correlation_id, response(FETCH, 10, 0, refusal, 0 if refusal else 55, parts))


def steps(it: OnePartition, remembering: Remembering, count: int) -> list[int]:
    """Step so many times. Returns the offsets that have come."""
    with it.fetching_from(remembering) as fetcher:
        for _ in range(count):
            fetcher.step()
        return it.read()


def test_a_position_that_is_new_in_a_session_knows_the_logs_end() -> None:
    """Bug: after a seek to the end of an idle partition its lag stayed unknown until the next message, for a
    broker does not repeat in a session what it has told.
    """
    it, broker = OnePartition(), Remembering()
    with it.fetching_from(broker) as fetcher:
        for _ in range(3):
            fetcher.step()
        it.position.revoked = True
        moved = PartitionPosition(it.position.tp, it.position.thread, 2)
        fetcher.partitions.add([moved.cursor.deliver_to(it.queue)])
        fetcher.step()
    assert broker.said[-1] == Said(55, 3, {}, []), "nothing was said of it, and nothing answered"
    assert (moved.cursor.log_end, moved.lag) == (2, 0)


@pytest.mark.parametrize("refusal", [error_codes.FETCH_SESSION_ID_NOT_FOUND, error_codes.INVALID_FETCH_SESSION_EPOCH])
def test_a_broker_that_has_forgotten_is_told_everything(refusal: int) -> None:
    it, broker = OnePartition(), Remembering(0, 0, refusal)
    assert steps(it, broker, 5) == [0, 1]
    assert broker.said[2:] == [Said(55, 2, {3: 2}, []), Said(0, 0, {3: 2}, []), Said(55, 1, {}, [])]
    assert it.returned == []


def test_a_full_request_that_is_refused_as_well_is_an_error() -> None:
    it, broker = OnePartition(), Remembering(error_codes.FETCH_SESSION_ID_NOT_FOUND)
    with pytest.raises(BrokerResponseError, match="FETCH_SESSION_ID_NOT_FOUND"):
        steps(it, broker, 1)


def test_reserved_bytes_are_freed_however_a_request_ends() -> None:
    budget = QueueBudget(1000)
    it = OnePartition()
    seen: list[int] = []

    def script(peer: Peer) -> None:
        peer.versions()
        asked = peer.request()
        seen.append(budget.used)
        peer.answer(asked.correlation_id, response(FETCH, 10, 0, 0, 55, []))
        peer.request()

    with it.fetching_from(script, budget=budget) as fetcher:
        fetcher.step()
        assert (seen, budget.used) == ([234], 0), "a quarter of what is not kept back"
        with pytest.raises(BrokerUnavailableError):
            fetcher.step()
        assert budget.used == 0


def test_room_that_is_made_while_it_is_looked_for_is_found() -> None:
    """Bug: a reader that freed its bytes between the fetcher's look at them and the mark that somebody was
    refused woke nobody, and all stood still for a second.
    """
    it, broker = OnePartition(), Remembering()
    budget = QueueBudget(1000)
    looks: list[bool] = []
    has_room = it.queue.has_room

    def looked(free: int | None = None) -> bool:
        looks.append(budget.allows(2000, 0) if not looks else has_room(free))
        return looks[-1]

    it.queue.has_room = looked  # type: ignore[method-assign]
    with it.fetching_from(broker) as fetcher:
        fetcher.step()
        assert (looks, it.read()) == ([False, True], [0])


def test_a_partition_without_room_is_forgotten_and_named_again() -> None:
    it, broker = OnePartition(), Remembering()
    other = OnePartition()
    other.position.tp = other.position.cursor.tp = TopicPartition("t", 9)
    with it.fetching_from(broker) as fetcher:
        fetcher.partitions.add([other.flow()])
        fetcher.step()
        other.queue.close()
        fetcher.step()
        fetcher.step()
    assert [(said.epoch, sorted(said.offsets), said.forgotten) for said in broker.said] == [
        (0, [3, 9], []),
        (1, [3], [9]),
        (2, [3], []),
    ]
