"""The health of a connector, for the probes of a scheduler: is it alive, is it ready, and why not.

A process whose member is not *live* should be restarted, since nothing in it brings the member back. A member that is
not *ready* works on that by itself: it joins, waits for an owner, or has lost its connection.

Any thread may ask, also a signal handler. Nothing here takes a lock or waits: what is read are single attributes of the
parts, and copies of small tables.

The original has nothing of this. Its watcher thread gives up after ``rebalance.max.retries``, and the process lives on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from zkconsumer.connector.lifecycle import Closing, Lifecycle

if TYPE_CHECKING:
    from zkconsumer.member.group_thread import CoordinationHealth
    from zkconsumer.wiring.group_member import GroupMember

SILENT = 60.0
"""Seconds beyond the limits of requests for which a thread may be busy with one thing before it counts as stuck."""
REQUESTS = 4
"""The number of requests, each up to its limit, that a thread may make for one thing."""


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a connector at one moment.

    ``not_live`` says why the process should be restarted: a thread has failed or does not answer, the connector was
    shut down, or it belongs to the process from which this one was forked. ``not_ready`` says why the member may not
    own the partitions that it should. Both are texts for people, and empty if all is well.
    """

    not_live: tuple[str, ...] = ()
    not_ready: tuple[str, ...] = ()

    @property
    def live(self) -> bool:
        """Whether the member works, or comes back by itself."""
        return not self.not_live

    @property
    def ready(self) -> bool:
        """Whether the member owns its share under a valid lease, and handles every partition."""
        return not self.not_live and not self.not_ready

    @property
    def reasons(self) -> tuple[str, ...]:
        """All reasons, those against liveness first."""
        return self.not_live + self.not_ready

    def __str__(self) -> str:
        word = "ready" if self.ready else "live, not ready" if self.live else "not live"
        return ": ".join(filter(None, (word, "; ".join(self.reasons))))


def health_of(lifecycle: Lifecycle) -> Health:
    """Return the health of the connector with this lifecycle."""
    member, end = lifecycle.member, lifecycle.end
    if lifecycle.forked is not None:
        return Health((str(lifecycle.forked),))
    if end.begun:
        return _ending(end)
    if member is None:
        return Health((), ("no streams were created yet",))
    run = lifecycle.balanced_run
    problems = () if run is None else run.problems()
    found = Health(tuple(_failures(member)), (*_obstacles(member), *problems))
    # a shutdown that began meanwhile has ended some of the threads
    return _ending(end) if end.begun else found


def _ending(end: Closing) -> Health:
    return Health(("the connector was shut down",)) if end.over else Health((), ("the connector is being shut down",))


def _failures(member: GroupMember) -> Iterator[str]:
    """Yield the threads that ended although they should run, and threads that hang in one step."""
    for thread in member.threads:
        if thread.ident is not None and not thread.is_alive():
            yield f"the thread {thread.name} has ended"
    limit = SILENT + REQUESTS * member.request_timeout
    for side in member.coordination.sides:
        if side.group.thread.is_alive() and side.group.silence > limit:
            yield f"the thread {side.group.thread.name} has not answered for {side.group.silence:.0f} s"
    limit = SILENT + REQUESTS * member.config.socket_timeout_ms / 1000
    for fetcher in member.fetching.fetchers.running:
        if (silence := monotonic() - fetcher.step_began) > limit:
            yield f"the thread {fetcher.thread.name} has not answered for {silence:.0f} s"


def _obstacles(member: GroupMember) -> Iterator[str]:
    """Yield why the member may not own what it should."""
    sides = member.coordination.sides
    if not sides:
        yield "connecting"
    for side in sides:
        yield from (f"{side.coordinator}: {text}" for text in _doubts(side))


def _doubts(side: CoordinationHealth) -> Iterator[str]:
    coordinator = side.group.coordinator
    unsettled = coordinator.unsettled
    if unsettled:
        yield unsettled
    elif coordinator.needs_lease and not side.lease.valid:
        yield "the lease has ended: nothing was answered in time"
    if side.doubt:
        yield side.doubt
