"""Where a partition starts without a stored offset, and after its offset has left the log: ``auto.offset.reset``.

The broker tells the first or the last offset of its log. An offset is never guessed: without an answer the partition
waits. The offset is stored before the first message is handed out (:mod:`zkconsumer.offsets.start_lookup`).

Threads: the fetcher's.
"""

from __future__ import annotations

from collections.abc import Sequence

from zkconsumer.fetch.broker_failures import note_trouble
from zkconsumer.fetch.broker_fetch import FetchConnection, FetchSettings
from zkconsumer.kafka import ListedOffset
from zkconsumer.kafka import error_codes as codes
from zkconsumer.model import EARLIEST
from zkconsumer.ownership.fetch_cursor import FetchCursor
from zkconsumer.ownership.partition_position import PartitionPosition

UNANSWERED = ListedOffset(-1, -1, codes.UNKNOWN_SERVER_ERROR)


def reset_offsets(
    broker: FetchConnection, cursors: Sequence[FetchCursor], settings: FetchSettings
) -> tuple[dict[PartitionPosition, int], list[FetchCursor]]:
    """Ask the broker for the start of each partition, and return the starts, and the partitions without an answer.

    Raises BrokerError.
    """
    wanted = {cursor.tp: settings.reset_to for cursor in cursors}
    listed = broker.list_offsets(wanted, isolation_level=settings.isolation_level)
    failed: list[FetchCursor] = []
    resolved: dict[PartitionPosition, int] = {}
    for cursor in cursors:
        answer = listed.get(cursor.tp, UNANSWERED)
        if answer.error != codes.NONE or answer.offset < 0:
            said = f"broker {broker.endpoint.broker_id} returned no start offset: {codes.name(answer.error)}"
            note_trouble(cursor, f"{cursor.tp}: {said}")
            failed.append(cursor)
        else:
            cursor.resolving = True
            resolved[cursor.position] = answer.offset
    return resolved, failed


def offset_in_log(cursor: FetchCursor, start: int, end: int, reset_to: int) -> int:
    """Return where to go on in a log from ``start`` to ``end``, after the offset of the cursor has left it.

    Of a topic that was created anew nothing has been read, so it is read from the start of its log on.
    """
    deleted = (cursor.fetched or 0) < start
    return start if reset_to == EARLIEST or (cursor.position.from_start and deleted) else end
