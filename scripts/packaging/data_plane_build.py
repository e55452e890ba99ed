"""Compiles copies of the modules of zkconsumer/data_plane, for the build backend and for scripts/compile.

A copy differs from its source in four things: its name (``compiled_columns`` of ``columns``), the line that imports the
stand-in for ``cython``, imports that end in ``# cimport``, and a last line with the digest of the sources. Numbers of
lines stay, so that tracebacks show the source's.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path("zkconsumer", "data_plane")

_STAND_IN = re.compile(r"^from zkconsumer\.data_plane import c_types as cython$", re.MULTILINE)
_IMPORT = re.compile(r"^from zkconsumer\.data_plane\.(\w+) import (.*?)  # cimport$", re.MULTILINE)
_CIMPORT = re.compile(r"^from zkconsumer\.data_plane\.(\w+) cimport ", re.MULTILINE)

# Types that Python's grammar for annotations or mypy has no words for.
_TYPES = {
    "cython.Bytes": "cython.const[cython.uchar][::1]",
    "cython.WritableBytes": "cython.uchar[::1]",
    "cython.Longs": "cython.longlong[::1]",
    "cython.Ints": "cython.int[::1]",
}

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": True,
    "wraparound": False,
    "initializedcheck": True,
    "annotation_typing": True,
    "embedsignature": False,
}


def _loaded() -> ModuleType:
    """Return the module of the digest. It is loaded by its file, since importing the package needs its requirements."""
    spec = importlib.util.spec_from_file_location("source_digest", ROOT / PACKAGE / "source_digest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_SOURCES = _loaded()
MODULES: tuple[str, ...] = _SOURCES.MODULES
DECLARATIONS: tuple[str, ...] = _SOURCES.DECLARATIONS


def digest() -> str:
    """Return the digest of the sources in this tree."""
    return str(_SOURCES.source_digest(lambda name: (ROOT / PACKAGE / name).read_bytes()))


def _compiled_name(module: str) -> str:
    return f"compiled_{module}" if module in MODULES else module


def _copy(text: str) -> str:
    text = _STAND_IN.sub("import cython", text)
    for name, meaning in _TYPES.items():
        text = re.sub(rf"\b{re.escape(name)}\b", meaning, text)
    text = _IMPORT.sub(
        lambda found: f"from cython.cimports.zkconsumer.data_plane.{_compiled_name(found[1])} import {found[2]}", text
    )
    return _CIMPORT.sub(lambda found: f"from zkconsumer.data_plane.{_compiled_name(found[1])} cimport ", text)


def write_c(folder: Path) -> list[Path]:
    """Translate the sources to C files in a folder and return their paths.

    Raises: ImportError without Cython; Cython's CompileError.
    """
    from Cython.Build import cythonize

    staged = folder / PACKAGE
    staged.mkdir(parents=True, exist_ok=True)
    for package in (staged, *staged.parents):
        if package == folder:
            break
        (package / "__init__.py").touch()
    for name in DECLARATIONS:
        stem, suffix = name.rsplit(".", 1)
        (staged / f"{_compiled_name(stem)}.{suffix}").write_text(_copy((ROOT / PACKAGE / name).read_text()))
    for module in MODULES:
        text = _copy((ROOT / PACKAGE / f"{module}.py").read_text())
        (staged / f"compiled_{module}.py").write_text(f'{text}\nSOURCE_DIGEST = "{digest()}"\n')
    before = Path.cwd()
    os.chdir(folder)  # so that the C files name no folder of this machine
    try:
        cythonize(
            [str(PACKAGE / f"compiled_{module}.py") for module in MODULES],
            compiler_directives=DIRECTIVES,
            language_level=3,
            quiet=True,
        )
    finally:
        os.chdir(before)
    return [staged / f"compiled_{module}.c" for module in MODULES]


def compile_in_place() -> None:
    """Put the compiled modules beside their sources, for an editable installation.

    Raises: ImportError without Cython or setuptools; SystemExit if the C compiler fails.
    """
    import setuptools

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        extensions = [
            setuptools.Extension(f"zkconsumer.data_plane.{path.stem}", [str(path)], extra_compile_args=["-O3"])
            for path in write_c(folder)
        ]
        before = Path.cwd()
        os.chdir(folder)
        try:
            setuptools.setup(
                name="data_plane",
                packages=[],
                ext_modules=extensions,
                script_name="compile",
                script_args=["--quiet", "build_ext", "--build-lib", "built", "--build-temp", "objects"],
            )
        finally:
            os.chdir(before)
        for product in (folder / "built" / PACKAGE).iterdir():
            new = ROOT / PACKAGE / f".{product.name}.{os.getpid()}"
            shutil.copyfile(product, new)
            new.replace(ROOT / PACKAGE / product.name)  # a process that has the old one loaded keeps it whole
