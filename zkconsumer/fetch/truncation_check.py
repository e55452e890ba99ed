"""Detects a log that was truncated or made anew, and goes back to the first offset that differs.

Threads: the fetcher's thread. Two signs show another log. The fetched offset lies behind the log's end, or the epoch of
the next chunk is not the epoch of the chunk before (``core.leader_epochs``). Fetching never goes on by
``auto.offset.reset=largest`` then, since everything behind the first difference is new. If the broker knows no epochs,
or refuses to tell them, a shorter log is read from its start.

The original goes by ``auto.offset.reset`` if the log is shorter, and reads on in the middle if it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from zkconsumer.core.leader_epochs import NO_EPOCH, EpochEnd, completed, cut_at, epoch_before, first_divergence
from zkconsumer.errors import LogTruncatedError
from zkconsumer.fetch.auto_offset_reset import UNANSWERED, offset_in_log
from zkconsumer.fetch.broker_failures import note_trouble
from zkconsumer.fetch.broker_fetch import FetchConnection, FetchedPart, FetchSettings
from zkconsumer.fetch.response_handler import Outcomes, ResponseHandler, park
from zkconsumer.kafka import error_codes as codes
from zkconsumer.model import EARLIEST, LATEST
from zkconsumer.ownership.fetch_cursor import FetchCursor

log = logging.getLogger(__name__)

_KNOWS_NOTHING = EpochEnd(-1)
_KEPT_FROM_US = (
    codes.CLUSTER_AUTHORIZATION_FAILED,
    codes.TOPIC_AUTHORIZATION_FAILED,
    codes.UNSUPPORTED_VERSION,
    codes.UNSUPPORTED_FOR_MESSAGE_FORMAT,
)


class _DoubtfulLog(NamedTuple):
    """A partition whose log may be another one, and the end of the epoch that was read last; None: there is none."""

    fetch: FetchCursor
    end: EpochEnd | None
    suspect: FetchedPart | None = None


class TruncationCheck:
    """Checks the logs that one broker leads.

    Arguments: ``broker`` is asked for offsets and epochs; ``handler`` takes a chunk whose log proves to be the same.
    """

    def __init__(
        self, broker: FetchConnection, handle: ResponseHandler, broker_id: int, settings: FetchSettings
    ) -> None:
        self._broker = broker
        self._handler = handle
        self._broker_id = broker_id
        self._settings = settings

    def settle(self, outcomes: Outcomes) -> None:
        """Handle offsets that are out of range, and epochs that do not follow.

        An undecided partition goes to ``outcomes.moved``. Raises: BrokerError.
        """
        doubts = self._doubts_of_epochs(outcomes) if outcomes.suspects else []
        if outcomes.out_of_range:
            doubts += self._doubts_of_range(outcomes)
        if doubts:
            self._locate(doubts, outcomes)

    # ---- an epoch that does not follow ----

    def _doubts_of_epochs(self, outcomes: Outcomes) -> list[_DoubtfulLog]:
        ends = self._ends([part.fetch for part, _ in outcomes.suspects], outcomes)
        doubts = []
        for suspect, epoch in outcomes.suspects:
            fetch, reached = suspect.fetch, suspect.request.offset
            if fetch.tp not in ends:
                continue
            end, epochs = ends[fetch.tp], fetch.epochs
            backwards = epoch < epoch_before(epochs, reached)
            if end is None and not backwards:
                # most likely only a new leader
                self._handler.handle(suspect, outcomes, follows=True)
            elif end is None or first_divergence(reached, epochs, end, later_epochs=True, log_start=0) is not None:
                doubts.append(_DoubtfulLog(fetch, end, suspect))
            elif backwards:
                self._contradicts(fetch, f"epoch {epoch} at offset {reached}, after a later one", outcomes)
            else:
                self._handler.handle(suspect, outcomes, follows=True)
        return doubts

    def _ends(self, fetches: Sequence[FetchCursor], outcomes: Outcomes) -> dict[object, EpochEnd | None]:
        """Return the end of the epoch in which each partition was read last, None if the broker does not tell it. A
        partition that another broker must be asked about is left out.
        """
        epochs = {fetch.tp: epoch_before(fetch.epochs, fetch.fetched or 0) for fetch in fetches}
        answers = self._broker.epoch_ends({tp: epoch for tp, epoch in epochs.items() if epoch > NO_EPOCH})
        found: dict[object, EpochEnd | None] = {}
        for fetch in fetches:
            answer = answers.get(fetch.tp)
            if answer is None or answer.error in _KEPT_FROM_US:
                found[fetch.tp] = None
            elif answer.error == codes.NONE:
                found[fetch.tp] = answer.end
            else:
                self._put_off(fetch, f"returned no epoch end: {codes.name(answer.error)}", outcomes)
        return found

    # ---- an offset out of range ----

    def _doubts_of_range(self, outcomes: Outcomes) -> list[_DoubtfulLog]:
        """Apply ``auto.offset.reset`` if the log's start was deleted. Return partitions whose log is too short."""
        settings = self._settings
        wanted = {fetch.tp for fetch in outcomes.out_of_range}
        starts = self._broker.list_offsets(dict.fromkeys(wanted, EARLIEST))
        ends = self._broker.list_offsets(dict.fromkeys(wanted, LATEST), isolation_level=settings.isolation_level)
        shorter = []
        for fetch in outcomes.out_of_range:
            position, offset = fetch.position, fetch.fetched or 0
            start, end = starts.get(fetch.tp, UNANSWERED), ends.get(fetch.tp, UNANSWERED)
            failed = next((one for one in (start, end) if one.error != codes.NONE or one.offset < 0), None)
            known = epoch_before(fetch.epochs, offset) > NO_EPOCH
            read = known or offset <= fetch.reached or position.stored.committed == offset
            if failed is not None:
                self._put_off(fetch, f"returned no start offset: {codes.name(failed.error)}", outcomes)
            elif start.offset <= offset <= end.offset:
                self._contradicts(fetch, f"offset {offset} out of range, and its log from {start.offset} on", outcomes)
            elif offset > end.offset and read:
                shorter.append(fetch)
            else:
                self._go_on(fetch, offset_in_log(fetch, start.offset, end.offset, settings.reset_to), outcomes)
        found = self._ends(shorter, outcomes) if shorter else {}
        return [_DoubtfulLog(fetch, found[fetch.tp]) for fetch in shorter if fetch.tp in found]

    def _go_on(self, fetch: FetchCursor, offset: int, outcomes: Outcomes) -> None:
        log.warning(
            "%s: offset %s is not in the log; continuing at %d by auto.offset.reset", fetch.tp, fetch.fetched, offset
        )
        self._move(fetch, offset, outcomes)

    # ---- another log ----

    def _locate(self, doubts: Sequence[_DoubtfulLog], outcomes: Outcomes) -> None:
        """Find the first offset at which the log differs, and continue there."""
        starts = self._broker.list_offsets({doubt.fetch.tp: EARLIEST for doubt in doubts})
        asked = {
            doubt.fetch.tp: epoch_before(doubt.fetch.epochs, doubt.fetch.fetched or 0)
            for doubt in doubts
            if doubt.end is not None and doubt.end.offset >= 0
        }
        later = self._broker.epoch_ends({tp: epoch + 1 for tp, epoch in asked.items()})
        before = self._broker.epoch_ends({tp: epoch - 1 for tp, epoch in asked.items() if epoch > 0})
        for fetch, end, suspect in doubts:
            start = starts.get(fetch.tp, UNANSWERED)
            around = [answers[fetch.tp] for answers in (later, before) if fetch.tp in answers]
            failed = next((answer.error for answer in around if answer.error != codes.NONE), codes.NONE)
            if start.error != codes.NONE or start.offset < 0:
                self._put_off(fetch, f"returned no start offset: {codes.name(start.error)}", outcomes)
            elif failed != codes.NONE:
                self._put_off(fetch, f"returned no epoch end: {codes.name(failed)}", outcomes)
            else:
                if end is not None and fetch.tp in before:
                    end = completed(asked[fetch.tp], end, before[fetch.tp].end)
                continues = fetch.tp in later and later[fetch.tp].end.offset >= 0
                self._decide(_DoubtfulLog(fetch, end, suspect), start.offset, outcomes, later_epochs=continues)

    def _decide(self, doubt: _DoubtfulLog, start: int, outcomes: Outcomes, *, later_epochs: bool) -> None:
        fetch = doubt.fetch
        reached = fetch.fetched or 0
        end = _KNOWS_NOTHING if doubt.end is None else doubt.end
        differs = first_divergence(reached, fetch.epochs, end, later_epochs=later_epochs, log_start=start)
        if differs is None and doubt.suspect is not None:
            self._handler.handle(doubt.suspect, outcomes, follows=True)
        elif differs is None:
            self._contradicts(fetch, f"offset {reached} out of range, and that its log goes on there", outcomes)
        else:
            truncated = later_epochs and end.offset >= 0
            shorter = "its log is shorter than what was read" if doubt.end is None else "its topic was made anew"
            self._rewind(fetch, reached, differs, "its log was truncated" if truncated else shorter, outcomes)

    def _rewind(self, fetch: FetchCursor, reached: int, differs: int, reason: str, outcomes: Outcomes) -> None:
        if self._settings.raise_truncated:
            error = LogTruncatedError(fetch.tp, reached, differs, reason)
            log.error("%s", error)
            fetch.trouble = str(error)
            park(fetch, error)
            return
        log.warning(
            "%s: %s; it was read up to offset %d, going back to %d, the first that differs",
            fetch.tp,
            reason,
            reached,
            differs,
        )
        fetch.epochs = cut_at(fetch.epochs, differs)
        self._move(fetch, differs, outcomes)

    def _move(self, fetch: FetchCursor, offset: int, outcomes: Outcomes) -> None:
        """Continue at ``offset``: at once, or after a pause if the broker refused the last offset as well."""
        fetch.fetched, fetch.epoch, fetch.reached = offset, b"", offset
        fetch.sink.jump(fetch.position, offset)
        fetch.refusals += 1
        if fetch.refusals > 1:
            fetch.trouble = f"{fetch.tp}: broker {self._broker_id} refuses one offset of its log after the other"
            outcomes.moved.append(fetch)

    def _contradicts(self, fetch: FetchCursor, what: str, outcomes: Outcomes) -> None:
        """Ask again, at growing intervals: the broker contradicts itself."""
        fetch.refusals += 1
        self._put_off(fetch, f"says {what}", outcomes)

    def _put_off(self, fetch: FetchCursor, said: str, outcomes: Outcomes) -> None:
        note_trouble(fetch, f"{fetch.tp}: broker {self._broker_id} {said}")
        outcomes.moved.append(fetch)
