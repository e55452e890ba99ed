"""A process that joins a group on an event loop and reports the messages that it consumes.

It has the arguments and the output of ``group_member.py``. A task reads each stream. ``member.way`` is how: ``loop``,
``getone`` or ``getmany``. SIGTERM is a clean end, begun on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from tests.cluster.ours.group_member import of_message
from zkconsumer import AsyncStream, AsyncZookeeperConsumerConnector, MessageAndMetadata
from zkconsumer.errors import ConnectorClosedException

Message = MessageAndMetadata[Any, Any]


class AsyncMember:
    """One member. Arguments: ``own`` are those of the process; ``properties`` those of the connector."""

    def __init__(self, own: dict[str, str], properties: dict[str, str]) -> None:
        self.own = own
        self.connector = AsyncZookeeperConsumerConnector(properties)
        self.messages = 0

    async def run(self) -> None:
        """Read until a signal, and leave the group."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.connector.begin_shutdown)
        async with self.connector:
            with contextlib.suppress(ConnectorClosedException):  # the signal came while it joined
                made = await self.connector.create_message_streams({self.own["topic"]: int(self.own["streams"])})
                say("ready")
                await asyncio.gather(*(self.read(stream) for stream in made[self.own["topic"]]))
        say(f"end {self.messages} 0 0")

    async def read(self, stream: AsyncStream[Any, Any]) -> None:
        """Report all messages of a stream, as the last step of handling each."""
        ways = {"loop": self.by_loop, "getone": self.by_getone, "getmany": self.by_getmany}
        pause = int(self.own.get("pause.ms", "0")) / 1000
        async for messages in ways[self.own["way"]](stream):
            await asyncio.sleep(pause)
            self.messages += len(messages)
            say("\n".join(of_message(message)[0] for message in messages))

    @staticmethod
    async def by_loop(stream: AsyncStream[Any, Any]) -> AsyncIterator[list[Message]]:
        async for message in stream:
            yield [message]

    @staticmethod
    async def by_getone(stream: AsyncStream[Any, Any]) -> AsyncIterator[list[Message]]:
        with contextlib.suppress(ConnectorClosedException):
            while True:
                with contextlib.suppress(TimeoutError):  # cancels a read, again and again
                    yield [await asyncio.wait_for(stream.getone(), 0.02)]

    @staticmethod
    async def by_getmany(stream: AsyncStream[Any, Any]) -> AsyncIterator[list[Message]]:
        with contextlib.suppress(ConnectorClosedException):
            while True:
                for messages in (await stream.getmany(timeout_ms=1000, max_records=20)).values():
                    yield messages


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> None:
    """Run a member."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(threadName)s %(levelname)s %(name)s %(message)s")
    pairs = dict(argument.split("=", 1) for argument in arguments)
    own = {name.removeprefix("member."): value for name, value in pairs.items() if name.startswith("member.")}
    own["topic"], own["streams"] = own.pop("topics").rsplit(":", 1)
    asyncio.run(
        AsyncMember(own, {name: value for name, value in pairs.items() if not name.startswith("member.")}).run()
    )
