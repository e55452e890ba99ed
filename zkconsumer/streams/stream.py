"""The stream that hands the messages of fetched chunks out, one by one or as columns.

Threads: exactly one application thread at a time iterates a stream (a thread that takes a stream over calls ``iter``
on it again); its queue is where the others put and take away.

What counts as consumed differs from the original on purpose. There a message is consumed the moment it is returned,
so a crash while it is processed loses it. Here it is finished when the next one is asked for; see :class:`KafkaStream`.

The hand-out path runs for each message and is written for speed: one generator per stream keeps everything in local
names, and an iterator over it is ``map(MessageAndMetadata, generator)``, which makes the message object in C. What
must be raised to the user (a timeout, an error) is yielded as a :class:`_Raise`, which raises when the map unpacks
it, so that neither the generator nor the iterator ends by it. Whoever asks for columns in between throws
:class:`_TurnToColumns` into the generator, which costs messages nothing: it lets go of its chunk and begins anew there.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from inspect import GEN_CLOSED, GEN_RUNNING, GEN_SUSPENDED, getgeneratorstate
from threading import get_native_id
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from zkconsumer.core.positions import NOTHING_HELD
from zkconsumer.deadline import Deadline
from zkconsumer.decoders import K, V
from zkconsumer.errors import ConfigException, ConnectorClosedException, ConsumerTimeoutException
from zkconsumer.streams.columns import (
    ANY,
    MAX_BYTES,
    MAX_ROWS,
    SPARK_COLUMNS,
    SPARK_HEADERS,
    ColumnReader,
    Limits,
    arrow_schema,
    one_table,
)
from zkconsumer.streams.messages import MessageAndMetadata
from zkconsumer.streams.pace import Gate
from zkconsumer.streams.queue import StreamQueue
from zkconsumer.streams.reading import ChunkReader, Count, ReadSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


class _Raise:
    """Yielded in place of a message: raises when the iterator tries to make a message of it."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __iter__(self) -> NoReturn:
        raise self._error


class _Batches(Iterator[Any]):
    """What ``KafkaStream.batches`` returns."""

    def __init__(
        self, stream: KafkaStream[Any, Any], schema: pa.Schema, limits: Limits, patience: float | None
    ) -> None:
        self._next = partial(stream._next_batch, schema, limits, patience)

    def __next__(self) -> pa.RecordBatch:
        return self._next()


class _TurnToColumns(BaseException):
    """Columns are asked for: what was handed out is finished, and whoever asks for messages again begins anew."""


class KafkaStream(Generic[K, V]):
    """The messages of the partitions that one thread of this member owns, in the order of each partition.

    Iterate it (``for message in stream``) or ask :meth:`get`; it is always the same single pass, also over several
    ``for`` loops. A message is finished when the next one is asked for on the stream; what is committed never passes
    the first unfinished one. Iteration ends when the connector is shut down, and raises
    :class:`ConsumerTimeoutException` after ``consumer.timeout.ms`` without a message (then simply iterate on), or
    ends the loop then with ``consumer.timeout.action=end``.

    Made by the connector; used by one thread at a time.
    """

    def __init__(
        self,
        name: str,
        queue: StreamQueue,
        lease: Gate,
        *,
        timeout: float | None,
        check_crc: bool,
        read_committed: bool = False,
        skip_corrupt: bool = False,
        message_class: type[MessageAndMetadata[Any, Any]] = MessageAndMetadata,
        ended: Callable[[], None] = lambda: None,
        ends_on_timeout: bool = False,
        count: Count = lambda _topic, _messages, _bytes: None,
    ) -> None:
        self.name = name
        self._ended = ended
        self.queue = queue
        self._lease = lease
        self._timeout = timeout
        self._patience = timeout
        self._message_class = message_class
        self._reader = ChunkReader(name, queue, lease, ReadSettings(check_crc, read_committed, skip_corrupt), count)
        self._columns = ColumnReader(self._reader)
        self._ends_on_timeout = self._ends = ends_on_timeout
        self._messages = self._hand_out()
        self._turned = False
        self._asking = False
        self._holder = 0

    def __iter__(self) -> Iterator[MessageAndMetadata[K, V]]:
        self._patience, self._ends = self._timeout, self._ends_on_timeout
        self._holder = get_native_id()
        if getgeneratorstate(self._messages) == GEN_CLOSED and not self.queue.closed:
            # an interrupt (Ctrl-C) inside the generator ended it: what it had not handed out comes again
            self._messages, self._turned = self._hand_out(), False
        return map(self._message_class, self._messages)

    def __next__(self) -> MessageAndMetadata[K, V]:
        return next(iter(self))

    def get(self, timeout: float | None = None) -> MessageAndMetadata[K, V]:
        """The next message.

        Arguments: ``timeout`` in seconds; None waits for ever, 0 looks only at what was fetched already.
        Raises: :class:`ConsumerTimeoutException` when none came in time, :class:`ConnectorClosedException` at the end
        of the stream.
        """
        messages = iter(self)
        self._patience, self._ends = timeout, False
        try:
            return next(messages)
        except StopIteration:
            raise self._closed_error() from None
        finally:
            self._patience, self._ends = self._timeout, self._ends_on_timeout

    # ---- in turn with other streams (MergedStreams)

    def turn(self) -> Iterator[MessageAndMetadata[K, V]]:
        """The messages that there are now; ends where one would have to be waited for. :meth:`settle` must follow."""
        messages = iter(self)
        self._patience, self._ends = 0.0, True
        return messages

    def settle(self) -> None:
        """What was handed out is finished, though this stream is not asked for more: another one is."""
        if getgeneratorstate(self._messages) == GEN_SUSPENDED and not self._turned:
            self._messages.throw(_TurnToColumns())
        self._columns.settle()
        self._patience, self._ends = self._timeout, self._ends_on_timeout
        self.queue.let_go()

    def wait_at_gate(self, deadline: Deadline) -> None:
        """Wait until something may be handed out, or something changed. Raises: ConsumerTimeoutException."""
        self._reader.wait_at_gate(deadline)

    # ---- columns

    def batches(
        self,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        headers: bool = False,
        timeout: float | Literal["configured"] | None = "configured",
    ) -> Iterator[pa.RecordBatch]:
        """The messages as ``pyarrow.RecordBatch``, several times faster than one by one: a single pass together with
        the messages, which may be taken in between.

        The columns are those of Spark's Kafka source (``key``, ``value``: binary; ``topic``, ``partition``, ``offset``,
        ``timestamp``: microseconds, UTC, null where the message has none; ``timestampType``: 0 by the producer, 1 by
        the broker, -1 none). A batch holds messages of one partition in their order: what one fetch brought, or less.
        It is finished when the next one (or the next message) is asked for; until then it is in the user's hands
        as a message is: not committed but by ``commit_offsets()`` of this thread (or with ``consumed.on=return``), and
        waited for, up to ``rebalance.drain.timeout.ms``, when its partition leaves. No batch is handed out, in whole
        or part, of a partition that has left, or without a lease. What cannot be read is raised after a batch with all
        that is good before it; :meth:`skip` goes on after it.

        Arguments: at most ``max_rows`` rows and ``max_bytes`` bytes of keys and values a batch (a larger message is a
        batch of its own); ``headers`` adds the column ``headers``, null for a message without any; ``timeout`` in
        seconds (None waits for ever) in place of ``consumer.timeout.ms``, after which it raises
        :class:`ConsumerTimeoutException` or, with ``consumer.timeout.action=end``, ends the loop; go on in either case.
        Raises: :class:`ConfigException` for a stream with decoders, which columns cannot be given, and for a limit
        below 1; :class:`MissingExtraError` without pyarrow (``zkconsumer[arrow]``; numpy makes it faster).
        """
        schema = self._schema(headers, max_rows=max_rows, max_bytes=max_bytes)
        patience = self._timeout if timeout == "configured" else timeout
        return _Batches(self, schema, Limits(max_rows, max_bytes), patience)

    def to_arrow(
        self, max_messages: int | None = None, timeout: float | None = None, headers: bool = False
    ) -> pa.Table:
        """Collect messages into a ``pyarrow.Table`` with the columns of :meth:`batches`, each partition in its order.

        All its rows are in the user's hands until the stream is asked again: nothing of them is committed before but
        by ``connector.commit_offsets()`` of this thread, which counts them as finished. What is collected of a
        partition that leaves meanwhile is left to its next owner. While it collects it takes about twice the memory
        of the table.

        Arguments: ends when there are ``max_messages``, when ``timeout`` seconds have passed in all (0: with what was
        fetched already), when nothing came for ``consumer.timeout.ms``, or before what cannot be read, which the next
        ask raises; one of the first two must be given. ``headers`` as for :meth:`batches`.
        Returns: a table, without rows if nothing came.
        Raises: as :meth:`batches`; :class:`ConnectorClosedException` at the end of the stream.
        """
        return self._collect(max_messages, timeout, headers, lambda table: table)

    def to_dataframe(
        self,
        spark: SparkSession,
        max_messages: int | None = None,
        timeout: float | None = None,
        headers: bool = False,
    ) -> DataFrame:
        """Collect messages into a Spark DataFrame with the schema of Spark's Kafka source; pandas is not needed.

        The rows are copied to Spark before this returns. They are in the user's hands as with :meth:`to_arrow`: call
        ``connector.commit_offsets()`` on this thread when what is made of them is safe. Where Spark fails to take them
        they come again.

        Arguments: ``spark`` is the session; the others as for :meth:`to_arrow`. Raises: as :meth:`to_arrow`, and what
        Spark raises.
        """
        columns = SPARK_COLUMNS if not headers else f"{SPARK_COLUMNS}, {SPARK_HEADERS}"
        return self._collect(max_messages, timeout, headers, lambda table: spark.createDataFrame(table, schema=columns))

    def _schema(self, headers: bool, **limits: int | None) -> pa.Schema:
        for name, limit in limits.items():
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
                raise ConfigException(name, f"must be a whole number from 1 on, not {limit!r}")
        if self._message_class is not MessageAndMetadata:
            raise ConfigException(
                "key_decoder, value_decoder",
                f"{self.name} was created with decoders, which see one message at a time; columns hold bytes: create "
                "the stream without decoders and decode whole columns",
            )
        return arrow_schema(headers)

    def _collect(
        self, max_messages: int | None, timeout: float | None, headers: bool, make: Callable[[pa.Table], T]
    ) -> T:
        schema = self._schema(headers, max_messages=max_messages)
        if max_messages is None and timeout is None:
            raise ConfigException("max_messages, timeout", "say one of them, or it would collect for ever")
        columns = self._columns
        deadline = Deadline(timeout)

        def collect() -> T:
            rows = self._or_pass_over(lambda: columns.collect(schema, max_messages or ANY, deadline, self._timeout))
            if not rows and self.queue.closed:
                self._ended()
                raise self._closed_error()
            made = make(one_table(rows, schema))
            columns.release()
            return made

        return self._ask(collect)

    def _next_batch(self, schema: pa.Schema, limits: Limits, patience: float | None) -> pa.RecordBatch:
        """For ``batches``. Raises: StopIteration at the end, and what it says there."""
        deadline = Deadline(patience)
        try:
            rows = self._ask(lambda: self._or_pass_over(lambda: self._columns.next_batch(schema, limits, deadline)))
        except ConsumerTimeoutException:
            if self._ends_on_timeout:
                raise StopIteration from None
            raise
        if rows is None:
            self._ended()
            raise StopIteration
        return rows

    def _or_pass_over(self, ask: Callable[[], T]) -> T:
        while True:
            try:
                return ask()
            except Exception as e:
                if not self._reader.passes_over(e):
                    raise

    def _ask(self, ask: Callable[[], T]) -> T:
        """Columns are asked for: finish what is in hand, and get the next. Unless this returns, nothing was handed
        out.
        """
        if self._asked:
            raise RuntimeError(f"{self.name} is being asked already: a stream is read by one thread at a time")
        self._holder = get_native_id()
        self._asking = True
        try:
            if getgeneratorstate(self._messages) == GEN_SUSPENDED and not self._turned:
                self._messages.throw(_TurnToColumns())
            self._columns.settle()
            made = ask()
            self._asking = False
            return made
        except BaseException:
            self._columns.take_back()
            self._asking = False
            raise

    def held_by(self, thread: int) -> bool:
        """Whether that thread (its native identifier) was the last to ask this stream, and is not asking now."""
        return self._holder == thread and not self._asked

    def interrupted(self, thread: int) -> bool:
        """Whether that thread, which calls this, is asking this stream for a message: then a signal handler calls."""
        return self._holder == thread and self._asked

    @property
    def _asked(self) -> bool:
        return self._asking or getgeneratorstate(self._messages) == GEN_RUNNING

    def _closed_error(self) -> ConnectorClosedException:
        return ConnectorClosedException(f"the stream {self.name} has ended: its connector was shut down")

    def __repr__(self) -> str:
        # never iterates (KAFKA-1146: printing a stream blocked for ever)
        return f"<KafkaStream {self.name} queued={len(self.queue)}>"

    def _hand_out(self) -> Generator[Any, None, None]:
        # one function for speed: whatever it calls for each message costs more than all it does itself
        queue, lease, reader = self.queue, self._lease, self._reader
        self._columns.settle()
        while not queue.closed:
            failure: _Raise | None = None
            try:
                chunk = queue.taken or queue.take(Deadline(self._patience))
                if chunk is None:
                    break
                self._holder = get_native_id()
                position = chunk.position
                start = reader.begin(chunk)
                for batch in reader.batches(chunk, start):
                    if position.halted or queue.closed:
                        break
                    fresh = True
                    for record in batch:
                        # the clock first: from the announcement to the yield nothing is called, so no interrupt and no
                        # signal handler finds a message announced that was never handed out, and counts it
                        now = monotonic()
                        message = (record, position, record.value)
                        position.consumed = record.offset
                        if fresh:
                            position.held_until = batch.next_offset
                            fresh = False
                        if position.halted or now >= lease.until:
                            position.held_until = NOTHING_HELD
                            if not reader.may_go_on(position, batch.next_offset, Deadline(self._patience)):
                                break
                        yield message
                    else:
                        # the last message is finished: at once "no longer held" and "consumed up to here", so that
                        # who waits for it to be let go commits it as well
                        position.consumed = batch.next_offset
                        continue
                    break
                else:
                    # what follows was compacted away, or a chunk came twice
                    position.consumed = max(chunk.next_offset, position.consumed or 0)
                reader.finish(chunk)
                continue
            except _TurnToColumns:
                reader.turn_over()
            except Exception as e:  # noqa: BLE001 (whatever it is, the user's next ask raises it)
                # the chunk stays taken: its error comes again rather than a silent gap
                if reader.passes_over(e):
                    continue
                # raised through the map, which ends this loop and neither the generator nor the stream
                failure = _Raise(StopIteration() if self._ends and isinstance(e, ConsumerTimeoutException) else e)
            self._turned = True
            yield failure
            self._turned = False
            self._columns.settle()
        self._ended()

    def skip(self) -> int:
        """Give up what cannot be read, after this stream raised InvalidMessageException or
        MessageSizeTooLargeException, and go on after it. It is logged and counted in ``queue.skipped``.

        Returns: the offset at which the partition is read on. Raises ValueError if the last ask raised neither, or
        the partition has left meanwhile.
        """
        return self._reader.skip()
