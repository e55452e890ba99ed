"""The three ways in which records become columns, each of which a test can choose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from zkconsumer.kafka import arrow_columns, numpy_columns

WAYS = ("scanned", "by vectors", "one by one")


def choose(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let new builders of columns go this way."""
    assert way in WAYS
    monkeypatch.setattr(arrow_columns, "AVAILABLE", way == "scanned")
    monkeypatch.setattr(numpy_columns, "AVAILABLE", way == "by vectors")


@contextmanager
def going(way: str) -> Iterator[None]:
    """Choose a way for the inside, for tests with many examples."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        choose(way, monkeypatch)
        yield
