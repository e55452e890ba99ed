"""Decides which partitions a fetch request names, when the broker remembers earlier requests (KIP-227). Pure.

Used by one fetcher. A broker from 1.1 on keeps in a session which partitions are fetched, from which offset, and how
many bytes of each. A request then names only new or moved partitions, and the response only those with news. So a
hundred idle partitions cost no more than one. A broker without sessions, or without room for another one, answers with
session id 0, and every request names all partitions.

Mirrors the ``FetchSessionHandler`` of Kafka's newer clients. The original names all partitions in each request.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress
from operator import ne
from typing import NamedTuple

from zkconsumer.kafka import FetchPosition
from zkconsumer.model import TopicPartition, new_tuple
from zkconsumer.ownership.fetch_cursor import FetchRange

NO_SESSION = 0
FULL = 0
"""The epoch of a request that names all partitions and asks for a new session."""
_LAST_EPOCH = 2**31 - 1


class SessionRequest(NamedTuple):
    """The session's part of a request: the partitions to name, those to forget, and the session itself."""

    positions: list[FetchPosition]
    forgotten: list[TopicPartition]
    session_id: int
    epoch: int


class FetchSession:
    """One session with one broker, or none yet."""

    def __init__(self) -> None:
        self.id = NO_SESSION
        self.epoch = FULL
        self._told: dict[TopicPartition, FetchRange] = {}

    @property
    def incremental(self) -> bool:
        """Whether the next request need only name changes."""
        return self.epoch != FULL

    def next(self, wanted: dict[TopicPartition, FetchRange]) -> SessionRequest:
        """Return the next request, for the ranges in the order of service. They are kept: the session changes them.

        :meth:`answered` or :meth:`forget` must follow before the next request.
        """
        told, self._told = self._told, wanted
        if self.epoch == FULL:
            return SessionRequest([FetchPosition(*tp, *want) for tp, want in wanted.items()], [], self.id, FULL)
        # compared in C, since one in a hundred partitions may have changed
        changed = compress(wanted.items(), map(ne, map(told.get, wanted), wanted.values()))
        news = [FetchPosition(*tp, *want) for tp, want in changed]
        forgotten = [] if told.keys() == wanted.keys() else [tp for tp in told if tp not in wanted]
        return SessionRequest(news, forgotten, self.id, self.epoch)

    def next_changes(self, changes: Mapping[TopicPartition, FetchRange]) -> SessionRequest:
        """Return the next request of a session, in which nothing but the ranges of these partitions differs from the
        last one. They are not compared with all others.

        As after :meth:`next`, :meth:`answered` or :meth:`forget` must follow.
        """
        self._told.update(changes)
        positions = []
        # No comprehension: it would call a function, nearly always for one partition.
        for tp, want in changes.items():
            positions.append(new_tuple(FetchPosition, tp + want))
        return new_tuple(SessionRequest, (positions, [], self.id, self.epoch))  # type: ignore[no-any-return]

    def answered(self, session_id: int) -> None:
        """Note the response to the request, with its session id."""
        if session_id == NO_SESSION or (self.epoch != FULL and session_id != self.id):
            self.forget()
            return
        self.id = session_id
        self.epoch = self.epoch + 1 if self.epoch < _LAST_EPOCH else 1

    def refused(self) -> bool:
        """Begin a new session; returns whether that may help.

        The broker knows no such session (it restarted, or needed the room), or is at another epoch. A new session does
        not help if the request named all partitions already.
        """
        was = self.incremental or self.id != NO_SESSION
        self.forget()
        return was

    def forget(self) -> None:
        """Reset to no session, because the connection or the session is lost."""
        self.id, self.epoch = NO_SESSION, FULL
        self._told = {}
