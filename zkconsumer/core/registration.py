"""What a member asks for, as it stands in its node under ``ids``. Pure; any thread.

Mirrors the JSON of the original's registration; the bytes are made and read by ``zookeeper.node_codecs``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STATIC = "static"
WHITE_LIST = "white_list"
BLACK_LIST = "black_list"


MAX_REGISTRATION_BYTES = 128 * 1024
"""The largest registration that is read. Each topic in it makes every member read that topic's node and watch it."""
BESIDE_TOPICS = 8 * 1024
"""Bytes of it that are left to what is not the subscription."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of a member's node under ``/consumers/<group>/ids``.

    ``pattern`` is ``static``, ``white_list`` or ``black_list``; any other text is read as static. ``subscription`` maps
    a topic, or the one expression, to a number of streams. ``timestamp`` is the text of epoch milliseconds, which
    nobody reads. ``extra`` holds every further key: the original ignores them, we advertise host, room and strategy
    there.
    """

    pattern: str
    subscription: Mapping[str, int]
    timestamp: str = ""
    version: int = 1
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_wildcard(self) -> bool:
        """Whether the subscription is an expression. An empty one is a static subscription to nothing, as in the
        original.
        """
        return self.pattern in (WHITE_LIST, BLACK_LIST) and bool(self.subscription)

    @property
    def wildcard(self) -> tuple[str, int]:
        """The expression and its number of streams: the first entry; the original ignores further ones too.

        Raises StopIteration on a subscription without entries: ask :attr:`is_wildcard` first.
        """
        return next(iter(self.subscription.items()))
