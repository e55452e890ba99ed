"""The works in the hands of a worker process, and the suspects of one that died. For its thread in the parent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from time import monotonic

from zkconsumer.balance.work import Work
from zkconsumer.balance.worker_link import WorkerLink
from zkconsumer.balance.worker_process import RECORD_FIELDS, SentChunk, SentWork, Trip

MOST_SUSPECTS = 10_000
"""Messages that are remembered; beyond that the oldest are forgotten, and may be given in a whole batch again."""

Place = tuple[str, int, int]
"""Topic, partition and offset of a message."""


class WorkerTrip:
    """The groups of works that a process has in hand.

    * ``over``: the process has told that it is ready for the next trip
    * ``recalled``: it begins nothing more of this one
    * ``given_up``, ``timed_out``: it was killed, at the end of the run or because of the handler's time
    * ``since``: when the process last told something, which is when the present group began (monotonic seconds)
    """

    def __init__(self, link: WorkerLink, groups: list[tuple[Work, ...]]) -> None:
        self.link = link
        self.groups = groups
        self.over = self.recalled = self.given_up = self.timed_out = False
        self.sent_at = self.since = self.looked_at = monotonic()
        self._open = dict(enumerate(groups))
        self._steps = len(groups) + 1

    @property
    def running(self) -> tuple[tuple[Work, ...], float]:
        """The works of the group that is handled, and since when. Any thread."""
        number = len(self.groups) - len(self._open) if not self.recalled else self._steps - 2
        return (self.groups[number] if 0 <= number < len(self.groups) else ()), self.since

    def send(self, until: float) -> None:
        """Send the groups, and the chunks that the process has not got. It begins none after ``until`` (monotonic)."""
        new: list[SentChunk] = []
        lanes: dict[object, int] = {None: -1}
        sent = []
        for group in self.groups:
            works = []
            for work in group:
                lane = lanes.setdefault(work.lane, len(lanes) - 1)
                if work.chunk is None:
                    record, place = work.message.record, work.ledger.position.tp
                    fields = (*place, *(getattr(record, name) for name in RECORD_FIELDS))
                    works.append(SentWork(-1, work.offset, work.attempts + 1, lane, fields, work.failure))
                else:
                    serial = self.link.cache.serial(work.chunk, new)
                    works.append(SentWork(serial, work.offset, work.attempts + 1, lane, failure=work.failure))
            sent.append(tuple(works))
        needed = {work.serial for works in sent for work in works}
        self.link.send(Trip(self.link.cache.forget(needed), tuple(new), tuple(sent), until), self._steps)

    def take_settled(self, number: int) -> tuple[Work, ...]:
        """Return a group that the process has settled, once."""
        self.since = monotonic()
        return self._open.pop(number, ())

    def end(self) -> list[Work]:
        """Note that the process is ready for the next trip. Returns the works that it has not begun.

        It leaves steps when the lease has ended. With those the next trip would seem to have begun less than it has,
        and a message in hand would be taken back and begun elsewhere.
        """
        self.over = True
        self.link.withdraw_steps()
        return self.take_open()

    def take_open(self) -> list[Work]:
        """Return the works that are not settled, once."""
        rest = [work for group in self._open.values() for work in group]
        self._open = {}
        return rest

    def waiting(self) -> list[Work]:
        """Return works that have probably not begun."""
        groups = list(self._open.values())[1:]
        return [work for group in groups for work in group]

    def recall(self) -> list[Work]:
        """Keep the process from beginning anything more of this trip. Returns the works that it will not begin."""
        self.recalled = True
        self._steps -= self.link.withdraw_steps()
        return [work for n in range(max(0, self._steps - 1), len(self.groups)) for work in self._open.pop(n, ())]

    def begun(self) -> tuple[list[Work], bool]:
        """Return the works that had begun when the process died, and whether that is known for sure.

        A process that died after it received the trip and before it began a group died by any of the messages.
        """
        self._steps -= self.link.withdraw_steps()
        known = self._steps != 1
        groups = [group for number, group in self._open.items() if not known or number < self._steps - 1]
        return [work for group in groups for work in group], known


class CrashSuspects:
    """The messages one of which may have killed a worker. Pure.

    For each the number of messages that it may be handled with: half of those in the crash, down to one.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._most: dict[Place, int] = {}

    def crashed(self, places: Sequence[Place]) -> None:
        """Note the messages that were in a worker's hands together when it died."""
        with self._lock:
            for place in places:
                self._most.pop(place, None)
                self._most[place] = max(1, len(places) // 2)
            while len(self._most) > MOST_SUSPECTS:
                del self._most[next(iter(self._most))]

    def cleared(self, places: Iterable[Place]) -> None:
        """Forget messages whose handler has returned or raised."""
        if self._most:  # a look without the lock: a message that was in hand is not added meanwhile
            with self._lock:
                for place in places:
                    self._most.pop(place, None)

    def fitting(self, places: Sequence[Place]) -> int:
        """Return how many of these messages, from the first on, may be handled together, at least one."""
        if not self._most:
            return len(places)
        with self._lock:
            most = len(places)
            for count, place in enumerate(places):
                limit = min(most, self._most.get(place, most))
                if count >= limit:
                    return max(1, count)
                most = limit
            return min(most, len(places))
