"""A worker process: decodes the messages that it is given, calls the handler, and sends outcomes back.

The parent's end is :mod:`zkconsumer.balance.worker_link`. This module defines the frames of both. The parent sends
trips: the chunks that the worker has not got yet, and groups of messages for one call of the handler each. Before each
step the worker takes a token from a pipe: one for having received the trip, one for each group. So the parent knows
what has begun, also of a worker that was killed. By taking tokens back it keeps the worker from beginning more.

Threads: the process's main thread calls the handler. Another one ends the process when the parent is gone.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import parent_process
from struct import Struct
from threading import Thread
from time import monotonic
from types import SimpleNamespace
from typing import Any, NamedTuple

from zkconsumer.balance.balanced_message import BalancedMessage
from zkconsumer.balance.handler_check import is_coroutine_function
from zkconsumer.balance.outcomes import NOT_STARTED, Done, Failed, Outcome, Pending, outcome_of, outcomes_of
from zkconsumer.errors import HandlerEndedRunError, HandlerFailedError, InvalidMessageException
from zkconsumer.kafka.compression import Expansion
from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.kafka.record_batch import RecordBatch
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.fork_guard import ends_forked_child
from zkconsumer.streams.chunk_reader import ReadSettings
from zkconsumer.streams.message import MessageAndMetadata, message_class

READY, UNABLE, SETTLED, OVER = range(4)
"""What a worker's frame tells: it may be given work; it cannot work; a group's outcome; the trip is over."""

LENGTH = Struct(">Q")
"""The head of a frame: the bytes that follow."""

LONGEST_TEXT = 16_384
"""Characters of an error's text, of its notes and of its traceback that a worker sends."""

_LOOK_EACH = 0.5
"""Seconds after which a worker looks for its parent, even if no pipe has told that it is gone."""


class WorkerSetup(NamedTuple):
    """The settings of a worker, which it gets once.

    ``handler`` and ``decoders`` (of keys and values, None: bytes) are pickled, so that the worker can report why it
    cannot load them. ``batch`` of more than 1: the handler takes a list.
    """

    handler: bytes
    decoders: bytes
    batch: int
    settings: ReadSettings


class SentChunk(NamedTuple):
    """A fetched chunk on its way to a worker. ``serial`` is its number between parent and worker."""

    serial: int
    topic: str
    partition: int
    records: bytes
    fetch_offset: int
    next_offset: int
    aborted: tuple[tuple[int, int], ...]


class SentWork(NamedTuple):
    """One message of a group: an offset of a chunk, or the ``fields`` of a message that was fetched alone.

    ``lane`` is the number of its lane within the trip, -1 for none. ``attempt`` counts from 1, and ``failure`` is why
    the last one failed.
    """

    serial: int
    offset: int
    attempt: int
    lane: int
    fields: tuple[Any, ...] | None = None
    failure: str = ""


class Trip(NamedTuple):
    """The unit of work of a worker: chunks to forget, chunks to keep, and groups of messages in order.

    No group may begin after ``until`` (monotonic seconds), the end of the parent's lease when it sent this: a parent
    that was stopped cannot take anything back.
    """

    forget: tuple[int, ...]
    chunks: tuple[SentChunk, ...]
    groups: tuple[tuple[SentWork, ...], ...]
    until: float


class SentError(NamedTuple):
    """An exception on its way to the parent. ``pickled`` is its class, arguments and attributes; empty: it cannot be.

    ``text`` is its text and ``trace`` the worker's traceback. ``base`` is the class of Python that it is one of, and
    ``code`` the exit code of a SystemExit.
    """

    pickled: bytes
    kind: str
    text: str
    trace: str
    base: type[BaseException]
    code: int | str | None = None


def sent_error(error: BaseException) -> SentError:
    """Return an exception as a worker sends it. It is sent as text if it cannot be pickled."""
    try:
        text = str(error)
    except Exception as failure:  # noqa: BLE001 - an error of the user's class must not end the worker
        text = f"(its text cannot be made: {failure!r})"
    trace = "".join(traceback.format_exception(error))[-LONGEST_TEXT:]
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    pickled = b""
    for attributes in (error.__dict__, {}):
        try:
            pickled = pickle.dumps((kind, error.args, attributes))
            break
        except Exception:  # noqa: BLE001, S112 - classes of users raise anything
            continue
    if len(pickled) > 4 * LONGEST_TEXT:
        pickled = b""
    base = next(one for one in (Exception, KeyboardInterrupt, SystemExit, BaseException) if isinstance(error, one))
    code = getattr(error, "code", None) if base is SystemExit else None
    if not isinstance(code, int | None):
        code = text[:LONGEST_TEXT]
    return SentError(pickled, name, text[:LONGEST_TEXT], trace, base, code)


def received_error(sent: SentError, worker: str) -> BaseException:
    """Return the exception that a worker sent, with its traceback as a note.

    One that could not be sent becomes a SystemExit or KeyboardInterrupt if it was one of these. Otherwise it becomes a
    HandlerFailedError, or a HandlerEndedRunError if it was no ``Exception``.
    It is made without a call of its ``__init__``, whose arguments are not those of ``args`` in many classes.
    """
    error: BaseException | None = None
    if sent.pickled:
        try:
            kind, arguments, attributes = pickle.loads(sent.pickled)  # noqa: S301 - of our own process
            error = kind.__new__(kind, *arguments)
            error.args = arguments
            error.__dict__.update(attributes)
            str(error)
        except Exception:  # noqa: BLE001 - then its text must do
            error = None
    if not isinstance(error, BaseException):
        error = _substitute(sent)
    error.add_note(f"raised in the process {worker}:\n{sent.trace}")
    return error


def _substitute(sent: SentError) -> BaseException:
    if sent.base is SystemExit:
        return SystemExit(sent.code)
    if sent.base is KeyboardInterrupt:
        return KeyboardInterrupt(sent.text)
    return (HandlerFailedError if sent.base is Exception else HandlerEndedRunError)(sent.kind, sent.text)


def results_of(result: object, messages: int) -> list[object]:
    """Return what a handler's result says of each of its messages, as it is sent: None for done, or an exception."""
    return [_sent_outcome(outcome) for outcome in outcomes_of(result, messages)]


def _sent_outcome(outcome: Outcome) -> object:
    if isinstance(outcome, Pending):
        return TypeError("PENDING stands for a later ack() or nack(), which a handler in a process cannot call")
    if isinstance(outcome, Failed):
        return outcome.error
    return None if isinstance(outcome, Done) else outcome


def packed(value: object) -> bytes:
    """Return a frame. Raises what pickling raises."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


class ChunkMessages:
    """The records of one chunk, decoded a batch at a time, and again if they are asked for out of order."""

    def __init__(self, chunk: SentChunk, settings: ReadSettings) -> None:
        self.place = TopicPartition(chunk.topic, chunk.partition)
        self._chunk = chunk
        self._settings = settings
        self._parts: Iterator[RecordBatch] = iter(())
        self._to = -1
        self._records: dict[int, Any] = {}

    def record(self, offset: int) -> Any:
        """Return the record. Raises: InvalidMessageException for an offset that is none of the chunk's."""
        found = self._records.get(offset)
        if found is None:
            self._go_to(offset)
            found = self._records.get(offset)
        if found is None:
            reason = f"{self.place} at offset {offset}: the fetched data has no such message"
            raise InvalidMessageException(reason, self.place, offset, offset + 1)
        return found

    def _go_to(self, offset: int) -> None:
        """Decode the batch that holds the offset, if there is one."""
        reached, self._to, self._records = self._to, -1, {}  # after an error the next ask begins anew
        if offset < reached or reached < 0:
            self._parts = self._parts_from(offset)
        for part in self._parts:
            if offset < part.next_offset:
                self._records = {record.offset: record for record in part}
                self._to = part.next_offset
                return

    def _parts_from(self, offset: int) -> Iterator[RecordBatch]:
        chunk, settings = self._chunk, self._settings
        for batch in batches(
            chunk.records,
            check_crc=settings.check_crc,
            where=self.place,
            fetch_offset=max(chunk.fetch_offset, offset),
            aborted=chunk.aborted,
            read_committed=settings.read_committed,
            expansion=Expansion(settings.largest_batch),
            end=chunk.next_offset,
        ):
            if batch.many:
                yield from batch.in_parts()
            else:
                yield batch


class WorkerPlace(NamedTuple):
    """Where a message stands, which attempt at it this is, from 1 on, and why the last one failed."""

    topic: str
    partition: int
    attempt: int
    failure: str


class WorkerMessage(BalancedMessage[Any, Any]):
    """The message that a handler in a worker process gets."""

    __slots__ = ()

    def __init__(self, record: Any, place: WorkerPlace) -> None:
        MessageAndMetadata.__init__(self, record, place)

    @property
    def attempt(self) -> int:
        """The number of this attempt at the message, from 1 on."""
        return self.place[2]  # type: ignore[no-any-return]

    @property
    def last_failure(self) -> str:
        """Why the last attempt failed, see :attr:`BalancedMessage.last_failure`."""
        return self.place[3]  # type: ignore[no-any-return]

    def ack(self) -> None:
        """Raise TypeError: only the handler's own end can finish the message here."""
        raise TypeError(
            "a message in a worker process is finished by its handler's return; ack() is for other executors"
        )

    def nack(self, error: BaseException | None = None) -> None:
        """Raise TypeError: see :meth:`ack`."""
        raise TypeError("a message in a worker process fails when its handler raises; nack() is for other executors")


class Worker:
    """Runs trips.

    Arguments: ``begin`` returns whether the next step may begin; ``send`` sends a frame to the parent.
    Raises: whatever the unpickling of the handler or a decoder raises.
    """

    def __init__(self, setup: WorkerSetup, begin: Callable[[], bool], send: Callable[[object], None]) -> None:
        handler = pickle.loads(setup.handler)  # noqa: S301 - of our own parent
        self._handler = ends_forked_child(handler, coroutine=is_coroutine_function(handler))
        decoded = message_class(*pickle.loads(setup.decoders))  # noqa: S301
        bases = (WorkerMessage,) if decoded is MessageAndMetadata else (WorkerMessage, decoded)
        self._message = type("WorkerMessage", bases, {"__slots__": (), "__doc__": WorkerMessage.__doc__})
        self._batch = setup.batch
        self._settings = setup.settings
        self._begin = begin
        self._send = send
        self._chunks: dict[int, ChunkMessages] = {}
        self._bad_lanes: set[int] = set()

    def run(self, trip: Trip) -> None:
        """Handle the groups one after the other, until one may not begin."""
        for serial in trip.forget:
            self._chunks.pop(serial, None)
        for chunk in trip.chunks:
            self._chunks[chunk.serial] = ChunkMessages(chunk, self._settings)
        self._bad_lanes.clear()
        made = [[self._made(work) for work in group] for group in trip.groups]
        for number, group in enumerate(trip.groups):
            if monotonic() >= trip.until or not self._begin():
                break
            self._report(number, self._run_group(group, made[number]))
            made[number] = []
        self._send((OVER, 0, None))

    def _run_group(self, group: Sequence[SentWork], made: list[Any]) -> list[object]:
        """Call the handler. Returns for each message None if it is done, or what became of it."""
        results: list[object] = [None] * len(group)
        called: list[int] = []
        for index, (work, message) in enumerate(zip(group, made, strict=True)):
            if work.lane in self._bad_lanes:
                results[index] = NOT_STARTED
            elif isinstance(message, Failed):
                results[index] = message.error
                self._bad_lanes |= {work.lane} - {-1}
            else:
                called.append(index)
        if called:
            for index, result in zip(called, self._call([made[index] for index in called]), strict=True):
                results[index] = result
        self._bad_lanes |= {work.lane for work, result in zip(group, results, strict=True) if result is not None} - {-1}
        return results

    def _made(self, work: SentWork) -> Any:
        """Return the message, or Failed if it cannot be read here."""
        try:
            if work.fields is None:
                chunk = self._chunks[work.serial]
                record, place = chunk.record(work.offset), chunk.place
            else:
                topic, partition, *fields = work.fields
                record = SimpleNamespace(**dict(zip(RECORD_FIELDS, fields, strict=True)))
                place = TopicPartition(topic, partition)
            return self._message(record, WorkerPlace(*place, work.attempt, work.failure))
        except Exception as error:  # noqa: BLE001 - the message fails, and the worker lives on
            return Failed(error)

    def _call(self, messages: list[Any]) -> list[object]:
        try:
            if self._batch == 1:
                return [_sent_outcome(outcome_of(self._handler(messages[0])))]
            return results_of(self._handler(messages), len(messages))
        except BaseException as error:  # noqa: BLE001 - the parent decides; SystemExit ends its run, not only the worker
            return [error] * len(messages)

    def _report(self, number: int, results: list[object]) -> None:
        if all(result is None for result in results):
            self._send((SETTLED, number, None))
            return
        sent = [sent_error(result) if isinstance(result, BaseException) else result for result in results]
        try:
            self._send((SETTLED, number, sent))
        except (pickle.PicklingError, AttributeError, TypeError) as error:  # a Reject's reason that is no text
            self._send((SETTLED, number, [sent_error(error)] * len(sent)))


RECORD_FIELDS = ("offset", "key", "value", "timestamp", "timestamp_type", "headers")
"""The fields of a record that is sent alone, behind topic and partition."""


def run_worker(setup: WorkerSetup, channel: socket.socket, tokens: Connection, parent: int) -> None:
    """Run a worker until its parent wants no more of it, or is gone: the main function of the process.

    Arguments: ``parent`` is the parent's process id.
    """
    _leave_signals_to_parent()
    Thread(target=_end_with_parent, args=(parent,), name="parent-watch", daemon=True).start()
    channel.setblocking(True)
    token = tokens.fileno()
    os.set_blocking(token, False)

    def begin() -> bool:
        try:
            return bool(os.read(token, 1))
        except BlockingIOError:
            return False

    def send(value: object) -> None:
        frame = packed(value)
        try:
            channel.sendall(frame)
        except OSError:
            os._exit(1)  # the parent is gone

    try:
        worker = Worker(setup, begin, send)
    except BaseException as error:  # noqa: BLE001 - the parent tells the user
        send((UNABLE, 0, sent_error(error)))
        return
    send((READY, 0, None))
    while (frame := _received(channel)) is not None:
        begin()
        worker.run(pickle.loads(frame))  # noqa: S301 - of our own parent


def _received(channel: socket.socket) -> bytearray | None:
    """Return the next frame; None when the parent has closed the channel."""
    head = _exactly(channel, LENGTH.size)
    return None if head is None else _exactly(channel, LENGTH.unpack(head)[0])


def _exactly(channel: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        try:
            count = channel.recv_into(view)
        except ConnectionError:
            count = 0
        if not count:
            return None
        view = view[count:]
    return data


def _leave_signals_to_parent() -> None:
    """Ignore what a terminal or a service manager sends to all processes: the parent drains, and ends its workers.

    By a function and not by SIG_IGN, which the handler's own programs would inherit. The parent blocked the signals
    while this process began, so that none ends it before this line.
    """
    ignored = (signal.SIGINT, signal.SIGTERM)
    for number in ignored:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ignored)


def _end_with_parent(parent: int) -> None:
    """End this process as soon as the parent is gone, whatever the handler does."""
    process = parent_process()
    sentinels = [] if process is None else [process.sentinel]
    # another process that the parent forked may hold the pipe open, so the parent's id is looked at too
    while not wait(sentinels, _LOOK_EACH) and os.getppid() == parent:
        pass
    os._exit(1)
