"""Which texts can be the name of a node, and so of a group, a topic or a member. Pure; any thread.

The rule is that of ZooKeeper's Java client for one element of a path. It is stricter than the server's (which takes any
UTF-8), because a name that the other members of a group cannot even look up must not be made by us.
"""

from __future__ import annotations

import re

_REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff\U00010000-\U0010ffff]")


def name_problem(name: str, *, slash_allowed: bool = False) -> str | None:
    """What keeps ``name`` from being an element of a path, or None where nothing does.

    ``slash_allowed`` asks the weaker question whether ZooKeeper could look the text up at all: ``a/b`` is then two
    elements. Characters beyond the basic plane are refused, as Java's client sees them as surrogates.
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
