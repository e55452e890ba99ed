"""The handler of balanced members under test. It obeys the value of each message and records its own actions.

A value is words: any number of ``name=value`` or bare names after the first word, which is free.

* ``hold=NAME``: wait until the file ``NAME.go`` exists
* ``fail=N``: fail N times in all processes together
* ``kill``: kill the own process

The module is importable by process workers, which find the directory and the member's name in the environment.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import Any

from tests.balance_recorder import Place, Recorder
from zkconsumer.balance.outcomes import Later

DIRECTORY = "ZKCONSUMER_TEST_DIRECTORY"
MEMBER = "ZKCONSUMER_TEST_MEMBER"
OVER = "over"
"""The name that lets every handler go on, at the end of a test."""
_PAUSE_S = 0.01


class Failure(Exception):
    """The error of a message that is told to fail."""


class Handler:
    """The handler of one process. Any thread."""

    def __init__(self, session: Callable[[], int] | None = None) -> None:
        self.pid = os.getpid()
        self.directory = Path(os.environ[DIRECTORY])
        self.member = os.environ[MEMBER]
        self._recorder = Recorder(self.directory, self.member, session or self._told_session)

    def _told_session(self) -> int:
        """Return the session that the member's main process has written down for its workers."""
        try:
            return int((self.directory / f"{self.member}.session").read_text().split()[0])
        except FileNotFoundError:
            return 0

    def handle(self, message: Any) -> object:
        """Do what the message tells."""
        number, words = self._begin(message)
        while self._held(words):
            sleep(_PAUSE_S)
        return self._finish(number, self._place(message), words)

    def handle_list(self, messages: list[Any]) -> list[object]:
        """Handle several messages in their order. A message behind a failed message of the same key waits."""
        results: list[object] = []
        failed: set[object] = set()
        for message in messages:
            if message.key is not None and message.key in failed:
                results.append(Later(0))
                continue
            try:
                result = self.handle(message)
            except Failure as failure:
                result = failure
            if result is not None:
                failed.add(message.key)
            results.append(result)
        return results

    async def handle_soon(self, message: Any) -> object:
        """Do what the message tells, as a coroutine."""
        number, words = self._begin(message)
        try:
            while self._held(words):  # noqa: ASYNC110 (another process makes the file)
                await asyncio.sleep(_PAUSE_S)
        except asyncio.CancelledError:
            self._recorder.end(number, "cancelled")
            raise
        return self._finish(number, self._place(message), words)

    @staticmethod
    def _place(message: Any) -> Place:
        return Place(message.topic, message.partition, message.offset)

    def _begin(self, message: Any) -> tuple[int, dict[str, str]]:
        place = self._place(message)
        words = dict(word.partition("=")[::2] for word in (message.value or b"").decode().split()[1:])
        return self._recorder.begin(place, message.key), words

    def _held(self, words: dict[str, str]) -> bool:
        return "hold" in words and not any((self.directory / f"{name}.go").exists() for name in (words["hold"], OVER))

    def _finish(self, number: int, place: Place, words: dict[str, str]) -> object:
        if "kill" in words:
            os.kill(os.getpid(), signal.SIGKILL)
        if self._still(place, int(words.get("fail", 0))):
            self._recorder.end(number, "failed")
            raise Failure(f"told to fail at {place.offset}")
        self._recorder.end(number)
        return None

    def _still(self, place: Place, times: int) -> bool:
        """Return whether this has happened less often to the message, and count it. The count survives a death."""
        if not times:
            return False
        counted = self.directory / f"{place.topic}-{place.partition}-{place.offset}.count"
        with counted.open("ab", buffering=0) as file:
            if file.tell() >= times:
                return False
            file.write(b".")
        return True


_handler: Handler | None = None


def prepare(session: Callable[[], int] | None = None) -> Handler:
    """Return the handler of this process, which is made once. ``session``: as for a recorder."""
    global _handler
    if _handler is None or _handler.pid != os.getpid():
        _handler = Handler(session)
    return _handler


def handle(message: Any) -> object:
    """Handle a message, or a list of several, in any process."""
    return prepare().handle_list(message) if isinstance(message, list) else prepare().handle(message)


async def handle_soon(message: Any) -> object:
    """Handle a message as a coroutine."""
    return await prepare().handle_soon(message)
