"""Tables for the offsets of one owned partition."""

from __future__ import annotations

import pytest

from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import NOTHING_HELD, PartitionPosition


def position(
    consumed: int | None = 10, *, held_until: int = NOTHING_HELD, batch_until: int = NOTHING_HELD, log_end: int = -1
) -> PartitionPosition:
    made = PartitionPosition(TopicPartition("events", 3), ThreadId("g_a-0"), consumed)
    made.held_until, made.batch_until, made.cursor.log_end = held_until, batch_until, log_end
    return made


@pytest.mark.parametrize(
    ("consumed", "held_until", "held"),
    [
        (None, NOTHING_HELD, False),
        (None, 5, False),
        (10, NOTHING_HELD, False),
        (10, 10, False),
        (10, 11, True),
        (10, 15, True),
        (15, 15, False),
        (16, 15, False),
        (0, 1, True),
        (0, 0, False),
    ],
)
def test_a_message_is_held_until_consumed_reaches_the_end(consumed: int | None, held_until: int, held: bool) -> None:
    assert position(consumed, held_until=held_until).held is held


@pytest.mark.parametrize(
    ("consumed", "held_until", "batch_until", "without_held", "including_held"),
    [
        # No known start: there is no offset to commit, whatever the other fields say.
        (None, NOTHING_HELD, NOTHING_HELD, None, None),
        (None, 5, 5, None, None),
        # Nothing in the user's hands: both answers are the consumed offset.
        (10, NOTHING_HELD, NOTHING_HELD, 10, 10),
        (10, 10, NOTHING_HELD, 10, 10),
        (10, 10, 10, 10, 10),
        # One message of a batch of five is in the user's hands: the four behind it are not finished.
        (10, 15, NOTHING_HELD, 10, 11),
        (10, 11, NOTHING_HELD, 10, 11),
        # Rows 10 to 14 are in the user's hands together.
        (10, 15, 15, 10, 15),
        (12, 15, 15, 12, 15),
        # The end of an earlier run of rows says nothing about the message that is held now.
        (15, 20, 15, 15, 16),
        (0, 1, NOTHING_HELD, 0, 1),
    ],
)
def test_the_offset_to_commit(
    consumed: int | None, held_until: int, batch_until: int, without_held: int | None, including_held: int | None
) -> None:
    made = position(consumed, held_until=held_until, batch_until=batch_until)
    assert made.finished(including_held=False) == without_held
    assert made.finished(including_held=True) == including_held


@pytest.mark.parametrize(
    ("consumed", "log_end", "lag"),
    [
        (None, -1, -1),
        (None, 20, -1),
        (10, -1, -1),
        (10, 10, 0),
        (10, 25, 15),
        (0, 0, 0),
        # KAFKA-2678: a high watermark that lags behind the fetched messages is no negative lag.
        (10, 7, 0),
    ],
)
def test_the_lag_is_unknown_or_never_negative(consumed: int | None, log_end: int, lag: int) -> None:
    assert position(consumed, log_end=log_end).lag == lag


@pytest.mark.parametrize("committed", [None, 3, 7])
def test_a_position_starts_at_another_offset_than_committed(committed: int | None) -> None:
    """The committed offset stays, so that the next commit writes the new one where the two differ."""
    made = position(committed)
    made.start_at(7)
    assert (made.consumed, made.cursor.fetched, made.stored.committed) == (7, 7, committed)
