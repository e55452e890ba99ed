"""How slow preparations tell what they are doing: a callable that takes short texts.

The default writes to stderr: one line that is rewritten where a person watches, else a line now and then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic

Progress = Callable[[str], None]
"""Called with a short text; one that ends with a newline is the last of its kind and worth keeping."""

_QUIET_S = 10.0


def on_stderr() -> Progress:
    """A reporter for one piece of work. Used by one thread."""
    last = -_QUIET_S
    rewrite = sys.stderr is not None and sys.stderr.isatty()

    def report(text: str) -> None:
        nonlocal last
        if sys.stderr is None:
            return
        done = text.endswith("\n")
        if rewrite:
            sys.stderr.write(f"\r\x1b[K{text}")
        elif done or monotonic() - last >= _QUIET_S:
            last = monotonic()
            sys.stderr.write(f"{text.rstrip()}\n")
        sys.stderr.flush()

    return report


def silent(text: str) -> None:
    """A reporter that says nothing."""
