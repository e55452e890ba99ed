"""How long tests wait: one factor for the whole machine, and polling with a deadline instead of sleeping and hoping.

``ZKCONSUMER_TEST_TIME_FACTOR`` stretches every deadline; it is 1 on a person's machine and 4 where ``CI`` is set,
because shared build machines stall. A deadline only bounds how long a failure takes, so a large factor slows no passing
test.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from time import monotonic
from typing import TypeVar

T = TypeVar("T")

_POLL_SECONDS = 0.02


def time_factor() -> float:
    """The factor by which deadlines are stretched here.

    Raises ValueError where ``ZKCONSUMER_TEST_TIME_FACTOR`` is not a positive number.
    """
    text = os.environ.get("ZKCONSUMER_TEST_TIME_FACTOR", "").strip()
    if not text:
        return 4.0 if os.environ.get("CI") else 1.0
    factor = float(text)
    if not 0 < factor < float("inf"):
        raise ValueError(f"ZKCONSUMER_TEST_TIME_FACTOR must be a positive number, not {text!r}")
    return factor


def scaled(seconds: float) -> float:
    """``seconds`` as a deadline for this machine."""
    return seconds * time_factor()


def eventually(predicate: Callable[[], T], seconds: float, what: str | Callable[[], str]) -> T:
    """Poll ``predicate`` until it is true and return its (true) value.

    Arguments: ``seconds`` is the deadline before scaling; ``what`` completes the sentence "waited in vain for ...", and
    is called at the end if it is a function.
    An AssertionError of the predicate counts as "not yet", so a predicate may be a block of asserts that returns True.
    Raises AssertionError naming ``what`` and the last value or failure seen; other exceptions pass through at once.
    """
    limit = scaled(seconds)
    end = monotonic() + limit
    pause = threading.Event()
    cause: AssertionError | None
    while True:
        last_try = monotonic() >= end
        try:
            value = predicate()
        except AssertionError as failure:
            seen, cause = f"last failure: {failure}", failure
        else:
            if value:
                return value
            seen, cause = f"last value: {value!r}", None
        if last_try:
            awaited = what() if callable(what) else what
            raise AssertionError(f"waited {limit:g} s in vain for {awaited}; {seen}") from cause
        pause.wait(_POLL_SECONDS)
