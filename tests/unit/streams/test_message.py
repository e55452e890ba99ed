"""The message object, which is compiled or not."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.streams.bench import Bench, position
from zkconsumer import MessageAndMetadata
from zkconsumer.data_plane import COMPILED, PURE_VARIABLE
from zkconsumer.data_plane.records import Record
from zkconsumer.model import TopicPartition
from zkconsumer.streams.message import message_class

PLACE = TopicPartition("t", 3)


def new_message(kind: Any = MessageAndMetadata) -> MessageAndMetadata[Any, Any]:
    made: MessageAndMetadata[Any, Any] = kind(Record(7, 1000, 0, b"k", b"v", [("h", None)]), PLACE)
    return made


def test_a_message_refers_to_no_position() -> None:
    """Where messages are compiled, the garbage collector does not look into them. A cycle would never be freed."""
    bench = Bench()
    bench.put(position(), 0, 1)
    message = bench.stream.get(timeout=0)
    assert type(message.place) is tuple
    assert message.place == ("t", 0)
    assert type(message.record) is Record


@pytest.mark.skipif(not COMPILED, reason="of compiled messages")
def test_a_compiled_message_is_small_and_sets_off_no_collection() -> None:
    message = new_message()
    assert not gc.is_tracked(message)
    assert sys.getsizeof(message) <= 32


def test_a_subclass_may_add_fields() -> None:
    class Marked(MessageAndMetadata[bytes, bytes]):
        __slots__ = ("mark",)

    made: Any = new_message(Marked)
    made.mark = made
    assert made.mark.value == b"v"
    assert made == new_message()


def printed_by_plain_code(program: str, pickled: bytes) -> str:
    """Return what a program without compiled modules prints, with ``pickled`` as its standard input."""
    done = subprocess.run(
        [sys.executable, "-c", "import pickle, sys; " + program],
        input=pickled,
        capture_output=True,
        env=os.environ | {PURE_VARIABLE: "1"},
        timeout=scaled(30),
        check=True,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("value_decoder", [None, bytes.decode])
def test_a_message_is_unpickled_by_plain_code(value_decoder: Any) -> None:
    """A worker of Spark, or another machine, may have no compiled copy."""
    message = new_message(message_class(None, value_decoder))
    program = (
        "from zkconsumer import data_plane; assert not data_plane.COMPILED; "
        "sys.stdout.write(repr(list(pickle.load(sys.stdin.buffer))))"
    )
    assert printed_by_plain_code(program, pickle.dumps(message)) == repr(list(message))
    copy = pickle.loads(pickle.dumps(message))
    assert copy == message
    assert hash(copy) == hash(message)
    assert "offset=7" in repr(copy)


def test_the_class_of_messages_is_known_to_plain_code() -> None:
    """A function that names it in an annotation is sent to workers with a reference to it. Bug: that named the compiled
    module, which other installations lack.
    """
    program = (
        "from zkconsumer.streams.message import MessageAndMetadata; "
        "print(pickle.load(sys.stdin.buffer) is MessageAndMetadata)"
    )
    assert printed_by_plain_code(program, pickle.dumps(MessageAndMetadata)) == "True\n"
