"""Finding and following the offset coordinator: brokers that do what the test says, on loopback sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from time import monotonic, sleep
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.kafka.scripted import RANGES, Peer, Script, ScriptedBroker, response
from tests.unit.offsets.fakes import T0, T1
from zkconsumer.errors import (
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    CoordinatorUnavailableError,
    NotCoordinatorError,
    RegistryUnavailableError,
)
from zkconsumer.kafka import BrokerChannel, error_codes
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.kafka.group_schemas import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from zkconsumer.model import Endpoint
from zkconsumer.offsets import kafka_store
from zkconsumer.offsets.kafka_store import KafkaOffsets
from zkconsumer.runtime.deadline import Deadline

NEW = {**RANGES, 8: (0, 3), 9: (0, 3), 10: (0, 1)}
IN_TIME = scaled(10.0)


def store_on(
    *brokers: Endpoint,
    registered: Callable[[Deadline], Sequence[Endpoint]] | None = None,
    load: Mapping[int, int] | None = None,
    asked: Callable[[int], None] = lambda _: None,
) -> KafkaOffsets:
    """A store on these brokers; ``asked`` is told the id of each broker that it connects to."""

    def channel(endpoint: Endpoint) -> BrokerChannel:
        asked(endpoint.broker_id)
        return BrokerChannel(endpoint, client_id="c", socket_timeout=IN_TIME)

    return KafkaOffsets(
        CoordinatorSearch("g", registered or (lambda _: brokers), channel, lambda: load or {}, offsets_only=True)
    )


def as_broker(number: int, broker: ScriptedBroker, generation: int = 5) -> Endpoint:
    return Endpoint(number, "127.0.0.1", broker.port, generation)


def dead_endpoint(number: int) -> Endpoint:
    with ScriptedBroker() as gone:
        port = gone.port
    return Endpoint(number, "127.0.0.1", port)


def says(*steps: Script, ranges: Mapping[int, tuple[int, int]] = NEW) -> Script:
    """Return a script: a greeting, then these steps, until the client is gone."""

    def script(peer: Peer) -> None:
        peer.versions(ranges)
        peer.versions(ranges)
        for step in steps:
            step(peer)
        peer.until_closed()

    return script


def names(broker_id: int, error: int = 0) -> Script:
    """Return a step that names the coordinator."""

    def step(peer: Peer) -> None:
        asked = peer.request()
        assert (asked.api, asked.version) == (10, 1)
        assert asked.body == b"\0\1g\0"
        # an address of its own network: not to be used
        peer.answer(asked.correlation_id, response(FIND_COORDINATOR, 1, 0, error, None, broker_id, "inside", 9092))

    return step


def tells(*offsets: tuple[int, int, int], error: int = 0) -> Script:
    """Return a step that answers a fetch of offsets: partition, offset and error of each."""

    def step(peer: Peer) -> None:
        asked = peer.request()
        assert (asked.api, asked.version) == (9, 3)
        partitions = [(partition, offset, "", code) for partition, offset, code in offsets]
        topics = [("t", partitions)] if offsets else []
        peer.answer(asked.correlation_id, response(OFFSET_FETCH, 3, 0, topics, error))

    return step


def takes(codes: Mapping[int, int]) -> Script:
    """Return a step that answers a commit with the errors of its partitions."""

    def step(peer: Peer) -> None:
        asked = peer.request()
        assert (asked.api, asked.version) == (8, 3)
        said = asked.values
        assert (said["generation_id"], said["member_id"], said["retention_time_ms"]) == (-1, "", -1)
        peer.answer(asked.correlation_id, response(OFFSET_COMMIT, 3, 0, [("t", list(codes.items()))]))

    return step


@contextmanager
def store_of(*scripts: Script, generation: int = 5) -> Iterator[KafkaOffsets]:
    """Yield a store whose only broker, number 1, has these scripts."""
    with ScriptedBroker(*scripts) as broker, closing(store_on(as_broker(1, broker, generation))) as store:
        yield store


def test_the_coordinator_is_found_followed_and_kept() -> None:
    coordinator = says(tells((0, 7, 0), (1, -1, 0)), takes({0: 0, 1: 0}))
    with ScriptedBroker(says(names(2))) as first, ScriptedBroker(coordinator) as second:
        store = store_on(as_broker(1, first), as_broker(2, second), load={2: 1})  # so that 2 is asked last
        assert store.fetch([T0, T1], IN_TIME) == {T0: 7}
        assert store.commit({T0: 8, T1: 0}, IN_TIME) == {}
        store.close()


def test_the_broker_with_the_least_to_do_for_us_is_asked_first() -> None:
    busy, free = dead_endpoint(1), dead_endpoint(2)
    asked: list[int] = []
    for _ in range(5):
        store = store_on(busy, free, load={1: 7}, asked=asked.append)
        with pytest.raises(CoordinatorUnavailableError):
            store.commit({T0: 1}, IN_TIME)
    assert asked == [2, 1] * 5


def test_a_broker_that_is_away_is_passed_over() -> None:
    """The broker that was asked is the coordinator itself."""
    with ScriptedBroker(says(names(1), takes({0: 0}))) as broker:
        store = store_on(dead_endpoint(5), dead_endpoint(6), as_broker(1, broker))
        assert store.commit({T0: 8}, IN_TIME) == {}
        store.close()


def test_a_coordinator_that_moved_is_dropped_and_found_anew() -> None:
    before = says(names(1), takes({0: error_codes.NOT_COORDINATOR}))
    with store_of(before, says(names(1), takes({0: 0}))) as store:
        with pytest.raises(NotCoordinatorError):
            store.commit({T0: 8}, IN_TIME)
        assert store.commit({T0: 8}, IN_TIME) == {}


@pytest.mark.parametrize("code", [error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE])
def test_an_error_of_the_whole_fetch_is_looked_at(code: int) -> None:
    """The original since 0.10.2 does not: the answer has no partitions then, and the rebalance dies of that."""
    with store_of(says(names(1), tells(error=code)), says(names(1), tells((0, 7, 0)))) as store:
        with pytest.raises(BrokerResponseError, match=error_codes.name(code)):
            store.fetch([T0], IN_TIME)
        assert store.fetch([T0], IN_TIME) == {T0: 7}


@pytest.mark.parametrize(
    "code",
    [
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.GROUP_AUTHORIZATION_FAILED,
        error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        4242,
    ],
)
def test_an_error_of_one_partition_is_never_taken_for_no_offset(code: int) -> None:
    """The original takes it so, with the -1 that comes along, and skips data by ``auto.offset.reset``."""
    with store_of(says(names(1), tells((0, 7, 0), (1, -1, code)), tells((0, 7, 0), (1, 3, 0)))) as store:
        with pytest.raises(BrokerResponseError, match=error_codes.name(code)):
            store.fetch([T0, T1], IN_TIME)
        assert store.fetch([T0, T1], IN_TIME) == {T0: 7, T1: 3}


@pytest.mark.parametrize(
    ("steps", "error", "said"),
    [
        ([names(1), tells((0, 7, 0))], BrokerError, "nothing of t-1"),
        # the cluster still creates its topic of offsets
        ([names(-1, error_codes.COORDINATOR_NOT_AVAILABLE)], CoordinatorUnavailableError, "COORDINATOR_NOT_AVAILABLE"),
        ([names(-1, error_codes.GROUP_AUTHORIZATION_FAILED)], BrokerResponseError, "GROUP_AUTHORIZATION_FAILED"),
    ],
    ids=["a partition is left out", "no topic of offsets yet", "not allowed"],
)
def test_a_fetch_without_an_answer_says_why(steps: list[Script], error: type[Exception], said: str) -> None:
    with store_of(says(*steps)) as store, pytest.raises(error, match=said):
        store.fetch([T0, T1], IN_TIME)


def test_no_broker_no_coordinator_and_no_busy_loop() -> None:
    store = store_on()
    with pytest.raises(CoordinatorUnavailableError, match="no broker is known"):
        store.fetch([T0], IN_TIME)
    store = store_on(dead_endpoint(1))
    with pytest.raises(CoordinatorUnavailableError, match="cannot be reached"):
        store.commit({T0: 1}, IN_TIME)
    store.close()


def test_known_brokers_serve_while_zookeeper_is_away() -> None:
    before = says(names(1), takes({0: error_codes.NOT_COORDINATOR}))
    with ScriptedBroker(before, says(names(1), takes({0: 0}))) as broker:
        registered = [as_broker(1, broker)]

        def brokers(_: Deadline) -> list[Endpoint]:
            if not registered:
                raise RegistryUnavailableError("away")
            return [registered.pop()]

        store = store_on(registered=brokers)
        with pytest.raises(NotCoordinatorError):
            store.commit({T0: 1}, IN_TIME)
        assert store.commit({T0: 1}, IN_TIME) == {}
        store.close()


def test_a_silent_coordinator_costs_no_more_than_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_store, "ANSWERED_WITHIN", 0.2)
    with store_of(says(names(1))) as store:
        for call in (lambda: store.commit({T0: 1}, 0.2), lambda: store.fetch([T0], 0.2)):
            began = monotonic()
            with pytest.raises(BrokerUnavailableError):
                call()
            assert monotonic() - began < IN_TIME / 2


@pytest.mark.parametrize("search", [0.0, 1.5], ids=["at once", "after a slow search"])
def test_the_next_commit_cannot_overtake_an_unanswered_one(search: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that stood still for a moment took the older one last, from the connection that we had given up."""
    monkeypatch.setattr(kafka_store, "ANSWERED_WITHIN", 2.0)

    def after(seconds: float, step: Script) -> Script:
        return lambda peer: (sleep(seconds), step(peer))[1]

    steps = after(search, names(1)), after(1.0, takes({0: 0})), takes({0: 0})
    with store_of(says(*steps)) as store:  # all on one connection
        for offset in (1, 2):
            assert store.commit({T0: offset}, search + 0.7) == {}


@pytest.mark.parametrize("steps", [[], [names(1)]], ids=["search", "answer"])
def test_closing_wakes_a_call_that_waits(steps: list[Script]) -> None:
    waiting = threading.Event()

    def waits(peer: Peer) -> None:
        peer.request()
        waiting.set()

    with store_of(says(*steps, waits)) as store:
        failures: list[Any] = []

        def commit() -> None:
            try:
                failures.append(store.commit({T0: 1}, scaled(60)))
            except BrokerError as e:
                failures.append(e)

        thread = threading.Thread(target=commit, name="commit")
        thread.start()
        assert waiting.wait(IN_TIME)
        store.close()
        thread.join(IN_TIME)
        assert not thread.is_alive()
        assert isinstance(failures[0], BrokerUnavailableError)
        with pytest.raises(CoordinatorUnavailableError, match="closed"):
            store.commit({T0: 1}, IN_TIME)


@pytest.mark.parametrize(("generation", "version"), [(1, 1), (2, 2)])
def test_old_brokers_are_not_asked_for_versions(generation: int, version: int) -> None:
    def script(peer: Peer) -> None:
        asked = peer.request()
        assert (asked.api, asked.version) == (10, 0)
        peer.answer(asked.correlation_id, response(FIND_COORDINATOR, 0, 0, 1, "inside", 9092))
        asked = peer.request()
        assert (asked.api, asked.version) == (9, 1)
        assert asked.values["topics"] == [{"name": "t", "partition_indexes": [0]}]
        peer.answer(asked.correlation_id, response(OFFSET_FETCH, 1, [("t", [(0, 7, "", 0)])]))
        asked = peer.request()
        assert (asked.api, asked.version) == (8, version)
        age = {"commit_timestamp": -1} if version == 1 else {}
        partition = {"partition_index": 0, "committed_offset": 8, **age, "committed_metadata": ""}
        assert asked.values["topics"] == [{"name": "t", "partitions": [partition]}]
        peer.answer(asked.correlation_id, b"\0\0\0\1\0\1t\0\0\0\1" + b"\0\0\0\0\0\0")
        peer.until_closed()

    with store_of(script, generation=generation) as store:
        assert store.fetch([T0], IN_TIME) == {T0: 7}
        assert store.commit({T0: 8}, IN_TIME) == {}
