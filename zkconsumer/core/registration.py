"""A member's registration: the content of its node under ``ids``. Pure; any thread.

Mirrors the JSON of the original's registration. ``zookeeper.node_codecs`` encodes and decodes the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STATIC = "static"
WHITE_LIST = "white_list"
BLACK_LIST = "black_list"

CONFLICT_KEY = "offset.conflict"
"""The extra key with which a member advertises what it does about an offset that another process wrote for it."""
ADOPTS = "adopt"
"""Its value in members that go on from such an offset."""
KEEPS_CHECKPOINT = "checkpoint"
"""Its value in streaming queries of Spark, which go on from their checkpoint instead."""

MAX_REGISTRATION_BYTES = 128 * 1024
"""The size of the largest registration that members read. Every member reads and watches each of its topics."""
RESERVED_BYTES = 8 * 1024
"""The part of these bytes that is reserved for all but the subscription."""

PROCESS_KEY = "pid"
"""The extra key with the process id, as text. Two members of one host and process may be a mistake."""
READER_KEY = "reader"
"""The extra key with what reads, for people and tools: Spark queries advertise :data:`SPARK_QUERY`."""
SPARK_QUERY = "spark"
SHARE_KEY = "share"
"""The extra key of members that share their partitions: their order and number of handlers, as in ``key:10``."""
PLAN_KEY = "plan"
"""The extra key with the format of plans that a member reads, as text; of members whose strategy needs a plan."""
PLAN_VERSION = 1
"""Our format of plans. Members advertise it, because a member that cannot read a plan would not follow it."""
INSTANCE_KEY = "instance"
"""The extra key with ``group.instance.id``: a plan reserves the partitions of such a member after it has left."""
STORE_KEY = "offsets"
"""The extra key with the database in which a member records its offsets. All members must use the same one."""
NUDGE = '{"version":1,"subscription":{},"pattern":"static","timestamp":"0"}'
"""A registration without topics: it owns nothing, and its coming and going makes every Scala member rebalance."""
_MOST_HANDLERS = 1_000_000


@dataclass(frozen=True, slots=True)
class AdvertisedShare:
    """The order of messages and the number of handlers that a member with ``share.partitions`` advertises."""

    order: str
    concurrency: int

    def __str__(self) -> str:
        return f"{self.order}:{self.concurrency}"


def advertised_share(registration: Registration) -> AdvertisedShare | None:
    """Return what a registration advertises for sharing, None if it does not share."""
    value = registration.extra.get(SHARE_KEY)
    if not isinstance(value, str):
        return None
    order, _, number = value.partition(":")
    if order not in ("key", "none") or not (number.isascii() and number.isdigit() and len(number) <= 7):
        return None
    concurrency = int(number)
    return AdvertisedShare(order, concurrency) if 1 <= concurrency <= _MOST_HANDLERS else None


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of a member's node under ``/consumers/<group>/ids``.

    ``pattern`` is ``static``, ``white_list`` or ``black_list``; any other text counts as static. ``subscription`` maps
    each topic, or the one expression, to a number of streams. ``timestamp`` is the time in milliseconds since 1970, as
    text; no member reads it. ``extra`` holds all further keys. The original ignores these keys. Our members advertise
    their host, room, strategy and ``offset.conflict`` there.
    """

    pattern: str
    subscription: Mapping[str, int]
    timestamp: str = ""
    version: int = 1
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_nudge(self) -> bool:
        """Whether the node only wakes the members of its group, as ``NUDGE`` does: no topics, and the time 0."""
        return not self.subscription and self.timestamp == "0"

    @property
    def is_wildcard(self) -> bool:
        """Whether the subscription is an expression. An empty one is static, as in the original."""
        return self.pattern in (WHITE_LIST, BLACK_LIST) and bool(self.subscription)

    @property
    def wildcard(self) -> tuple[str, int]:
        """The expression and its number of streams, from the first entry. The original, too, ignores further ones.

        Raises StopIteration for an empty subscription: look at :attr:`is_wildcard` first.
        """
        return next(iter(self.subscription.items()))
