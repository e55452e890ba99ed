"""Finding and following the offset coordinator: brokers that do what the test says, on loopback sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.kafka.scripted import RANGES, Peer, ScriptedBroker, response
from tests.unit.offsets.fakes import T0, T1
from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    BrokerError,
    BrokerResponseError,
    BrokerUnavailableError,
    CoordinatorUnavailableError,
    NotCoordinatorError,
    RegistryUnavailableError,
)
from zkconsumer.kafka import BrokerChannel, error_codes
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_schemas import FIND_COORDINATOR, OFFSET_COMMIT, OFFSET_FETCH
from zkconsumer.model import Endpoint
from zkconsumer.offsets.kafka_store import KafkaOffsets

NEW = {**RANGES, 8: (0, 3), 9: (0, 3), 10: (0, 1)}
IN_TIME = scaled(10.0)
Script = Callable[[Peer], None]


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


def greet(peer: Peer, ranges: Mapping[int, tuple[int, int]] = NEW) -> None:
    peer.versions(ranges)
    peer.versions(ranges)


def names_coordinator(peer: Peer, broker_id: int, error: int = 0) -> None:
    asked = peer.request()
    assert (asked.api, asked.version) == (10, 1)
    assert asked.body == b"\0\1g\0"
    # an address of its own network: not to be used
    peer.answer(asked.correlation_id, response(FIND_COORDINATOR, 1, 0, error, None, broker_id, "inside", 9092))


def answers_fetch(peer: Peer, offsets: Sequence[tuple[int, int, int]], error: int = 0) -> None:
    asked = peer.request()
    assert (asked.api, asked.version) == (9, 3)
    partitions = [(partition, offset, "", code) for partition, offset, code in offsets]
    topics = [("t", partitions)] if offsets else []
    peer.answer(asked.correlation_id, response(OFFSET_FETCH, 3, 0, topics, error))


def answers_commit(peer: Peer, codes: Mapping[int, int]) -> None:
    asked = peer.request()
    assert (asked.api, asked.version) == (8, 3)
    said = asked.values
    assert (said["generation_id"], said["member_id"], said["retention_time_ms"]) == (-1, "", -1)
    peer.answer(asked.correlation_id, response(OFFSET_COMMIT, 3, 0, [("t", list(codes.items()))]))


def test_the_coordinator_is_found_followed_and_kept() -> None:
    def asked(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 2)
        peer.until_closed()

    def coordinator(peer: Peer) -> None:
        greet(peer)
        answers_fetch(peer, [(0, 7, 0), (1, -1, 0)])
        answers_commit(peer, {0: 0, 1: 0})
        peer.until_closed()

    with ScriptedBroker(asked) as first, ScriptedBroker(coordinator) as second:
        store = store_on(as_broker(1, first), as_broker(2, second), load={2: 1})  # so that 2 is asked last
        assert store.fetch([T0, T1], IN_TIME) == {T0: 7}
        assert store.commit({T0: 8, T1: 0}, IN_TIME) == {}
        store.close()


def test_the_broker_that_was_asked_may_be_the_coordinator_itself() -> None:
    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_commit(peer, {0: 0})
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
        assert store.commit({T0: 8}, IN_TIME) == {}
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
    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_commit(peer, {0: 0})
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(dead_endpoint(5), dead_endpoint(6), as_broker(1, broker))
        assert store.commit({T0: 8}, IN_TIME) == {}
        store.close()


def test_a_coordinator_that_moved_is_dropped_and_found_anew() -> None:
    def before(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_commit(peer, {0: error_codes.NOT_COORDINATOR})
        peer.until_closed()

    def after(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_commit(peer, {0: 0})
        peer.until_closed()

    with ScriptedBroker(before, after) as broker:
        store = store_on(as_broker(1, broker))
        with pytest.raises(NotCoordinatorError):
            store.commit({T0: 8}, IN_TIME)
        assert store.commit({T0: 8}, IN_TIME) == {}
        store.close()


def test_other_errors_of_a_commit_keep_the_coordinator() -> None:
    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_commit(peer, {0: 0, 1: error_codes.OFFSET_METADATA_TOO_LARGE})
        answers_commit(peer, {1: 0})
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
        assert list(store.commit({T0: 8, T1: 9}, IN_TIME)) == [T1]
        assert store.commit({T1: 9}, IN_TIME) == {}
        store.close()


@pytest.mark.parametrize("code", [error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_NOT_AVAILABLE])
def test_an_error_of_the_whole_fetch_is_looked_at(code: int) -> None:
    """The original since 0.10.2 does not: the answer has no partitions then, and the rebalance dies of that."""

    def before(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_fetch(peer, [], code)
        peer.until_closed()

    def after(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_fetch(peer, [(0, 7, 0)])
        peer.until_closed()

    with ScriptedBroker(before, after) as broker:
        store = store_on(as_broker(1, broker))
        with pytest.raises(BrokerResponseError, match=error_codes.name(code)):
            store.fetch([T0], IN_TIME)
        assert store.fetch([T0], IN_TIME) == {T0: 7}
        store.close()


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

    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_fetch(peer, [(0, 7, 0), (1, -1, code)])
        answers_fetch(peer, [(0, 7, 0), (1, 3, 0)])
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
        with pytest.raises(BrokerResponseError, match=error_codes.name(code)):
            store.fetch([T0, T1], IN_TIME)
        assert store.fetch([T0, T1], IN_TIME) == {T0: 7, T1: 3}
        store.close()


def test_an_answer_that_leaves_a_partition_out_is_an_error() -> None:
    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_fetch(peer, [(0, 7, 0)])
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
        with pytest.raises(BrokerError, match=r"nothing of t-1"):
            store.fetch([T0, T1], IN_TIME)
        store.close()


def test_a_cluster_that_still_creates_its_offsets_topic_says_so() -> None:
    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, -1, error_codes.COORDINATOR_NOT_AVAILABLE)
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
        with pytest.raises(CoordinatorUnavailableError, match="COORDINATOR_NOT_AVAILABLE"):
            store.fetch([T0], IN_TIME)
        store.close()


def test_who_may_not_ask_is_told_so_at_once() -> None:
    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, -1, error_codes.GROUP_AUTHORIZATION_FAILED)
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
        with pytest.raises(BrokerResponseError, match="GROUP_AUTHORIZATION_FAILED"):
            store.fetch([T0], IN_TIME)
        store.close()


def test_no_broker_no_coordinator_and_no_busy_loop() -> None:
    store = store_on()
    with pytest.raises(CoordinatorUnavailableError, match="no broker is known"):
        store.fetch([T0], IN_TIME)
    store = store_on(dead_endpoint(1))
    with pytest.raises(CoordinatorUnavailableError, match="cannot be reached"):
        store.commit({T0: 1}, IN_TIME)
    store.close()


def test_known_brokers_serve_while_zookeeper_is_away() -> None:
    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_commit(peer, {0: error_codes.NOT_COORDINATOR})
        peer.until_closed()

    def again(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        answers_commit(peer, {0: 0})
        peer.until_closed()

    with ScriptedBroker(script, again) as broker:
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


def test_a_silent_coordinator_costs_no_more_than_the_timeout() -> None:
    def script(peer: Peer) -> None:
        greet(peer)
        names_coordinator(peer, 1)
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
        began = monotonic()
        with pytest.raises(BrokerUnavailableError):
            store.commit({T0: 1}, 0.2)
        assert monotonic() - began < IN_TIME / 2
        store.close()


@pytest.mark.parametrize("stage", ["search", "answer"])
def test_closing_wakes_a_call_that_waits(stage: str) -> None:
    waiting = threading.Event()

    def script(peer: Peer) -> None:
        greet(peer)
        if stage == "answer":
            names_coordinator(peer, 1)
        peer.request()
        waiting.set()
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
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

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker, generation))
        assert store.fetch([T0], IN_TIME) == {T0: 7}
        assert store.commit({T0: 8}, IN_TIME) == {}
        store.close()


def test_a_broker_that_has_dropped_what_we_speak_is_named() -> None:
    def script(peer: Peer) -> None:
        greet(peer, {**NEW, 8: (9, 10)})
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        store = store_on(as_broker(1, broker))
        with pytest.raises(CoordinatorUnavailableError, match="OffsetCommit 9 to 10"):
            store.commit({T0: 8}, IN_TIME)
        store.close()
