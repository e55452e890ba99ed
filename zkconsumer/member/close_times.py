"""How the time of a shutdown is split among its steps, so that no step cuts another short. Pure.

First messages in hand are drained. The last commit, the release and the leave have :data:`LEAVING`. If the group thread
has not ended then, :data:`FORCED` before the end, the connection that it waits on is cut. The other steps follow, each
with :data:`A_STEP`. No step gets :data:`SPARE`.
"""

from __future__ import annotations

from dataclasses import dataclass

from zkconsumer.runtime.deadline import Deadline

SPARE = 0.3
"""Seconds of a close that no step gets: on a busy machine each step ends a little late."""
A_STEP = 0.15
"""Seconds that each step of a close has at least, even if the steps before it took all of theirs."""
FORCED = 0.9
"""Seconds before the end of a close at which the member stops waiting for the group thread."""
LEAVING = 0.6
"""Seconds at the end of a shutdown that are left to the last commit, the release and the leave."""
SHORTEST = SPARE + FORCED + LEAVING
"""Seconds of a close below which all of these shrink in proportion. Any time beyond them goes to the drain."""
LONGEST = 86_400.0
"""Seconds that a close may take at most."""


@dataclass(frozen=True, slots=True)
class CloseTimes:
    """The times of one close; ``end`` is that of all steps."""

    end: Deadline
    scale: float

    @classmethod
    def within(cls, deadline: Deadline) -> CloseTimes:
        """Split the time until this deadline. It begins now."""
        scale = min(1.0, deadline.bounded(SHORTEST) / SHORTEST)
        return cls(Deadline(deadline.bounded(LONGEST)).earlier(SPARE * scale), scale)

    @property
    def patience(self) -> Deadline:
        """Until when the group thread is waited for."""
        return self.end.earlier(FORCED * self.scale)

    def before_last(self, steps: int) -> Deadline:
        """Return the end of a step that so many steps follow."""
        return self.end.earlier(steps * A_STEP * self.scale)


def drain_end(patience: Deadline) -> Deadline:
    """Return until when messages in the user's hands are waited for. Without a deadline there is no wait."""
    return Deadline(0.0) if patience.at is None else patience.earlier(LEAVING)
