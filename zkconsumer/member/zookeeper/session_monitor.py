"""Watches our ZooKeeper session: returns its changes as triggers, and finds out when it is useless.

Called by the group thread only. The session's events come from kazoo. Kazoo does not notice two cases:

- No server accepts this client any more, because servers were restored or wiped.
- A connection stands, or connections come about, on which nothing is answered: a slow link, or one that works in one
  direction. Our requests then renew the session at the server, so that nobody could ever own the partitions that we
  cannot consume. Kazoo misses this case while we send requests: kazoo waits only for answers to pings, and sends a ping
  only if nothing else is sent.
"""

from __future__ import annotations

import logging
from time import monotonic

from zkconsumer.member.zookeeper.state_machine import Trigger
from zkconsumer.zookeeper.session import Session, SessionChanged, SessionState

log = logging.getLogger(__name__)

NEVER = float("inf")
STUCK_AFTER = 3
"""Session timeouts without a connection after which another client is tried."""
LOOK_FOR_REPLACEMENT = 0.5
"""Seconds between two looks at how that goes."""
SILENCE = 0.5
"""Session timeouts without an answer in time, counted from the lease's end, after which the session is given up. Our
requests may still reach the server and keep it alive there.
"""
BARREN = 3
"""Connections in a row without an answer after which the session is given up."""
PROBATION = 0.7
"""Session timeouts that a connection must then hold before we register again: registered members get partitions."""


class SessionMonitor:
    """The state of our session, and its timers (monotonic seconds)."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._session_id = 0
        self._barren = 0
        self.on_probation = False
        self._unheard_since = NEVER
        self._silences = 0
        self._epoch = 0
        self.next_look = NEVER
        """When the client counts as stuck, unless it connects before."""
        self.next_touch = 0.0
        """When the lease is renewed next."""

    def begin(self) -> None:
        """Begin with the open session."""
        self._session_id = self.session.session_id

    @property
    def lease_ends_at(self) -> float:
        """When the lease ends."""
        return self.session.lease.ends_at

    def touch(self) -> None:
        """Renew the lease from time to time."""
        now = monotonic()
        if now >= self.next_touch:
            self.next_touch = now + self.session.timeout / 6
            self.session.touch()

    def resume_lease(self) -> None:
        """Hand out messages again under the last connection."""
        self.session.lease.resume(self._epoch)

    def answered(self) -> None:
        """Note that a round succeeded."""
        self._barren = 0
        self._silences = 0
        self.on_probation = False

    def looked(self) -> None:
        """Note a stuck client; the next look comes a little later."""
        self.next_look = monotonic() + LOOK_FOR_REPLACEMENT

    @property
    def register_from(self) -> float:
        """When we may register again (monotonic seconds), as seen from a connection that came about now."""
        return monotonic() + self.session.timeout * PROBATION if self.on_probation else 0.0

    def gives_up(self) -> bool:
        """Return whether to give the session up: servers take our requests and have long answered nothing in time.

        Ask at every step. The silence counts from when we could see it; otherwise a pause of this process would count.
        """
        session, now = self.session, monotonic()
        taken = session.connected or session.unanswered
        if not self._session_id or not taken or now < session.lease.safe_until:
            self._unheard_since = NEVER
            return False
        if self._unheard_since == NEVER or self._unheard_since < session.lease.safe_until:
            self._unheard_since = now
        if now < self._unheard_since + SILENCE * session.timeout:
            return False
        log.warning("ZooKeeper takes our requests and answers nothing; the session is given up")
        self._silences += 1
        self.on_probation = self._silences > 1  # again, and no round between: it may answer connections and no more
        self._forget()
        return True

    def _forget(self) -> None:
        """Reset the counts, because connections of this session say nothing about the next one."""
        self._session_id = 0
        self._barren = 0
        self._unheard_since = NEVER

    def lost_event(self) -> SessionChanged:
        """Return the event of the present connection, in case it was lost."""
        return SessionChanged(SessionState.CONNECTED, self.session.session_id, self.session.lease.epoch)

    def changed(self, event: SessionChanged) -> tuple[Trigger, str] | None:
        """Return the trigger of a session event, and the reason in words; None: the event means nothing any more."""
        if event.state is SessionState.SUSPENDED:
            return self._suspended()
        if event.state is SessionState.LOST:
            self._session_id = 0
            self.next_look = min(self.next_look, monotonic() + STUCK_AFTER * self.session.timeout)
            return Trigger.SESSION_LOST, "the ZooKeeper session expired"
        if event.epoch != self.session.lease.epoch:
            return None  # it was lost again since; the event of that is still to come
        if self._is_silent():
            log.warning("connections to ZooKeeper come about and nothing is answered; the session is given up")
            self._forget()
            self.on_probation = True
            return Trigger.SILENT, "nothing was answered"
        same = event.session_id == self._session_id
        self._session_id, self._epoch = event.session_id, event.epoch
        self.next_look = NEVER
        self.next_touch = 0.0
        self._unheard_since = NEVER
        if same:
            return Trigger.RECONNECTED, "connected to ZooKeeper again"
        return Trigger.NEW_SESSION, "a new ZooKeeper session"

    def _suspended(self) -> tuple[Trigger, str]:
        if self.session.contested:
            log.warning("another client uses our ZooKeeper session, which we give up for a new one")
            self._session_id = 0
            return Trigger.CONTESTED, "the session was given up"
        log.warning("the connection to ZooKeeper is gone; nothing is handed out or committed until it is back")
        self.next_look = min(self.next_look, monotonic() + STUCK_AFTER * self.session.timeout)
        return Trigger.CONNECTION_LOST, ""

    def _is_silent(self) -> bool:
        """Count a new connection. Returns whether too many came about without an answer."""
        ends_at = self.session.lease.ends_at
        self._barren = self._barren + 1 if monotonic() >= ends_at else 0
        return self._barren >= BARREN and monotonic() >= ends_at + self.session.timeout
