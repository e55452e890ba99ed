"""A channel against a broker that is slow, silent, wrong or gone."""

from __future__ import annotations

import logging
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from time import monotonic
from typing import Any

import pytest

from tests.timing import eventually, scaled
from tests.unit.kafka.scripted import Peer, Script, ScriptedBroker, answers, fetched, response
from zkconsumer.errors import BrokerError, BrokerResponseError, BrokerUnavailableError
from zkconsumer.kafka import BrokerChannel, FetchPosition, FetchRequest, broker_schemas, error_codes
from zkconsumer.kafka.broker_schemas import LIST_OFFSETS, METADATA
from zkconsumer.kafka.connection import Connection
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.runtime.deadline import Deadline

FETCH = FetchRequest([FetchPosition("t", 3, 42, 1000)], max_wait=0.0, min_bytes=1, max_bytes=1000)
T3 = TopicPartition("t", 3)


def framed(peer: Peer, body: bytes) -> bytes:
    """Return the bytes of an answer to the peer's next request."""
    return struct.pack(">ii", len(body) + 4, peer.request().correlation_id) + body


def soon() -> Deadline:
    return Deadline(scaled(10))


@pytest.fixture
def make() -> Iterator[Callable[..., BrokerChannel]]:
    made: list[BrokerChannel] = []

    def channel(endpoint: Endpoint, timeout: float = 10, **more: Any) -> BrokerChannel:
        made.append(BrokerChannel(endpoint, client_id="test", socket_timeout=scaled(timeout), **more))
        return made[-1]

    yield channel
    for each in made:
        each.close()


def test_an_interrupted_connect_closes_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close leaves a socket that is in use to its user, who had gone."""

    def interrupted(_: socket.socket) -> None:
        raise KeyboardInterrupt

    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = Connection("broker 7", "127.0.0.1", server.getsockname()[1])
        monkeypatch.setattr(socket.socket, "getpeername", interrupted)
        with pytest.raises(KeyboardInterrupt):
            connection.connect(soon(), 10)
        assert connection.socket is None
        assert not connection.busy


@pytest.fixture
def elsewhere() -> Iterator[Callable[..., Future[Any]]]:
    """Runs a call on another thread."""
    with ThreadPoolExecutor(1, "elsewhere") as pool:
        yield pool.submit


Make = Callable[..., BrokerChannel]
Elsewhere = Callable[..., "Future[Any]"]


@contextmanager
def connected(*scripts: Script, generation: int = 5, timeout: float = 10, **more: Any) -> Iterator[BrokerChannel]:
    """Yield a channel that is connected to a broker of these scripts."""
    with ScriptedBroker(*scripts) as broker:
        channel = BrokerChannel(broker.endpoint(generation), client_id="test", socket_timeout=scaled(timeout), **more)
        with closing(channel):
            channel.connect(soon())
            yield channel


def receive(channel: BrokerChannel, request: FetchRequest = FETCH, deadline: Deadline | None = None) -> bytes:
    """Fetch, and return the records of the answer's first partition."""
    answer = channel.receive_fetch(channel.send_fetch(request, soon()), deadline or soon())
    return answer.partitions[0].records


def test_fetches_are_pipelined_and_their_answers_come_in_order() -> None:
    def script(peer: Peer) -> None:
        peer.versions()
        first, second = peer.request(), peer.request()  # both are here before the first answer goes
        assert (first.api, first.version) == (1, 10)
        peer.answer(first.correlation_id, fetched(b"one"))
        peer.answer(second.correlation_id, fetched(b"two", error=error_codes.OFFSET_OUT_OF_RANGE))
        peer.until_closed()

    with connected(script) as channel:
        assert channel.versions == {"ApiVersions": 0, "Fetch": 11, "ListOffsets": 3, "Metadata": 5}
        ids = [channel.send_fetch(FETCH, soon()) for _ in range(2)]
        first, second = (channel.receive_fetch(each, soon()).partitions[0] for each in ids)
        assert first == ("t", 3, 0, 100, 0, (), b"one", 100, -1)
        assert (second.records, second.error) == (b"two", error_codes.OFFSET_OUT_OF_RANGE)
        with pytest.raises(ValueError, match="outstanding"):
            channel.receive_fetch(ids[0], soon())


def test_other_requests_may_be_sent_during_a_fetch() -> None:
    def script(peer: Peer) -> None:
        peer.versions()
        fetch, offsets = peer.request(), peer.request()
        peer.answer(fetch.correlation_id, fetched(b"kept"))
        peer.answer(offsets.correlation_id, response(LIST_OFFSETS, 3, 0, [("t", [(3, 0, 5, 77)])]))
        peer.until_closed()

    with connected(script) as channel:
        fetch = channel.send_fetch(FETCH, soon())
        assert channel.list_offsets({T3: -2}, soon()) == {T3: (77, 5, 0)}
        assert channel.receive_fetch(fetch, soon()).partitions[0].records == b"kept"


def test_the_leaders_of_topics() -> None:
    def script(peer: Peer) -> None:
        peer.versions()
        asked = peer.request()
        assert asked.body == struct.pack(">ih1sh1s?", 2, 1, b"t", 1, b"u", False)  # no topic may be created
        topics = [
            (0, "t", False, [(0, 3, 7, [7], [7], []), (5, 4, -1, [7], [], []), (9, 5, 8, [8, 7], [8], [7])]),
            (3, "u", False, []),
        ]
        nodes = [(7, "one", 9092, None), (8, "two", 9093, "rack")]
        peer.answer(asked.correlation_id, response(METADATA, 5, 0, nodes, "id", 7, topics))
        peer.until_closed()

    with connected(script) as channel:
        told = channel.metadata(["t", "u"], soon())
        assert told.brokers == {7: ("one", 9092), 8: ("two", 9093)}
        assert told.leaders == {T3: 7, TopicPartition("t", 5): 8}
        assert told.errors == {TopicPartition("t", 4): error_codes.LEADER_NOT_AVAILABLE, "u": 3}


@pytest.mark.parametrize("generation", [1, 5])
def test_no_topics_ask_for_nothing(make: Make, generation: int) -> None:
    """Version 0 of the request reads an empty list as all topics."""
    with ScriptedBroker() as broker:
        assert make(broker.endpoint(generation)).metadata([], soon()) == ({}, {}, {})


@pytest.mark.parametrize(("generation", "fetch"), [(1, 0), (2, 1)])
def test_old_brokers_are_not_asked_for_their_versions(generation: int, fetch: int) -> None:
    """0.8 closes the connection on the question, 0.9 never answers anything on it again."""

    def script(peer: Peer) -> None:
        asked = peer.request()
        assert (asked.api, asked.version) == (3, 0)
        peer.answer(asked.correlation_id, response(METADATA, 0, [], []))
        peer.until_closed()

    with connected(script, generation=generation) as channel:
        assert channel.versions["Fetch"] == fetch
        channel.metadata(["t"], soon())


def test_a_broker_that_closes_twice_on_versions_is_old(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(peer: Peer) -> None:
        peer.request()

    with ScriptedBroker(refuse, refuse, Peer.until_closed) as broker:
        channel = make(broker.endpoint(4))
        with caplog.at_level(logging.WARNING, "zkconsumer.kafka"):
            channel.connect(soon())
        assert channel.versions["Fetch"] == 0
        assert "older than 0.10" in caplog.text
        channel.close()


def test_a_broker_that_closes_once_on_versions_is_asked_again() -> None:
    """One that is just being restarted must not be talked down to version 0: headers would be lost unnoticed."""

    def refuse(peer: Peer) -> None:
        peer.request()

    with connected(refuse, answers()) as channel:
        assert channel.versions["Fetch"] == 11


def test_a_broker_silent_on_versions_is_not_taken_for_old(make: Make) -> None:
    with ScriptedBroker(Peer.until_closed) as broker:
        channel = make(broker.endpoint(), timeout=0.2)
        with pytest.raises(BrokerUnavailableError, match="did not answer in time"):
            channel.connect(soon())
        assert channel.versions == {}


def test_no_common_version_is_said_so(make: Make) -> None:
    def script(peer: Peer) -> None:
        peer.versions({1: (12, 17), 2: (0, 3), 3: (0, 9)})

    says = pytest.raises(BrokerError, match=r"broker 7 at .* speaks Fetch 12 to 17, this client 0 to 11")
    with ScriptedBroker(script) as broker, says:
        make(broker.endpoint()).connect(soon())


def test_a_wrong_correlation_id_ends_only_the_connection() -> None:
    def wrong(peer: Peer) -> None:
        peer.versions()
        peer.answer(peer.request().correlation_id + 1, fetched(b"of somebody else"))
        peer.until_closed()

    with connected(wrong, answers(fetched(b"ours"))) as channel:
        first = channel.send_fetch(FETCH, soon())
        with pytest.raises(BrokerError, match="in place of"):
            channel.receive_fetch(first, soon())
        for call in (lambda: channel.receive_fetch(first, soon()), lambda: channel.send_fetch(FETCH, soon())):
            with pytest.raises(BrokerUnavailableError, match="not connected"):
                call()
        channel.connect(soon())
        again = channel.send_fetch(FETCH, soon())
        assert channel.receive_fetch(again, soon()).partitions[0].records == b"ours"


def test_somebody_who_is_no_broker_is_found_out_at_once(make: Make) -> None:
    """The first bytes of an HTTP answer, read as a length, would ask for more than a gigabyte."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        peer.until_closed()

    with ScriptedBroker(script) as broker:
        channel = make(broker.endpoint())
        with pytest.raises(BrokerError, match="Kafka listener"):
            channel.connect(soon())


def _fetch(channel: BrokerChannel) -> None:
    receive(channel)


def _metadata(channel: BrokerChannel) -> None:
    channel.metadata(["t"], soon())


def _announced(answered: bytes) -> Callable[[Peer], None]:
    """Return a script that answers the first request with a length and only the beginning of its bytes."""

    def script(peer: Peer) -> None:
        peer.versions()
        peer.send(answered[:4] + struct.pack(">i", peer.request().correlation_id) + answered[4:])

    return script


@pytest.mark.parametrize("asking", [_fetch, _metadata])
def test_a_length_beyond_all_reason_allocates_nothing(asking: Callable[[BrokerChannel], None]) -> None:
    """Eight bytes made the member allocate and zero two gigabytes while all of its threads stood still."""
    with connected(_announced(struct.pack(">i", 2**31 - 1))) as channel:
        tracemalloc.start()
        try:
            with pytest.raises(BrokerError, match=r"an answer of 2147483643 bytes came to \w+, where \d+ are the most"):
                asking(channel)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(("asking", "announced"), [(_fetch, 90_000_000), (_metadata, 8_000_000)])
def test_memory_grows_with_what_comes_not_with_its_length(
    asking: Callable[[BrokerChannel], None], announced: int
) -> None:
    """A length that may be right costs what has come of it, and the receive buffer."""
    head = fetched(bytes(60_000)).replace(struct.pack(">i", 60_000), struct.pack(">i", announced - 80))
    with connected(_announced(struct.pack(">i", announced) + head)) as channel:
        tracemalloc.start()
        try:
            with pytest.raises(BrokerUnavailableError):
                asking(channel)
            assert tracemalloc.get_traced_memory()[1] < 5_000_000
        finally:
            tracemalloc.stop()


def test_an_answer_may_be_as_large_as_was_asked_for() -> None:
    """The limit follows the request, and a first batch may be larger than it (KIP-74)."""

    def script(peer: Peer) -> None:
        peer.versions()
        for size in (2_000_000, 2_000_000, 40_000_000):
            with suppress(ConnectionError):  # the last one is refused
                peer.answer(peer.request().correlation_id, fetched(bytes(size)))

    asked = FETCH._replace(positions=[FetchPosition("t", 3, 42, 32_000_000)])
    with connected(script, largest_fetch=1000) as channel:
        for request in (asked, asked._replace(positions=FETCH.positions, max_bytes=2_000_000)):
            channel.receive_fetch(channel.send_fetch(request, soon()), soon())
        with pytest.raises(BrokerError, match=r"fetch\.max\.bytes"):
            receive(channel)


def test_partitions_that_nobody_asked_for_are_not_believed() -> None:
    """Empty partitions take ten times their bytes in memory, and an answer could hold millions of them."""
    parts = [(n, 0, 100, 100, 0, None, b"") for n in range(3)]
    told = [response(broker_schemas.FETCH, 10, 0, 0, 5, [("t", parts[:1]), ("u", parts[:more])]) for more in (0, 0, 2)]
    with connected(answers(*told)) as channel:
        # in a session the broker may tell of any partition that was named in it
        for request in (FETCH._replace(session_epoch=0), FETCH._replace(session_epoch=1)):
            assert len(channel.receive_fetch(channel.send_fetch(request, soon()), soon()).partitions) == 1
        with pytest.raises(BrokerError, match="more than the 2 partitions that were asked for"):
            channel.receive_fetch(channel.send_fetch(FETCH._replace(session_epoch=2, positions=()), soon()), soon())


def test_an_answer_that_cannot_be_read_ends_the_connection() -> None:
    with connected(answers(fetched(b"x" * 50)[:-10])) as channel:
        with pytest.raises(BrokerError, match="Fetch version 10 cannot be read"):
            receive(channel)
        with pytest.raises(BrokerUnavailableError):
            channel.send_fetch(FETCH, soon())


def test_a_refused_fetch_leaves_the_channel_usable() -> None:
    with connected(answers(fetched(error_code=error_codes.FETCH_SESSION_ID_NOT_FOUND), fetched(b"fine"))) as channel:
        with pytest.raises(BrokerResponseError, match="FETCH_SESSION_ID_NOT_FOUND"):
            receive(channel)
        assert receive(channel) == b"fine"


@pytest.mark.parametrize("sent", [0, 3, 8, 20])
def test_a_broker_that_dies_within_an_answer(sent: int) -> None:
    def script(peer: Peer) -> None:
        peer.versions()
        peer.send(framed(peer, fetched(b"half"))[:sent])

    gone = pytest.raises(BrokerUnavailableError, match=r"broker 7 at 127.0.0.1:.*closed the connection")
    with connected(script) as channel, gone:
        receive(channel)


def test_a_silent_broker_is_waited_for_until_the_timeout() -> None:
    with connected(answers(), timeout=0.3) as channel:
        long_poll = FETCH._replace(max_wait=0.2)
        begin = monotonic()
        with pytest.raises(BrokerUnavailableError, match="did not answer in time"):
            channel.receive_fetch(channel.send_fetch(long_poll, soon()), Deadline(None))
        assert monotonic() - begin > 0.45  # the wait that the broker was asked for does not count


@pytest.mark.parametrize("sent", [3, 8, 20, -1])
def test_the_rest_of_a_stopped_answer_is_no_other_answer(sent: int) -> None:
    def stopping(peer: Peer) -> None:
        peer.versions()
        peer.send(framed(peer, fetched(b"half"))[:sent])
        peer.until_closed()

    with connected(stopping, answers(fetched(b"whole"))) as channel:
        with pytest.raises(BrokerUnavailableError, match="did not answer in time"):
            receive(channel, deadline=Deadline(scaled(0.2)))
        with pytest.raises(BrokerUnavailableError, match="not connected"):
            channel.send_fetch(FETCH, soon())
        channel.connect(soon())
        assert receive(channel) == b"whole"


def test_a_connection_made_again_has_a_time_limit_of_its_own(make: Make) -> None:
    """The limit was told to the socket before, and is not told to one each time."""
    with ScriptedBroker(answers(fetched(b"one")), answers()) as broker:
        channel = make(broker.endpoint(), timeout=0.5)
        channel.connect(Deadline(None))
        assert channel.receive_fetch(channel.send_fetch(FETCH, Deadline(None)), Deadline(None)).partitions
        channel.connect(Deadline(None))
        with pytest.raises(BrokerUnavailableError, match="did not answer in time"):
            channel.receive_fetch(channel.send_fetch(FETCH, Deadline(None)), Deadline(None))


def test_a_broker_that_dribbles_is_held_to_the_deadline() -> None:
    """Each byte comes well within the socket timeout; all of them together never would."""
    pause = threading.Event()

    def script(peer: Peer) -> None:
        peer.versions()
        correlation_id = peer.request().correlation_id
        try:
            for byte in struct.pack(">ii", 10_000, correlation_id) + bytes(10_000):
                peer.send(bytes((byte,)))
                pause.wait(0.02)
        except OSError:
            pass

    with connected(script) as channel, pytest.raises(BrokerUnavailableError, match="did not answer in time"):
        receive(channel, deadline=Deadline(0.3))


def test_an_expired_deadline_sends_nothing() -> None:
    with connected(answers()) as channel, pytest.raises(BrokerUnavailableError, match="no time was left"):
        channel.send_fetch(FETCH, Deadline(0))


def test_a_large_answer_does_not_stay_in_memory() -> None:
    with connected(answers(fetched(bytes(20_000_000)), fetched(b"small"))) as channel:
        sizes = [len(receive(channel)) for _ in "ab"]
        assert sizes == [20_000_000, 5]
        assert len(channel.buffer) < 4_300_000


@pytest.fixture
def receives(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of bytes that each receiving call of a connection returns from now on."""
    sizes: list[int] = []
    receive = Connection.receive_some

    def counted(*arguments: Any) -> int:
        sizes.append(receive(*arguments))
        return sizes[-1]

    monkeypatch.setattr(Connection, "receive_some", counted)
    return sizes


def test_a_large_answer_is_received_in_one_piece(receives: list[int]) -> None:
    """Each return from the system may wait for a thread that computes; seen: two a partition, one of 42 bytes."""
    parts: list[Any] = [(n, 0, 100, 100, 0, [], bytes([n]) * 1_000_000) for n in range(4)]

    body = response(broker_schemas.FETCH, 10, 0, 0, 0, [("t", parts)])
    with connected(answers(body, body)) as channel:
        for _ in range(2):
            receives.clear()
            request = FETCH._replace(positions=[*FETCH.positions] * 4)
            answer = channel.receive_fetch(channel.send_fetch(request, soon()), soon())
            assert [part.records for part in answer.partitions] == [bytes([n]) * 1_000_000 for n in range(4)]
            assert len(receives) == 2, "its length, and all the rest"


def test_a_small_answer_comes_with_its_head_in_one_piece(receives: list[int]) -> None:
    """Where two are owed, the first must not take the head of the second with it."""

    def script(peer: Peer) -> None:
        peer.versions()
        for owed in (1, 2, 1):
            asked = [peer.request().correlation_id for _ in range(owed)]
            bodies = [fetched(f"{number}".encode()) for number in asked]
            peer.send(b"".join(struct.pack(">ii", len(b) + 4, n) + b for n, b in zip(asked, bodies, strict=True)))
        peer.until_closed()

    with connected(script) as channel:
        for owed, pieces in ((1, 1), (2, 3), (1, 1)):
            receives.clear()
            asked = [channel.send_fetch(FETCH, soon()) for _ in range(owed)]
            told = [channel.receive_fetch(number, soon()).partitions[0].records for number in asked]
            assert told == [f"{number}".encode() for number in asked]
            assert len(receives) == pieces


def test_bytes_behind_the_only_answer_that_is_owed_are_an_error() -> None:
    def script(peer: Peer) -> None:
        peer.versions()
        peer.send(framed(peer, fetched(b"one")) + b"more")
        peer.until_closed()

    with connected(script) as channel:
        with pytest.raises(BrokerError, match="came in place of"):
            receive(channel)
        assert not channel.versions, "it is to be connected again"


def test_close_from_another_thread_wakes_a_blocked_receive(elsewhere: Elsewhere) -> None:
    asked = threading.Event()

    def script(peer: Peer) -> None:
        peer.versions()
        peer.request()
        asked.set()
        peer.until_closed()

    with connected(script, timeout=60) as channel:
        waiting = elsewhere(channel.receive_fetch, channel.send_fetch(FETCH, soon()), Deadline(60))
        assert asked.wait(scaled(10))
        eventually(lambda: channel.connection.busy, 10, "the other thread to wait")
        channel.close()
        with pytest.raises(BrokerUnavailableError, match="the channel was closed"):
            waiting.result(scaled(5))
        assert channel.connection.socket is None
    with pytest.raises(BrokerUnavailableError, match="the channel was closed"):
        channel.connect(soon())


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port where nobody answers: its queue of unaccepted connections is full."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = []
        for _ in range(4):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        yield listener.getsockname()[1]
        for filler in fillers:
            filler.close()


def test_connecting_into_a_black_hole_ends_at_the_deadline(make: Make, black_hole: int) -> None:
    begin = monotonic()
    with pytest.raises(BrokerUnavailableError, match=r"broker 7 at 127.0.0.1:.*cannot be reached"):
        make(Endpoint(7, "127.0.0.1", black_hole)).connect(Deadline(0.2))
    assert 0.15 < monotonic() - begin < scaled(5)


def test_close_from_another_thread_wakes_a_connect(make: Make, black_hole: int, elsewhere: Elsewhere) -> None:
    channel = make(Endpoint(7, "127.0.0.1", black_hole), timeout=60)
    waiting = elsewhere(channel.connect, Deadline(60))
    eventually(lambda: channel.connection.busy, 10, "the other thread to connect")
    channel.close()
    with pytest.raises(BrokerUnavailableError, match="the channel was closed"):
        waiting.result(scaled(5))


def test_a_refused_connection(make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(BrokerUnavailableError, match=r"cannot be reached: .*refused"):
        make(Endpoint(7, "127.0.0.1", port)).connect(soon())


def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        refused = gone.getsockname()
    with ScriptedBroker(Peer.until_closed) as broker:
        here = (socket.AF_INET, socket.SOCK_STREAM, 0, "")

        def answer(host: str, port: int, *rest: int) -> list[Any]:
            if socket.AI_NUMERICHOST in rest:
                raise socket.gaierror
            return [(*here, refused), (*here, ("127.0.0.1", broker.port))]

        monkeypatch.setattr(socket, "getaddrinfo", answer)
        connection = Connection("broker 7", "some.name", 9092)
        connection.connect(soon(), scaled(10))
        connection.send(b"x", soon(), 1)
        connection.close()


def test_a_name_that_is_never_resolved_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's look-up has no time limit of its own; a dead name server once held up everything behind it."""
    over = threading.Event()

    def hang(host: str, port: int, *rest: int) -> list[Any]:
        if socket.AI_NUMERICHOST in rest:
            raise socket.gaierror
        over.wait(scaled(30))
        raise socket.gaierror(socket.EAI_AGAIN, "later")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    try:
        connection = Connection("broker 7", "some.name", 9092)
        with pytest.raises(BrokerUnavailableError, match="was not resolved in time"):
            connection.connect(Deadline(0.1), 60)
    finally:
        over.set()
    with pytest.raises(BrokerUnavailableError, match="cannot be resolved"):
        connection.connect(soon(), 60)


def test_a_time_limit_is_told_to_the_system_only_when_it_changes() -> None:
    """It was told before each call, which took as long as reading a small answer."""
    told: list[tuple[int, float]] = []

    class Told:
        def setsockopt(self, _: int, option: int, value: bytes) -> None:
            seconds, micros = struct.unpack("@ll", value)
            told.append((option, seconds + micros / 1e6))

    sock: Any = Told()
    connection = Connection("broker 7", "127.0.0.1", 1)
    limits = (30.1, 30.0999, 30.0, 0.1, 0.1, 30.0, 60.0, 30.0)
    for seconds in limits:
        before = len(told)
        connection.set_time_limit(sock, socket.SO_RCVTIMEO, seconds)
        assert seconds <= told[-1][1] <= seconds * 1.03
        assert len(told) - before <= 1
    assert len(told) == 5, "at first, for less, for more, for much more, for less again"
    connection.set_time_limit(sock, socket.SO_SNDTIMEO, 30.0)
    assert told[-1][0] == socket.SO_SNDTIMEO, "the other way has a limit of its own"


def test_close_from_another_thread_wakes_a_blocked_send(elsewhere: Elsewhere) -> None:
    release = threading.Event()
    with ScriptedBroker(lambda _: assert_set(release)) as broker:
        connection = Connection("broker 7", "127.0.0.1", broker.port)
        connection.connect(soon(), 10)
        waiting = elsewhere(connection.send, bytes(200_000_000), Deadline(60), 60)
        eventually(lambda: connection.busy, 10, "the other thread to send")
        connection.close()
        with pytest.raises(BrokerUnavailableError, match="the channel was closed"):
            waiting.result(scaled(10))
        release.set()


def assert_set(event: threading.Event) -> None:
    assert event.wait(scaled(30))


def test_close_leaves_the_descriptor_to_the_thread_that_uses_it() -> None:
    """A number that is closed under a reading thread can be given to another file, which it would then read from."""
    with ScriptedBroker(Peer.until_closed) as broker:
        connection = Connection("broker 7", "127.0.0.1", broker.port)
        connection.connect(soon(), 10)
        with ExitStack() as reading:
            sock = reading.enter_context(connection.using())
            connection.close()
            assert sock.fileno() >= 0
            with pytest.raises(BrokerUnavailableError, match="closed"):
                reading.close()
        assert sock.fileno() == -1


def test_a_login_comes_before_anything_else(make: Make) -> None:
    class Login:
        def wrap(self, sock: socket.socket, host: str) -> socket.socket:
            assert host == "127.0.0.1"
            return sock

        def authenticate(self, channel: BrokerChannel, deadline: Deadline) -> None:
            raise BrokerError("wrong password")

    with ScriptedBroker(answers()) as broker:
        channel = make(broker.endpoint(), security=Login())
        with pytest.raises(BrokerError, match="wrong password"):
            channel.connect(soon())
        with pytest.raises(BrokerUnavailableError, match="not connected"):
            channel.send_fetch(FETCH, soon())
