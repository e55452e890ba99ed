"""The moments at which CPython looks for signals, as runtime/DECISIONS.md lists them. Each test stages one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from threading import Lock, RLock
from typing import Any

import pytest

from tests.signal_gate import Gate, interrupting
from zkconsumer.runtime.interruptible_wait import InterruptibleLock


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    with interrupting():
        yield


def call_of_c(gate: Gate) -> None:
    acquire = gate.acquire
    gate.near = True
    acquire()
    gate.beyond = True


def jump_back(gate: Gate) -> None:
    first = True
    gate.near = True
    while True:
        if not first:
            gate.beyond = True
            return
        _ = gate.passed
        first = False


def beginning_of_a_function(gate: Gate) -> None:
    def begin() -> None:
        gate.beyond = True

    gate.near = True
    _ = gate.passed
    begin()


def resumed_generator(gate: Gate) -> None:
    def generate() -> Iterator[None]:
        yield
        gate.beyond = True
        yield

    generator = generate()
    for _ in generator:
        break
    gate.near = True
    _ = gate.passed
    for _ in generator:
        break


def attribute(gate: Gate) -> None:
    gate.near = True
    _ = gate.passed
    gate.beyond = True


def return_of_a_function(gate: Gate) -> None:
    def taken() -> Any:
        gate.near = True
        return gate.passed

    found = taken()
    gate.beyond = found


def step_of_a_for_loop(gate: Gate) -> None:
    acquire = gate.acquire
    steps = iter(acquire, False)  # calls it in C
    gate.near = True
    for found in steps:
        gate.beyond = found
        break


def step_over_a_generator(gate: Gate) -> None:
    def generate() -> Iterator[Any]:
        gate.near = True
        yield gate.passed

    for found in filter(None, generate()):
        gate.beyond = found


LOOKS = [call_of_c, jump_back, beginning_of_a_function, resumed_generator]
LOOKS_NOT = [attribute, return_of_a_function, step_of_a_for_loop, step_over_a_generator]


@pytest.mark.parametrize("moment", LOOKS, ids=lambda moment: moment.__name__)
def test_cpython_looks_for_signals(moment: Callable[[Gate], None]) -> None:
    assert Gate().looks(moment)


@pytest.mark.parametrize("moment", LOOKS_NOT, ids=lambda moment: moment.__name__)
def test_cpython_does_not_look_for_signals(moment: Callable[[Gate], None]) -> None:
    """``for`` and ``get()`` hand a message out without a look between its hand-out and the caller's name."""
    assert not Gate().looks(moment)


def _enters(gate: Gate) -> None:
    lock = gate.lock
    gate.near = True
    with lock:
        gate.beyond = True


def test_an_interrupt_leaves_an_interruptible_lock_free() -> None:
    """CPython 3.14 raised between a lock's ``__enter__`` and the block: the lock stayed held, and ``close`` hung."""
    gate = Gate(InterruptibleLock())
    assert not gate.looks(_enters)
    assert gate.is_free()


@pytest.mark.skipif(sys.version_info[:2] == (3, 14), reason="3.14.8 raises there, and leaves the lock held")
@pytest.mark.parametrize("lock", [Lock, RLock])
def test_an_interrupt_leaves_a_lock_of_python_free(lock: Callable[[], Any]) -> None:
    """The standard library and kazoo enter such locks. A version that fails here hangs where theirs stay held."""
    gate = Gate(lock())
    assert not gate.looks(_enters)
    assert gate.is_free()


def test_an_interrupt_at_the_end_of_a_block_leaves_its_lock() -> None:
    inner = InterruptibleLock()

    def leaves(gate: Gate) -> None:
        gate.near = True
        with inner:
            _ = gate.passed

    Gate().looks(leaves)
    assert Gate(inner).is_free()


def test_an_interruptible_lock_is_reentrant_and_has_an_owner() -> None:
    lock = InterruptibleLock()
    with lock, lock:
        assert not Gate(lock).is_free()
    assert Gate(lock).is_free()
