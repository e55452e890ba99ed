"""Hands the messages of a stream's chunks out, one by one, and makes the message objects.

Threads: the application thread that reads the stream, no other.

This code runs for each message and is written for speed. One generator per stream keeps everything in local names. It
yields ready messages. An error for the user, such as a timeout, is yielded as a :class:`RaiseInstead`, which raises in
the stream's iterator, ``filter(None, generator)``. So neither the generator nor the iterator ends by an error. A
request for columns throws :class:`SwitchToColumns` into the generator, which lets go of its chunk and begins anew
there. This costs messages nothing.

Compiled or not, it is the same generator. Python looks for signals only where Python code runs. So a signal can
interrupt the compiled generator only in the functions that it calls. The generator keeps every promise at any bytecode,
since plain Python needs that.

The order of single statements matters here: it relies on CPython's GIL, under which one assignment is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from inspect import GEN_SUSPENDED, getgeneratorstate
from types import GenericAlias, SimpleNamespace
from typing import Any, NoReturn

from zkconsumer.data_plane import c_types as cython
from zkconsumer.data_plane.clock import monotonic, time_before  # cimport
from zkconsumer.data_plane.records import Record  # cimport
from zkconsumer.errors import ConsumerTimeoutException

NOTHING_HELD = -1
"""``held_until`` while the user has no message in hand."""

_UNKNOWN = -(1 << 63)

FIELDS = ("topic", "partition", "offset", "key", "value", "timestamp", "timestamp_type", "headers")
"""The public fields of a message."""


class NotReturned(BaseException):
    """Thrown into the generator: the last message did not reach its caller, and comes again."""


class SwitchToColumns(BaseException):
    """Columns are asked for: the last message is finished, and the next message read begins anew."""


class RaiseInstead:
    """An error, yielded in place of a message. It raises when ``filter`` asks for its truth."""

    __slots__ = ("_error",)

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __bool__(self) -> NoReturn:
        raise self._error


@cython.no_gc
@cython.auto_pickle(False)
@cython.cclass
class HandOutMarks:
    """The fields of a ``PartitionPosition`` that the hand-out reads or writes for each message.

    ``finished_to`` is ``consumed`` as a plain number, for the hand-out alone: no object is made for it.
    """

    __slots__ = ("finished_to", "halted", "held_until")

    def __init__(self, consumed: int | None) -> None:
        self.consumed = consumed
        self.held_until: int = NOTHING_HELD
        self.halted: bool = False

    @property
    def consumed(self) -> int | None:
        """The first offset that the application has not finished, None until the start is known."""
        reached: int = self.finished_to
        return None if reached == _UNKNOWN else reached

    @consumed.setter
    def consumed(self, offset: int | None) -> None:
        self.finished_to = _UNKNOWN if offset is None else offset


@cython.auto_pickle(False)
@cython.cclass
class LeaseEnd:
    """The monotonic time until which a message may be handed out, as the hand-out reads it for each message."""

    __slots__ = ("until",)

    def __init__(self, until: float) -> None:
        self.until: float = until


@cython.no_gc
@cython.freelist(64)
@cython.auto_pickle(False)
@cython.cclass
class MessageAndMetadata:
    """One message of a partition.

    Its fields are ``topic``, ``partition``, ``offset``, ``key``, ``value``, ``timestamp`` (ms since the epoch, -1:
    none), ``timestamp_type`` (0: set by the producer, 1: by the broker, -1: none) and ``headers`` (list of (name, bytes
    or None)).
    """

    # record: as it was fetched, before any decoder; place: begins with topic and partition. It must not refer to
    # messages, since the garbage collector does not look into a message.
    __slots__ = ("place", "record")

    def __init__(self, record: Any, place: Sequence[Any]) -> None:
        self.record = record
        self.place = tuple(place)

    def __class_getitem__(cls, types: Any) -> GenericAlias:
        """Return the class for an annotation such as ``MessageAndMetadata[str, bytes]``; see ``streams.message``."""
        return GenericAlias(cls, types)

    @property
    def topic(self) -> str:
        """The topic."""
        return self.place[0]  # type: ignore[no-any-return]

    @property
    def partition(self) -> int:
        """The partition of the topic."""
        return self.place[1]  # type: ignore[no-any-return]

    @property
    def offset(self) -> int:
        """The offset in the partition."""
        if isinstance(self.record, Record):
            return cython.cast(Record, self.record).offset  # type: ignore[no-any-return]
        return self.record.offset  # type: ignore[no-any-return]

    @property
    def key(self) -> Any:
        """The key; bytes (or None) unless a decoder was given."""
        if isinstance(self.record, Record):
            return cython.cast(Record, self.record).key
        return self.record.key

    @property
    def value(self) -> Any:
        """The value; bytes (or None) unless a decoder was given."""
        if isinstance(self.record, Record):
            return cython.cast(Record, self.record).value
        return self.record.value

    @property
    def timestamp(self) -> int:
        """Milliseconds since the epoch, -1 where the message format has none."""
        timestamp: int | None = self.record.timestamp
        return -1 if timestamp is None else timestamp

    @property
    def timestamp_type(self) -> int:
        """0: set by the producer, 1: by the broker, -1: none."""
        return self.record.timestamp_type  # type: ignore[no-any-return]

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """The headers: (name, bytes or None)."""
        return self.record.headers  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the public fields in the order of ``repr``, so that ``tuple(message)`` shows them."""
        return iter([getattr(self, name) for name in FIELDS])

    def __dir__(self) -> list[str]:
        return [*FIELDS, *(name for name in object.__dir__(self) if name.startswith("__"))]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageAndMetadata):
            return NotImplemented
        return bool(_content(self) == _content(other))

    def __hash__(self) -> int:
        return hash((self.topic, self.partition, self.offset))

    def __repr__(self) -> str:
        record: Any = self.record
        return (
            f"MessageAndMetadata(topic={self.topic!r}, partition={self.partition}, offset={self.offset}, "
            f"key={record.key!r}, value={record.value!r}, timestamp={self.timestamp}, headers={list(self.headers)!r})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickle, _content(self)


def _content(message: Any) -> tuple[Any, ...]:
    record = message.record
    return (
        message.topic,
        message.partition,
        record.offset,
        message.key,
        message.value,
        record.timestamp,
        record.timestamp_type,
        list(record.headers),
    )


def unpickle(topic: str, partition: int, *content: Any) -> MessageAndMetadata:
    """Return a message without decoders, detached from the fetched data."""
    record = SimpleNamespace(**dict(zip(FIELDS[2:], content, strict=True)))
    return MessageAndMetadata(record, (topic, partition))


# The same name in every installation: a message may be pickled by compiled code and unpickled by plain code.
unpickle.__module__ = "zkconsumer.data_plane.hand_out"


@cython.auto_pickle(False)
@cython.cclass
class HandOut:
    """The generator of a stream's messages, and how far it is.

    Python itself knows the state of a plain generator, and an interrupt cannot leave that wrong. A compiled generator
    tells less, but no interrupt comes between its statements. So the generator notes its beginning and end.

    ``turned`` says that the generator yielded an error, or nothing, in place of the last message. ``owes`` says that
    the last message was not handed out and must be taken back (only of merged streams).
    """

    __slots__ = ("begun", "generator", "over", "owes", "turned")

    def __init__(self, source: Any, generate: Callable[[Any, HandOut], Generator[Any, None, None]]) -> None:
        self.turned: bool = False
        self.owes: bool = False
        self.begun: bool = False
        self.over: bool = False
        self.generator: Any = generate(source, self)

    @property
    def ended(self) -> bool:
        """Whether the generator has ended, by itself or by an interrupt."""
        if cython.compiled:
            return self.over
        return self.generator.gi_frame is None

    @property
    def running(self) -> bool:
        """Whether the generator is being asked for a message."""
        return self.generator.gi_running  # type: ignore[no-any-return]

    @property
    def yielded(self) -> bool:
        """Whether the generator has yielded a message, and was not resumed since."""
        if self.turned:
            return False
        if cython.compiled:
            return self.begun and not self.over and not self.generator.gi_running
        return getgeneratorstate(self.generator) == GEN_SUSPENDED

    def throw(self, error: BaseException) -> object:
        """Throw an error into the generator, where it yielded last."""
        return self.generator.throw(error)


def stream_messages(source: Any, out: HandOut) -> Generator[Any, None, None]:  # noqa: C901
    """Hand the messages of a stream out. Arguments: ``source`` is the ``KafkaStream``."""
    # One long function, for speed: a call for each message would cost more than all that the loop itself does.
    #
    # This path relies on CPython's GIL: it takes no lock for a message. Other threads must see the stores to
    # ``consumed`` and ``held_until`` in this order, and before ``halted`` is read (ownership/partition_position.py).
    # Otherwise the group thread and this thread miss each other, and a commit passes a message that nobody has seen.
    # So version.py refuses free-threaded builds.
    now: cython.double
    record: Record
    # The first offset that was handed out of this batch, -1 before that. If it is set, another read has begun
    # since ``limit`` was made. So nothing need be noted for each message.
    first: cython.longlong = -1
    limit: Any = None
    position: HandOutMarks | None = None
    message: MessageAndMetadata | None = None  # announced as held, and not handed out yet
    out.begun = True
    try:
        queue, reader, kind = source.queue, source.chunk_reader, source.message_class
        lease: LeaseEnd = reader.lease
        plain: cython.bint = kind is MessageAndMetadata
        source.settle_columns()
        while not queue.closed:
            failure: RaiseInstead | None = None
            try:
                # ``limit`` is set if this read has gone through a chunk without a message already
                if limit is not None:
                    chunk = reader.next_chunk(limit)
                else:
                    chunk = queue.taken
                    if chunk is None:
                        limit = source.new_deadline()
                        chunk = queue.take(limit)
                if chunk is None:
                    break
                source.note_reader()
                position = chunk.position
                start = reader.begin(chunk)
                if start is None:
                    continue
                place = tuple(chunk.position.tp)
                for batch in reader.message_batches(chunk, start):
                    if position.halted or queue.closed:
                        break
                    for record in batch:
                        # The clock first: nothing is called between the announcement and the yield. Otherwise an
                        # interrupt or a signal handler could count an announced message that nobody got.
                        now = time_before(lease.until)
                        if plain:  # known to the compiler: no call
                            message = MessageAndMetadata.__new__(MessageAndMetadata)
                        else:
                            message = kind.__new__(kind)
                        message.record = record
                        message.place = place
                        position.finished_to = record.offset
                        if first < 0:
                            first = record.offset
                            position.held_until = batch.next_offset
                        if position.halted or now >= lease.until:
                            position.held_until = NOTHING_HELD
                            if limit is None or first != record.offset:
                                limit = source.new_deadline()
                            first = -1
                            if not reader.wait_to_hand_out(position, batch.next_offset, limit, source.wait_for_token):
                                break
                            limit = None
                        yield message
                        message = None
                    else:
                        # The last message is finished. One write says "no longer held" and "consumed up to here".
                        # Otherwise a revocation that waits for the message could commit without it.
                        position.finished_to = batch.next_offset
                        if first >= 0:
                            limit, first = None, -1
                        continue
                    break
                else:
                    # the rest was compacted away, or the chunk came twice
                    position.consumed = max(chunk.next_offset, position.consumed or 0)
                message = None
                reader.finish(chunk)
                continue
            except SwitchToColumns:
                reader.finish_for_columns()
            except NotReturned:
                reader.retract()
            except Exception as e:  # noqa: BLE001 (every error goes to the user)
                # the chunk stays taken: its error comes again, rather than a silent gap
                error = reader.handle_error(e, in_hand=message is None)
                if error is None:
                    if first >= 0:
                        limit, first = None, -1
                    continue
                # raised by the stream's iterator: this ends the loop, but neither the generator nor the stream
                ends = source.ends_quietly and isinstance(error, ConsumerTimeoutException)
                failure = RaiseInstead(StopIteration() if ends else error)
            position = message = None
            out.turned = True
            yield failure
            out.turned = False
            limit, first = None, -1
            source.settle_columns()
    except BaseException:
        # an interrupt: a message that was announced and not handed out is held by nobody, and comes again
        out.over = True
        if position is not None and message is not None:
            position.held_until = NOTHING_HELD
        raise
    out.over = True
    source.note_end()


def merged_messages(source: Any, out: HandOut) -> Generator[Any, None, None]:  # noqa: C901
    """Hand the messages of several streams out, in turns. Arguments: ``source`` is the ``MergedStreams``."""
    # One long function, for speed: it runs for each message, and local names are the state of the turn.
    until: cython.double
    deadline: Any = None
    idle: cython.Py_ssize_t = 0
    got: cython.bint = False
    message = None  # taken from a stream and not handed out yet

    out.begun = True
    try:

        def wait_for_token(seconds: float) -> bool:
            nonlocal deadline, idle, got
            deadline = deadline or source.new_deadline()
            if source.waited(seconds, deadline):
                return True
            idle, got = source.count(), False  # no other stream has a token either
            return False

        source.return_last()  # an interrupt may have ended the generator before this one
        while not source.stopped:
            failure: RaiseInstead | None = None
            try:
                deadline = deadline or source.new_deadline()
                stream = source.ready(deadline)
                if stream is None:
                    break
                until = source.turn_end()
                got = False
                for message in stream.turn(wait_for_token):
                    yield message
                    message = None
                    deadline = None
                    got = True
                    if source.stopped or (monotonic() >= until and source.others_wait(stream)):
                        break
                stream.settle()
                idle = 0 if got else idle + 1
                if idle > source.count():  # all have messages, and none may hand one out
                    stream.wait_at_gate(deadline or source.new_deadline())
                    idle = 0
                continue
            except NotReturned:
                out.owes = True  # before anything is called: a second interrupt may end this generator
                source.return_last()
                out.owes = False
            except BaseException as e:
                if message is not None:
                    out.owes = True
                    source.return_last()
                    out.owes = False
                if not isinstance(e, Exception):
                    raise
                # every error goes to the user's read
                ends = source.ends_quietly and isinstance(e, ConsumerTimeoutException)
                failure = RaiseInstead(StopIteration() if ends else e)
            deadline = message = None
            idle = 0
            out.turned = True
            yield failure
            out.turned = False
    except BaseException:
        out.over = True
        raise
    out.over = True
    source.note_end()
