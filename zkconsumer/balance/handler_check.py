"""Checks of a run's handler and numbers, before the group is joined. Pure; any thread."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.retry_policy import Retry

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from zkconsumer.balance.balanced_message import BalancedMessage
    from zkconsumer.balance.dead_letters import DeadLetterTarget
    from zkconsumer.core.topic_filter import TopicFilter
    from zkconsumer.streams.message import Decoder, MessageAndMetadata

    PlainHandler = Callable[[MessageAndMetadata[Any, Any]], object]
    BalancedHandler = Callable[[BalancedMessage[Any, Any]], object]
    CoroutineHandler = Callable[[BalancedMessage[Any, Any]], Coroutine[Any, Any, object]]
    BatchHandler = Callable[[list[BalancedMessage[Any, Any]]], object]
    RunTopics = str | Iterable[str] | Mapping[str, int] | TopicFilter | None

Handler = Callable[..., Any]


class RunOptions(TypedDict, total=False):
    """Options of each run, for type checkers."""

    workers: int
    key_decoder: Decoder[Any] | None
    value_decoder: Decoder[Any] | None
    stop_on: Iterable[int]
    shutdown_timeout: float
    tracer: Tracer | bool | None


class BalancedRunOptions(RunOptions, total=False):
    """Options of a run with ``concurrency``, for type checkers."""

    order: Literal["key", "partition", "none"]
    retry: Retry | None
    dead_letter: DeadLetterTarget
    failure_limit: FailureLimit | None
    until: Any


def handler_name(handler: object) -> str:
    """Return the name by which a user knows a handler."""
    name = getattr(handler, "__qualname__", None)
    return f"{getattr(handler, '__module__', '?')}.{name}" if name else repr(handler)


def is_coroutine_function(handler: object) -> bool:
    """Return whether a call of the handler gives a coroutine; also for a partial, and an object with ``__call__``."""
    while isinstance(handler, partial):  # by its class: a Mock has every attribute, again and again
        handler = handler.func
    call = getattr(handler, "__call__", None)  # noqa: B004 - its kind is wanted, not whether it is there
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(call)


def takes(function: Callable[..., object], count: int) -> bool:
    """Return whether a function can be called with so many positional arguments, as far as it tells.

    A function written in C may have no readable signature, and passes.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def _check_one_argument(handler: Handler) -> None:
    """Check that the handler takes a message. Otherwise every message would fail, and become a dead letter."""
    if not takes(handler, 1):
        raise TypeError(
            f"the handler is called with one argument, the message (or with batch= a list of messages), and"
            f" {handler_name(handler)}{inspect.signature(handler)} cannot be"
        )


def check_plain_handler(handler: object) -> None:
    """Check the handler of threads and processes."""
    if not callable(handler):
        raise TypeError(f"the handler must be callable with a message, not {handler!r}")
    if is_coroutine_function(handler):
        raise TypeError(
            f'the handler {handler_name(handler)} is a coroutine function: give executor="asyncio", or a plain function'
        )
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError(f"the handler {handler!r} does nothing when it is only called: a plain function is wanted")
    _check_one_argument(handler)


def check_coroutine_handler(handler: object) -> None:
    """Check the handler of ``executor="asyncio"``."""
    if not callable(handler) or not is_coroutine_function(handler):
        raise TypeError(
            f'executor="asyncio" wants a coroutine function (async def), not {handler_name(handler)}:'
            ' a plain function runs with executor="threads" or "processes"'
        )
    _check_one_argument(handler)


def check_handler(handler: object, concurrency: int | None, executor: object, *, traced: bool) -> None:
    """Check the handler of a run. Arguments: as for ``run``; ``traced`` says whether it gets a tracer.

    Raises: TypeError; ValueError for a tracer that cannot be used.
    """
    if concurrency is None:
        if not callable(handler):
            raise TypeError(f"the handler must be callable with a message, not {handler!r}")
        if inspect.iscoroutinefunction(handler) or inspect.isgeneratorfunction(handler):
            raise TypeError(
                f"the handler {handler!r} does nothing when it is only called: a plain function is wanted; a coroutine"
                ' function runs with concurrency= and executor="asyncio"'
            )
        _check_one_argument(handler)
    elif executor == "asyncio":
        check_coroutine_handler(handler)
    else:
        check_plain_handler(handler)
        if traced and executor == "processes":
            raise ValueError("tracer: a worker process has no tracer; make the spans in the handler")


def check_workers(workers: int, concurrency: int | None) -> None:
    """Check the numbers of a run's workers. Raises: ValueError."""
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(f"workers must be a whole number of at least 1, not {workers!r}")
    if concurrency is None:
        return
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f"concurrency must be a whole number of at least 1, not {concurrency!r}")
    if workers != 1:
        raise ValueError("give workers or concurrency, not both")


def check_options(
    concurrency: int | None,
    order: object,
    executor: object,
    batch: object,
    retry: object,
    failure_limit: object,
    dead_letter: object,
) -> None:
    """Check options of ``run`` that only ``concurrency`` uses. Raises: TypeError, ValueError; they name the option."""
    if concurrency is None:
        given = {"order": order != "key", "executor": executor != "threads", "batch": batch != 1}
        given |= {"retry": retry is not None, "failure_limit": failure_limit != FailureLimit()}
        given["dead_letter"] = dead_letter is not None
        for name in (name for name, differs in given.items() if differs):
            raise ValueError(f"{name} needs concurrency: without it, nothing looks at it")
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise ValueError(f"batch must be a whole number of at least 1, not {batch!r:.80}")
    if retry is not None and not isinstance(retry, Retry):
        raise TypeError(f"retry takes a Retry(...) or None, not {retry!r:.80}")
    if failure_limit is not None and not isinstance(failure_limit, FailureLimit):
        raise TypeError(f"failure_limit takes a FailureLimit(...) or None, not {failure_limit!r:.80}")
    if not isinstance(executor, str) and not callable(getattr(executor, "wake", None)):
        raise TypeError(f"executor must be one of 'threads', 'processes', 'asyncio', not {executor!r:.80}")


def pickled_for_workers(value: Any, what: str) -> bytes:
    """Return a handler or decoder as worker processes get it. ``what`` names it for errors.

    Raises: TypeError if a worker process cannot import it.
    """
    hint = "worker processes import it, so define it at the top level of a module, not in a function or a lambda"
    try:
        data = pickle.dumps(value)
        pickle.loads(data)  # noqa: S301 - made in the line before
    except Exception as error:
        raise TypeError(f"{what} {handler_name(value)} cannot be pickled ({error}): {hint}") from error
    main = sys.modules.get("__main__")
    in_file = getattr(main, "__spec__", None) is not None or getattr(main, "__file__", None) is not None
    if b"__main__" in data and not in_file:
        raise TypeError(f"{what} {handler_name(value)} is defined where no file is (python -c, a console): {hint}")
    return data


def check_not_in_worker() -> None:
    """Check that this process is none that multiprocessing is just starting. Raises: RuntimeError.

    Such a process runs the main module again. Without a guard in it, each worker would join the group anew.
    """
    from multiprocessing import current_process

    if getattr(current_process(), "_inheriting", False):
        raise RuntimeError(
            "a worker process is just being started, and runs the main module's run() again: put the call under"
            " if __name__ == '__main__':"
        )
