"""Start positions on their way into the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zkconsumer.core.positions import PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryUnavailableError
from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.registry.fenced import KnownOffset
from zkconsumer.registry.lease import Lease


class Store:
    """Takes everything, once it is ``up``."""

    asks = False
    in_zookeeper = True
    releases = True

    def __init__(self) -> None:
        self.up = True
        self.stored: dict[TopicPartition, int] = {}

    def track(self, partition: TopicPartition, known: KnownOffset) -> None:
        pass

    def commit(self, offsets: Mapping[TopicPartition, int], *_: Any, **__: Any) -> Mapping[TopicPartition, Exception]:
        if not self.up:
            raise RegistryUnavailableError("not now")
        self.stored.update(offsets)
        return {}

    def close(self) -> None:
        pass


def test_several_starts_that_waited_are_all_told_at_once() -> None:
    """What happened: the second of them was lost to a dictionary that changed while it was gone through."""
    store = Store()
    committer = Committer(
        "c",
        store,  # type: ignore[arg-type]
        Lease(),
        interval=None,
        timeout=1.0,
        count_held=False,
        refused=lambda _: None,
        retry=0.0,
    )
    positions = [PartitionPosition(TopicPartition("t", p), ThreadId("g_c-0")) for p in range(3)]
    told: dict[PartitionPosition, bool] = {}
    store.up = False
    committer.track([(position, KnownOffset(None, None)) for position in positions])
    for position in positions:
        committer.store_starts({position: 7}, told.update)
    for _ in range(4):
        committer.step()
    assert told == {}
    store.up = True
    committer.step()
    assert told == dict.fromkeys(positions, True)
    assert store.stored == {position.tp: 7 for position in positions}
    assert all(position.committed == 7 for position in positions)
    committer.close(Deadline(1.0))
