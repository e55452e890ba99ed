"""Handlers that note when they begin and end, and wait for a file between. Worker processes import them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from time import sleep
from typing import Any

PAUSE_S = 0.01


def _file(message: Any, what: str) -> Path:
    return Path(os.environ["ZKCONSUMER_TEST_FOLDER"]) / f"{message.offset}.{what}"


def _held(message: Any) -> bool:
    return not _file(message, "begun").with_name("go").exists()


def wait(message: Any) -> None:
    """Wait in a thread or a process."""
    _file(message, "begun").touch()
    while _held(message):
        sleep(PAUSE_S)
    _file(message, "done").touch()


async def soon(message: Any) -> None:
    """Wait in a coroutine."""
    _file(message, "begun").touch()
    while _held(message):  # noqa: ASYNC110 (another process makes the file)
        await asyncio.sleep(PAUSE_S)
    _file(message, "done").touch()
