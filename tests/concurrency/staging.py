"""Events around one call of a member: another client's change, an error, a lost answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zkconsumer.errors import RegistryUnavailableError


def before(target: object, method: str, act: Callable[[], object]) -> None:
    """Call ``act`` right before the next call of a method."""
    _once(target, method, act, lambda: None)


def after(target: object, method: str, act: Callable[[], object]) -> None:
    """Call ``act`` right after the next call of a method. If ``act`` raises, the caller gets no answer."""
    _once(target, method, lambda: None, act)


def _once(target: object, method: str, first: Callable[[], object], last: Callable[[], object]) -> None:
    original = getattr(target, method)

    def call(*arguments: Any, **options: Any) -> Any:
        setattr(target, method, original)
        first()
        answer = original(*arguments, **options)
        last()
        return answer

    setattr(target, method, call)


def unavailable(*_: object, **__: object) -> Any:
    """Raise RegistryUnavailableError, as a request without an answer does."""
    raise RegistryUnavailableError("staged")


def fail(target: object, method: str, times: int) -> list[int]:
    """Let the next calls of a method raise RegistryUnavailableError. The list gets an entry for each."""
    original, failed = getattr(target, method), list[int]()

    def call(*arguments: Any, **options: Any) -> Any:
        if len(failed) < times:
            failed.append(1)
            unavailable()
        return original(*arguments, **options)

    setattr(target, method, call)
    return failed
