"""Legal names of ZooKeeper nodes, and so of groups, topics and members. Pure; any thread.

The rule is that of ZooKeeper's Java client for one element of a path. The server accepts any UTF-8 name. But a Scala
member, which uses the Java client, could not look up a node with such a name.
"""

from __future__ import annotations

import re

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
