"""Compiles copies of the modules of zkconsumer/data_plane, for the build backend and for scripts/compile.

A copy differs from its source in five things:

- its name, ``compiled_columns`` of ``columns``;
- the line that imports the stand-in for ``cython``;
- the names of types that mypy does not know;
- imports that end in ``# cimport``;
- a last line with the digest of the sources.

Line numbers stay, so that tracebacks show the source's.

It uses only what setuptools documents: ``setup``, ``Extension`` and the commands.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import setuptools

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("zkconsumer", "data_plane")
CARRIED = Path("scripts", "packaging", "generated")
"""The folder of the C files that a source distribution carries, in a folder named after the digest of their sources."""

_STAND_IN = re.compile(r"^from zkconsumer\.data_plane import c_types as cython$", re.MULTILINE)
_IMPORT = re.compile(r"^from zkconsumer\.data_plane\.(\w+) import (.*?)  # cimport$", re.MULTILINE)
_CIMPORT = re.compile(r"^from zkconsumer\.data_plane\.(\w+) cimport ", re.MULTILINE)

# Types that Python's grammar for annotations or mypy has no words for.
_TYPES = {
    "cython.Bytes": "cython.const[cython.uchar][::1]",
    "cython.WritableBytes": "cython.uchar[::1]",
    "cython.Start": "cython.pointer[cython.const[cython.uchar]]",
    "cython.Longs": "cython.longlong[::1]",
    "cython.Ints": "cython.int[::1]",
}

_DIRECTIVES = {
    "language_level": 3,
    "boundscheck": True,  # every read is checked, whatever the bytes say
    "wraparound": False,
    "initializedcheck": True,
    "annotation_typing": True,
    "warn.unreachable": False,  # what only plain Python runs
}


def _digest_module() -> ModuleType:
    """Return the module of the digest, loaded by its file: importing the package needs its requirements."""
    spec = importlib.util.spec_from_file_location("source_digest", ROOT / PACKAGE / "source_digest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_SOURCES = _digest_module()
MODULES: tuple[str, ...] = _SOURCES.MODULES
DECLARATIONS: tuple[str, ...] = _SOURCES.DECLARATIONS


def digest() -> str:
    """Return the digest of the sources in this tree."""
    return str(_SOURCES.source_digest(lambda name: (ROOT / PACKAGE / name).read_bytes()))


def missing_tool() -> str:
    """Return which tool is missing for compiling C, empty if none is."""
    command = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "")
    if not command or shutil.which(command[0]) is None:
        return "no C compiler was found"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "the C headers of this Python were not found (Debian and Ubuntu: apt-get install python3-dev)"
    return ""


def carried() -> Path | None:
    """Return the folder of this tree with the C files of the present sources, or None."""
    folder = CARRIED / digest()
    return folder if all((ROOT / folder / f"{_compiled(module)}.c").exists() for module in MODULES) else None


def _compiled(module: str) -> str:
    return f"compiled_{module}" if module in MODULES else module


def _copied(text: str) -> str:
    text = _STAND_IN.sub("import cython", text)
    for name, meaning in _TYPES.items():
        text = re.sub(rf"\b{re.escape(name)}\b", meaning, text)
    room = "zkconsumer.data_plane"
    text = _IMPORT.sub(lambda found: f"from cython.cimports.{room}.{_compiled(found[1])} import {found[2]}", text)
    return _CIMPORT.sub(lambda found: f"from {room}.{_compiled(found[1])} cimport ", text)


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def write_c(target: Path) -> None:
    """Translate the sources to C files in a folder.

    Raises: ImportError without Cython; Cython's CompileError for sources that it does not accept.
    """
    from Cython.Build import cythonize

    with tempfile.TemporaryDirectory(prefix="zkconsumer-") as name:
        staged = Path(name) / PACKAGE
        staged.mkdir(parents=True)
        for package in (staged, staged.parent):
            (package / "__init__.py").touch()
        for declaration in DECLARATIONS:
            stem, suffix = declaration.rsplit(".", 1)
            text = (ROOT / PACKAGE / declaration).read_text()
            (staged / f"{_compiled(stem)}.{suffix}").write_text(_copied(text))
        for module in MODULES:
            text = _copied((ROOT / PACKAGE / f"{module}.py").read_text())
            (staged / f"{_compiled(module)}.py").write_text(f'{text}\nSOURCE_DIGEST = "{digest()}"\n')
        sources = [str(PACKAGE / f"{_compiled(module)}.py") for module in MODULES]
        with _inside(Path(name)):  # the C files name their sources, and are the same wherever they are made
            cythonize(sources, compiler_directives=_DIRECTIVES, language_level=3, quiet=True)
        target.mkdir(parents=True, exist_ok=True)
        for module in MODULES:
            shutil.copy(staged / f"{_compiled(module)}.c", target)


def extensions(folder: Path, depends: Sequence[str] = ()) -> list[setuptools.Extension]:
    """Return the extensions of the C files in a folder."""
    room = ".".join(PACKAGE.parts)
    return [
        setuptools.Extension(
            f"{room}.{_compiled(module)}",
            [str(folder / f"{_compiled(module)}.c")],
            depends=list(depends),
            # without -g0, four fifths of each binary would be debugging information
            extra_compile_args=["-O3", "-g0"] if os.name == "posix" else [],
        )
        for module in MODULES
    ]


def run_setuptools(arguments: Sequence[str], modules: Sequence[setuptools.Extension], **metadata: Any) -> None:
    """Run commands of setuptools in the current folder. Raises: SystemExit with the reason if one of them fails."""
    setuptools.setup(script_name="setup", script_args=[*arguments], ext_modules=list(modules), **metadata)


def compile_in_place() -> None:
    """Put the compiled modules beside their sources, for an editable installation.

    Raises: as :func:`write_c`; SystemExit if the C compiler fails.
    """
    with tempfile.TemporaryDirectory(prefix="zkconsumer-") as name:
        folder = Path(name)
        write_c(folder)
        with _inside(folder):  # away from the project's own setup.cfg
            command = ["--quiet", "build_ext", "--build-lib", "built", "--build-temp", "objects"]
            run_setuptools(command, extensions(Path()), name="data_plane", packages=[], py_modules=[])
        # All are there before the first one replaces an old one: a full disk or an interrupt leaves no mixture.
        with tempfile.TemporaryDirectory(prefix=".compiled-", dir=ROOT / PACKAGE) as beside:
            products = list((folder / "built" / PACKAGE).iterdir())
            for product in products:
                shutil.copyfile(product, Path(beside, product.name))
            for product in products:  # a process that has the old one loaded keeps it whole
                Path(beside, product.name).replace(ROOT / PACKAGE / product.name)


def say(text: str) -> None:
    """Print a line to the output of the build, which pip shows with -v and when a build fails."""
    print(f"zkconsumer: {text}", file=sys.stderr, flush=True)
