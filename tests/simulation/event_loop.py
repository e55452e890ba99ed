"""Members on asyncio: an event loop that is a task of the world, and an application whose tasks are cancelled.

The loop is asyncio's own but for its waits. Each task of the world sees its own running loop.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from tests.simulation.every_call import LEFT, Move
from tests.simulation.members import CALL, LATE, SLOWEST, STREAMS, Member, StreamsApplication, tp_of
from tests.simulation.scheduler import Task, world
from zkconsumer import AsyncZookeeperConsumerConnector, ConsumerConfig
from zkconsumer.balance.loop_bridge import LoopAccess
from zkconsumer.connector.async_connector import AsyncConsumerRebalanceListener
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException, ZkConsumerError

_LIMITS = (0.0, 0.0005, 0.003, 0.02, 0.3, 1.0)  # seconds after which a call is cancelled


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop of the present task, which waits in virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._awake = False
        self._waiters: list[Task] = []
        self._kept: tuple[Any, Any, Any] = (None, sys.get_asyncgen_hooks(), None)
        task = world().current
        self._switch, task.switch = task.switch, self._switch_with_loop
        world().give_way()  # the next turn is the first one that begins with the loop

    def _switch_with_loop(self) -> None:
        """Switch to the loop's task: no other task must see its running loop."""
        before, (running, hooks, task) = sys.get_asyncgen_hooks(), self._kept
        asyncio._set_running_loop(running)
        if task is not None:
            asyncio.tasks._enter_task(self, task)
        sys.set_asyncgen_hooks(*hooks)
        self._switch()
        running = asyncio._get_running_loop()
        task = None if running is None else asyncio.current_task(self)
        if task is not None:  # from Python 3.14 on, the interpreter's thread has one present task, and not each loop
            asyncio.tasks._leave_task(self, task)
        self._kept = running, sys.get_asyncgen_hooks(), task
        asyncio._set_running_loop(None)
        sys.set_asyncgen_hooks(*before)

    def select(self, timeout: float | None) -> list[Any]:
        """Wait for the next callback."""
        if timeout == 0 or self._awake:
            world().pause()
        else:
            world().wait("the event loop", timeout, self._waiters)
        self._awake = False
        return []

    def _process_events(self, _: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._awake = True
        world().wake_all(self._waiters)


class AsyncApplication(StreamsApplication):
    """Reads each stream in a task of an event loop. Every call may be cancelled. ``inner`` is the connector."""

    loop: asyncio.AbstractEventLoop | None = None
    inner: Any = None
    _ended = False

    def __init__(self, member: Member) -> None:
        super().__init__(member)
        self._merged = self.world.random.random() < 0.2
        self._held: dict[int, list[Any]] = {}
        self._readers: list[asyncio.Task[None]] = []

    # ---- for the member

    def connect(self, config: ConsumerConfig) -> Any:
        """Return this, which has the calls of a connector that its member makes."""
        self.inner = AsyncZookeeperConsumerConnector(config)
        self.consumer_id, self.assignment = self.inner.consumer_id, self.inner.assignment
        return self

    def begin(self) -> None:
        self.spawn("loop", self._run)

    def shutdown(self, timeout: float) -> None:
        """Have the loop shut the connector down."""
        while self.loop is None and not self._ended:
            self.world.sleep(0.05)
        if not self._ended:
            try:
                done = LoopAccess(self.member.name, self.loop).submit(self._shut_down(timeout))
                done.result(timeout + LATE)
            except RuntimeError:  # the loop has ended
                pass

    # ---- on the loop

    def _run(self) -> None:
        loop = self.loop = VirtualLoop()
        try:
            loop.run_until_complete(self._read_all())
        finally:
            self._ended = True
            loop.close()

    async def _read_all(self) -> None:
        connector, topic = self.inner, self.scenario.topic
        connector.set_consumer_rebalance_listener(Listener(self))
        made = await self.call("create", lambda: connector.create_message_streams({topic: STREAMS}), 20.0)
        if not made:
            self.member.left = self.member.ended = True
            await self._shut_down(CALL)
            return
        streams = [connector.messages()] if self._merged else made[0][topic]
        self._readers = [asyncio.create_task(self._apply_each(stream)) for stream in streams]
        while not self.member.ended:
            await asyncio.sleep(0.5)
            for number, stream in enumerate(streams):
                if self._readers[number].done():  # it was cancelled, or the stream has ended
                    self._look_at(self._readers[number])
                    self._readers[number] = asyncio.create_task(self._apply_each(stream))
                elif self.world.random.random() < 0.01:
                    self._readers[number].cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        for reader in self._readers:
            self._look_at(reader)

    def _look_at(self, reader: asyncio.Task[None]) -> None:
        failure = None if reader.cancelled() else reader.exception()
        if failure is not None and not isinstance(failure, ZkConsumerError):
            self.observer.broke(f"a reader's task failed: {failure!r}")

    async def _shut_down(self, within: float) -> None:
        await self.call("shutdown", lambda: self.inner.shutdown(within), within)
        await self.inner.shutdown(within)

    async def call(self, what: str, make: Callable[[], Awaitable[Any]], patience: float) -> list[Any]:
        """Make a call, and cancel it now and then. Return its result, or nothing if it did not return."""
        here, chance, process = self.world, self.world.random, self.member.process
        frozen, stood = process.frozen_until, here.stood(process)
        began, limit = here.now, chance.choice(_LIMITS) * chance.random() if chance.random() < 0.2 else None
        found = []
        try:
            if limit is not None and chance.random() < 0.5:
                found = [await asyncio.wait_for(make(), limit)]
            else:
                async with asyncio.timeout(limit):
                    found = [await make()]
            here.note(f"{what}: done")
        except (ZkConsumerError, TimeoutError, KeyError, ValueError) as e:
            here.note(f"{what}: {type(e).__name__}{'' if limit is None else ', cancelled'}")
        took = here.now - began
        if took > patience + LATE + here.stood(process) - stood and frozen == process.frozen_until:
            self.observer.broke(f"{what} with a time limit of {patience:g} s took {took:.1f} s")
        return found

    # ---- reading

    async def _apply_each(self, stream: Any) -> None:
        """Read until the stream ends. The next ask finishes what was read, also by a task before."""
        commits: list[Coroutine[Any, Any, None]] = []
        try:
            await self._read_on(stream, commits)
        finally:
            for commit in commits:
                commit.close()  # Python warns of one that was never waited for

    async def _read_on(self, stream: Any, commits: list[Coroutine[Any, Any, None]]) -> None:
        here, member, held = self.world, self.member, self._held
        while not member.ended:
            asked, before = here.now, held.pop(id(stream), [])
            self.finish(before)
            try:
                read = await self._read_once(stream)
            except ConnectorClosedException:
                return
            except ZkConsumerError as e:
                if not isinstance(e, ConsumerTimeoutException):
                    here.note(f"reading: {type(e).__name__}")
                    await asyncio.sleep(1.0)
                read = []
            self.handed(read, asked)
            held[id(stream)] = read
            for commit in commits:  # it was made before the read, and counts nothing of it
                await self.call("commit from before", partial(_itself, commit), CALL)
            commits.clear()
            if read:
                slow = here.random.random() < 0.005
                await asyncio.sleep(here.random.random() * SLOWEST if slow else here.random.random() ** 4 * 0.3)
                await self._sometimes_ask(read, asked, commits)

    async def _read_once(self, stream: Any) -> list[Any]:
        chance = self.world.random
        way, timeout = chance.random(), chance.choice([0.0, 0.01, 0.3, 1.0])
        limit = chance.choice(_LIMITS) * chance.random() if chance.random() < 0.1 else None
        try:
            if way < 0.3:
                async with asyncio.timeout(limit):
                    async for message in stream:
                        return [message]
                raise ConnectorClosedException("the stream has ended")
            if way < 0.7 or self._merged:
                return [await asyncio.wait_for(stream.getone(timeout=timeout), limit)]
            async with asyncio.timeout(limit):
                lists = await stream.getmany(timeout_ms=int(timeout * 1000), max_records=chance.randrange(1, 30))
            return [message for messages in lists.values() for message in messages]
        except TimeoutError:
            return []

    # ---- requests

    async def _sometimes_ask(self, held: list[Any], asked: float, commits: list[Coroutine[Any, Any, None]]) -> None:
        chance, connector = self.world.random, self.inner
        what, patience = chance.random() * 12, chance.choice([CALL, CALL, 0.05, 0.0])
        tp = tp_of(held[-1])
        if what < 0.4:
            self.finish(held)
            if await self.call("commit", lambda: connector.commit(timeout=patience), patience):
                self._look_at_commit(tp, held[-1].offset, asked)
        elif what < 0.5:
            self.finish(held)
            commits.append(connector.commit(timeout=CALL))
        elif what < 0.7:
            offset = chance.choice([max(0, held[-1].offset - 3), held[-1].offset + 1])
            move, seek = Move(self, held, offset), partial(connector.seek, tp, offset, timeout=patience)
            if not await self.call(f"seek {tp} {offset}", seek, patience):
                await asyncio.sleep(LEFT)
                move.forbid_if_unmoved(connector)
        elif what < 0.8:
            await self.call("committed", lambda: connector.committed(tp, CALL), CALL)
            await self.call("end_offsets", lambda: connector.end_offsets([tp], CALL), CALL)
        elif what < 0.9 and tp in connector.assignment():
            connector.pause([tp])
            try:
                await asyncio.sleep(0.5)
            finally:
                if tp in connector.assignment():
                    connector.resume([tp])


async def _itself(commit: Awaitable[None]) -> None:
    await commit


class Listener(AsyncConsumerRebalanceListener):
    """A listener that is slow, raises, and commits."""

    def __init__(self, application: AsyncApplication) -> None:
        self._application = application

    async def before_releasing_partitions(self, partitions: Mapping[str, frozenset[int]]) -> None:
        chance = world().random.random()
        if chance < 0.1:
            await asyncio.sleep(world().random.random() * 4.0)
        elif chance < 0.2:
            raise ArithmeticError("the listener of an application")
        elif chance < 0.6:
            await self._application.call("commit", lambda: self._application.inner.commit(timeout=1.0), 1.0)
