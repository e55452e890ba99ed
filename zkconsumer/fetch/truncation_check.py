"""Checks whether a partition's log is still the one that was read, and goes back where it was truncated or made anew.

Threads: the fetcher's thread. A log shows in two ways that it is another one: the fetched offset lies behind its end,
or the epoch of what comes next is not the epoch of what was read before (``core.leader_epochs``). Fetching then goes
back to the first offset that differs, never on by ``auto.offset.reset=largest``: everything behind that offset is new.
Where the broker knows no epochs, or refuses to tell them, a shorter log is read from its start.

The original goes by ``auto.offset.reset`` where the log is shorter, and reads on in the middle where it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from zkconsumer.core.leader_epochs import NO_EPOCH, EpochEnd, completed, cut_at, epoch_before, first_divergence
from zkconsumer.errors import LogTruncatedError
from zkconsumer.fetch.broker_fetch import Exchange
from zkconsumer.fetch.partition_fetch import EARLIEST, LATEST, FetchSettings, Flow
from zkconsumer.fetch.response_handler import Judge, Suspect, Told, give_up
from zkconsumer.kafka import ListedOffset
from zkconsumer.kafka import error_codes as codes

log = logging.getLogger(__name__)

_UNANSWERED = ListedOffset(-1, -1, codes.UNKNOWN_SERVER_ERROR)
_KNOWS_NOTHING = EpochEnd(-1)
_KEPT_FROM_US = (
    codes.CLUSTER_AUTHORIZATION_FAILED,
    codes.TOPIC_AUTHORIZATION_FAILED,
    codes.UNSUPPORTED_VERSION,
    codes.UNSUPPORTED_FOR_MESSAGE_FORMAT,
)


class _Doubt(NamedTuple):
    """A flow whose log may be another one, and the answer for the epoch of what was read; None: there is none."""

    flow: Flow
    end: EpochEnd | None
    suspect: Suspect | None = None


class LogCheck:
    """Checks the logs that one broker leads.

    Arguments: ``broker`` is asked; ``judge`` takes what turns out to be good.
    """

    def __init__(self, broker: Exchange, judge: Judge, broker_id: int, settings: FetchSettings) -> None:
        self._broker = broker
        self._judge = judge
        self._broker_id = broker_id
        self._settings = settings

    def settle(self, told: Told) -> None:
        """Deal with offsets that are out of range and with epochs that do not follow. A flow that cannot be decided now
        goes to ``told.moved``. Raises BrokerError.
        """
        doubts = self._doubts_of_epochs(told) if told.suspect else []
        if told.out_of_range:
            doubts += self._doubts_of_range(told)
        if doubts:
            self._locate(doubts, told)

    # ---- an epoch that does not follow ----

    def _doubts_of_epochs(self, told: Told) -> list[_Doubt]:
        ends = self._ends([suspect.flow for suspect in told.suspect], told)
        doubts = []
        for suspect in told.suspect:
            flow, reached = suspect.flow, suspect.asked.offset
            if flow.tp not in ends:
                continue
            end, epochs = ends[flow.tp], flow.position.epochs
            backwards = suspect.epoch < epoch_before(epochs, reached)
            if end is None and not backwards:
                self._judge.judge(
                    flow, suspect.asked, suspect.part, told, follows=True
                )  # most likely only a new leader
            elif end is None or first_divergence(reached, epochs, end, later_epochs=True, log_start=0) is not None:
                doubts.append(_Doubt(flow, end, suspect))
            elif backwards:
                self._contradicts(flow, f"epoch {suspect.epoch} at offset {reached}, after a later one", told)
            else:
                self._judge.judge(flow, suspect.asked, suspect.part, told, follows=True)
        return doubts

    def _ends(self, flows: Sequence[Flow], told: Told) -> dict[object, EpochEnd | None]:
        """Where the epoch ends in which each was read last, None where the broker does not say. A flow that another
        broker must be asked about is left out.
        """
        epochs = {flow.tp: epoch_before(flow.position.epochs, flow.position.fetched or 0) for flow in flows}
        answers = self._broker.epoch_ends({tp: epoch for tp, epoch in epochs.items() if epoch > NO_EPOCH})
        found: dict[object, EpochEnd | None] = {}
        for flow in flows:
            answer = answers.get(flow.tp)
            if answer is None or answer.error in _KEPT_FROM_US:
                found[flow.tp] = None
            elif answer.error == codes.NONE:
                found[flow.tp] = answer.end
            else:
                self._put_off(flow, f"says no end of an epoch: {codes.name(answer.error)}", told)
        return found

    # ---- an offset out of range ----

    def _doubts_of_range(self, told: Told) -> list[_Doubt]:
        """Go on by ``auto.offset.reset`` where the log's start was deleted. Returns those whose log is too short."""
        settings = self._settings
        wanted = {flow.tp for flow in told.out_of_range}
        starts = self._broker.list_offsets(dict.fromkeys(wanted, EARLIEST))
        ends = self._broker.list_offsets(dict.fromkeys(wanted, LATEST), isolation_level=settings.isolation_level)
        shorter = []
        for flow in told.out_of_range:
            position, offset = flow.position, flow.position.fetched or 0
            start, end = starts.get(flow.tp, _UNANSWERED), ends.get(flow.tp, _UNANSWERED)
            failed = next((one for one in (start, end) if one.error != codes.NONE or one.offset < 0), None)
            known = epoch_before(position.epochs, offset) > NO_EPOCH
            read = known or offset <= flow.reached or position.committed == offset
            if failed is not None:
                self._put_off(flow, f"says no start offset: {codes.name(failed.error)}", told)
            elif start.offset <= offset <= end.offset:
                self._contradicts(flow, f"offset {offset} out of range, and its log from {start.offset} on", told)
            elif offset > end.offset and read:
                shorter.append(flow)
            else:
                first = settings.reset_to == EARLIEST or (position.from_start and offset < start.offset)
                self._go_on(flow, start.offset if first else end.offset, told)
        found = self._ends(shorter, told) if shorter else {}
        return [_Doubt(flow, found[flow.tp]) for flow in shorter if flow.tp in found]

    def _go_on(self, flow: Flow, offset: int, told: Told) -> None:
        log.warning(
            "%s: offset %s is not in the log; continuing at %d by auto.offset.reset",
            flow.tp,
            flow.position.fetched,
            offset,
        )
        self._move(flow, offset, told)

    # ---- another log ----

    def _locate(self, doubts: Sequence[_Doubt], told: Told) -> None:
        """Find the first offset that differs, and go on there."""
        starts = self._broker.list_offsets({doubt.flow.tp: EARLIEST for doubt in doubts})
        asked = {
            doubt.flow.tp: epoch_before(doubt.flow.position.epochs, doubt.flow.position.fetched or 0)
            for doubt in doubts
            if doubt.end is not None and doubt.end.offset >= 0
        }
        later = self._broker.epoch_ends({tp: epoch + 1 for tp, epoch in asked.items()})
        before = self._broker.epoch_ends({tp: epoch - 1 for tp, epoch in asked.items() if epoch > 0})
        for flow, end, suspect in doubts:
            start = starts.get(flow.tp, _UNANSWERED)
            around = [answers[flow.tp] for answers in (later, before) if flow.tp in answers]
            failed = next((answer.error for answer in around if answer.error != codes.NONE), codes.NONE)
            if start.error != codes.NONE or start.offset < 0:
                self._put_off(flow, f"says no start offset: {codes.name(start.error)}", told)
            elif failed != codes.NONE:
                self._put_off(flow, f"says no end of an epoch: {codes.name(failed)}", told)
            else:
                if end is not None and flow.tp in before:
                    end = completed(asked[flow.tp], end, before[flow.tp].end)
                continues = flow.tp in later and later[flow.tp].end.offset >= 0
                self._decide(_Doubt(flow, end, suspect), start.offset, told, later_epochs=continues)

    def _decide(self, doubt: _Doubt, start: int, told: Told, *, later_epochs: bool) -> None:
        flow, position = doubt.flow, doubt.flow.position
        reached = position.fetched or 0
        end = _KNOWS_NOTHING if doubt.end is None else doubt.end
        differs = first_divergence(reached, position.epochs, end, later_epochs=later_epochs, log_start=start)
        if differs is None and doubt.suspect is not None:
            self._judge.judge(flow, doubt.suspect.asked, doubt.suspect.part, told, follows=True)
        elif differs is None:
            self._contradicts(flow, f"offset {reached} out of range, and that its log goes on there", told)
        else:
            truncated = later_epochs and end.offset >= 0
            shorter = "its log is shorter than what was read" if doubt.end is None else "its topic was made anew"
            self._rewind(flow, reached, differs, "its log was truncated" if truncated else shorter, told)

    def _rewind(self, flow: Flow, reached: int, differs: int, reason: str, told: Told) -> None:
        if self._settings.raise_truncated:
            error = LogTruncatedError(flow.tp, reached, differs, reason)
            log.error("%s", error)
            flow.trouble = str(error)
            give_up(flow, error)
            return
        log.warning(
            "%s: %s; it was read up to offset %d, going back to %d, the first that differs",
            flow.tp,
            reason,
            reached,
            differs,
        )
        flow.position.epochs = cut_at(flow.position.epochs, differs)
        self._move(flow, differs, told)

    def _move(self, flow: Flow, offset: int, told: Told) -> None:
        """Go on at ``offset``: at once, but where the last place was refused as well."""
        flow.position.fetched, flow.epoch, flow.reached = offset, b"", offset
        flow.sink.jump(flow.position, offset)
        flow.refusals += 1
        if flow.refusals > 1:
            flow.trouble = f"{flow.tp}: broker {self._broker_id} refuses one offset of its log after the other"
            told.moved.append(flow)

    def _contradicts(self, flow: Flow, what: str, told: Told) -> None:
        """The broker says what cannot be: ask again, ever more seldom."""
        flow.refusals += 1
        self._put_off(flow, f"says {what}", told)

    def _put_off(self, flow: Flow, said: str, told: Told) -> None:
        flow.note(f"{flow.tp}: broker {self._broker_id} {said}")
        told.moved.append(flow)
