"""Legal names of ZooKeeper nodes, and so of groups, topics and members; lists of names for the user. Pure; any thread.

The rule of legal names is that of ZooKeeper's Java client for one element of a path. The server accepts any UTF-8 name.
But a Scala member, which uses the Java client, could not look up a node with such a name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def name_problem(name: str, *, slash_allowed: bool = False) -> str | None:
    """Return the reason why ``name`` cannot be an element of a path, or None if it can.

    ``slash_allowed`` asks only whether ZooKeeper can look the name up: ``a/b`` is then two elements. Characters beyond
    the basic plane are refused, because Java's client sees surrogates there.
    """
    for element in name.split("/") if slash_allowed else (name,):
        if element in ("", ".", ".."):
            return f"{element!r} cannot be a name in ZooKeeper"
    bad = _REFUSED.search(name)
    if bad is not None:
        return f"the character {bad.group()!a} at position {bad.start()} cannot stand in a name in ZooKeeper"
    if not slash_allowed and "/" in name:
        return f"'/' at position {name.index('/')} cannot stand in a name"
    return None


def first_of(names: Iterable[Any], most: int = 8) -> str:
    """Return names in order, in words: the first ``most``, and how many more there are. Empty if there are none."""
    listed = [str(name) for name in sorted(names)]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
