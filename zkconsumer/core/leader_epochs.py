"""Leader epochs of a partition: the epochs of the offsets read so far, and the first offset of a different log. Pure.

Each leader of a partition has an epoch, a number that only grows. Each batch of format 2 carries the epoch of its
leader. Two logs with the same epoch at the same offset are equal up to that offset. So a truncated log differs in its
epochs, even if it is longer by now. The log of a topic that was created anew differs, too.

Source: KIP-101, KIP-279, KIP-320. Differs from KIP-320's consumer in two points. A response with an earlier epoch is
compared with the offsets read in that epoch. And a log that never had the epoch is read from its start, whatever
``auto.offset.reset`` is.
"""

from __future__ import annotations

from typing import NamedTuple

NO_EPOCH = -1
KEPT_EPOCHS = 16
"""Number of epochs that a position remembers. One more leader drops the oldest."""

Epochs = tuple[tuple[int, int], ...]
"""Pairs of (first offset read in the epoch, epoch), oldest first."""


class EpochEnd(NamedTuple):
    """A leader's response to a request for the end of an epoch.

    ``offset`` is the first offset after the epoch, or -1 if the log has no such and no later epoch. ``epoch`` is the
    log's last epoch up to the requested epoch, or -1 if the broker does not say.
    """

    offset: int
    epoch: int = NO_EPOCH


def epoch_before(epochs: Epochs, offset: int) -> int:
    """Return the epoch of the message before ``offset``, NO_EPOCH if it is unknown."""
    return next((epoch for start, epoch in reversed(epochs) if start < offset), NO_EPOCH)


def with_epochs(epochs: Epochs, read: Epochs) -> Epochs:
    """Return ``epochs`` followed by the epochs in ``read``."""
    found = list(epochs)
    for start, epoch in read:
        if epoch >= 0 and (not found or epoch != found[-1][1]):
            found.append((start, epoch))
    return tuple(found[-KEPT_EPOCHS:])


def cut_at(epochs: Epochs, offset: int) -> Epochs:
    """Return the epochs that begin before ``offset``."""
    return tuple(entry for entry in epochs if entry[0] < offset)


def completed(asked: int, end: EpochEnd, before: EpochEnd) -> EpochEnd:
    """Return the response for the epoch ``asked``, with the epoch that version 0 of the response lacks.

    Arguments: ``before`` is the response for the epoch before it. If both end at the same offset, the log has nothing
    of the epoch ``asked``. It may lack ``asked - 1`` too: a later comparison of that epoch shows it.
    """
    if end.epoch > NO_EPOCH or end.offset < 0:
        return end
    return EpochEnd(end.offset, asked if before.offset < end.offset else asked - 1)


def first_divergence(reached: int, epochs: Epochs, end: EpochEnd, *, later_epochs: bool, log_start: int) -> int | None:
    """Return the first offset before ``reached`` at which the log differs from the messages read, or None.

    A log that ends too early in its newest epoch was not truncated, because a truncation begins a new epoch. Its topic
    was created anew, so the whole log differs.

    Arguments: ``end`` is the response for the epoch before ``reached``. ``later_epochs`` is true if the log has a later
    epoch than that. ``log_start`` is the first offset of the log.
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
