"""The messages of pointers that were handed to the dispatcher and are not settled. Any thread."""

from __future__ import annotations

from collections.abc import Container

from zkconsumer.balance.work import Work
from zkconsumer.ownership.message_ledger import MessageLedger
from zkconsumer.runtime.interruptible_wait import InterruptibleLock, WakeFlag


class PointerWorks:
    """The messages of pointers in hand. ``flag`` is set when one was settled: the reader of pointers waits for it."""

    def __init__(self) -> None:
        self.flag = WakeFlag()
        self._lock = InterruptibleLock()
        self._sizes: dict[MessageLedger, dict[int, int]] = {}  # the bytes of each, by its offset

    def add(self, work: Work, size: int) -> None:
        """Note that the dispatcher gets this message of so many bytes."""
        with self._lock:
            self._sizes.setdefault(work.ledger, {})[work.offset] = size

    def settled(self, work: Work) -> None:
        """Note that the dispatcher has this message no more, whatever its outcome."""
        self.forget(work)
        self.flag.set()

    def forget(self, work: Work) -> None:
        """Note that the dispatcher has not taken this message."""
        with self._lock:
            sizes = self._sizes.get(work.ledger)
            if sizes is not None:
                sizes.pop(work.offset, None)
                if not sizes:
                    del self._sizes[work.ledger]

    def forget_ended(self) -> None:
        """Forget the messages of stays that have ended."""
        with self._lock:
            self._sizes = {ledger: sizes for ledger, sizes in self._sizes.items() if not ledger.position.revoked}

    def offsets(self, ledger: MessageLedger) -> frozenset[int]:
        """Return the offsets of one stay."""
        with self._lock:
            return frozenset(self._sizes.get(ledger, ()))

    def sizes(self, standing: Container[MessageLedger]) -> list[int]:
        """Return the bytes of each message, but for those of the stays that are ``standing`` still."""
        with self._lock:
            moving = [sizes for ledger, sizes in self._sizes.items() if ledger not in standing]
            return [size for sizes in moving for size in sizes.values()]
