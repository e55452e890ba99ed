"""The heartbeats of a member, on a thread and a connection of their own: nothing that the member does holds them up.

Threads: the group's thread says as whom and where to beat; the heartbeats' own thread beats. A condition guards what it
is told, and nothing is asked while it is held.

The lease is stamped with the time at which a heartbeat was *sent*: the coordinator gives the partitions to others a
session timeout after it came in, never earlier. A pause of the process makes the lease end, whatever is waiting in the
socket. One that is answered with "nobody knows you" ends the lease at once, whatever the group's thread waits for just
then: a rebalance may have given all of ours to others. Mirrors the Java consumer's ``HeartbeatThread``, which knows no
lease, and goes on handing out what others own.

While a group rebalances, the session is not all that a coordinator goes by (what stays with a member flows on then, by
an incremental strategy). It waits for each member's join, and from 3.1 on for its SyncGroup, for the rebalance timeout,
and takes out who is late, heartbeats or not; so no heartbeat renews the lease beyond that, counted from when it was
certain that it had not begun to wait. "The group rebalances" counts as it sets the member's clock anew, but not between
the answers to a join and to a sync: there brokers up to 2.5 say it and set nothing anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic

from zkconsumer.deadline import Deadline
from zkconsumer.errors import (
    BrokerResponseError,
    BrokerUnavailableError,
    FencedInstanceIdError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    ZkConsumerError,
)
from zkconsumer.kafka.coordinator_search import CoordinatorSearch
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.member.coordinator.events import HeartbeatFailed
from zkconsumer.model import Endpoint
from zkconsumer.zookeeper.lease import Lease

log = logging.getLogger(__name__)

RETRY = 0.25
"""Seconds before a heartbeat that nobody answered is sent again, there or where the coordinator was found, if the
interval is longer.
"""


class Heartbeats:
    """Beats.

    Arguments: ``name`` begins the thread's; ``search`` is the heartbeats' alone; ``interval``, and the timeouts that
    joins tell, ``session`` and ``rebalance``, in seconds; ``lease`` is renewed; ``tell`` hears of each failure, on the
    heartbeats' thread.
    """

    def __init__(
        self,
        name: str,
        search: CoordinatorSearch,
        lease: Lease,
        tell: Callable[[HeartbeatFailed], None],
        *,
        interval: float,
        session: float,
        rebalance: float,
    ) -> None:
        self._search = search
        self._lease = lease
        self._tell = tell
        self._interval = interval
        self._session = session
        self._rebalance = rebalance
        self._channel: GroupChannel | None = None  # the thread's
        self._changed = Condition()  # guards the rest
        self._who: Membership | None = None
        self._where: Endpoint | None = None
        self._due = 0.0
        self._waits_since = float(
            "-inf"
        )  # the coordinator does for our next join or sync, or begins to later than that
        self._awaits_share = False
        self.heard_at = float("-inf")
        """When the last heartbeat was sent that was answered by who knows us (monotonic seconds)."""
        self._closing = False
        self._thread = Thread(target=self._run, name=f"{name}-heartbeat", daemon=True)

    def open(self) -> None:
        """Start the thread, which does not beat yet."""
        self._thread.start()

    def beat(self, who: Membership, where: Endpoint) -> None:
        """Beat from now on as this member of this generation, first after one interval: joining counted as one. Who is
        the same as before has only found its coordinator again, and is to be heard of there soon.
        """
        with self._changed:
            now = monotonic()
            self._due = min(self._due, now + RETRY) if who == self._who else now + self._interval
            self._who, self._where = who, where
            self._changed.notify_all()

    def joined(self, asked_at: float) -> None:
        """A join that was sent no earlier than ``asked_at`` (monotonic seconds) is answered: now the coordinator waits
        for our SyncGroup.
        """
        with self._changed:
            self._waits_since = max(self._waits_since, asked_at)
            self._awaits_share = True

    def synced(self) -> None:
        """The coordinator does not wait for our SyncGroup any more: it has answered it, or we join again."""
        with self._changed:
            self._awaits_share = False

    def pause(self) -> None:
        """Beat no more. Returns at once; the answer to a heartbeat that is under way counts for nothing."""
        with self._changed:
            self._who = None

    @property
    def beating(self) -> bool:
        """Whether the membership is kept alive."""
        return self._who is not None

    def close(self, deadline: Deadline) -> None:
        """End the thread; never waits beyond the deadline."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._search.close()
        if self._thread.is_alive():
            self._thread.join(deadline.remaining())

    # ---- the thread

    def _run(self) -> None:
        while (told := self._await()) is not None:
            who, where = told
            try:
                self._beat(who, where)
            except Exception as e:  # whatever it is, the membership is at stake
                if not isinstance(e, BrokerResponseError):
                    self._drop()
                if not isinstance(e, ZkConsumerError):
                    log.exception("a heartbeat failed unexpectedly")
                if self._still(who, where):
                    self._tell(HeartbeatFailed(who, e))
        self._drop()

    def _await(self) -> tuple[Membership, Endpoint] | None:
        with self._changed:
            while not self._closing:
                now = monotonic()
                if self._who is None or self._where is None:
                    self._changed.wait()
                elif now < self._due:
                    self._changed.wait(self._due - now)
                else:
                    self._due = now + self._interval
                    return self._who, self._where
            return None

    def _beat(self, who: Membership, where: Endpoint) -> None:
        """One heartbeat. A connection that was lost meanwhile says nothing about the coordinator, but silence does, and
        so does a second connection.
        """
        kept = self._channel is not None and self._channel.endpoint == where
        deadline = Deadline(self._session / 2)
        try:
            self._exchange(who, where, deadline)
        except BrokerUnavailableError:
            self._drop()
            if kept and not deadline.expired and self._still(who, where):
                self._exchange(who, where, deadline)
                return
            with self._changed:
                self._due = min(self._due, monotonic() + RETRY)
            raise

    def _exchange(self, who: Membership, where: Endpoint, deadline: Deadline) -> None:
        channel = self._channel
        if channel is None or channel.endpoint != where:
            self._drop()
            channel = self._channel = self._search.connect(where, deadline)
        sent_at = monotonic()
        try:
            channel.heartbeat(who, deadline)
        except RebalanceInProgressError:
            self._renew(who, sent_at, rebalancing=True)
            raise
        except (UnknownMemberIdError, FencedInstanceIdError):
            self._suspend(who)
            raise
        self._renew(who, sent_at, rebalancing=False)

    def _renew(self, who: Membership, sent_at: float, *, rebalancing: bool) -> None:
        with self._changed:
            if self._who != who:
                return
            self.heard_at = sent_at
            until = sent_at + min(self._session, self._rebalance)
            if not rebalancing and not self._awaits_share:
                self._waits_since = sent_at
            else:
                until = min(until, self._waits_since + self._rebalance)
            if not (rebalancing and self._awaits_share):
                self._lease.renew(sent_at, until - sent_at)

    def _suspend(self, who: Membership) -> None:
        with self._changed:
            if self._who == who:
                self._lease.suspend()

    def _still(self, who: Membership, where: Endpoint) -> bool:
        with self._changed:
            return (self._who, self._where) == (who, where) and not self._closing

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._search.discard(channel)
