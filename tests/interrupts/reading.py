"""The operations of streams that the sweep interrupts, without a cluster."""

from __future__ import annotations

from collections.abc import Callable
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
            return by_for(world)
        ask(world)
        return None

    return act


def _back(world: InterruptedStreams) -> None:
    world.lease.resume(world.lease.epoch)


def _get_in_vain(world: InterruptedStreams) -> None:
    try:
        world.stream.get(timeout=0.001)
    except ConsumerTimeoutException:
        pass


def _batch_in_vain(world: InterruptedStreams) -> None:
    try:
        next(world.stream.batches(timeout=0.001))
    except ConsumerTimeoutException:
        pass


def _pauses(world: InterruptedStreams) -> None:
    queue, position = world.stream.queue, world.partitions[0].position
    world.took(world.stream.get(timeout=0))
    queue.pause(position)
    by_for(world)
    queue.resume(position)
    by_for(world)


def _pauses_columns(world: InterruptedStreams) -> None:
    queue, position = world.stream.queue, world.partitions[0].position
    world.took_rows(next(world.stream.batches(max_rows=ROWS)))
    queue.pause(position)
    by_batches(world)
    queue.resume(position)
    by_batches(world)


def _resume(world: InterruptedStreams) -> None:
    world.stream.queue.resume(world.partitions[0].position)


def _waiting() -> InterruptedStreams:
    world = InterruptedStreams(timeout=0.001)
    world.fetch(0, 2)
    world.fetch(0, 1, late=True)
    return world


def _waits(world: InterruptedStreams) -> None:
    while True:
        try:
            message = world.stream.get(timeout=0.001)
        except ConsumerTimeoutException:
            return
        world.took(message)


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
    Operation("get without a lease", _suspended, _asks_in_vain(_get_in_vain), mend=_back),
    Operation("batches without a lease", _suspended, _asks_in_vain(_batch_in_vain), ROWS, mend=_back),
    Operation("get that waits", _waiting, _waits),
    Operation("pause and resume", filled(), _pauses, mend=_resume),
    Operation("pause and resume of columns", filled(), _pauses_columns, ROWS, mend=_resume),
)
