"""Members on their own threads, each with a committer and a reader, under random faults.

No thread fails, all partitions are owned in the end, and every thread ends. The steps that other tests check one by one
come here in unforeseen orders.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from random import Random
from threading import Thread
from typing import Any

import pytest

from tests.concurrency import group as members_module
from tests.concurrency.group import GROUP, TOPIC, RecordingDelivery, SteppedMember, make_topic
from tests.timing import eventually, scaled
from zkconsumer.core.partition_position import NOTHING_HELD, PartitionPosition
from zkconsumer.deadline import Deadline
from zkconsumer.errors import RegistryUnavailableError
from zkconsumer.member.events import StartsResolved, StopRequested
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.committer import Committer
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths

SECONDS, MEMBERS, PARTITIONS = 3.0, 4, 8
REQUESTS = ("transact", "read", "children", "create", "delete", "ensure", "stat")
LOST = 0.01
"""The part of requests that fail, and of answers that are lost."""


class DrainingDelivery(RecordingDelivery):
    """Waits for the message in the reader's hands, as streams do."""

    def wait(self, positions: Sequence[PartitionPosition], limit: Deadline) -> None:
        while any(position.held for position in positions) and not limit.expired:
            threading.Event().wait(0.001)


class Running:
    """A member whose threads run."""

    def __init__(self, server: FakeZooKeeper, name: str, chance: Random) -> None:
        self._chance = chance
        self.member = member = SteppedMember(
            server,
            name,
            streams=chance.choice((1, 2, 3)),
            conflict=chance.choice(("adopt", "overwrite", "raise")),
            patience=3.0,
            quiet=0.01,
            backoff=0.02,
            backoff_max=0.2,
            drain=0.2,
            interval=0.5,
        )
        self.lossy = True
        for kind in REQUESTS:
            setattr(member.session, kind, self._losing(getattr(member.session, kind)))
        member.committer.schedule.interval = 0.05
        member.committer.open()
        member.rebalancer.start()
        self._ended = threading.Event()
        self._reader = Thread(target=self._read, name=f"{name}-reader", daemon=True)
        self._reader.start()

    def _losing(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def losing(*arguments: Any, **options: Any) -> Any:
            fate = self._chance.random() if self.lossy else 0.5
            if fate < LOST:
                raise RegistryUnavailableError("the request was lost")
            answer = request(*arguments, **options)
            if fate > 1.0 - LOST:
                raise RegistryUnavailableError("the answer was lost")
            return answer

        return losing

    def _read(self) -> None:
        member = self.member
        while not self._ended.wait(0.002):
            for position in list(member.delivery.flowing.values()):
                if position.fetched is None:
                    member.events.put(StartsResolved({position: 100}))
                elif position.consumed is not None:
                    offset = position.consumed
                    position.held_until = offset + 1  # announced before the gate is looked at
                    if position.halted or not member.session.lease.valid:
                        position.held_until = NOTHING_HELD
                    else:
                        position.consumed = offset + 1

    def stop(self) -> None:
        member = self.member
        member.events.put(StopRequested())
        assert member.rebalancer.join(Deadline(scaled(20))), member.rebalancer.state
        member.committer.close(Deadline(scaled(5)))
        assert f"{member.consumer}-committer" not in {thread.name for thread in threading.enumerate()}
        member.session.close(Deadline(1))
        self._ended.set()
        self._reader.join(scaled(5))
        assert not self._reader.is_alive()


class Mischief:
    """Random faults from outside the group."""

    def __init__(self, server: FakeZooKeeper, chance: Random) -> None:
        self._server = server
        self._chance = chance
        self.partitions = PARTITIONS
        self._deeds = (
            self.suspend,
            self.expire,
            self.freeze,
            self.remove,
            self.overwrite,
            self.write_offset,
            self.seek,
            self.subscribe,
            self.grow,
        )

    def one(self, running: Running) -> None:
        self._chance.choice(self._deeds)(running.member)

    def suspend(self, member: SteppedMember) -> None:
        if member.session.connected:
            member.session.suspend()
            threading.Event().wait(self._chance.choice((0.0, 0.01, 0.1)))
            if self._chance.random() < 0.3:
                member.session.expire_unnoticed()
            member.session.resume()

    def expire(self, member: SteppedMember) -> None:
        if member.session.connected:
            member.session.expire()

    def freeze(self, member: SteppedMember) -> None:
        if member.session.connected and member.session.session_id:
            member.session.freeze()
            member.session.suspend()
            member.session.resume()

    def _somewhere(self, member: SteppedMember) -> str:
        tp = self._partition()
        single = [paths.owner(GROUP, tp), paths.member(GROUP, member.consumer), paths.offset(GROUP, tp)]
        whole = [f"/consumers/{GROUP}", paths.offset_topic(GROUP, TOPIC), paths.owner_topic(GROUP, TOPIC)]
        return self._chance.choice(3 * single + whole)

    def _partition(self) -> TopicPartition:
        return TopicPartition(TOPIC, self._chance.randrange(self.partitions))

    def remove(self, member: SteppedMember) -> None:
        self._server.remove(self._somewhere(member))

    def overwrite(self, member: SteppedMember) -> None:
        for path in (paths.owner(GROUP, self._partition()), paths.member(GROUP, member.consumer)):
            with self._server._lock:  # one that is gone would be made, by nobody's session
                if self._server.node(path) is not None:
                    self._server.put(path, b"garbage")

    def write_offset(self, member: SteppedMember) -> None:
        self._server.put(paths.offset(GROUP, self._partition()), b"%d" % self._chance.randrange(100))

    def seek(self, member: SteppedMember) -> None:
        member.seek({self._partition(): self._chance.randrange(200)})

    def subscribe(self, member: SteppedMember) -> None:
        member.subscribe({TOPIC: self._chance.choice((1, 2))})

    def grow(self, member: SteppedMember) -> None:
        self.partitions = min(self.partitions + 1, 2 * PARTITIONS)
        make_topic(self._server, self.partitions)


@pytest.mark.parametrize("seed", [1, 2])
def test_members_on_threads_share_everything_in_the_end(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(members_module, "InlineCommitter", Committer)
    monkeypatch.setattr(members_module, "RecordingDelivery", DrainingDelivery)
    chance, server = Random(seed), FakeZooKeeper(session_timeout=1.0)
    make_topic(server, PARTITIONS)
    mischief = Mischief(server, chance)
    running: list[Running] = []
    gone: list[Running] = []
    end, made = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        if len(running) < MEMBERS:
            made += 1
            running.append(Running(server, f"m{made}", chance))
        one = chance.choice(running)
        if chance.random() < 0.05:
            one.stop()
            running.remove(one)
            gone.append(one)
        else:
            mischief.one(one)
        threading.Event().wait(chance.choice((0.0, 0.005, 0.03)))
    for one in (*running, *gone):
        one.lossy = False
        one.member.session.expire_former()
    below = paths.owner_topic(GROUP, TOPIC)

    def all_owned() -> bool:
        return (
            len(server.tree(below))
            == mischief.partitions
            == sum(len(one.member.rebalancer.positions()) for one in running)
        )

    eventually(all_owned, 30, "every partition owned")
    for one in running:
        one.stop()
    assert server.tree(below) == {}
    stumbled = [record.getMessage() for record in caplog.records if record.exc_info or "unexpected" in record.message]
    assert stumbled == []
