"""The wait for messages in the user's hands, whose partitions leave.

Called by the group's thread only. The wait ends when no message is held, at its limit, or at the end of a shutdown's
drain. A shutdown that comes meanwhile ends all streams at once, so that every reader finishes its message in the same
time.

Differs from the original on purpose: there nothing is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.member.events import StopRequested
from zkconsumer.member.owned_partitions import Delivery


class Drain:
    """Waits for messages in the user's hands.

    Arguments: ``owned`` returns all positions of this member; ``stopping`` returns the request to shut down, or None.
    """

    def __init__(
        self,
        delivery: Delivery,
        owned: Callable[[], Collection[PartitionPosition]],
        stopping: Callable[[], StopRequested | None],
    ) -> None:
        self._delivery = delivery
        self._owned = owned
        self._stopping = stopping
        self._ended = False

    def end_streams(self) -> None:
        """End all streams, and hand out nothing more of anything."""
        self._ended = True
        self._delivery.end()
        self._delivery.revoke(list(self._owned()), Deadline(0.0))

    def wait(
        self, positions: Sequence[PartitionPosition], limit: Deadline, every: float, meanwhile: Callable[[], object]
    ) -> None:
        """Wait for the messages of these revoked positions.

        Arguments: ``meanwhile`` is called before each slice of ``every`` seconds, and deals with events; ``limit``
        holds until a shutdown is requested, whose own drain holds from then on.
        """
        while True:
            meanwhile()
            self._delivery.revoke(positions, Deadline(limit.bounded(every)))
            stop = self._stopping()
            if stop is not None:
                limit = stop.drain
                if not self._ended:
                    self.end_streams()
            positions = [position for position in positions if position.held]
            if not positions or limit.expired:
                return
