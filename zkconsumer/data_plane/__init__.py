"""The code that runs for each record: compiled where the installation has a compiled copy, plain Python elsewhere.

Each module of this package is one source in plain Python. ``scripts/packaging`` compiles a copy of it under another
name (``compiled_columns`` of ``columns``). Importing this package chooses: either all compiled copies or all sources.
The chosen module then has the source's name, so that ``from zkconsumer.data_plane import columns`` and
``from zkconsumer.data_plane.columns import ...`` give the same, everywhere.

``COMPILED`` says which of the two was chosen and ``CHOICE`` why, in words. ``ZKCONSUMER_PURE=1`` forces the sources.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from pkgutil import get_data
from types import ModuleType
from typing import Final

from zkconsumer.data_plane.source_digest import MODULES, source_digest

__all__ = ["CHOICE", "COMPILED", "PURE_VARIABLE"]

PURE_VARIABLE: Final = "ZKCONSUMER_PURE"


def _source(name: str) -> bytes:
    """Return the text of a file of this package, empty if the installation has only byte code."""
    try:
        return get_data(__name__, name) or b""
    except OSError:
        return b""


def _use(name: str, module: ModuleType) -> None:
    """Give a module both names. An import of either name finds the module, and never loads the other copy.

    Pickled classes of compiled code have the compiled module's name, also where they are read by plain code.
    """
    for known in (name, f"compiled_{name}"):
        sys.modules[f"{__name__}.{known}"] = module
    globals()[name] = module


def _forget_all() -> None:
    for name in MODULES:
        sys.modules.pop(f"{__name__}.{name}", None)
        globals().pop(name, None)


def _hidden_copy() -> str:
    """Return the reason if these sources hide a compiled installation, as in a checkout that is the current folder."""
    here = Path(__file__).resolve().parents[2]
    for entry in sys.path:
        try:
            names = [one.name for one in Path(entry, *__name__.split(".")).iterdir()]
        except OSError:
            continue
        compiled = any(name.startswith("compiled_") and name.endswith(tuple(EXTENSION_SUFFIXES)) for name in names)
        if compiled and Path(entry).resolve() != here:
            return (
                f"the sources in {here} are not compiled, and hide the installed copy in {entry}, which is: run "
                "scripts/compile, or start Python in another folder"
            )
    return ""


def _choose() -> str:
    """Use the compiled copies and return an empty text, or return why they cannot be used."""
    if os.environ.get(PURE_VARIABLE, "") not in {"", "0"}:
        return f"{PURE_VARIABLE} is set"
    digest = source_digest(_source)
    for name in MODULES:
        try:
            compiled = import_module(f"{__name__}.compiled_{name}")
        except Exception as error:  # noqa: BLE001 (Cython raises ValueError or TypeError beside a module of another build)
            if isinstance(error, ModuleNotFoundError) and error.name == f"{__name__}.compiled_{name}":
                return _hidden_copy() or "this installation has no compiled modules"
            return f"a compiled module cannot be loaded: {error}"
        # An edit of a source must never run as the text from before it.
        if getattr(compiled, "SOURCE_DIGEST", "") != digest:
            return "the compiled modules were built from other sources"
        _use(name, compiled)
    return ""


_obstacle = _choose()
if _obstacle:
    _forget_all()
    for _name in MODULES:
        _use(_name, import_module(f"{__name__}.{_name}"))

COMPILED: Final = not _obstacle
"""Whether the compiled copies are in use."""

CHOICE: Final = "compiled" if COMPILED else f"pure Python: {_obstacle}"
"""Which modules are in use, and why, for ``zkconsumer --version``."""
