"""An interrupt after a call has handed its message out, and before the application's variable has it.

A signal comes at the last step of the call, so its handler runs where CPython looks next. ``for``, ``get()`` and the
calls for many messages return without such a look. Built-in ``next()`` is a function in C, after which CPython looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.interrupts.world import InterruptedStreams
from tests.signal_gate import Gate, interrupting
from zkconsumer.streams.column_reader import ColumnReader
from zkconsumer.streams.message_iterator import MessageIterator


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    with interrupting():
        yield


class AtTheGate:
    """An attribute whose setting to True waits at a gate, and nothing else comes after that."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._values: dict[int, bool] = {}

    def __get__(self, owner: object, _: type) -> bool:
        return self._values.get(id(owner), True)

    def __set__(self, owner: object, value: bool) -> None:
        self._values[id(owner)] = value
        gate = self._gate
        if value and not gate.near and gate.ready:
            gate.near = True
            _ = gate.passed


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(MessageIterator, "returned", AtTheGate(gate), raising=False)
    monkeypatch.setattr(ColumnReader, "handed_out", AtTheGate(gate), raising=False)
    return gate


@pytest.fixture(params=[False, True], ids=["stream", "messages"])
def world(request: pytest.FixtureRequest, gate: Gate) -> InterruptedStreams:
    world = InterruptedStreams(merged=request.param)
    world.fetch(0, 3)
    return world


def reader(world: InterruptedStreams) -> Any:
    return world.merged if len(world.streams) > 1 else world.stream


def test_get_gives_its_message_to_the_variable(world: InterruptedStreams, gate: Gate) -> None:
    def action(gate: Gate) -> None:
        gate.ready = True
        message = stream.get(timeout=0)
        gate.beyond = message is not None

    stream = reader(world)
    assert not gate.looks(action)
    assert stream.get(timeout=0).offset == 1


@pytest.mark.parametrize("name", ["next(stream)", "next(batches())"])
def test_the_builtin_next_is_left_before_its_variable_is_set(gate: Gate, name: str) -> None:
    """CPython looks for signals after each function in C, and the message is lost then. No stream can mend that.

    If this fails, CPython has changed: docs/reading.md and decision 61 may say less.
    """

    def action(gate: Gate) -> None:
        gate.ready = True
        found = next(asked)
        gate.beyond = found is not None

    world = InterruptedStreams()
    world.fetch(0, 3)
    stream = world.stream
    asked: Any = stream if name == "next(stream)" else stream.batches(max_rows=1, timeout=0)
    assert gate.looks(action)
    assert stream.get(timeout=0).offset == 1, "what a document calls lost is not there any more"
