"""Handlers that worker processes import. A message's value says what becomes of it."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.timing import scaled
from zkconsumer import MessageAndMetadata
from zkconsumer.balance.balanced_message import BalancedMessage
from zkconsumer.balance.outcomes import DONE, PENDING, Failed, Later, Reject
from zkconsumer.errors import DecodeError

Message = MessageAndMetadata[Any, Any]


class OddError(Exception):
    """Takes other arguments than it keeps, so that it cannot be made from them."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.second = second


def by_value(message: Message) -> object:
    """Do what the value says."""
    value = message.value
    word, _, rest = (value if isinstance(value, str) else bytes(value).decode()).partition(" ")
    if word in RESULTS:
        return RESULTS[word](rest)
    if word == "pid":
        with Path(rest).open("a") as file:
            file.write(f"{message.offset} {os.getpid()}\n")
    if word == "append":
        with Path(rest).open("a") as file:
            file.write(f"{message.topic}-{message.partition} {message.offset} {message.attempt}\n")  # type: ignore[attr-defined]
    return None


def _raise(error: BaseException) -> None:
    raise error


def _raise_local(text: str) -> None:
    class LocalError(Exception):
        pass

    raise LocalError(text)


def _mark(name: str) -> None:
    """Write a file, and do not return."""
    Path(name).write_text("begun")
    time.sleep(600)


def _fork(rest: str) -> None:
    """Fork a child that ends its handler as told, and wait for its exit code while this handler still runs."""
    end, code = rest.split()
    child = os.fork()
    if not child:
        if end == "raises":
            raise ValueError("of the child")
        if end == "atexit":
            atexit.register(os._exit, 9)
        if end in ("exits", "atexit"):
            sys.exit(int(code))
        return
    deadline = time.monotonic() + scaled(10)
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise TimeoutError("the child has not ended")
        time.sleep(0.01)
    if os.waitstatus_to_exitcode(found[1]) != int(code):
        raise ValueError(f"the child ended with {found}")


def _leave(seconds: str) -> None:
    """Die, and leave a child that lives on."""
    if os.fork():
        os._exit(9)
    time.sleep(float(seconds))
    os._exit(0)


RESULTS: dict[str, Callable[[str], object]] = {
    "later": lambda rest: Later(float(rest)),
    "reject": Reject,
    "pending": lambda _: PENDING,
    "list": lambda _: [None, Reject("second"), ValueError("third")],
    "short": lambda _: [None, None],
    "odd": lambda _: _raise(OddError(1, 2)),
    "local": _raise_local,
    "exit": lambda _: sys.exit(3),
    "die": lambda _: os._exit(7),
    "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "leave": _leave,
    "fork": _fork,
    "mark": _mark,
    "sleep": lambda rest: time.sleep(float(rest)),
}


def told(message: BalancedMessage[Any, Any]) -> object:
    """Fail at the first attempt, and write what the message tells of each into the file that its value names."""
    word, _, rest = bytes(message.value).decode().partition(" ")
    if word == "reject":
        return Reject(rest)
    if word == "failed":
        return Later(0.0 if message.attempt == 1 else 3600.0, failure=rest)
    with Path(rest).open("a") as file:
        file.write(f"{message.attempt} {message.last_failure}\n")
    if message.attempt == 1:
        raise ValueError("of attempt 1\nand more")
    return None


async def told_coroutine(message: BalancedMessage[Any, Any]) -> object:
    """The same."""
    return told(message)


def all_by_value(messages: list[Message]) -> object:
    """The same for a batch: the last result counts."""
    result = None
    for message in messages:
        result = by_value(message)
    return result


def undecodable(data: bytes) -> str:
    """A decoder that fails."""
    raise ValueError("no")


def reads_key(message: Message) -> None:
    """Fail by a decoder."""
    try:
        _ = message.key
    except DecodeError as error:
        error.add_note("of the handler")
        raise


def returns_outcomes(messages: list[Message]) -> list[object]:
    """The first is done, the others have failed."""
    return [DONE, *(Failed(ValueError("given back")) for _ in messages[1:])]


class Unloadable:
    """A handler that only one process can unpickle."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __call__(self, message: Message) -> None: ...

    def __setstate__(self, state: dict[str, int]) -> None:
        if state["pid"] != os.getpid():
            raise ImportError("not in this process")
        self.__dict__.update(state)
