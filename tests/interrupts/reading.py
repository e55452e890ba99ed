"""The operations of streams that the sweep interrupts, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tests.interrupts.sweep import Operation
from tests.interrupts.world import (
    ROWS,
    TABLE,
    InterruptedStreams,
    Reading,
    by_batches,
    by_batches_next,
    by_for,
    by_get,
    by_messages,
    by_messages_get,
    by_messages_next,
    by_next,
    by_take,
    by_to_arrow,
    by_turns,
)
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.streams.message import message_class
from zkconsumer.streams.rate_limit import RateLimitedLease
from zkconsumer.zookeeper.lease import Lease


def filled(**settings: Any) -> Callable[[], InterruptedStreams]:
    """A world with the chunks that most operations read."""

    def make() -> InterruptedStreams:
        world = InterruptedStreams(**settings)
        world.fill()
        return world

    return make


def _paced(lease: Lease) -> RateLimitedLease:
    return RateLimitedLease(lease, 1e9)


def _suspended() -> InterruptedStreams:
    world = filled()()
    world.took(world.stream.get(timeout=0))
    world.lease.suspend()
    return world


def _asks_in_vain(ask: Reading) -> Reading:
    def act(world: InterruptedStreams) -> None:
        if world.lease.valid:
            by_for(world)
        else:
            with suppress(ConsumerTimeoutException):
                ask(world)

    return act


def _back(world: InterruptedStreams) -> None:
    world.lease.resume(world.lease.epoch)


def _get(world: InterruptedStreams) -> None:
    world.took(world.stream.get(timeout=0.001))


def _next_batch(world: InterruptedStreams) -> None:
    world.took_rows(next(world.stream.batches(max_rows=ROWS, timeout=0.001)))


def _pauses(ask: Reading, read: Reading) -> Reading:
    def act(world: InterruptedStreams) -> None:
        queue, position = world.stream.queue, world.partitions[0].position
        ask(world)
        queue.pause(position)
        read(world)
        queue.resume(position)
        read(world)

    return act


def _resume(world: InterruptedStreams) -> None:
    world.stream.queue.resume(world.partitions[0].position)


def _waiting() -> InterruptedStreams:
    world = InterruptedStreams(timeout=0.001)
    world.fetch(0, 2)
    world.fetch(0, 1, late=True)
    return world


def _waits(world: InterruptedStreams) -> None:
    with suppress(ConsumerTimeoutException):
        while True:
            _get(world)


OPERATIONS = (
    Operation("for message in stream", filled(), by_for),
    Operation("stream.get", filled(), by_get),
    Operation("next(stream)", filled(), by_next, reaches=False),
    Operation("for message in messages()", filled(merged=True), by_messages),
    Operation("messages().get", filled(merged=True), by_messages_get),
    Operation("next(messages())", filled(merged=True), by_messages_next, reaches=False),
    Operation("stream.batches", filled(), by_batches, ROWS),
    Operation("next(stream.batches())", filled(), by_batches_next, ROWS, reaches=False),
    Operation("stream.to_arrow", filled(), by_to_arrow, TABLE),
    Operation("stream.take", filled(), by_take, TABLE),
    Operation("messages and columns by turns", filled(), by_turns, ROWS, reaches=False),
    Operation("for, with decoders", filled(message_class=message_class(None, bytes.decode)), by_for, columns=False),
    Operation("for, with corrupt.message.policy=skip", filled(skip_corrupt=True), by_for),
    Operation("batches, with corrupt.message.policy=skip", filled(skip_corrupt=True), by_batches, ROWS),
    Operation("get, with a pace", filled(gate=_paced), by_get),
    Operation("batches, with a pace", filled(gate=_paced), by_batches, ROWS),
    Operation("get without a lease", _suspended, _asks_in_vain(_get), mend=_back),
    Operation("batches without a lease", _suspended, _asks_in_vain(_next_batch), ROWS, mend=_back),
    Operation("get that waits", _waiting, _waits),
    Operation("pause and resume", filled(), _pauses(_get, by_for), mend=_resume),
    Operation("pause and resume of columns", filled(), _pauses(_next_batch, by_batches), ROWS, mend=_resume),
)
