"""What a fetch request has to say of each partition, where the broker remembers what it was told before (KIP-227).

Pure; used by one fetcher, which makes the requests and tells what became of them. A broker from 1.1 on keeps for each
session which partitions are fetched, from where, how much of each. A request then names what is new or has moved, and
the answer what there is news of, so that a hundred idle partitions cost no more than one. Brokers without sessions,
or without room for another one, answer with session id 0 and are told everything each time.

Mirrors the ``FetchSessionHandler`` of Kafka's newer clients. The original names all partitions in each request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zkconsumer.kafka import FetchPosition
from zkconsumer.model import TopicPartition

NO_SESSION = 0
FULL = 0
"""The epoch of a request that names everything and asks for a new session."""
_LAST_EPOCH = 2**31 - 1


class FetchRange(NamedTuple):
    """What is wanted of one partition: the offset to read on, and how many bytes at most."""

    offset: int
    max_bytes: int


class SessionRequest(NamedTuple):
    """What a request says: the partitions to name, those to forget, and which session it is part of."""

    positions: list[FetchPosition]
    forgotten: list[TopicPartition]
    session_id: int
    epoch: int


class FetchSession:
    """One session with one broker, or none yet."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = FULL
        self._told: Mapping[TopicPartition, FetchRange] = {}

    @property
    def incremental(self) -> bool:
        """Whether the next request need only say what has changed."""
        return self._epoch != FULL

    def next(self, wanted: Mapping[TopicPartition, FetchRange]) -> SessionRequest:
        """The next request, for all that is wanted, in the order of service; it is kept and must not change later.

        :meth:`answered` or :meth:`forget` must follow before the one after it.
        """
        told, self._told = self._told, wanted
        if self._epoch == FULL:
            return SessionRequest([_position(tp, want) for tp, want in wanted.items()], [], self._id, FULL)
        news = [_position(tp, want) for tp, want in wanted.items() if told.get(tp) != want]
        forgotten = [] if told.keys() == wanted.keys() else [tp for tp in told if tp not in wanted]
        return SessionRequest(news, forgotten, self._id, self._epoch)

    def answered(self, session_id: int) -> None:
        """The request was answered, with this session id."""
        if session_id == NO_SESSION or (self.incremental and session_id != self._id):
            self.forget()
            return
        self._id = session_id
        self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else 1

    def refused(self) -> bool:
        """The broker knows no such session (it was restarted, or needed the room) or is at another epoch: say
        everything, in a new one. Returns whether that may help: it does not where everything was said already.
        """
        was = self.incremental or self._id != NO_SESSION
        self.forget()
        return was

    def forget(self) -> None:
        """Begin anew: the connection, or what was said on it, is lost."""
        self._id, self._epoch = NO_SESSION, FULL
        self._told = {}


def _position(tp: TopicPartition, want: FetchRange) -> FetchPosition:
    return FetchPosition(tp.topic, tp.partition, want.offset, want.max_bytes)
