"""Lies in the headers and the content of a broker's answers, made by a proxy in front of a real broker.

Each lie is told once to a reading member, which must neither lose nor repeat a message, nor end a stream or a thread.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import pytest
from google_crc32c import value as crc32c

from tests.cluster.conftest import produce_to, unique
from tests.cluster.lying_proxy import Answer, Lie, LyingProxy, partitions
from tests.cluster.member_process import QUICK
from tests.timing import scaled
from zkconsumer import KafkaStream, MessageAndMetadata, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster
from zkconsumer.devcluster.server_process import LOOPBACK
from zkconsumer.errors import InvalidMessageException

BUNCH = 3
LEAST, MOST, LONGEST = -(2**31), 2**31 - 1, 2**63 - 1
NOT_LEADER = 6


class DeceivedMember:
    """A connector whose broker connections go through the proxy, and its stream."""

    def __init__(self, cluster: DevCluster, proxy: LyingProxy, **properties: Any) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self.topic = unique("lies")
        cluster.create_topic(self.topic, 1)
        base = {
            "zookeeper_connect": cluster.zookeeper_connect,
            "group_id": unique("group"),
            "broker_address_map": f"{cluster.bootstrap_servers}={LOOPBACK}:{proxy.port}",
            "socket_timeout_ms": 3000,
            "fetch_wait_max_ms": 100,
        }
        self.connector = ZookeeperConsumerConnector(QUICK, **{**base, **properties})
        self.count = 0

    @cached_property
    def stream(self) -> KafkaStream[bytes | None, bytes | None]:
        """The only stream. Its creation joins the group."""
        return self.connector.create_message_streams({self.topic: 1})[self.topic][0]

    def produce(self, count: int = BUNCH) -> None:
        """Produce messages without the proxy."""
        values = [b"%d" % (self.count + n) for n in range(count)]
        produce_to(self.cluster.bootstrap_servers, self.topic, values, partitions=1)
        self.count += count


@pytest.fixture(scope="module")
def proxy(cluster: DevCluster) -> Iterator[LyingProxy]:
    host, port = cluster.bootstrap_servers.split(":")
    with LyingProxy((host, int(port))) as made:
        yield made


Join = Callable[..., DeceivedMember]


@pytest.fixture
def join(cluster: DevCluster, proxy: LyingProxy) -> Iterator[Join]:
    """Make members behind the proxy: ``join(**properties)``; all leave with the test."""
    made: list[DeceivedMember] = []

    def make(**properties: Any) -> DeceivedMember:
        made.append(DeceivedMember(cluster, proxy, **properties))
        return made[-1]

    yield make
    for one in made:
        one.connector.shutdown()


def see_nothing_lost(member: DeceivedMember) -> None:
    """Produce messages and read them, each once and in order."""
    begin = member.count
    member.produce()
    got = [member.stream.get(timeout=scaled(20)) for _ in range(BUNCH)]
    assert [(m.offset, m.value) for m in got] == [(n, b"%d" % n) for n in range(begin, begin + BUNCH)]
    assert member.connector.state.blocked == {}


def costs_of(lies: Sequence[Lie], proxy: LyingProxy, join: Join, tell: Callable[[Lie], None]) -> dict[str, str]:
    """Return the failure of each lie. A failed member is replaced by a new one."""
    failures = {}
    member = join()
    for lie in lies:
        try:
            tell(lie)
            see_nothing_lost(member)
            proxy.wait_told()
        except (Exception, pytest.fail.Exception) as error:
            failures[str(lie)] = f"{type(error).__name__}: {error}"
            proxy.forget()
            member.connector.shutdown()
            member = join()
    see_nothing_lost(member)
    return failures


# --- answers to a fetch ---


def each(**fields: Any) -> Callable[[Answer], object]:
    """Change fields of the partitions with records."""

    def change(answer: Answer) -> bool:
        found = list(partitions(answer))
        for partition in found:
            partition.update(fields)
        return bool(found)

    return change


def top(**fields: Any) -> Callable[[Answer], object]:
    """Change fields of the whole answer."""
    return lambda answer: answer.update(fields)


def records(change: Callable[[bytes], bytes]) -> Callable[[Answer], object]:
    """Change the records of the partitions that have some."""

    def changed(answer: Answer) -> bool:
        found = list(partitions(answer))
        for partition in found:
            partition["records"] = change(partition["records"])
        return bool(found)

    return changed


def put(at: int, form: str, value: int) -> Callable[[bytes], bytes]:
    """Overwrite a number."""

    def change(data: bytes) -> bytes:
        number = struct.pack(form, value)
        return data[:at] + number + data[at + len(number) :]

    return change


def signed(change: Callable[[bytes], bytes]) -> Callable[[Answer], object]:
    """Change the records and correct their checksum."""

    def resigned(data: bytes) -> bytes:
        data = change(data)
        return data[:17] + struct.pack(">I", crc32c(data[21:])) + data[21:]

    return records(resigned)


def elsewhere(answer: Answer) -> bool:
    """Give the records to another topic."""
    found = bool(list(partitions(answer)))
    for topic in answer["responses"]:
        topic["topic"] = "somebody-elses"
    return found


def twice(answer: Answer) -> bool:
    """Repeat the whole answer."""
    found = bool(list(partitions(answer)))
    answer["responses"] = answer["responses"] * 2
    return found


FETCH = [
    *(Lie(f"error {code}", "Fetch", each(error_code=code)) for code in (9999, -5, 3, 6, 74, 76)),
    *(Lie(f"as a whole: {code}", "Fetch", top(error_code=code)) for code in (9999, -5, 70, 71)),
    *(Lie(f"partition {number}", "Fetch", each(partition_index=number)) for number in (1, 77, -1, MOST)),
    Lie("another topic", "Fetch", elsewhere),
    Lie("twice", "Fetch", twice),
    *(Lie(f"high watermark {offset}", "Fetch", each(high_watermark=offset)) for offset in (-5, 0, LONGEST)),
    *(Lie(f"log start {offset}", "Fetch", each(log_start_offset=offset)) for offset in (-5, LONGEST)),
    Lie("stable offset", "Fetch", each(last_stable_offset=-7)),
    Lie("aborted", "Fetch", each(aborted_transactions=[{"producer_id": -1, "first_offset": 0}])),
    *(Lie(f"session {number}", "Fetch", top(session_id=number)) for number in (0, 4711, -1)),
    *(Lie(f"throttled {ms} ms", "Fetch", top(throttle_time_ms=ms)) for ms in (MOST, LEAST)),
    Lie("no records", "Fetch", each(records=None)),
    Lie("nothing", "Fetch", lambda answer: bool(list(partitions(answer))) and not answer.update(responses=[])),
    Lie("garbage after the records", "Fetch", records(lambda data: data + b"\xff" * 40)),
    *(Lie(f"size {n}", "Fetch", frame=put(0, ">i", n)) for n in (0, 3, 4, -1, LEAST)),
    Lie("correlation", "Fetch", frame=put(4, ">i", 4711)),
    Lie("topics", "Fetch", frame=put(18, ">i", MOST)),
    Lie("negative topics", "Fetch", frame=put(18, ">i", -2)),
    Lie("another protocol", "Fetch", frame=lambda data: b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    Lie("cut off", "Fetch", frame=lambda data: data[:-1]),
    Lie("hung up", "Fetch", frame=lambda data: b""),
    Lie("too many bytes", "Fetch", frame=lambda data: data + b"\0" * 9),
    Lie("bytes inside", "Fetch", frame=lambda data: struct.pack(">i", len(data) + 5) + data[4:] + b"\0" * 9),
]


def test_lies_in_fetches_cost_no_message(proxy: LyingProxy, join: Join) -> None:
    assert costs_of(FETCH, proxy, join, proxy.tell) == {}


# --- records ---

RECORDS = [
    Lie("half of the records", "Fetch", records(lambda data: data[: len(data) // 2])),
    Lie("five bytes", "Fetch", records(lambda data: data[:5])),
    Lie("zeros", "Fetch", records(lambda data: bytes(len(data)))),
    *(Lie(f"first offset {offset}", "Fetch", records(put(0, ">q", offset))) for offset in (-1, -(2**63))),
    *(Lie(f"batch size {size}", "Fetch", records(put(8, ">i", size))) for size in (0, -1, 20, LEAST)),
    *(Lie(f"format {number}", "Fetch", records(put(16, ">b", number))) for number in (0, 1, 3, 127, -1)),
    Lie("a flipped bit", "Fetch", records(lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])),
    *(Lie(f"attributes {number}", "Fetch", signed(put(21, ">h", number))) for number in (1, 3, 5, 7)),
    *(Lie(f"{count} records", "Fetch", signed(put(57, ">i", count))) for count in (2, BUNCH + 1, -1, 10**6, MOST)),
    *(Lie(f"record size {size}", "Fetch", signed(put(61, ">b", size))) for size in (0, 1, 3, 126, -2)),
    *(Lie(f"last offset {delta} on", "Fetch", signed(put(23, ">i", delta))) for delta in (-1, LEAST)),
]


def read_on_after_refusals(member: DeceivedMember) -> None:
    """Read the last messages. If they are refused, seek to the same offset and read the broker's real messages."""
    begin = member.count - BUNCH
    got: list[tuple[int, bytes | None]] = []
    for _ in range(2 * BUNCH):  # a refusal at most for each message
        if len(got) == BUNCH:
            break
        message = read_or_refusal(member)
        if isinstance(message, InvalidMessageException):
            assert str(read_or_refusal(member)) == str(message), "at each ask"
            assert message.offset == begin + len(got)
            member.connector.seek(TopicPartition(member.topic, 0), message.offset)
        else:
            got.append((message.offset, message.value))
    assert got == [(n, b"%d" % n) for n in range(begin, member.count)]


def read_or_refusal(member: DeceivedMember) -> MessageAndMetadata[bytes | None, bytes | None] | InvalidMessageException:
    """Return the next message, or the error that refuses it."""
    try:
        return member.stream.get(timeout=scaled(20))
    except InvalidMessageException as refusal:
        return refusal


def test_changed_records_are_refused_and_can_be_read_again(proxy: LyingProxy, join: Join) -> None:
    """Each read raises with the position of the first unreadable record."""
    member = join()
    found = {}
    for lie in RECORDS:
        try:
            see_nothing_lost(member)
            proxy.tell(lie)
            member.produce()
            read_on_after_refusals(member)
        except (Exception, pytest.fail.Exception) as error:
            found[str(lie)] = f"{type(error).__name__}: {error}"
            proxy.forget()
            member.connector.shutdown()
            member = join()
    assert found == {}


# --- other answers ---


def brokers(**fields: Any) -> Callable[[Answer], object]:
    """Change fields of all brokers."""
    return lambda answer: [broker.update(fields) for broker in answer["brokers"]] and None


def named(**fields: Any) -> Callable[[Answer], object]:
    """Change fields of all partitions that the answer names."""
    return lambda answer: [one.update(fields) for topic in answer["topics"] for one in topic["partitions"]] and None


def topics(**fields: Any) -> Callable[[Answer], object]:
    """Change fields of all topics."""
    return lambda answer: [topic.update(fields) for topic in answer["topics"]] and None


METADATA = [
    *(Lie(f"leader {number}", "Metadata", named(leader_id=number)) for number in (99, -1, -7, MOST)),
    *(Lie(f"partition {number}", "Metadata", named(partition_index=number)) for number in (1, -1, MOST)),
    *(Lie(f"error {code}", "Metadata", named(error_code=code)) for code in (9999, -5, 5, 9)),
    *(Lie(f"host of {len(host)}", "Metadata", brokers(host=host)) for host in ("", "\0", "x" * 30_000)),
    *(Lie(f"port {number}", "Metadata", brokers(port=number)) for number in (0, -1, 70_000, MOST)),
    Lie("no brokers", "Metadata", top(brokers=[])),
    Lie("brokers that are null", "Metadata", top(brokers=None)),
    Lie("no topics", "Metadata", top(topics=[])),
    Lie("no partitions", "Metadata", topics(partitions=[])),
    Lie("another topic", "Metadata", topics(name="somebody-elses")),
    *(Lie(f"error {code} of a topic", "Metadata", topics(error_code=code)) for code in (9999, -5, 3, 17)),
    Lie("many brokers", "Metadata", frame=put(12, ">i", MOST)),
    Lie("cut off", "Metadata", frame=lambda data: data[:-3]),
    Lie("bytes inside", "Metadata", frame=lambda data: struct.pack(">i", len(data) + 5) + data[4:] + b"\0" * 9),
]
VERSIONS = [
    Lie("none", "ApiVersions", top(api_keys=[])),
    Lie("null", "ApiVersions", top(api_keys=None)),
    Lie("error", "ApiVersions", top(error_code=9999)),
    *(
        Lie(f"{low} to {high}", "ApiVersions", top(api_keys=[{"api_key": 1, "min_version": low, "max_version": high}]))
        for low, high in ((30_000, 32_767), (5, 3), (-5, -1))
    ),
    Lie("many", "ApiVersions", frame=put(10, ">i", MOST)),
    Lie("cut off", "ApiVersions", frame=lambda data: data[:-3]),
    Lie("hung up", "ApiVersions", frame=lambda data: b""),
]
HUNG_UP = Lie("hung up", "Fetch", each(), frame=lambda data: b"")
MOVED = Lie("moved", "Fetch", each(error_code=NOT_LEADER))


def test_lies_in_metadata_cost_no_message(proxy: LyingProxy, join: Join) -> None:
    assert costs_of(METADATA, proxy, join, lambda lie: proxy.tell(MOVED, lie)) == {}


def test_lies_about_versions_cost_no_message(proxy: LyingProxy, join: Join) -> None:
    assert costs_of(VERSIONS, proxy, join, lambda lie: proxy.tell(HUNG_UP, lie)) == {}


STARTS = [
    *(Lie(f"offset {offset}", "ListOffsets", named(offset=offset)) for offset in (-1, -2, -(2**63), LONGEST)),
    *(Lie(f"error {code}", "ListOffsets", named(error_code=code)) for code in (9999, -5, 1)),
    *(Lie(f"partition {number}", "ListOffsets", named(partition_index=number)) for number in (1, -1, MOST)),
    Lie("no topics", "ListOffsets", top(topics=[])),
    Lie("null", "ListOffsets", top(topics=None)),
    Lie("many", "ListOffsets", frame=put(12, ">i", MOST)),
]


def test_lies_about_the_start_of_a_log_cost_no_message(proxy: LyingProxy, join: Join) -> None:
    """A new member starts by ``auto.offset.reset`` at the log start that the leader reports."""
    members = []
    for lie in STARTS:
        members.append(join())
        members[-1].produce()
        proxy.tell(lie)
        _ = members[-1].stream
        proxy.wait_told()
    found = {}
    for lie, member in zip(STARTS, members, strict=True):
        got = [member.stream.get(timeout=scaled(20)).offset for _ in range(BUNCH)]
        if got != list(range(BUNCH)):
            found[str(lie)] = got
    assert found == {}
