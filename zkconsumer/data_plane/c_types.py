"""The names of ``cython`` that the sources use, for running them as plain Python without Cython.

A source says ``from zkconsumer.data_plane import c_types as cython``. In the copy that is compiled this line reads
``import cython``. So plain Python never imports Cython, even where it is installed, and mypy sees Python's own types.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar, overload

T = TypeVar("T")

compiled: Final = False

Py_ssize_t: TypeAlias = builtins.int
int: TypeAlias = builtins.int
uint: TypeAlias = builtins.int
long: TypeAlias = builtins.int
longlong: TypeAlias = builtins.int
ulonglong: TypeAlias = builtins.int
char: TypeAlias = builtins.int
uchar: TypeAlias = builtins.int
double: TypeAlias = builtins.float
bint: TypeAlias = builtins.bool
void: TypeAlias = None

Bytes: TypeAlias = memoryview
"""Bytes to read, one dimension: a typed memoryview, whose indexes are checked."""
WritableBytes: TypeAlias = memoryview
Start: TypeAlias = Any
"""A pointer to bytes that are only read. No index is checked."""
Longs: TypeAlias = "memoryview[builtins.int]"
"""A vector of ``long long``."""
Ints: TypeAlias = "memoryview[builtins.int]"
"""A vector of ``int``."""


def cast(kind: Any, value: Any, typecheck: bint = False) -> Any:
    """Return the value as it is."""
    return value


@overload
def declare(kind: Any, value: T) -> T: ...
@overload
def declare(kind: Any, value: Any = None, visibility: str = "private") -> Any: ...
def declare(kind: Any, value: Any = None, visibility: str = "private") -> Any:
    """Return the value as it is."""
    return value


def cclass(made: T) -> T:
    """Compile a class to a C structure; its attributes are the annotated ones."""
    return made


def cfunc(made: T) -> T:
    """Compile to a function that only compiled code can call."""
    return made


def ccall(made: T) -> T:
    """Compile to a function that both compiled and Python code can call."""
    return made


def inline(made: T) -> T:
    """Ask the C compiler to inline a function."""
    return made


def final(made: T) -> T:
    """Forbid derived classes, so that calls of methods are direct."""
    return made


def no_gc(made: T) -> T:
    """Keep the objects of a class from the garbage collector; nothing that they hold may refer to them."""
    return made


def nogil(made: T) -> T:
    """Say that a function needs no lock of the interpreter."""
    return made


def _option(*values: Any, **named: Any) -> Callable[[T], T]:
    return lambda made: made


boundscheck = wraparound = initializedcheck = cdivision = overflowcheck = _option
returns = exceptval = freelist = auto_pickle = locals = _option
