"""Raises an exception at a chosen bytecode boundary of the project's own frames.

A boundary is the moment before an instruction. CPython delivers signals at some of them alone: at the beginning of a
function, after a call, at a jump back. The sweep raises at all of them, for a MemoryError may come nearly anywhere.
Each finding says how CPython itself can raise there (:class:`Visit`).

Threads: :func:`sys.settrace` concerns the calling thread alone. All others run as ever.
"""

from __future__ import annotations

import concurrent.futures._base
import dis
import gc
import queue
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, Self

import zkconsumer

_PACKAGE = str(Path(zkconsumer.__file__).parent)
_NOT_SWEPT = (f"{_PACKAGE}/testing/", f"{_PACKAGE}/devcluster/", f"{_PACKAGE}/cli/", f"{_PACKAGE}/spark/")
STANDARD = frozenset(str(module.__file__) for module in (threading, queue, concurrent.futures._base))
"""Modules of the standard library whose waits and locks the project calls. An interrupt inside them is as real."""


class Interrupted(BaseException):
    """Stands for KeyboardInterrupt and whatever else leaves through ``except Exception``."""


class Alarm(Exception):
    """Stands for a TimeoutError of a signal's handler, and for any other exception of a call."""


class NoMemory(MemoryError):
    """Stands for MemoryError, and for pyarrow's ArrowMemoryError."""


class Boundary(NamedTuple):
    """Before the instruction at ``at`` of a function, when it comes there for the ``visit``-th time (from 1 on).

    With ``called``: within this instruction, after the built-in function that it called has returned. There CPython
    looks for signals, and what the function returned is lost to its caller.
    """

    code: CodeType
    at: int
    visit: int
    called: bool = False

    @property
    def place(self) -> str:
        """File, line and function, for a report."""
        line = next((line for start, end, line in self.code.co_lines() if start <= self.at < end), None)
        path = self.code.co_filename
        path = path[path.index("zkconsumer/") :] if path.startswith(_PACKAGE) else Path(path).name
        return f"{path}:{line or self.code.co_firstlineno} {self.code.co_qualname}"

    @property
    def instruction(self) -> str:
        """The instruction that is not executed any more, or not to its end."""
        if self.called:
            return "the return of a call"
        return "before " + next((i.opname for i in dis.get_instructions(self.code) if i.offset == self.at), "?")


class Visit(NamedTuple):
    """One boundary that was passed, and how CPython itself can raise there: by a ``signal``, by the next instruction's
    own failure (``memory``), or not at all (``other``; it is swept all the same).

    At an ``exempt`` boundary CPython cannot raise, and no code could be safe. One is the end of a ``with``: its lock is
    held and nothing is caught any more. Another is the return of the project's outermost frame: from there on a
    message counts as handed out. The last is the end of a generator by an exception.
    """

    boundary: Boundary
    how: str


def in_project(code: CodeType) -> bool:
    """Whether this is the project's code that an application calls."""
    path = code.co_filename
    return path.startswith(_PACKAGE) and not path.startswith(_NOT_SWEPT)


def in_project_or_standard(code: CodeType) -> bool:
    """Whether it is the project's, or the standard library's that waits and locks."""
    return in_project(code) or code.co_filename in STANDARD


class Tracer:
    """Passes each boundary of this thread, and raises at one.

    Arguments: ``target`` is where to raise ``error`` (None: nowhere, all that is passed is noted in ``visits``);
    ``scope`` chooses frames by their code. ``raised`` says whether it came to the target.
    """

    paused = False

    def __init__(
        self,
        target: Boundary | None = None,
        error: Callable[[], BaseException] = Interrupted,
        scope: Callable[[CodeType], bool] = in_project,
    ) -> None:
        self.visits: list[Visit] = []
        self.raised = False
        self._before: tuple[Any, Any] = (None, None)
        self._collects = False
        self._target = target
        self._error = error
        self._scope: dict[CodeType, bool] = {}
        self._in_scope = scope
        self._count: Counter[tuple[CodeType, int]] = Counter()
        self._opcode: dict[FrameType, int] = {}
        self._bytes: dict[CodeType, bytes] = {}
        self._in_c: dict[FrameType, bool] = {}

    def __enter__(self) -> Self:
        self._before = sys.gettrace(), sys.getprofile()
        # Python swallows what is raised in a finaliser, which would run here for other worlds' objects
        self._collects = gc.isenabled()
        gc.disable()
        target = self._target
        if target is None or target.called:
            sys.setprofile(self._profiled)
        if target is None or not target.called:
            sys.settrace(self._called)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._before[0])
        sys.setprofile(self._before[1])
        if self._collects:
            gc.enable()
        self._opcode.clear()
        self._in_c.clear()

    def _profiled(self, frame: FrameType, event: str, arg: Any) -> None:
        if Tracer.paused or not self._within(frame.f_code):
            return
        if event in {"c_call", "c_return", "c_exception"}:
            self._in_c[frame] = event == "c_call"
        if event != "c_return":
            return
        target, key = self._target, (frame.f_code, ~frame.f_lasti)
        self._count[key] += 1
        boundary = Boundary(frame.f_code, frame.f_lasti, self._count[key], called=True)
        if target is None and not self.raised:
            self.visits.append(Visit(boundary, "signal"))
        elif boundary == target:
            self._raise()

    def _raise(self) -> None:
        self._target = None
        self.raised = True
        raise self._error()

    def _within(self, code: CodeType) -> bool:
        within = self._scope.get(code)
        if within is None:
            within = self._scope[code] = self._in_scope(code)
            self._bytes[code] = code.co_code
        return within

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        if Tracer.paused or not self._within(code):
            return None
        frame.f_trace_lines = False
        frame.f_trace_opcodes = True
        caller = frame.f_back
        if caller in self._opcode and code.co_name not in {"__init__", "__new__"} and not self._in_c.get(caller):
            self._opcode[caller] = _PLAIN  # a call of Python from Python: no look for signals when it returns
        self._opcode[frame] = _RESUME
        if self._target is None:
            return self._noted
        return self._awaited if code is self._target.code else self._passed

    def _passed(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._passed

    def _noted(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            code, at = frame.f_code, frame.f_lasti
            key = code, at
            self._count[key] += 1
            before = self._opcode.get(frame, _RESUME)
            opcode = self._opcode[frame] = self._bytes[code][at]
            outermost = frame.f_back is None or not self._scope.get(frame.f_back.f_code, False)
            self.visits.append(Visit(Boundary(code, at, self._count[key]), _how(frame, opcode, before, outermost)))
        elif event == "return":
            self._opcode.pop(frame, None)
        return self._noted

    def _awaited(self, frame: FrameType, event: str, arg: Any) -> Any:
        target = self._target
        if event == "opcode" and target is not None and frame.f_lasti == target.at and frame.f_code is target.code:
            self._count[frame.f_code, target.at] += 1
            if self._count[frame.f_code, target.at] == target.visit:
                self._raise()
        return self._awaited


_RESUME = dis.opmap["RESUME"]
_PLAIN = dis.opmap["NOP"]
# After these CPython 3.11 to 3.15 looks for signals (after the call of a function in C; see runtime/DECISIONS.md).
_LOOKS_FOR_SIGNALS = frozenset(
    opcode
    for name, opcode in dis.opmap.items()
    if (name == "RESUME" or name.startswith(("CALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD", "SEND")))
    and not name.startswith("CALL_INTRINSIC")
)
_STOP_ITERATION = 3  # the argument of CALL_INTRINSIC_1 where a generator turns StopIteration into another error
_EXIT_ARGUMENTS = 3 if sys.version_info >= (3, 14) else 2  # of the call of __exit__ at the end of a with block
_RETURNS = frozenset(dis.opmap[name] for name in ("RETURN_VALUE", "RETURN_CONST") if name in dis.opmap)
_CANNOT_FAIL = frozenset(
    opcode
    for name, opcode in dis.opmap.items()
    if name in {"NOP", "COPY", "SWAP", "CACHE", "PUSH_NULL", "PRECALL", "KW_NAMES", "POP_TOP", "END_FOR", "POP_ITER"}
    or name in {"RETURN_VALUE", "RETURN_CONST", "PUSH_EXC_INFO", "POP_EXCEPT", "RERAISE", "NOT_TAKEN", "LOAD_SMALL_INT"}
    or name.startswith(("LOAD_CONST", "LOAD_FAST", "STORE_FAST", "YIELD_VALUE", "JUMP_"))
    or name.endswith(("IF_NONE", "IF_NOT_NONE"))
)


@cache
def _with_ends(code: CodeType) -> frozenset[int]:
    """The instructions that leave a ``with`` block whose body has ended. There the lock is still held, no exception is
    caught any more, and CPython neither looks for signals nor allocates.
    """
    found: set[int] = set()
    steps = list(dis.get_instructions(code))
    for number, first in enumerate(steps):
        loads = steps[number : number + 3]
        if len(loads) == 3 and all(step.opname == "LOAD_CONST" and step.argval is None for step in loads):
            rest = [step for step in steps[number + 3 : number + 5] if step.opname in {"PRECALL", "CALL"}]
            if rest and rest[-1].opname == "CALL" and rest[-1].arg == _EXIT_ARGUMENTS:
                found.update(step.offset for step in (first, *loads, *rest))
                while number and steps[number - 1].opname == "SWAP":  # a return within the block
                    number -= 1
                    found.add(steps[number].offset)
        if first.opname == "WITH_EXCEPT_START":
            found.update((first.offset, steps[number - 1].offset))
    return frozenset(found)


@cache
def _generator_ends(code: CodeType) -> frozenset[int]:
    """The instructions (since 3.12) to which each exception of a generator jumps last, also when it is closed. They
    neither look for signals nor allocate. Python swallows an error of a generator that it closes itself.
    """
    found: set[int] = set()
    steps = list(dis.get_instructions(code))
    for number, step in enumerate(steps):
        if step.opname == "CALL_INTRINSIC_1" and step.arg == _STOP_ITERATION:
            found.update(each.offset for each in steps[number : number + 2])
    return frozenset(found)


def _how(frame: FrameType, opcode: int, before: int, outermost: bool) -> str:
    if frame.f_lasti in _with_ends(frame.f_code) | _generator_ends(frame.f_code) or (outermost and opcode in _RETURNS):
        return "exempt"
    if before in _LOOKS_FOR_SIGNALS:
        return "signal"
    return "other" if opcode in _CANNOT_FAIL else "memory"


@contextmanager
def untraced() -> Iterator[None]:
    """Leave out the harness's own calls of the project."""
    # by a flag: from 3.12 on each change of the trace function is paid for by all code
    Tracer.paused = True
    try:
        yield
    finally:
        Tracer.paused = False


def boundaries(visits: Iterable[Visit], often: int) -> list[Visit]:
    """Return the visits to sweep: at each boundary the first ``often`` (0: all) and the last, without exempt visits."""
    chosen = [visit for visit in visits if visit.how != "exempt"]
    if not often:
        return chosen
    last = {_place(visit): visit.boundary.visit for visit in chosen}
    return [visit for visit in chosen if visit.boundary.visit <= often or visit.boundary.visit == last[_place(visit)]]


def _place(visit: Visit) -> tuple[CodeType, int, bool]:
    return visit.boundary.code, visit.boundary.at, visit.boundary.called
