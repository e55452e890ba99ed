"""The application gets an error for a too large message or corrupt data at each read, until it gives the place up."""

from __future__ import annotations

import pytest

from tests.unit.fetch.one_partition import OnePartition
from tests.unit.kafka.sets import WHERE, Batch, Written
from zkconsumer.errors import (
    ConsumerTimeoutException,
    InvalidMessageException,
    MessageSizeTooLargeException,
    UnreadableMessageError,
)
from zkconsumer.kafka import CorruptRecordsError, error_codes


def batch(base: int, count: int = 1, size: int = 10, magic: int = 2) -> bytes:
    return Batch([Written(value=b"x" * size)] * count, magic=magic).encode(base)[0]


def broken(data: bytes, at: int = -1) -> bytes:
    out = bytearray(data)
    out[at] ^= 0xFF
    return bytes(out)


class Log:
    """Batches by their offsets, sent as a broker before 0.10.1 does: cut off at the size that was asked for."""

    def __init__(self, *batches: bytes, first: int = 0) -> None:
        self.batches = {}
        for data in batches:
            last = first + int.from_bytes(data[23:27], "big") if data[16] == 2 else first
            self.batches[first, last] = data
            first = last + 1
        self.end = first

    def __call__(self, offset: int, max_bytes: int) -> bytes | int:
        if offset > self.end:
            return error_codes.OFFSET_OUT_OF_RANGE
        return b"".join(data for (_, last), data in self.batches.items() if last >= offset)[:max_bytes]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_larger_message_gets_a_larger_fetch(magic: int) -> None:
    """KAFKA-160, KAFKA-994: a message that did not fit was asked for for ever, later the partition stalled silently."""
    it = OnePartition()
    with it.fetching(Log(batch(0, magic=magic), batch(1, size=3000, magic=magic), batch(2, magic=magic))) as fetcher:
        for _ in range(4):
            fetcher.step()
        assert it.read() == [0, 1, 2]
    assert [offset for offset, _ in it.asked] == [0, 1, 1, 2]
    assert it.asked[1][1] == 1000 < 3000 < it.asked[2][1] < 4000


@pytest.mark.parametrize(("magic", "last"), [(0, 1), (1, 1), (2, 3)])
def test_a_message_beyond_the_largest_fetch_can_be_skipped(magic: int, last: int) -> None:
    """KAFKA-160, KAFKA-994: as above, where growing does not help."""
    it = OnePartition()
    large = batch(1, count=last, size=5000, magic=magic)
    with it.fetching(Log(batch(0, magic=magic), large, batch(last + 1, magic=magic))) as fetcher:
        fetcher.step()
        assert it.read() == [0]
        fetcher.step()
        for _ in range(2):
            with pytest.raises(MessageSizeTooLargeException, match=r"t-3 at offset 1: .* fetch\.max\.bytes") as caught:
                it.stream.get(timeout=0)
        assert (caught.value.where, caught.value.offset, caught.value.next_offset) == (WHERE, 1, last + 1)
        assert it.position.finished(including_held=True) == 1, "nothing beyond the place is committed"
        assert it.position.cursor.fetched is None, "and nothing fetched"
        assert it.stream.skip() == last + 1
        assert (it.room, it.queue.skipped, it.position.finished(including_held=True)) == (1, 1, last + 1)
        fetcher.step()
        assert it.read() == [last + 1]
    assert it.position.finished(including_held=False) == last + 2
    assert it.resolved == [], "auto.offset.reset has no part in it"


def test_an_unreadable_place_survives_a_lost_connection() -> None:
    """Bug: a partition given back to the leader finder looked as if it had no start offset, and
    ``auto.offset.reset`` moved it.
    """
    it = OnePartition()
    log = Log(batch(0, size=5000), batch(1))
    with it.fetching(log, log) as fetcher:
        fetcher.step()
        fetcher.lose_connection("lost")
        assert [fetch.tp for fetch in it.returned] == [WHERE]
        fetcher.partitions.add(it.returned)
        with pytest.raises(MessageSizeTooLargeException):
            it.stream.get(timeout=0)
        it.stream.skip()
        fetcher.step()
        assert it.read() == [1]
    assert it.resolved == []


def test_a_wrong_checksum_is_raised_until_it_is_skipped() -> None:
    it = OnePartition()
    with it.fetching(Log(batch(0, 2), broken(batch(2, 3)), batch(5, 2))) as fetcher:
        fetcher.step()
        assert [it.stream.get(timeout=0).offset for _ in range(2)] == [0, 1]
        for _ in range(2):
            with pytest.raises(InvalidMessageException, match=r"^t-3 at offset 2: .*checksum") as caught:
                it.stream.get(timeout=0)
        assert (caught.value.offset, caught.value.next_offset) == (2, 5)
        assert it.position.finished(including_held=True) == 2, "what was handed out before it is finished"
        assert it.stream.skip() == 5
        assert it.read() == [5, 6]
    assert it.position.finished(including_held=False) == 7
    assert it.queue.skipped == 1


def test_the_policy_skip_goes_on_by_itself_and_counts(caplog: pytest.LogCaptureFixture) -> None:
    it = OnePartition(skip_corrupt=True)
    with it.fetching(Log(broken(batch(0, 2)), batch(2), broken(batch(3)), broken(batch(4, 2)), batch(6))) as fetcher:
        fetcher.step()
        assert it.read() == [2, 6]
    assert it.position.finished(including_held=False) == 7
    assert it.queue.skipped == 3
    told = [record.getMessage() for record in caplog.records if "skipping" in record.getMessage()]
    assert [text.split(":")[0] for text in told] == [f"skipping to offset {n} what cannot be read" for n in (2, 4, 6)]


def test_a_message_before_an_unreadable_one_is_not_repeated() -> None:
    """Raising from within a batch left the position at the last message that was handed out: each ask gave it again,
    and then the error.
    """
    it = OnePartition(partition_bytes=100_000, check_crc=False)
    data = bytearray(batch(0, 30, size=200))
    data[-150:] = b"\x80" * 150  # the last record's lengths end nowhere
    with it.fetching(Log(bytes(data), batch(30))) as fetcher:
        fetcher.step()
        seen: list[int] = []
        with pytest.raises(CorruptRecordsError):
            seen.extend(message.offset for message in it.stream)
        assert seen == list(range(len(seen)))
        assert len(seen) in (29, 30)
        if len(seen) == 29:
            for _ in range(2):
                with pytest.raises(CorruptRecordsError):
                    it.stream.get(timeout=0)
        assert it.position.finished(including_held=True) == len(seen)
        it.stream.skip()
        assert it.read() == [30]


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_head_that_makes_no_sense_stops_fetching_there(policy: str) -> None:
    """KAFKA-4384: the fetched offset had moved before the data was looked at, and the fetcher's thread died of it."""
    it = OnePartition(skip_corrupt=policy == "skip")
    senseless = b"\x00" * 7 + b"\x02" + b"\xff\xff\xff\xff" + b"\x00" * 100  # offset 2, size -1

    def log(offset: int, max_bytes: int) -> bytes:
        return {0: batch(0, 2) + senseless, 2: senseless}.get(offset, batch(3))[:max_bytes]

    it.listed = (0, 4)
    with it.fetching(log) as fetcher:
        fetcher.step()
        assert it.read() == [0, 1]
        fetcher.step()
        if policy == "raise":
            with pytest.raises(InvalidMessageException, match="t-3 at offset 2"):
                it.stream.get(timeout=0)
            assert it.stream.skip() == 3
        fetcher.step()
        assert it.read() == [3]
    assert it.queue.skipped == 1
    assert [offset for offset, _ in it.asked] == [0, 2, 3]


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_a_broker_that_cannot_read_its_own_log(policy: str) -> None:
    it = OnePartition(skip_corrupt=policy == "skip")
    it.listed = (0, 6)
    with it.fetching(lambda offset, _: batch(5) if offset == 5 else error_codes.CORRUPT_MESSAGE) as fetcher:
        it.position.cursor.fetched = it.position.consumed = 3
        for _ in range(2):
            fetcher.step()
            if policy == "raise":
                with pytest.raises(InvalidMessageException, match="broker 7 cannot read it") as caught:
                    it.stream.get(timeout=0)
                assert it.stream.skip() == caught.value.offset + 1
        fetcher.step()
        assert it.read() == [5]
    assert (it.queue.skipped, it.returned) == (2, [])


@pytest.mark.parametrize("before", [0, 1])
def test_a_batch_that_claims_to_pass_the_log_moves_nothing(before: int) -> None:
    """The log's end was passed, the next offset refused, and the log taken for another one and read from its start. A
    skip went on by one offset, and again, up to where the wrong head said.
    """
    it = OnePartition()
    broken = bytearray(batch(before, 3))
    broken[23] ^= 0x01  # the last offset is 16 million more

    def log(offset: int, _: int) -> bytes:
        first, following = batch(0, before) if before and not offset else b"", batch(before + 3)
        return following if offset == before + 3 else first + bytes(broken) + following

    with it.fetching(log) as fetcher:
        fetcher.step()
        assert it.position.cursor.fetched == (before or None)
        if before:
            assert it.read() == [0]
            fetcher.step()
        with pytest.raises(InvalidMessageException, match="checksum of a batch"):
            it.stream.get(timeout=0)
        assert it.stream.skip() == before + 3
        fetcher.step()
        assert it.read() == [before + 3]


def test_skipping_never_passes_the_end_of_the_log() -> None:
    """Beyond it the offset is out of range, and ``auto.offset.reset`` would consume everything once more."""
    it = OnePartition(skip_corrupt=True, start=5)
    it.listed = (0, 5)
    with it.fetching(lambda *_: error_codes.CORRUPT_MESSAGE) as fetcher:
        fetcher.step()
        assert it.position.cursor.fetched == 5
        assert [fetch.tp for fetch in it.returned] == [WHERE]
    assert it.queue.skipped == 0


def test_there_is_nothing_to_skip_where_nothing_was_raised() -> None:
    it = OnePartition()
    with it.fetching(Log(broken(batch(0)), batch(1))) as fetcher:
        with pytest.raises(ValueError, match="nothing to skip"):
            it.stream.skip()
        fetcher.step()
        with pytest.raises(UnreadableMessageError):
            it.stream.get(timeout=0)
        assert it.stream.skip() == 1
        with pytest.raises(ValueError, match="nothing to skip"):
            it.stream.skip()
        it.position.revoked = True
        with pytest.raises(ConsumerTimeoutException):
            it.stream.get(timeout=0)
