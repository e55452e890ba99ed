"""The executors that ``run`` knows by name. They are made before the group is joined, so that a handler that does not
fit its executor joins no group.
"""

from __future__ import annotations

from zkconsumer.balance.handler_check import Handler
from zkconsumer.balance.work import Executor
from zkconsumer.config import ConsumerConfig
from zkconsumer.streams.chunk_reader import read_settings
from zkconsumer.streams.decoders import Decoder

NAMES = ("threads", "processes", "asyncio")

Decoders = tuple[Decoder[object] | None, Decoder[object] | None]


def executor_named(
    executor: str | Executor,
    handler: Handler,
    concurrency: int,
    batch: int,
    config: ConsumerConfig,
    consumer: str,
    decoders: Decoders,
) -> str | Executor:
    """Return a new executor of this name; "threads", and what is no name, as they are.

    Arguments: ``decoders`` are those of the streams; ``consumer`` is the consumer id.
    Raises: TypeError for a handler or decoder that does not fit; ValueError for an unknown name.
    """
    timeout = config.handler_timeout_ms / 1000 if config.handler_timeout_ms > 0 else None
    # imported here: a member without them does not load asyncio and multiprocessing
    if executor == "processes":
        from zkconsumer.balance.process_executor import ProcessExecutor

        return ProcessExecutor(
            handler,
            concurrency,
            name=consumer,
            batch=batch,
            handler_timeout=timeout,
            settings=read_settings(config),
            decoders=decoders,
        )
    if executor == "asyncio":
        from zkconsumer.balance.asyncio_executor import AsyncioExecutor

        return AsyncioExecutor(handler, concurrency, name=consumer, batch=batch, handler_timeout=timeout)
    if isinstance(executor, str) and executor not in NAMES:
        raise ValueError(f"executor must be one of {', '.join(map(repr, NAMES))}, not {executor!r}")
    return executor
