"""How much to ask for, of which partitions, and how long to wait for it.

Pure; called by the fetchers. Brokers from 0.10.1 on cap an answer themselves and serve partitions in the order in which
they are named (KIP-74). Older ones answer with all that is asked for, so the request itself must ask for no more than
may come; then each partition gets a share, and where a share is too small for its messages, partitions take turns.

The original asks every partition for ``fetch.message.max.bytes`` whatever that adds up to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from zkconsumer.fetch.partition_fetch import Flow

SMALLEST_SHARE = 16 * 1024
"""Bytes below which a partition is not asked for less, so that a request is worth its while, whatever is left of
``queued.max.bytes``. Where ``fetch.max.bytes`` is less, that counts.
"""
SHORTEST_POLL = 0.002
GROWTH = 4
"""A partition that had no room for so many times as long as a poll may still be looked at that much later."""


class Sized(NamedTuple):
    """Which flows to ask for and how many bytes of each; ``turns`` is how many such requests serve all of them."""

    asked: list[tuple[Flow, int]]
    turns: int


def sized(flows: Sequence[Flow], limit: int, partition_bytes: int, *, capped: bool, most: int) -> Sized:
    """What to ask for, of ``flows`` in the order of service.

    Arguments: ``limit`` in bytes for the whole answer, ``most`` what it is at most (``fetch.max.bytes``);
    ``partition_bytes`` is ``fetch.message.max.bytes``; ``capped`` says that the broker itself keeps to the limit. At
    least one flow is asked for, whatever the limit.
    """
    if capped:
        return Sized([(flow, partition_bytes if flow.least <= partition_bytes else flow.least) for flow in flows], 1)
    share = min(partition_bytes, max(min(SMALLEST_SHARE, most), limit // max(1, len(flows))))
    asked: list[tuple[Flow, int]] = []
    left = limit
    for flow in flows:
        size = max(share, flow.least)
        if asked and size > left:
            break
        asked.append((flow, size))
        left -= size
    return Sized(asked, -(-len(flows) // max(1, len(asked))))


def patience(max_wait: float, turns: int, full_for: float) -> float:
    """How long the broker may wait for data, in seconds.

    Less than ``max_wait`` where others wait for their turn, and where a stream has had no room for ``full_for``
    seconds (0: all have), since it may have some any moment. The longer it has had none, the less that is hurried: its
    reader is slow then, and has enough.
    """
    wait = max_wait / turns
    return min(wait, max(SHORTEST_POLL, full_for / GROWTH)) if full_for else wait
