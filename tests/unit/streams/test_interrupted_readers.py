"""A reader that is interrupted, by Ctrl-C or by a signal handler that raises, while it asks for a message.

Bug: the interrupt came between the announcement of a message and its hand-out (Python looks for signals
after the call of the clock there). The message counted as one in the reader's hands: ``shutdown()`` or
``commit_offsets()`` in the ``finally`` committed it, and nobody ever saw it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from threading import get_native_id
from unittest.mock import Mock

import pytest

from tests.unit.streams.bench import Bench, elsewhere, position
from zkconsumer import KafkaStream, MergedStreams
from zkconsumer.streams import merged_streams, message_iterator


class Reading(Bench):
    """A stream of three messages, and what a commit by its reader would write."""

    def __init__(self) -> None:
        super().__init__()
        self.position = position()
        self.put(self.position, 0, 3)

    @property
    def committed(self) -> int | None:
        return self.position.finished(including_held=self.stream.held_by(get_native_id()))


def test_what_a_dead_reader_held_is_not_the_next_threads() -> None:
    """Python gives the identifier of a thread that ended to the next one. A reader died of a message; the thread that
    then shut the connector down was taken for it, and the message for finished.
    """
    reading = Reading()
    seen: list[int | None] = []
    for action in (lambda: reading.stream.get(timeout=0), lambda: seen.append(reading.committed)):
        elsewhere(action)
    assert seen == [0]


Take = Callable[["Reading", MergedStreams[bytes, bytes]], int]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeoutError])
@pytest.mark.parametrize(
    "take",
    [
        lambda reading, _: reading.stream.get(timeout=0).offset,
        lambda reading, _: next(reading.stream).offset,
        lambda _, merged: merged.get(timeout=0).offset,
        lambda _, merged: next(merged).offset,
    ],
    ids=["get", "next", "merged get", "merged next"],
)
def test_a_message_that_was_not_returned_comes_again(
    monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], take: Take
) -> None:
    """An interrupt right after the generator gave the message: nobody had it, and the next ask or commit, or a clean
    leave, counted it as finished.
    """
    reading = Reading()
    merged: MergedStreams[bytes, bytes] = MergedStreams(lambda: [reading.stream], timeout=0)
    assert take(reading, merged) == 0

    def interrupted(messages: Iterator[object]) -> None:
        next(messages)
        raise kind

    with monkeypatch.context() as patched:
        patched.setattr(message_iterator, "next", interrupted, raising=False)
        with pytest.raises(kind):
            take(reading, merged)
    assert (reading.committed, reading.position.held) == (1, False)
    assert [take(reading, merged), take(reading, merged)] == [1, 2]
    assert reading.committed == 3


@pytest.mark.parametrize("ask", ["get", "next"])
def test_an_interrupted_take_back_is_made_up_for(monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    """A second interrupt ended the generator of merged streams before it took the message back. The next ask forgot
    that. An interrupt in this ask then left a message that counted as handed out, and nobody had it.
    """
    reading = Reading()
    merged: MergedStreams[bytes, bytes] = MergedStreams(lambda: [reading.stream], timeout=0)

    def take() -> int:
        return merged.get(timeout=0).offset if ask == "get" else next(merged).offset

    def committed() -> int | None:
        held = reading.stream.held_by(get_native_id()) and not merged.withholds(reading.stream)
        return reading.position.finished(including_held=held)

    def interrupted(messages: Iterator[object]) -> None:
        next(messages)
        raise KeyboardInterrupt

    refuse = Mock(side_effect=KeyboardInterrupt)
    assert take() == 0
    gc.collect()  # generators of earlier tests must not end while their streams refuse
    with monkeypatch.context() as patched:
        patched.setattr(message_iterator, "next", interrupted, raising=False)
        patched.setattr(KafkaStream, "return_last", refuse)
        with pytest.raises(KeyboardInterrupt):
            take()
    assert committed() == 1
    with monkeypatch.context() as patched:
        patched.setattr(merged_streams, "get_native_id", refuse)
        with pytest.raises(KeyboardInterrupt):
            take()
    assert committed() == 1
    assert [take(), take()] == [1, 2]
    assert committed() == 3
