"""Leader epochs of a partition's log: what was read in which epoch, and where another log first differs from it. Pure.

Each leader of a partition has an epoch, a number that only grows, and each batch of format 2 carries the epoch in which
it was written. Two logs that hold the same epoch at the same offset are equal up to there. So a log that was truncated,
or that belongs to a topic made anew, shows by its epochs also where it has grown longer than it was.

Source: KIP-101, KIP-279, KIP-320. Differs from KIP-320's consumer: an answer that names an earlier epoch is compared
with what was read of that epoch, and a log that never saw the epoch is read from its start, whatever
``auto.offset.reset``.
"""

from __future__ import annotations

from typing import NamedTuple

NO_EPOCH = -1
KEPT_EPOCHS = 16
"""Epochs that are remembered of a position. One more leader forgets the first."""

Epochs = tuple[tuple[int, int], ...]
"""(first offset read in it, epoch), oldest first."""


class EpochEnd(NamedTuple):
    """A leader's answer to the question where an epoch ends.

    ``offset`` is the first one behind it, -1 where the log knows no such epoch and none after it. ``epoch`` is the last
    one that the log has up to the epoch asked for, -1 where the broker does not say.
    """

    offset: int
    epoch: int = NO_EPOCH


def epoch_before(epochs: Epochs, offset: int) -> int:
    """Return the epoch in which the message before ``offset`` was read, NO_EPOCH where that is not known."""
    return next((epoch for start, epoch in reversed(epochs) if start < offset), NO_EPOCH)


def with_epochs(epochs: Epochs, read: Epochs) -> Epochs:
    """Return ``epochs`` with what was ``read`` behind them."""
    found = list(epochs)
    for start, epoch in read:
        if epoch >= 0 and (not found or epoch != found[-1][1]):
            found.append((start, epoch))
    return tuple(found[-KEPT_EPOCHS:])


def cut_at(epochs: Epochs, offset: int) -> Epochs:
    """Return what of ``epochs`` lies before ``offset``."""
    return tuple(entry for entry in epochs if entry[0] < offset)


def completed(asked: int, end: EpochEnd, before: EpochEnd) -> EpochEnd:
    """Return the answer for the epoch ``asked`` with the epoch that version 0 of the request does not name.

    Arguments: ``before`` is the answer for the epoch before it. Where both end at one offset the log has nothing of the
    one asked for. It may have less than ``asked - 1`` then, which shows when that is compared in its turn.
    """
    if end.epoch > NO_EPOCH or end.offset < 0:
        return end
    return EpochEnd(end.offset, asked if before.offset < end.offset else asked - 1)


def first_divergence(reached: int, epochs: Epochs, end: EpochEnd, *, later_epochs: bool, log_start: int) -> int | None:
    """Return the first offset at which a log differs from what was read up to ``reached``, None where none does.

    Arguments: ``end`` is the answer for the epoch before ``reached``; ``later_epochs`` says whether the log has a later
    epoch than that; ``log_start`` is its first offset. A log that ends too early in its newest epoch was not truncated,
    since truncation begins an epoch: its topic was made anew, and all of it differs.
    """
    asked = epoch_before(epochs, reached)
    if end.offset < 0:
        return None if reached == log_start else log_start
    differs = end.offset
    if NO_EPOCH < end.epoch < asked:
        differs = min([differs, *(start for start, epoch in epochs if epoch > end.epoch)])
    if differs >= reached:
        return None
    return max(differs, log_start) if later_epochs else log_start
