"""The part of a stream that hands out many messages at a time: lists, record batches, tables and data frames.

Threads: exactly one application thread at a time reads the stream, as columns or as messages.

A request for columns throws :class:`SwitchToColumns` into the generator that hands out messages. The generator lets go
of its chunk, and begins anew there when a message is asked for again. This costs messages nothing.

Reads that take long report their progress to a function, or to a bar by rich, which gets no thread of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from threading import get_native_id
from time import monotonic
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from zkconsumer.data_plane.hand_out import SwitchToColumns
from zkconsumer.errors import ConnectorClosedException, ConsumerTimeoutException, MissingExtraError
from zkconsumer.streams.chunk_batches import (
    ANY,
    MAX_BYTES,
    MAX_ROWS,
    SPARK_COLUMNS,
    SPARK_HEADERS,
    ArrowForm,
    BatchLimits,
    ChunkPart,
    MessageForm,
    MessageRows,
    RowForm,
    arrow_schema,
    one_list,
    one_table,
)
from zkconsumer.streams.chunk_reader import ChunkReader, ReadDeadline
from zkconsumer.streams.column_reader import ColumnReader
from zkconsumer.streams.message import K, MessageAndMetadata, V
from zkconsumer.streams.message_iterator import MessageIterator, end_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from rich.progress import Progress

T = TypeVar("T")


class _Batches(Iterator[Any]):
    """The iterator that ``KafkaStream.batches`` returns."""

    def __init__(
        self,
        stream: ColumnStream[Any, Any],
        form: ArrowForm,
        limits: BatchLimits,
        patience: float | None,
        progress: ProgressReport,
    ) -> None:
        self._progress = progress
        self._read = 0
        self._stream = stream
        self._form = form
        self._limits = limits
        self._patience = patience

    def __next__(self) -> pa.RecordBatch:
        columns = self._stream._columns
        before = self._stream._begin_columns()
        try:
            rows = self._stream._next_batch(self._form, self._limits, self._patience)
            read = self._read + rows.num_rows
            self._progress(read, self._stream.total(self._read))  # what is in hand is not finished yet
            self._read = read
            columns.handed_out = True
            return rows
        except BaseException:
            self._progress.close()
            columns.return_rows_unless(before)
            raise


class ColumnStream(MessageIterator[K, V]):
    """The part of ``KafkaStream`` that hands out columns.

    Arguments: ``timeout`` and ``ends_on_timeout`` as for :class:`MessageIterator`; ``message_class`` is the class of
    messages, with their decoders; ``ended`` is called at the end of the stream.
    """

    def __init__(
        self,
        reader: ChunkReader,
        *,
        timeout: float | None,
        ends_on_timeout: bool,
        message_class: type[MessageAndMetadata[Any, Any]],
        ended: Callable[[], None],
    ) -> None:
        super().__init__(timeout, ends_on_timeout)
        self.message_class = message_class
        self.name = reader.name
        self.queue = reader.queue
        self.chunk_reader = reader
        self._columns = ColumnReader(reader)
        self._ended = ended
        self._reading: GeneratorType[Any, None, None] | None = None

    def batches(
        self,
        max_rows: int = MAX_ROWS,
        max_bytes: int = MAX_BYTES,
        headers: bool = False,
        timeout: float | Literal["configured"] | None = "configured",
        progress: bool | Report = False,
    ) -> Iterator[pa.RecordBatch]:
        """Return an iterator over the messages as ``pyarrow.RecordBatch``, several times faster than one by one.

        It continues the same single pass as the messages, which may be taken in between. The columns are those of
        Spark's Kafka source: ``key`` and ``value`` (binary), ``topic``, ``partition``, ``offset``, ``timestamp``
        (microseconds, UTC, or null) and ``timestampType`` (0 set by the producer, 1 by the broker, -1 none).

        A batch holds messages of one partition in their order, at most the messages of one fetch. It is finished when
        the next batch or message is asked for. Until then it is in the user's hands, with all that holds for a message
        there. An unreadable place is raised after a batch with all good messages before it; :meth:`skip`
        goes on after it. Read in a ``for`` loop, or call :meth:`to_arrow`. ``next()`` loses its batch if a signal
        handler raises right after it.

        Arguments: a batch has at most ``max_rows`` rows and ``max_bytes`` bytes of keys and values; a larger message is
        a batch of its own. ``headers`` adds the column ``headers``, null for a message without any. ``timeout`` in
        seconds replaces ``consumer.timeout.ms``; None waits for ever. After it, iteration raises
        :class:`ConsumerTimeoutException`, or ends with ``consumer.timeout.action=end``; iterate on in either case.
        ``progress`` as for :meth:`to_arrow`.
        Raises: ValueError for a stream with decoders, which columns cannot have, and for a limit below 1;
        :class:`MissingExtraError` without pyarrow (``zkconsumer[arrow]``; numpy makes it faster).
        """
        patience = self._timeout if timeout == "configured" else timeout
        _check_limits(patience, max_rows=max_rows, max_bytes=max_bytes)
        limits, report = BatchLimits(max_rows, max_bytes), ProgressReport(progress)
        return _Batches(self, self._arrow(headers), limits, patience, report)

    def to_arrow(
        self,
        max_messages: int | None = None,
        timeout: float | None = None,
        headers: bool = False,
        progress: bool | Report = False,
    ) -> pa.Table:
        """Collect messages into a ``pyarrow.Table`` with the columns of :meth:`batches`, each partition in its order.

        All rows are in the user's hands until the stream is asked again. Until then only ``connector.commit_offsets()``
        of this thread commits them. Rows of a partition that leaves meanwhile are left to its next owner. Collecting
        takes about twice the memory of the table, and that of all that was fetched together with its rows.

        Collecting ends when there are ``max_messages`` rows, ``timeout`` seconds have passed in all (0: take only what
        is already fetched), no message came for ``consumer.timeout.ms``, the stream's end (``until``) is reached, or
        the next place is unreadable, which the next read raises.

        Arguments: one of ``max_messages`` and ``timeout`` must be given, unless the stream has an end. ``headers`` as
        for :meth:`batches`. ``progress=True`` shows a bar, if the package rich is installed; a function is called with
        the number of messages that are read, and with that of all (None: unknown). Where offsets are missing in the
        log, fewer come. Returns: a table, without rows if nothing came, also after an end given by
        ``until``. Raises: as :meth:`batches`; :class:`ConnectorClosedException` if nothing is left after a shutdown.
        """
        columns, report = self._columns, ProgressReport(progress)
        before = self._begin_columns()
        try:
            table = self._table(max_messages, timeout, headers, lambda table: table, report)
            report.close()
            columns.handed_out = True
            return table
        except BaseException:
            report.close()
            columns.return_rows_unless(before)
            raise

    def to_dataframe(
        self, spark: SparkSession, max_messages: int | None = None, timeout: float | None = None, headers: bool = False
    ) -> DataFrame:
        """Collect messages into a Spark DataFrame with the schema of Spark's Kafka source; pandas is not needed.

        The rows are copied to Spark before this returns. They are in the user's hands as with :meth:`to_arrow`: call
        ``connector.commit_offsets()`` on this thread once the results are safe. If Spark fails to take the rows, they
        come again.

        Arguments: ``spark`` is the session; the others as for :meth:`to_arrow`. Raises: as :meth:`to_arrow`, and errors
        of Spark.
        """
        names = SPARK_COLUMNS if not headers else f"{SPARK_COLUMNS}, {SPARK_HEADERS}"
        columns = self._columns
        before = self._begin_columns()
        try:
            frame = self._table(
                max_messages, timeout, headers, lambda table: spark.createDataFrame(table, schema=names)
            )
            columns.handed_out = True
            return frame
        except BaseException:
            columns.return_rows_unless(before)
            raise

    def take(self, max_messages: int, timeout: float | None = None) -> list[MessageAndMetadata[K, V]]:
        """Collect up to ``max_messages`` messages into a list, each partition in its order.

        All are in the user's hands until the stream is asked again, as with :meth:`to_arrow`: a commit never passes the
        first of them before that, unless it is ``connector.commit_offsets()`` of this thread. Collecting ends as there,
        so the list may be shorter, or empty.

        Arguments: ``timeout`` in seconds for all of them; 0 takes only messages that are already fetched; None waits
        for ever, or until none came for ``consumer.timeout.ms``. Raises: :class:`ConnectorClosedException` if nothing
        is left after a shutdown; errors of unreadable places; ValueError for a limit below 1.
        """
        return self.take_as(one_list, max_messages, timeout)

    def take_as(self, make: Callable[[Sequence[MessageRows]], T], max_messages: int, timeout: float | None = None) -> T:
        """Return what ``make`` makes of the messages that :meth:`take` would collect."""
        _check_limits(timeout, max_messages=max_messages)
        columns = self._columns
        before = self._begin_columns()
        try:
            taken = self._collect(max_messages, timeout, MessageForm(self.message_class), make)
            columns.handed_out = True
            return taken
        except BaseException:
            columns.return_rows_unless(before)
            raise

    def _begin_columns(self) -> Sequence[ChunkPart]:
        """Return the rows that are in hand before a read. Raises RuntimeError if another thread is reading."""
        if self._being_read:
            raise RuntimeError(f"{self.name} is being asked already: a stream is read by one thread at a time")
        return self._columns.in_hand

    def _arrow(self, headers: bool) -> ArrowForm:
        if self.message_class is not MessageAndMetadata:
            raise ValueError(
                f"{self.name} was created with decoders, which see one message at a time; columns hold bytes: create "
                "the stream without decoders and decode whole columns"
            )
        return ArrowForm(arrow_schema(headers))

    def total(self, read: int, most: int | None = None) -> int | None:
        """Return how many messages there will be, after ``read``; None if that is unknown."""
        end = self.queue.end
        total = None if end is None else read + end.left(self.queue.ahead)
        return min((one for one in (total, most) if one is not None), default=None)

    def _table(
        self,
        max_messages: int | None,
        timeout: float | None,
        headers: bool,
        make: Callable[[pa.Table], T],
        report: Report = lambda _read, _total: None,
    ) -> T:
        _check_limits(timeout, max_messages=max_messages)
        form = self._arrow(headers)
        if max_messages is None and timeout is None and self.queue.end is None:
            raise ValueError("say max_messages or timeout, or it would collect for ever")

        def tell(read: int) -> None:
            report(read, self.total(read, max_messages))

        return self._collect(max_messages or ANY, timeout, form, lambda rows: make(one_table(rows, form.schema)), tell)

    def _collect(
        self,
        wanted: int,
        timeout: float | None,
        form: RowForm,
        make: Callable[[Sequence[Any]], T],
        report: Callable[[int], object] = lambda _: None,
    ) -> T:
        """Return what ``make`` makes of the rows that are collected. The caller sets ``handed_out``."""
        columns = self._columns
        limit, quiet, patience = ReadDeadline(timeout), ReadDeadline(self._timeout), self._timeout

        def collect() -> T:
            rows = self._or_pass_over(lambda: columns.collect(form, wanted, limit, quiet, patience, report))
            if not rows and self.queue.closed:
                self._ended()
                raise self._closed_error()
            made = make(rows)
            columns.release()
            return made

        return self._read(collect)

    def _next_batch(self, form: ArrowForm, limits: BatchLimits, patience: float | None) -> pa.RecordBatch:
        """Return the next batch for ``batches``. Raises: StopIteration at the end; the errors of ``batches``."""
        limit = ReadDeadline(patience)
        try:
            rows = self._read(lambda: self._or_pass_over(lambda: self._columns.next_batch(form, limits, limit)))
        except ConsumerTimeoutException:
            if self._ends_on_timeout:
                raise StopIteration from None
            raise
        if rows is None:
            self._ended()
            raise StopIteration
        return rows

    def _or_pass_over(self, read: Callable[[], T]) -> T:
        while True:
            try:
                return read()
            except Exception as e:  # noqa: BLE001 (told apart by the reader)
                error = self.chunk_reader.handle_error(e, in_hand=False)
                if error is not None:
                    raise error from error.__cause__

    def _read(self, read: Callable[[], T]) -> T:
        """Finish the rows or message in hand, and return the next rows. They count as handed out when the caller sets
        ``handed_out``. Until then the next read takes them back.
        """
        made: list[T] = []
        self._reading = cast("GeneratorType[Any, None, None]", self._turn(read, made))
        next(self._reading, None)
        return made[0]

    def _turn(self, read: Callable[[], T], made: list[T]) -> Generator[None, None, None]:
        """A generator for its state only: Python itself knows whether it runs, and an interrupt cannot leave that
        wrong.
        """
        try:
            self._holder = get_native_id()
            self._finish_in_hand()
            made.append(read())
        except BaseException:
            self._columns.return_last()
            raise
        return
        yield

    def _finish_in_hand(self) -> None:
        """Finish the message, or the rows, in the user's hands."""
        if not self.returned:
            self._return_last()
        if self._messages.yielded:
            self._messages.throw(SwitchToColumns())
        self._columns.settle()

    @property
    def being_read(self) -> bool:
        """Whether a reader waits for this stream now."""
        return self._being_read

    @property
    def _being_read(self) -> bool:
        return self._messages.running or (self._reading is not None and self._reading.gi_running)

    def _closed_error(self) -> ConnectorClosedException:
        return ConnectorClosedException(f"the stream {self.name} has ended: {end_text(self.queue)}")


def _check_limits(timeout: float | None, **limits: int | None) -> None:
    for name, limit in limits.items():
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise ValueError(f"{name} must be a whole number from 1 on, not {limit!r}")
    if timeout is not None and (isinstance(timeout, bool) or not isinstance(timeout, int | float)):
        raise ValueError(f"timeout must be a number of seconds, or None, not {timeout!r}")


Report = Callable[[int, int | None], object]
"""Called with the number of messages that are read, and with that of all; None if it is unknown."""

REFRESH_EACH = 0.1
"""Seconds between two pictures of a bar."""


class ProgressBar:
    """A bar on the terminal, or in a notebook. It is shown from the first report until :meth:`close`."""

    def __init__(self) -> None:
        self._bar: Progress | None = None
        self._shown = 0.0

    def __call__(self, read: int, total: int | None) -> None:
        """Show how many messages are read, of how many."""
        if self._bar is None:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("messages"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, auto_refresh=False)
            self._bar.add_task("messages", total=total)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=read, total=total)
        now = monotonic()
        if now - self._shown >= REFRESH_EACH:
            self._shown = now
            self._bar.refresh()

    def close(self) -> None:
        """Show the last picture, and let the terminal go. May be called again."""
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.stop()

    def __del__(self) -> None:
        self.close()  # a loop over batches was left: else the cursor would stay hidden


class ProgressReport:
    """The reports of one read. Arguments: ``progress`` as for ``to_arrow``. Raises: MissingExtraError, ValueError."""

    def __init__(self, progress: bool | Report) -> None:
        self._bar: ProgressBar | None = None
        self._report: Report | None = None if isinstance(progress, bool) else progress
        if progress is True:
            try:
                import rich.progress  # noqa: F401
            except ImportError:
                advice = "install the package rich, or give a function of (read, total)"
                raise MissingExtraError("the bar of progress=True", "demo", advice) from None
            self._report = self._bar = ProgressBar()
        elif self._report is not None and not callable(self._report):
            raise ValueError(f"progress must be True, False or a function of (read, total), not {progress!r}")

    def __call__(self, read: int, total: int | None) -> None:
        """Report how many messages are read, of how many."""
        if self._report is not None:
            self._report(read, total)

    def close(self) -> None:
        """End the bar, if there is one."""
        if self._bar is not None:
            self._bar.close()
