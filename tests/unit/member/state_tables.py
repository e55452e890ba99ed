"""What tests of the state tables of both coordinators have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

S = TypeVar("S")


def reachable(rows: Mapping[Any, tuple[S, Any]], start: S, triggers: Iterable[Any]) -> set[S]:
    """Return the states that these triggers lead to, one after the other. A trigger without a row changes nothing."""
    ways, found, left = list(triggers), {start}, [start]
    while left:
        state = left.pop()
        for to in (rows[state, trigger][0] for trigger in ways if (state, trigger) in rows):
            if to not in found:
                found.add(to)
                left.append(to)
    return found
