"""A cache with a limit on the total size of its entries."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from zkconsumer.core.topic_filter import SizedCache


def test_what_was_used_last_is_remembered_up_to_a_size() -> None:
    cache: SizedCache[str] = SizedCache(1000)
    made: list[str] = []

    def get(key: str, size: int = 100) -> str:
        def make() -> str:
            made.append(key)
            return key

        return cache.get(key, make, lambda _: size)

    for key in "abcabc":
        assert get(key) == key
    assert made == ["a", "b", "c"]
    get("large", 900)
    assert get("large", 900) == "large"
    assert made == ["a", "b", "c", "large"], "it took the room of all others"
    get("a")
    get("too large", 10_000)
    get("too large", 10_000)
    get("a")
    assert made == ["a", "b", "c", "large", "a", "too large", "too large"]


def test_what_cannot_be_made_is_not_remembered() -> None:
    cache: SizedCache[int] = SizedCache(1000)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            cache.get("a", Mock(side_effect=ValueError("no")), lambda _: 1)
    assert cache.get("a", lambda: 3, lambda _: 1) == 3
