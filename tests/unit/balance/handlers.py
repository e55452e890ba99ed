"""Handlers that worker processes import. A message's value says what becomes of it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from zkconsumer.balance.outcomes import PENDING, Later, Reject
from zkconsumer.errors import DecodeError
from zkconsumer.streams import MessageAndMetadata

Message = MessageAndMetadata[Any, Any]


class OddError(Exception):
    """Takes other arguments than it keeps, so that it cannot be made from them."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")
        self.second = second


def by_value(message: Message) -> object:
    """Do what the value says."""
    word, _, rest = bytes(message.value).decode().partition(" ")
    if word == "later":
        return Later(float(rest))
    if word == "reject":
        return Reject(rest)
    if word == "pending":
        return PENDING
    if word == "odd":
        raise OddError(1, 2)
    if word == "local":

        class LocalError(Exception):
            pass

        raise LocalError("text")
    if word == "exit":
        sys.exit(3)
    if word == "die":
        os._exit(7)
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "sleep":
        time.sleep(float(rest))
    if word == "append":  # a file, then a text
        name, _, text = rest.partition(" ")
        with Path(name).open("a") as file:
            file.write(text or f"{message.topic}-{message.partition} {message.offset} {message.attempt}\n")  # type: ignore[attr-defined]
    if word == "pid":
        Path(rest).write_text(str(os.getpid()))
        time.sleep(60)
    return None


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
