"""The first different offset of a log, found by leader epochs alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.values import present
from zkconsumer.core.leader_epochs import (
    KEPT_EPOCHS,
    EpochEnd,
    Epochs,
    completed,
    cut_at,
    epoch_before,
    first_divergence,
    with_epochs,
)
from zkconsumer.model import TopicPartition
from zkconsumer.testing.partition_log import PartitionLog, encode_batch

READ: Epochs = ((0, 1), (10, 3), (20, 7))


def test_the_epoch_of_an_offset_is_that_of_the_message_before_it() -> None:
    assert [epoch_before(READ, offset) for offset in (0, 1, 10, 11, 20, 21, 99)] == [-1, 1, 1, 3, 3, 7, 7]
    assert cut_at(READ, 11) == ((0, 1), (10, 3))
    assert cut_at(READ, 10) == ((0, 1),)


def test_epochs_are_remembered_once_and_not_without_limit() -> None:
    assert with_epochs(READ, ((25, 7),)) == READ
    assert with_epochs(READ, ((25, -1),)) == READ
    assert with_epochs(READ, ((25, 8),))[-1] == (25, 8)
    many: Epochs = ()
    for epoch in range(100):
        many = with_epochs(many, ((epoch, epoch),))
    assert len(many) == KEPT_EPOCHS
    assert many[-1] == (99, 99)


@pytest.mark.parametrize(
    ("reached", "end", "later", "start", "found"),
    [
        (25, EpochEnd(25, 7), False, 0, None),
        (25, EpochEnd(30, 7), True, 0, None),
        (25, EpochEnd(22, 7), True, 0, 22),
        (25, EpochEnd(22, -1), True, 0, 22),  # version 0 names no epoch
        (25, EpochEnd(22, 7), True, 24, 24),  # what was deleted cannot be read
        (25, EpochEnd(22, 7), False, 0, 0),  # it ends too early in its newest epoch: a topic made anew
        (25, EpochEnd(22, 3), True, 0, 20),  # ours of epoch 3 ended at 20, theirs at 22
        (25, EpochEnd(15, 3), True, 0, 15),
        (25, EpochEnd(40, 3), True, 0, 20),
        (25, EpochEnd(-1), False, 4, 4),  # it never had that epoch
        (25, EpochEnd(-1), False, 25, None),  # or has deleted it
    ],
)
def test_the_first_divergence(reached: int, end: EpochEnd, later: bool, start: int, found: int | None) -> None:
    assert first_divergence(reached, READ, end, later_epochs=later, log_start=start) == found


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 4)),
        st.tuples(st.just("truncate"), st.integers(0, 12)),
        st.tuples(st.just("elect"), st.just(0)),
    ),
    max_size=12,
)


@given(steps, steps, st.integers(0, 12))
def test_it_is_where_the_messages_differ(before: object, after: object, reached: int) -> None:
    """The leader's responses show the first different offset, whatever happened to the log."""
    log = PartitionLog(TopicPartition("t", 0), 0)
    _play(log, before, b"before")
    read = log.values()[:reached]
    epochs: Epochs = ()
    for offset in range(len(read)):
        batch = log.read(offset, 1)[1]
        epochs = with_epochs(epochs, ((offset, int.from_bytes(batch[12:16], "big")),))
    _play(log, after, b"after")
    now = log.values()
    same = next((n for n, value in enumerate(read) if n >= len(now) or now[n] != value), None)
    if not read:
        return
    asked = epoch_before(epochs, len(read))
    epoch, offset = log.epoch_end(asked)
    later = log.epoch_end(asked + 1)[1] >= 0
    found = first_divergence(len(read), epochs, EpochEnd(offset, epoch), later_epochs=later, log_start=0)
    assert found == same
    old = completed(asked, EpochEnd(offset), EpochEnd(log.epoch_end(asked - 1)[1] if asked else -1))
    found = first_divergence(len(read), epochs, old, later_epochs=later, log_start=0)
    if same is None or found is None:
        assert found == same
    else:
        while found > same:  # the epoch before is compared in its turn, once what differs is cut off
            epochs, reached = cut_at(epochs, found), found
            asked = epoch_before(epochs, reached)
            end = EpochEnd(log.epoch_end(asked)[1])
            old = completed(asked, end, EpochEnd(log.epoch_end(asked - 1)[1] if asked else -1))
            assert present(first_divergence(reached, epochs, old, later_epochs=True, log_start=0)) < reached


def _play(log: PartitionLog, ops: object, tag: bytes) -> None:
    assert isinstance(ops, list)
    for number, (what, count) in enumerate(ops):
        if what == "append":
            for one in range(count):
                log.append(encode_batch([b"%s %d %d" % (tag, number, one)], 0))
        elif what == "truncate":
            log.truncate(count)
        else:
            log.move(0)
