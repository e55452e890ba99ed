"""Lends slots of this member's partitions, and borrows slots of other members' partitions.

The thread reads the nodes, which are watched, has :class:`Lender` and :class:`Borrower` decide, and does what they say:
slots come and go on the reader's thread, nodes are written here. While nothing changes it asks nothing. A member that
does not share only takes back what an earlier owner of its partitions has lent: a borrower may have a key in hand.

Threads: ``<consumer>-sharing`` does everything but what says that any thread may call it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Event, Thread
from time import monotonic
from typing import Any, NamedTuple

from zkconsumer.balance.chunk_intake import ChunkIntake
from zkconsumer.balance.dispatcher import Dispatcher
from zkconsumer.balance.open_partition import LoanSight, OpenPartition
from zkconsumer.balance.sharing.borrowed_partition import BorrowedPartition
from zkconsumer.balance.sharing.borrower_rules import BorrowerView
from zkconsumer.balance.sharing.lender_rules import DeleteLoan, Lender, LenderOrder, LenderView, WriteLoan
from zkconsumer.balance.sharing.lent_partition import LentPartition, LentPartitions, slots_in_hand
from zkconsumer.balance.sharing.loan_store import GroupSight, LoanStore
from zkconsumer.balance.sharing.slot_plan import SharingMember, slot_quotas
from zkconsumer.core.key_slots import NO_SLOTS, SLOTS
from zkconsumer.core.registration import AdvertisedShare, advertised_share
from zkconsumer.core.subscription import subscribed_topics
from zkconsumer.core.topic_filter import InvalidTopicFilterError, TopicFilterTimeoutError
from zkconsumer.errors import NotPermittedError, RegistryError
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.ownership.fetch_cursor import Sink
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import WakeFlag
from zkconsumer.streams.kafka_stream import KafkaStream
from zkconsumer.zookeeper.session import Session

log = logging.getLogger(__name__)

TICK = 1.0
"""Seconds between two looks if nothing wakes the thread; reports are written as often."""
PAUSE = 0.05
"""Seconds between two looks at least."""
SETTLED = 0.3
"""Seconds for which members and owners must stay the same before slots are moved to a new plan."""
_STAYS = count()
"""Numbers stays. A second run of a connector has the same session, and a stay's name must never come again."""
CALL_WITHIN = 10.0
"""Seconds that a change of slots may take on the reader's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingAccess:
    """The parts of a member that sharing uses.

    ``topics`` are those of the subscription, None for a filter; ``stream`` makes a stream of a topic for chunks that no
    stream of the user gets; ``fetch`` has a position fetched, and ``forget`` stops the fetching of ended ones;
    ``shares`` is whether the member advertises that it lends and borrows.
    """

    session: Session
    group: str
    consumer: ConsumerId
    topics: Callable[[], Collection[str] | None]
    positions: Callable[[], Mapping[TopicPartition, PartitionPosition]]
    stream: Callable[[str], KafkaStream[Any, Any]]
    fetch: Callable[[PartitionPosition, Sink], None]
    forget: Callable[[], None]
    shares: bool = True


@dataclass(slots=True)
class _Plan:
    """The quotas in effect, and the group that they were computed for. ``order`` is that of our messages."""

    order: str
    basis: object = None
    since: float = 0.0
    quotas: Mapping[TopicPartition, Mapping[str, int]] = field(default_factory=dict)
    waits: bool = False

    def look_at(self, sight: GroupSight, topics: Collection[str]) -> None:
        """Compute the quotas anew if the group has changed and then stayed the same for a while."""
        members: dict[str, SharingMember] = {}
        for name, registration in sight.registrations.items():
            share = advertised_share(registration)
            if share is not None and share.order == self.order:
                try:
                    subscribed = frozenset(subscribed_topics(registration, topics, exclude_internal=False))
                except (InvalidTopicFilterError, TopicFilterTimeoutError):
                    continue
                members[name] = SharingMember(share.concurrency, subscribed)
        owners = {tp: owner.consumer for tp, owner in sight.owners.items() if owner.ours}
        basis, now = (members, owners), monotonic()
        if basis != self.basis:
            self.basis, self.since, self.waits = basis, now, True
        elif self.waits and now - self.since >= SETTLED:
            self.waits = False
            self.quotas = slot_quotas(members, owners)


@dataclass(slots=True)
class _Leave:
    """The end of the sharing: our loans go back, and with ``recalls`` the slots of our partitions come back.

    ``begun``: it is asked for; ``over``: all of it is reported.
    """

    recalls: bool
    begun: bool = False
    over: Event = field(default_factory=Event)


class _Connection(NamedTuple):
    """A connection to ZooKeeper: the lease's epoch, which changes with each loss, and the session's id."""

    epoch: int
    session: int


class Sharing:
    """Sharing of one run.

    Arguments: ``lent`` are our partitions, which the reader has, too; ``share`` is what this member advertises;
    ``store`` of the nodes, for tests.
    """

    def __init__(
        self,
        access: SharingAccess,
        dispatcher: Dispatcher,
        reader: ChunkIntake,
        lent: LentPartitions,
        share: AdvertisedShare,
        store: LoanStore | None = None,
    ) -> None:
        self._access = access
        self._dispatcher = dispatcher
        self._reader = reader
        self._store = store or LoanStore(access.session, access.group, access.consumer, lent.flag.set)
        self._lent = lent
        self._borrowed: dict[TopicPartition, BorrowedPartition] = {}
        self._partitions: dict[TopicPartition, list[OpenPartition]] = {}
        self._plan = _Plan(share.order)
        self._now = _Connection(-1, 0)
        """The connection by which the group was last seen."""
        self._behind = False
        """The reader has not done yet what an earlier look ordered."""
        self._leave = _Leave(recalls=not access.shares)
        self._stopping = False
        self.trouble = ""
        self.thread = Thread(target=self._run, name=f"{access.consumer}-sharing", daemon=True)

    # ---- any thread

    def prepare(self) -> None:
        """Look for old loans before the reader starts, so that a member that does not share begins at once."""
        positions = self._access.positions()
        if not self._access.shares:
            self._lent.want(positions.values())
            with suppress(RegistryError):  # the thread asks again
                self._concerned(positions)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def wake(self) -> None:
        """Look again soon."""
        self._lent.flag.set()

    @property
    def lent(self) -> Mapping[TopicPartition, Mapping[str, int]]:
        """The slots of our partitions that others have, by partition and member."""
        return {position.tp: dict(lent.lender.lent) for position, lent in list(self._lent.stays.items())}

    @property
    def borrowed(self) -> Mapping[TopicPartition, int]:
        """The slots of other members' partitions that we have."""
        return {tp: one.borrower.held for tp, one in list(self._borrowed.items()) if one.borrower.held}

    def leave(self, deadline: Deadline, *, recall: bool = False) -> bool:
        """Give all loans back, and wait until it is reported or for the deadline; returns whether it was.

        Arguments: ``recall``: also take back the slots of our partitions from other members, because the partitions
        stay ours.
        """
        self._leave.recalls = self._leave.recalls or recall
        self._leave.begun = True
        self.wake()
        if self.thread.is_alive():
            return self._leave.over.wait(deadline.remaining())
        return True

    def stop(self, deadline: Deadline) -> None:
        """End the thread, and everything that was borrowed."""
        self._stopping = True
        self.wake()
        if self.thread.is_alive():
            self.thread.join(deadline.remaining())
        for one in list(self._borrowed.values()):
            one.end()

    # ---- the thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._lent.flag.clear()
                try:
                    self.step()
                    self.trouble, pause = "", SETTLED if self._plan.waits else TICK
                except RegistryError as e:
                    self.trouble, pause = f"loans of slots wait for ZooKeeper: {e}", TICK
                    self._store.refresh()
                self._lent.flag.wait(pause)
                if not self._stopping:
                    WakeFlag().wait(PAUSE)  # several changes at once are one
        except BaseException as e:  # noqa: BLE001 (the caller of run raises it)
            self._dispatcher.abort(e)
        finally:
            self._leave.over.set()

    def step(self) -> None:
        """Look at the group, and do what follows for each partition. Raises RegistryError."""
        if self._behind:
            # a decision now would take slots for closed that are not, and a loan's note would be of a ledger that has
            # not lent them
            self._on_reader(lambda: None)
            self._behind = False
        positions = self._access.positions()
        if not self._access.shares and not self._concerned(positions):
            if self._leave.begun:
                self._leave.over.set()
            return
        now = self._connection()
        if now != self._now:
            # watches do not outlive the connection: until all is read again, nothing borrowed may begin
            self._store.refresh()
        for position in self._lent.wanted(positions):
            self._begin_stay(position, now)
        # A loan outlives its owner. A borrower that took the loan on anew would repeat messages since its beginning.
        sight = self._look(now, [position.tp for position in self._lent.stays], list(self._borrowed))
        self._now = now
        if self._access.shares:
            self._plan.look_at(sight, self._topics())
        failures: list[RegistryError] = []
        for position, lent in list(self._lent.stays.items()):
            if position.revoked or positions.get(position.tp) is not position:
                del self._lent.stays[position]
            else:
                with self._alone(failures):
                    self._lend(lent, sight)
        self._borrow(sight, failures)
        if failures:
            raise failures[0]

    @contextmanager
    def _alone(self, failures: list[RegistryError]) -> Iterator[None]:
        """Keep a refused write for later. Otherwise one forbidden node would stop all other partitions."""
        try:
            yield
        except NotPermittedError as e:
            failures.append(e)

    def _connection(self) -> _Connection:
        """Return the present connection. Raises RegistryError if there is none."""
        session = self._access.session
        # in this order: the epoch changes before there is another id, see _look
        return _Connection(session.lease.epoch, session.require_id())

    def _look(
        self, now: _Connection, lent: Collection[TopicPartition], borrowed: Collection[TopicPartition] = ()
    ) -> GroupSight:
        """Return the group as seen by one connection. Raises RegistryError, also if that was lost meanwhile.

        ZooKeeper's client knows no id of a session while the connection is away. Taken for another session, that would
        end loans, and an owner's stay would begin in no session.
        """
        sight = self._store.look(self._topics(), lent, borrowed)
        if self._connection() != now:
            raise RegistryError("the connection to ZooKeeper was lost while the group was read")
        return sight

    def _topics(self) -> Collection[str]:
        """Return the topics whose partitions may be lent to us. Raises RegistryError."""
        topics = self._access.topics()
        return self._store.owned_topics() if topics is None else topics

    # ---- our partitions

    def _concerned(self, positions: Mapping[TopicPartition, PartitionPosition]) -> bool:
        """Return whether an earlier owner has lent anything of our partitions. Raises RegistryError.

        Nobody else lends slots of these partitions after our claim. So a partition without loans stays whole.
        """
        wanted = self._lent.wanted(positions)
        whole = set(wanted) - self._store.with_loans(wanted)
        if whole:
            self._lent.stay_whole(whole)
            self._reader.wake()
        return bool(self._lent.stays) or len(wanted) > len(whole)

    def _begin_stay(self, position: PartitionPosition, now: _Connection) -> None:
        """Take over the loans of a partition that has become ours, if the claim is to be seen. Raises RegistryError."""
        tp = position.tp
        self._store.forget(tp)  # Our claim is newer than the cache may be.
        sight = self._look(now, [tp])
        owner = sight.owners.get(tp)
        if owner is None or owner.session != now.session:
            return
        view, borrowed = self._view(tp, sight), self._borrowed.get(tp)
        if borrowed is not None:
            us, seen = self._access.consumer, view.loans.get(self._access.consumer)
            self._partitions_of(tp, borrowed.partition)  # Nobody else may begin a key that is in hand there.
            self._on_reader(borrowed.end_as_owner)  # It must end before the same slots may be lent on.
            if seen is not None and seen.loan is not None and seen.loan.answered_by(borrowed.word):
                view = replace(view, loans={**view.loans, us: replace(seen, report=borrowed.word)})
            del self._borrowed[tp]
        stay = f"{now.session & (1 << 64) - 1:x}-{next(_STAYS)}"
        lender = Lender(self._access.consumer, now.session, self._plan.order, stay)
        self._lent.begin(position, LentPartition.of_stay(position, lender, view))

    def _view(
        self, tp: TopicPartition, sight: GroupSight, in_hand: int = NO_SLOTS, pinned: int = NO_SLOTS
    ) -> LenderView:
        quotas = self._plan.quotas.get(tp, {})
        if self._leave.recalls:
            quotas = {self._access.consumer: SLOTS}
        return LenderView(sight.sessions, sight.loans.get(tp, {}), quotas, pinned, in_hand, monotonic())

    def _lend(self, lent: LentPartition, sight: GroupSight) -> None:
        position, lender, tp = lent.position, lent.lender, lent.position.tp
        owner = sight.owners.get(tp)
        if lent.over or owner is None or not (owner.session == lender.session == self._now.session):
            return
        partition = self._reader.partitions.of(position) if lent.opened else None
        # before the pinned slots: a message that fails is noted before it leaves the hand
        partitions = self._partitions_of(tp, partition)
        in_hand, before = slots_in_hand(partitions), slots_in_hand([one for one in partitions if one is not partition])
        view = replace(self._view(tp, sight, in_hand, lent.pinned), in_hand_before=before)
        if not lent.ready and lender.outdated(view):
            # its loan of the earlier stay would stand for ever, and nothing of the partition would be handled
            self._lent.begin_anew(position)
            return
        if partition is None or partition.ledger is not lent.ledger:
            orders = lender.writes(view)
            if lender.ready(view) and not lent.ready:
                lent.ready = True
                self._reader.wake()
        elif not view.quotas and not self._plan.quotas:
            return  # the plan is not known yet
        else:
            orders = lender.step(view)
            if lent.reopens or any(not isinstance(order, WriteLoan | DeleteLoan) for order in orders):
                self._on_reader(lambda: lent.obey(orders, partition, self._reader, self.wake))
        self._write(lent, orders, view)

    def _write(self, lent: LentPartition, orders: list[LenderOrder], view: LenderView) -> None:
        tp = lent.position.tp
        for order in orders:
            if not lent.in_session(self._access.session):
                return  # it has ended while we were frozen: ZooKeeper would take the write for that of the next owner
            if isinstance(order, WriteLoan):
                if not self._store.write(tp, order, lent.ledger.lent_note(order.borrower)):
                    self.wake()
            elif isinstance(order, DeleteLoan):
                self._store.delete(tp, order, reported=view.loans[order.borrower].reported)

    def _partitions_of(self, tp: TopicPartition, partition: OpenPartition | None) -> list[OpenPartition]:
        """Return the stays at a partition that may have messages in hand, of earlier ones too."""
        known = self._partitions.setdefault(tp, [])
        if partition is not None and partition not in known:
            known.append(partition)
        self._partitions[tp] = known = [one for one in known if one is partition or slots_in_hand([one])]
        return known

    # ---- others' partitions

    def _borrow(self, sight: GroupSight, failures: list[RegistryError]) -> None:
        # before the loans are looked at: whoever leaves says first that they are to come back
        leaving = self._leave.begun
        own = {position.tp for position in self._access.positions().values()}
        if not self._access.shares:
            own |= sight.mine.keys()
        for tp in {*sight.mine, *self._borrowed} - own:
            if (one := self._borrowed.get(tp)) is None or one.word is not None:
                one = self._borrowed[tp] = BorrowedPartition(tp, self._access.stream, self._plan.order)
            with self._alone(failures):
                self._serve(one, sight)
        lent = self._leave.recalls and any(lent.lender.lent for lent in self._lent.stays.values())
        if leaving and not lent and all(one.left for one in self._borrowed.values()):
            self._leave.over.set()

    def _serve(self, one: BorrowedPartition, sight: GroupSight) -> None:
        """Do what one loan to us asks for."""
        access, tp = self._access, one.tp
        seen, owner = sight.mine.get(tp), sight.owners.get(tp)
        view = BorrowerView(
            self._now.session,
            None if owner is None else owner.session,
            None if seen is None else seen.loan,
            slots_in_hand(self._partitions_of(tp, one.partition)),
            one.refused,
            self._leave.begun,
            None if seen is None else seen.report,
        )
        orders = one.borrower.step(view)
        lender = seen.loan.lender if seen is not None and seen.loan is not None else ""
        self._on_reader(lambda: one.obey(orders, self._reader, self.wake, lender))
        # not before: what a former session has borrowed must not begin once the group was seen in a new one
        one.begin_while(LoanSight(access.session.lease, self._now.epoch))
        if one.begun is not None:
            position, queue = one.begun
            one.begun = None
            access.fetch(position, queue)
        if one.ended:
            one.ended = False
            access.forget()
        if seen is not None and not seen.reported:
            one.told = None  # its node is gone, perhaps with an earlier loan
        report = one.report(view.session, monotonic(), leaving=self._leave.begun, in_hand=view.in_hand)
        if report is not None and seen is not None:
            if self._store.report(tp, seen.version, report, exists=seen.reported):
                one.reported(report, monotonic())
            else:
                self.wake()
        if seen is None and one.partition is None and not self._partitions_of(tp, None):
            self._borrowed.pop(tp, None)

    def _on_reader(self, call: Callable[[], None]) -> None:
        """Have the reader's thread do something, and wait for it. Raises what it raised."""
        done, failed = Event(), []

        def do() -> None:
            try:
                call()
            except Exception as e:  # noqa: BLE001 (raised below)
                failed.append(e)
            finally:
                done.set()

        self._reader.submit(do)
        deadline = Deadline(CALL_WITHIN)
        while not done.wait(0.2):
            if deadline.expired or not self._reader.thread.is_alive():
                self._behind = True
                raise RegistryError("the reader did not take a change of slots in time")
        if failed:
            raise failed[0]
