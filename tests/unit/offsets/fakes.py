"""A store of offsets in memory that does what a test says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from zkconsumer.model import TopicPartition

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))


class MemoryStore:
    """Keeps offsets; ``trouble`` (if set) is called before each operation and may raise, ``refuse`` names what a
    commit does not write, each with its reason.
    """

    def __init__(self) -> None:
        self.offsets: dict[TopicPartition, int] = {}
        self.trouble: Callable[[], None] = lambda: None
        self.refuse: dict[TopicPartition, Exception] = {}
        self.commits: list[dict[TopicPartition, int]] = []
        self.fetches = 0
        self.closed = False

    def fetch(self, partitions: Collection[TopicPartition], timeout: float) -> Mapping[TopicPartition, int]:
        assert timeout > 0
        self.fetches += 1
        self.trouble()
        return {tp: self.offsets[tp] for tp in partitions if tp in self.offsets}

    def commit(
        self, offsets: Mapping[TopicPartition, int], timeout: float
    ) -> Mapping[TopicPartition, Exception] | None:
        assert timeout > 0
        self.commits.append(dict(offsets))
        self.trouble()
        self.offsets.update((tp, offset) for tp, offset in offsets.items() if tp not in self.refuse)
        return {tp: reason for tp, reason in self.refuse.items() if tp in offsets} or None

    def close(self) -> None:
        self.closed = True


def failing(*errors: BaseException | None) -> Callable[[], None]:
    """Return a function that raises these errors in turn (None: no error), then nothing."""
    left = list(errors)

    def trouble() -> None:
        error = left.pop(0) if left else None
        if error is not None:
            raise error

    return trouble
