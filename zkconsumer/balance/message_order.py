"""The order of messages that wait for handlers. No I/O: times are passed in, and the caller locks.

A lane keeps the order of the messages of one key (``order=key``) or of one partition (``order=partition``). One worker
has a lane at a time. A message without a key, and each message with ``order=none``, has no lane. The oldest startable
message goes first, so that the base moves on and a key with many messages is never left behind.

Lanes are found by partition and key, and not by a stay at the partition. So a key stays busy while a handler of an
earlier stay has one of its messages.

Source: the shards of parallel-consumer, which lacked the topic in their keys (its issues 184, 318 and 638).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count

from zkconsumer.balance.dispatched_work import ReadWork
from zkconsumer.balance.open_partition import OpenPartition
from zkconsumer.core.message_pointers import key_mark
from zkconsumer.model import TopicPartition

WHOLE = b""
"""Stands for the key of all messages of a partition."""


class Order(Enum):
    """Which messages come one after the other."""

    KEY = "key"
    PARTITION = "partition"
    NONE = "none"


def order_named(name: str | Order) -> Order:
    """Return the order of that name. Raises ValueError."""
    try:
        return Order(name)
    except ValueError:
        raise ValueError(f"order must be one of 'key', 'partition', 'none', not {name!r}") from None


def kept_order(name: str | Order, before: Order | None) -> Order:
    """Return the order of that name. Raises ValueError if slots were computed in another way ``before``.

    What is finished of a slot would hide other messages then.
    """
    named = order_named(name)
    if before is not None and (before is Order.KEY) is not (named is Order.KEY):
        raise ValueError(f"this connector has been run with another order: run it with order={before.value!r} again")
    return named


class Lane:
    """The messages of one key of one partition, in order.

    * ``works``: those that wait; ``out``: number of those that a worker has
    * ``due``: when the first may begin (monotonic seconds; 0: at once)
    * ``blocked``: parked messages of the key must be finished before; only their own works may begin, and messages
      ``before`` the first parked offset
    * ``listed``: it is in one of the lists of startable lanes, or waits for its due time
    """

    __slots__ = ("before", "blocked", "due", "key", "listed", "out", "table", "works")

    def __init__(self, key: bytes | int, table: Table) -> None:
        self.key = key
        self.table = table
        self.works: list[ReadWork] = []  # seldom more than a few, and a deque is made much more slowly
        self.out = 0
        self.due = 0.0
        self.blocked = False
        self.before = 0
        self.listed = False

    def holds(self, work: ReadWork) -> bool:
        """Return whether a message must wait for parked ones of its key."""
        return self.blocked and not work.pointer and work.offset >= self.before


Table = dict[bytes | int, "Lane | ReadWork"]
"""The lanes of one partition by key, or by offset where there is none.

A message that is alone stands there itself: most keys have but one at a time.
"""


class WaitingMessages:
    """All messages that wait. Arguments: ``order`` of the run."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._tables: dict[TopicPartition, Table] = {}
        self._held: dict[TopicPartition, Table] = {}  # messages without a lane that handlers of ended stays have
        self._fresh: deque[ReadWork | Lane] = deque()  # in the order of their serials
        self._again: list[tuple[int, int, ReadWork | Lane]] = []  # a heap by serial
        self._later: list[tuple[float, int, ReadWork | Lane]] = []  # a heap by due time
        self._ties = count()

    @property
    def startable(self) -> int:
        """Number of lanes, and of messages without one, that may be startable now."""
        return len(self._fresh) + len(self._again)

    def next_due(self) -> float | None:
        """Return when the next message that waits for its time may begin, None if none waits."""
        return self._later[0][0] if self._later else None

    # ---- in

    def add(self, partition: OpenPartition, works: Sequence[ReadWork]) -> None:
        """Add messages of one partition in the order of their offsets. Their serials are the highest so far."""
        fresh = self._fresh
        if held := self._held.get(partition.position.tp):
            works = self._behind_held(held, works)
        if self._order is Order.NONE:
            fresh.extend(works)
            return
        table = self._table(partition.position.tp)
        if self._order is Order.PARTITION:
            for work in works:
                self._behind(table, WHOLE, work)
            return
        for work in works:
            key = work.key
            if key is None:
                fresh.append(work)
            elif key in table:
                self._behind(table, key, work)
            else:
                table[key] = work
                fresh.append(work)

    def hold(self, works: Iterable[ReadWork]) -> None:
        """Begin none of these messages, which handlers of an ended stay have in hand, before they have returned."""
        for work in works:
            if work.lane is None and (work.key is None or self._order is Order.NONE):
                table = self._held.setdefault(work.part.partition.position.tp, {})
                work.lane = table[work.offset] = made = Lane(work.offset, table)
                made.out = 1

    def _behind_held(self, held: Table, works: Sequence[ReadWork]) -> Sequence[ReadWork]:
        """Put messages behind handlers that have them still. Returns the others."""
        rest = []
        for work in works:
            lane = held.get(work.offset) if work.key is None or self._order is Order.NONE else None
            if type(lane) is Lane:
                work.lane = lane
                lane.works.append(work)
            else:
                rest.append(work)
        return rest

    def _behind(self, table: Table, key: bytes, work: ReadWork) -> None:
        """Add a message behind earlier ones of its key."""
        lane = self._lane(table, key)
        work.lane = lane
        lane.works.append(work)
        if not (lane.listed or lane.out or lane.blocked):
            lane.listed = True
            self._fresh.append(lane)

    def _lane(self, table: Table, key: bytes) -> Lane:
        """Return the lane of a key. A message that is alone has none until another one comes."""
        lane = table.get(key)
        if type(lane) is Lane:
            return lane
        table[key] = made = Lane(key, table)
        if type(lane) is ReadWork:
            lane.lane = made
            if lane.taken:
                made.out = 1
            else:  # its place in a list now stands for the lane
                made.works.append(lane)
                made.listed, made.due = True, lane.not_before
        return made

    def put_back(self, work: ReadWork) -> None:
        """Add a message that was taken before, or one of a pointer, at its place in its lane."""
        key, tp = work.key if self._order is Order.KEY else WHOLE, work.part.partition.position.tp
        if self._order is not Order.NONE and key is not None:
            work.lane = self._lane(self._table(tp), key)
        elif work.lane is None:
            work.lane = self._held.get(tp, {}).get(work.offset)
        lane = work.lane
        if lane is None:
            self._list_again(work, work.not_before, work.part.serial)
            return
        works, at = lane.works, 0
        while at < len(works) and works[at].part.partition is work.part.partition and works[at].offset < work.offset:
            at += 1
        works.insert(at, work)
        if at == 0:
            lane.due = work.not_before
        self._relist(lane)

    def _table(self, tp: TopicPartition) -> Table:
        return self._tables.setdefault(tp, {})

    def _relist(self, lane: Lane) -> None:
        """List a lane that nobody has, if its first message may begin at some time."""
        if lane.out or lane.listed:
            return
        if not lane.works:
            if not lane.blocked and lane.table.get(lane.key) is lane:
                del lane.table[lane.key]
            return
        if lane.holds(lane.works[0]):
            return
        lane.listed = True
        self._list_again(lane, lane.due, lane.works[0].part.serial)

    def _list_again(self, item: ReadWork | Lane, due: float, serial: int) -> None:
        if due:
            heappush(self._later, (due, next(self._ties), item))
        else:
            heappush(self._again, (serial, next(self._ties), item))

    # ---- out

    def take(self, most: int, now: float) -> list[ReadWork]:
        """Return startable messages, at most so many, the oldest first. Those of one lane follow each other."""
        if self._later:
            self._now_due(now)
        found: list[ReadWork] = []
        fresh, again = self._fresh, self._again
        while len(found) < most:
            if again and not (fresh and _serial_of(fresh[0]) <= again[0][0]):
                item = heappop(again)[2]
            elif fresh:
                item = fresh.popleft()
            else:
                break
            if type(item) is ReadWork and item.lane is None:
                partition = item.part.partition
                # a worker that took messages of an unseen loan would give them back, again and again
                if not (partition.position.halted or partition.stopped or partition.unseen_loan):
                    item.taken = True
                    found.append(item)
                elif partition.position.revoked:
                    self._leave_table(item)
                    item.forget()
                else:
                    partition.aside.append(item)
            else:
                self._take_from(_lane_of(item), most, found)
        return found

    def _take_from(self, lane: Lane, most: int, found: list[ReadWork]) -> None:
        lane.listed = False
        works = lane.works
        while works and works[0].part.partition.position.revoked:
            works.pop(0).forget()
            lane.due = 0.0
        if not works:
            self._relist(lane)
            return
        first = works[0]
        partition = first.part.partition
        if partition.position.halted or partition.stopped or partition.unseen_loan:
            lane.listed = True
            partition.aside.append(lane)
            return
        if lane.holds(first):
            return  # listed before an earlier message was parked; unblocking lists it again
        lane.due = 0.0
        many = 1
        if not (lane.blocked or first.not_before):  # a message that failed before goes alone
            most = min(most - len(found), len(works))
            while many < most and works[many].part.partition is partition and not works[many].not_before:
                many += 1
        found += works[:many]
        del works[:many]
        lane.out = many

    def _now_due(self, now: float) -> None:
        later = self._later
        while later and later[0][0] <= now:
            _, _, item = heappop(later)
            if type(item) is ReadWork and item.lane is None:
                heappush(self._again, (item.part.serial, next(self._ties), item))
                continue
            lane = _lane_of(item)
            lane.due, lane.listed = 0.0, False
            self._relist(lane)

    def returned(self, works: Iterable[ReadWork]) -> None:
        """Note that workers have these messages no more: each is finished, or was put back."""
        partition: OpenPartition | None = None
        table: Table = {}
        for work in works:
            lane = work.lane
            if lane is not None:
                lane.out -= 1
                if lane.out <= 0:
                    if lane.works:
                        self._relist(lane)
                    elif not lane.blocked:
                        lane.table.pop(lane.key, None)
            elif work.key is not None:
                if work.part.partition is not partition:  # most are of the same stay as the one before
                    partition = work.part.partition
                    table = self._table(partition.position.tp)
                if table.get(work.key) is work:
                    del table[work.key]

    def _leave_table(self, work: ReadWork) -> None:
        """Forget a message that is alone with its key."""
        if work.key is not None:
            table = self._tables.get(work.part.partition.position.tp)
            if table is not None and table.get(work.key) is work:
                del table[work.key]

    # ---- parking, pausing, ends

    def waiting_behind(self, work: ReadWork) -> list[ReadWork]:
        """Return what waits behind a message in hand, without works of pointers."""
        waiting = () if work.lane is None else work.lane.works
        return [one for one in waiting if not one.pointer and one.part.partition is work.part.partition]

    def block(self, work: ReadWork, behind: Sequence[ReadWork]) -> None:
        """Let nothing of the key of a message in hand begin but works of pointers; ``behind`` are parked as well."""
        if work.key is not None:
            lane = self._lane(self._table(work.part.partition.position.tp), work.key)
            lane.blocked, lane.before = True, 0
            gone = set(behind)
            lane.works = [one for one in lane.works if one not in gone]

    def lose_pointers(self, work: ReadWork) -> None:
        """Forget works of pointers that wait behind a message of their key which is parked now, for it comes first.

        They were handed out while their pointers were the first ones of the key. They come again after it.
        """
        partition = work.part.partition
        lane = None if work.key is None else self._table(partition.position.tp).get(work.key)
        if type(lane) is Lane:
            later = (one for one in lane.works if one.pointer and one.offset > work.offset)
            for one in self._drop_from(lane, [one for one in later if one.part.partition is partition]):
                one.forget()

    def block_key(self, tp: TopicPartition, key: bytes) -> None:
        """Let messages of this key wait: earlier ones are parked."""
        self._lane(self._table(tp), key).blocked = True

    def waits(self, tp: TopicPartition, key: bytes) -> bool:
        """Return whether messages of this key wait, beside works of pointers."""
        lane = self._table(tp).get(key)
        return type(lane) is Lane and any(not work.pointer for work in lane.works)

    def unblock(self, partition: OpenPartition, lowest: Mapping[str, int]) -> None:
        """Let messages begin again that no earlier parked one of their key holds back.

        Arguments: ``lowest`` parked offset of each key, by its mark.
        """
        for lane in self._lanes_of(partition):
            if lane.blocked and isinstance(lane.key, bytes):
                parked = lowest.get(key_mark(lane.key))
                lane.blocked, lane.before = parked is not None, parked or 0
                self._relist(lane)

    def resume(self, partition: OpenPartition) -> None:
        """List again what was found not startable while the partition was paused or stopped."""
        aside, partition.aside = partition.aside, []
        for item in aside:
            if type(item) is ReadWork and item.lane is None:
                self._list_again(item, item.not_before, item.part.serial)
            else:
                _lane_of(item).listed = False
                self._relist(_lane_of(item))

    def remove_all(self, partition: OpenPartition, which: Callable[[ReadWork], object]) -> list[ReadWork]:
        """Take out what waits of a partition, as far as ``which`` says so. Returns those messages."""

        def goes(work: ReadWork) -> object:
            return work.part.partition is partition and which(work)

        entries = (*self._fresh, *partition.aside, *(entry[2] for entry in (*self._again, *self._later)))
        gone = [item for item in entries if type(item) is ReadWork and item.lane is None and goes(item)]
        dropped = set(gone)
        self._fresh = deque(item for item in self._fresh if item not in dropped)
        partition.aside = [item for item in partition.aside if item not in dropped]
        self._again = [entry for entry in self._again if entry[2] not in dropped]
        self._later = [entry for entry in self._later if entry[2] not in dropped]
        heapify(self._again)
        heapify(self._later)
        for work in gone:
            self._leave_table(work)
        for lane in self._lanes_of(partition):
            gone += self._drop_from(lane, [work for work in lane.works if goes(work)])
        return gone

    def drop(self, partition: OpenPartition) -> None:
        """Forget what has not begun of a stay that has ended.

        Messages that are alone with their key, or have none, are forgotten when their turn comes.
        """
        for item in partition.aside:
            if type(item) is ReadWork and item.lane is None:
                self._leave_table(item)
                item.forget()
            else:
                _lane_of(item).listed = False
        partition.aside = []
        for lane in self._lanes_of(partition):
            lane.blocked = False
            for work in self._drop_from(lane, [work for work in lane.works if work.part.partition is partition]):
                work.forget()

    def _lanes_of(self, partition: OpenPartition) -> list[Lane]:
        tables = self._tables.get(partition.position.tp, {}), self._held.get(partition.position.tp, {})
        return [lane for table in tables for lane in table.values() if type(lane) is Lane]

    def _drop_from(self, lane: Lane, works: list[ReadWork]) -> list[ReadWork]:
        if works:
            gone = set(works)
            lane.works = [work for work in lane.works if work not in gone]
            lane.due = lane.works[0].not_before if lane.works else 0.0
        self._relist(lane)
        return works


def _serial_of(item: ReadWork | Lane) -> int:
    """Return the age of an entry of a list; a lane without messages is passed over at once."""
    if type(item) is ReadWork:
        return item.part.serial
    works = _lane_of(item).works
    return works[0].part.serial if works else 0


def _lane_of(item: ReadWork | Lane) -> Lane:
    """Return the lane that an entry of a list stands for."""
    lane: Lane = item.lane if type(item) is ReadWork else item
    return lane
