"""The owner nodes of a group, seen from outside, and the end of a change.

One thread calls. A look is cheap: one ``exists`` shows whether any partition changed. The times are ZooKeeper's own, of
the nodes' creation. So looking neither slows the group down nor makes the times less exact.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from time import monotonic
from typing import NamedTuple

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

POLL_S = 0.02
QUIET_S = 0.5


class Owner(NamedTuple):
    """An owner node: the named thread, and the creation in ZooKeeper's order and by ZooKeeper's clock (seconds)."""

    thread: str
    czxid: int
    at: float


def range_owners(threads: Collection[str], partitions: int) -> dict[int, str]:
    """Return the owners by the original's ``range``: contiguous blocks in the order of the thread ids."""
    ordered = sorted(threads)
    size, more = divmod(partitions, len(ordered))
    found, start = {}, 0
    for position, thread in enumerate(ordered):
        end = start + size + (position < more)
        found.update(dict.fromkeys(range(start, end), thread))
        start = end
    return found


class OwnerNodes:
    """The owner nodes of one topic of one group."""

    def __init__(self, client: KazooClient, group: str, topic: str, partitions: int) -> None:
        self._client = client
        self._group = group
        self._path = f"/consumers/{group}/owners/{topic}"
        self._partitions = partitions

    def read(self) -> dict[int, Owner]:
        """Return all owner nodes, in one pipelined look."""
        pending = {n: self._client.get_async(f"{self._path}/{n}") for n in range(self._partitions)}
        found = {}
        for number, answer in pending.items():
            try:
                data, stat = answer.get(timeout=10)
            except NoNodeError:
                continue
            found[number] = Owner(data.decode(), stat.czxid, stat.ctime / 1000)
        return found

    def registered_at(self, consumer: str) -> float:
        """When a member's registration was made, by ZooKeeper's clock (seconds)."""
        return float(self._client.get(f"/consumers/{self._group}/ids/{consumer}")[1].ctime) / 1000

    def settled(self, wanted: Mapping[int, str], seconds: float) -> dict[int, Owner]:
        """Wait until the right threads own everything and nothing changed for half a second after that.

        Raises: AssertionError after ``seconds``.
        """
        end = monotonic() + seconds
        pause = threading.Event()
        seen: tuple[int, int] | None = None
        right: dict[int, Owner] | None = None
        right_since = 0.0
        while monotonic() < end:
            stat = self._client.exists(self._path)
            now = None if stat is None else (stat.cversion, stat.numChildren)
            if now != seen:
                seen, right = now, None
                if stat is not None and stat.numChildren == len(wanted):
                    found = self.read()
                    if {number: owner.thread for number, owner in found.items()} == wanted:
                        right, right_since = found, monotonic()
            elif right is not None and monotonic() - right_since >= QUIET_S:
                return right
            pause.wait(POLL_S)
        owned = {number: owner.thread for number, owner in self.read().items()}
        wrong = sum(owned.get(number) != thread for number, thread in wanted.items())
        raise AssertionError(f"after {seconds:g} s {wrong} of {len(wanted)} partitions are not with their threads")
