"""The heartbeats of a member, on a thread and a connection of their own, so that nothing else holds them up.

Threads: the group thread says for which membership and where to send heartbeats; the thread of this module sends them.
A condition guards the values from the group thread. No request is sent under the condition.

The answer "unknown member" ends the lease at once, even if the group thread waits for something else: a rebalance may
have given all our partitions to others. Mirrors the Java consumer's ``HeartbeatThread``. The Java consumer has no
lease, so it goes on handing out partitions that others own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from threading import Condition, Thread
from time import monotonic

from zkconsumer.errors import (
    BrokerResponseError,
    BrokerUnavailableError,
    CoordinatorLoadInProgressError,
    FencedInstanceIdError,
    RebalanceInProgressError,
    UnknownMemberIdError,
    ZkConsumerError,
)
from zkconsumer.kafka.coordinator_client import CoordinatorSearch
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.model import Endpoint
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import InterruptibleLock
from zkconsumer.zookeeper.lease import Lease

log = logging.getLogger(__name__)

RETRY = 0.25
"""Seconds before an unanswered heartbeat is sent again, if the interval is longer."""


@dataclass(frozen=True, slots=True)
class HeartbeatFailed:
    """A heartbeat or commit of ``who`` was refused or not answered."""

    who: Membership
    error: Exception


class LeaseRenewal:
    """Renews the lease by the answers to heartbeats. Guarded by the lock of :class:`Heartbeats`.

    The lease is stamped with the time at which a heartbeat was *sent*. The coordinator gives the partitions to others a
    session timeout after the heartbeat came in, never earlier. A pause of the process makes the lease end, whatever
    waits in the socket.

    While a group rebalances, an incremental strategy lets partitions that stay flow on. Then the session timeout is not
    the coordinator's only limit. It waits for each member's join, and from 3.1 on for its SyncGroup, for the rebalance
    timeout, and removes late members even if their heartbeats come. So no heartbeat renews the lease beyond that,
    counted from a time at which it certainly did not wait yet. "The group rebalances" counts as a heartbeat, for it
    resets the member's clock. It does not between the answers to a join and to a sync, where brokers up to 2.5 say it
    and reset nothing.

    A coordinator that loads its groups answers each heartbeat with success, also to a member that was removed before.
    While it loads it removes nobody, and then every member has a whole session timeout. So its answer counts as long as
    the member was certainly not removed before it asked. Later a SyncGroup has to prove the membership.

    Arguments: ``session`` and ``rebalance`` are the timeouts of joins, in seconds.
    """

    def __init__(self, lease: Lease, session: float, rebalance: float) -> None:
        self.lease = lease
        self.session = session
        self._rebalance = rebalance
        self._waits_since = float("-inf")  # the coordinator began to wait for our join or sync no earlier than this
        self._awaits_share = self._settled = False
        self.heard_at = float("-inf")
        """When the last heartbeat was sent to which the coordinator answered that it knows us (monotonic seconds)."""
        self.protocol = ""  # the strategy that the answer to the last join named
        self._kept_until = float("-inf")  # until then the coordinator has certainly not removed us

    def joined(self, asked_at: float, protocol: str) -> None:
        """Note the answer to a join that was sent no earlier than that. The coordinator waits for our SyncGroup."""
        self.protocol = protocol
        self._waits_since = max(self._waits_since, asked_at)
        self._kept_until = max(self._kept_until, asked_at + self.session)
        self._awaits_share, self._settled = True, False

    def synced(self, sent_at: float | None) -> None:
        """Note that the coordinator no longer waits for our SyncGroup, which was sent then; None: we join again."""
        self._awaits_share = False
        self._settled = sent_at is not None
        if sent_at is not None:
            self._kept_until = max(self._kept_until, sent_at + self.session)

    def needs_proof(self, sent_at: float) -> bool:
        """Return whether the success of a heartbeat that was sent then proves nothing."""
        return sent_at >= self._kept_until

    @property
    def may_ask(self) -> bool:
        """Whether a SyncGroup without assignments harms nothing: the coordinator has those of this generation.

        It would take them for the leader's otherwise, and give nothing to anybody.
        """
        return self._settled

    def answered(self, sent_at: float, *, rebalancing: bool) -> None:
        """Note the answer to a heartbeat that was sent then. ``rebalancing``: the group rebalances."""
        self.heard_at = sent_at
        until = sent_at + min(self.session, self._rebalance)
        if not rebalancing and not self._awaits_share:
            self._waits_since = sent_at
        else:
            until = min(until, self._waits_since + self._rebalance)
        if not (rebalancing and self._awaits_share):
            self._kept_until = max(self._kept_until, until)
            self.lease.renew(sent_at, until - sent_at)


class Heartbeats:
    """Sends heartbeats and renews the lease.

    Arguments: ``name`` begins the thread's name; ``search`` is used by this thread alone; ``tell`` is called with each
    failure, on this thread; ``interval`` in seconds.
    """

    def __init__(
        self,
        name: str,
        search: CoordinatorSearch,
        renewal: LeaseRenewal,
        tell: Callable[[HeartbeatFailed], None],
        interval: float,
    ) -> None:
        self._search = search
        self.renewal = renewal
        self._tell = tell
        self._interval = interval
        self._channel: GroupChannel | None = None  # the thread's
        # guards the rest; code enters the lock itself, not the condition: see streams.stream_queue
        self._lock = InterruptibleLock()
        self._changed = Condition(self._lock)
        self._who: Membership | None = None
        self._where: Endpoint | None = None
        self._due = 0.0
        self._closing = False
        self.thread = Thread(target=self._run, name=f"{name}-heartbeat", daemon=True)

    def beat(self, who: Membership, where: Endpoint) -> None:
        """Send heartbeats for this membership from now on.

        The first comes after one interval, since joining counts as one. It comes sooner for the same membership as
        before, which has only found its coordinator again.
        """
        with self._lock:
            now = monotonic()
            self._due = min(self._due, now + RETRY) if who == self._who else now + self._interval
            self._who, self._where = who, where
            self._changed.notify_all()

    def joined(self, asked_at: float, protocol: str) -> None:
        """Note the answer to a join that was sent no earlier than ``asked_at`` (monotonic seconds).

        From now on the coordinator waits for our SyncGroup. ``protocol`` is the strategy that the answer names.
        """
        with self._lock:
            self.renewal.joined(asked_at, protocol)

    def synced(self, sent_at: float | None) -> None:
        """Note that the coordinator has answered our SyncGroup, which was sent then, or (None) that we join again."""
        with self._lock:
            self.renewal.synced(sent_at)

    def pause(self) -> None:
        """Send no more heartbeats; return at once. The answer to one that is under way counts for nothing."""
        with self._lock:
            self._who = None

    @property
    def beating(self) -> bool:
        """Whether the membership is kept alive."""
        return self._who is not None

    def close(self, deadline: Deadline) -> None:
        """End the thread; never waits beyond the deadline."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        self._search.close()
        if self.thread.is_alive():
            self.thread.join(deadline.remaining())

    # ---- the thread

    def _run(self) -> None:
        while (told := self._await()) is not None:
            who, where = told
            try:
                self._beat(who, where)
            except Exception as e:  # any failure puts the membership at stake
                if not isinstance(e, BrokerResponseError):
                    self._drop()
                if not isinstance(e, ZkConsumerError):
                    log.exception("a heartbeat failed unexpectedly")
                if self._still(who, where):
                    self._tell(HeartbeatFailed(who, e))
        self._drop()

    def _await(self) -> tuple[Membership, Endpoint] | None:
        with self._lock:
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
        """Send one heartbeat.

        A lost connection says nothing about the coordinator, so the heartbeat goes over a second one at once.
        """
        kept = self._channel is not None and self._channel.endpoint == where
        deadline = Deadline(self.renewal.session / 2)
        try:
            self._exchange(who, where, deadline)
        except BrokerUnavailableError:
            self._drop()
            if kept and not deadline.expired and self._still(who, where):
                self._exchange(who, where, deadline)
                return
            with self._lock:
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
            if not self._is_member(channel, who, sent_at, deadline):
                with self._lock:
                    self._due = min(self._due, monotonic() + RETRY)
                return
        except RebalanceInProgressError:
            self._renew(who, sent_at, rebalancing=True)
            raise
        except (UnknownMemberIdError, FencedInstanceIdError):
            self._suspend(who)
            raise
        self._renew(who, sent_at, rebalancing=False)

    def _is_member(self, channel: GroupChannel, who: Membership, sent_at: float, deadline: Deadline) -> bool:
        """Return whether the success of a heartbeat means that we are a member; see :class:`LeaseRenewal`.

        A group that does not rebalance answers a SyncGroup with the present assignment. Raises what the SyncGroup says.
        """
        with self._lock:
            if not self.renewal.needs_proof(sent_at):
                return True
            if not self.renewal.may_ask:
                self.renewal.heard_at = sent_at  # it answers, so the wait for the leader goes on
                return False
        try:
            channel.sync(who, protocol=self.renewal.protocol, deadline=deadline)
        except (RebalanceInProgressError, CoordinatorLoadInProgressError):  # brokers say either while they load
            return False
        return True

    def _renew(self, who: Membership, sent_at: float, *, rebalancing: bool) -> None:
        with self._lock:
            if self._who == who:
                self.renewal.answered(sent_at, rebalancing=rebalancing)

    def _suspend(self, who: Membership) -> None:
        with self._lock:
            if self._who == who:
                self.renewal.lease.suspend()

    def _still(self, who: Membership, where: Endpoint) -> bool:
        with self._lock:
            return (self._who, self._where) == (who, where) and not self._closing

    def _drop(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            self._search.discard(channel)
