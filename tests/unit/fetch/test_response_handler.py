"""The handler believes a partition's part of a response only if it answers the request."""

from __future__ import annotations

import pytest

from tests.unit.fetch.one_partition import OnePartition
from tests.unit.kafka.sets import WHERE, Batch, Written
from zkconsumer.fetch.broker_fetch import FetchedPart
from zkconsumer.fetch.response_handler import Outcomes, ResponseHandler
from zkconsumer.kafka import PartitionResponse
from zkconsumer.ownership.fetch_cursor import FetchRange

RECORDS = Batch([Written(), Written()]).encode(0)[0]
ASKED = FetchRange(0, 1000)


def part(error: int = 0) -> PartitionResponse:
    return PartitionResponse(WHERE.topic, WHERE.partition, error, 9, 0, (), b"" if error else RECORDS)


def handled(it: OnePartition, *parts: PartitionResponse) -> Outcomes:
    outcomes, handle, fetch = Outcomes(), ResponseHandler(7, it.settings), it.position.cursor.deliver_to(it.queue)
    for each in parts:
        handle.handle(FetchedPart(fetch, ASKED, each), outcomes)
    return outcomes


def test_a_partition_that_is_told_twice_is_queued_once() -> None:
    it = OnePartition()
    assert len(handled(it, part(), part()).served) == 1
    assert (it.read(), it.position.cursor.fetched) == ([0, 1], 2)


@pytest.mark.parametrize(("level", "stable", "lag"), [(0, 4, 9), (1, 4, 4), (1, -1, 9), (1, 0, 0)])
def test_lag_ends_where_the_isolation_level_lets_us_read(level: int, stable: int, lag: int) -> None:
    """Bug: with read_committed an open transaction counted as lag that no reading could make less."""
    it = OnePartition(isolation_level=level)
    handled(it, part()._replace(records=b"", last_stable=stable))
    assert it.position.lag == lag


@pytest.mark.parametrize("error", [0, 1, 2, 6])
@pytest.mark.parametrize("revoked", [False, True])
def test_an_answer_for_a_position_that_was_left_is_dropped(error: int, revoked: bool) -> None:
    """As after a seek: the answer's records and error do not belong to the present position."""
    it = OnePartition()
    it.position.cursor.fetched, it.position.revoked = 0 if revoked else 5, revoked
    outcomes = handled(it, part(error))
    assert [*outcomes.served, *outcomes.moved, *outcomes.out_of_range, *outcomes.corrupt] == []
    assert (len(it.queue), it.position.cursor.fetched, it.position.cursor.log_end) == (0, 0 if revoked else 5, -1)


@pytest.mark.parametrize("length", [5, 12, 40, len(RECORDS) - 1])
def test_a_batch_cut_off_although_it_would_fit_is_corrupt(length: int) -> None:
    """A larger fetch.max.bytes, as for a message larger than the request, would change nothing."""
    it = OnePartition()
    cut = part()._replace(records=RECORDS[:length])
    assert handled(it, cut).corrupt == [], "once may be chance: it is asked for again"
    assert handled(it, cut, part()).served != []
    it = OnePartition()
    outcomes = handled(it, cut, cut)
    ((_, error),) = outcomes.corrupt
    assert (error.offset, it.position.cursor.fetched, len(it.queue)) == (0, 0, 0)
    assert f"sent only {length} of" in str(error)
