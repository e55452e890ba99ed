"""The build backend that pyproject.toml names: setuptools', with the modules of zkconsumer/data_plane compiled.

``ZKCONSUMER_BUILD`` chooses what is built:

===========  ===================================================================================================
(not set)    Wheels are compiled if a C compiler works, else they are pure. Editable installations are pure.
``pure``     Nothing is compiled.
``compiled`` Everything is compiled, editable installations as well. The build fails where it cannot be done.
===========  ===================================================================================================

A source distribution has the same bytes whenever and wherever it is made of the same files, with the same Cython, zlib
and setuptools. ``SOURCE_DATE_EPOCH`` is the time of its files, in seconds since 1970.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from data_plane_build import (
    CARRIED,
    DECLARATIONS,
    PACKAGE,
    ROOT,
    carried,
    compile_in_place,
    digest,
    extensions,
    missing_tool,
    run_setuptools,
    say,
    write_c,
)
from setuptools import build_meta

prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable

VARIABLE = "ZKCONSUMER_BUILD"
_CYTHON = "Cython>=3.1"
_LONG_AGO = 1_577_836_800  # the time of files where nobody says another: 2020-01-01
_HERE = Path("scripts", "packaging")

Settings = dict[str, Any] | None


class NotCompiledError(Exception):
    """Why the modules cannot be compiled."""


def _choice() -> str:
    choice = os.environ.get(VARIABLE, "")
    if choice not in {"", "pure", "compiled"}:
        raise SystemExit(f"{VARIABLE} must be pure, compiled or not set, not {choice!r}")
    return choice


def _wanted(by_default: bool) -> bool:
    return _choice() == "compiled" or (by_default and _choice() == "")


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """Return the requirements of :func:`build_wheel`: Cython only if there are sources to translate and a compiler."""
    needed = _wanted(by_default=True) and carried() is None and (not missing_tool() or _choice() == "compiled")
    return [*build_meta.get_requires_for_build_wheel(config_settings), *([_CYTHON] if needed else [])]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """Return the requirements of :func:`build_editable`."""
    needed = [_CYTHON] if _wanted(by_default=False) else []
    return [*build_meta.get_requires_for_build_editable(config_settings), *needed]


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Return the requirements of :func:`build_sdist`, which carries the C files."""
    needed = [_CYTHON] if carried() is None else []
    return [*build_meta.get_requires_for_build_sdist(config_settings), *needed]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """Build a wheel with the compiled modules, or one without if they cannot be compiled."""
    if _wanted(by_default=True):
        try:
            return _compiled_wheel(Path(wheel_directory))
        except NotCompiledError as failure:
            if _choice() == "compiled":
                raise SystemExit(f"the modules of {PACKAGE} cannot be compiled: {failure}") from failure
            say(f"THIS WHEEL IS PURE PYTHON: {failure}")
            say("It does everything, several times slower: zkconsumer/docs/compiled.md has the figures.")
    else:
        say(f"this wheel is pure Python: {VARIABLE} is pure")
    return str(build_meta.build_wheel(wheel_directory, config_settings, metadata_directory))


def _compiled_wheel(target: Path) -> str:
    """Raises: NotCompiledError."""
    if missing := missing_tool():
        raise NotCompiledError(missing)
    with tempfile.TemporaryDirectory(prefix="zkconsumer-wheel-") as name:
        folder = Path(name)
        c_files = carried()
        if c_files is None:
            c_files = folder / "c"
            _translate(c_files)
        out = folder / "out"
        # Not the project's build folder, because leftovers of an earlier build would get into this wheel.
        command = ["build", "--build-base", str(folder / "build"), "bdist_wheel", "--dist-dir", str(out)]
        try:
            run_setuptools(command, extensions(c_files))
        except SystemExit as failure:
            raise NotCompiledError(str(failure)) from failure
        (wheel,) = out.iterdir()
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, target)
        say(f"this wheel is compiled, {'from C files of the source distribution' if carried() else 'with Cython'}")
        return wheel.name


def _translate(target: Path) -> None:
    try:
        write_c(target)
    except ImportError as failure:
        raise NotCompiledError("Cython is not installed, and this tree carries no C files") from failure
    except Exception as failure:  # a release of Cython to come may refuse what those before accepted
        raise NotCompiledError(f"Cython does not accept the sources: {failure}") from failure


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build an editable installation. It is pure unless asked, since an edit makes compiled modules unusable."""
    if _wanted(by_default=False):
        compile_in_place()
        say("the modules of this tree are compiled; after an edit of them, run scripts/compile")
    return str(build_meta.build_editable(wheel_directory, config_settings, metadata_directory))


def build_sdist(sdist_directory: str, config_settings: Settings = None) -> str:
    """Build a source distribution that carries the C files and this folder. An installation needs only a compiler."""
    if carried() is not None:  # this tree is a source distribution already
        return _sdist(sdist_directory)
    shutil.rmtree(ROOT / CARRIED, ignore_errors=True)
    try:
        write_c(ROOT / CARRIED / digest())
        return _sdist(sdist_directory)
    finally:
        shutil.rmtree(ROOT / CARRIED, ignore_errors=True)


def _sdist(target: str) -> str:
    beside = [str(path.relative_to(ROOT)) for path in sorted((ROOT / _HERE).glob("*.py"))]
    declarations = [str(PACKAGE / name) for name in DECLARATIONS]
    with tempfile.TemporaryDirectory(prefix="zkconsumer-sdist-") as name:
        modules = extensions(CARRIED / digest(), [*beside, *declarations])
        run_setuptools(["sdist", "--formats=tar", "--dist-dir", name], modules)
        (archive,) = Path(name).iterdir()
        packed = Path(target, f"{archive.name}.gz")
        _pack(archive, packed)
        return packed.name


def _pack(archive: Path, packed: Path) -> None:
    """Compress an archive, in the order of names, without what tells who built it, where and when."""
    moment = int(os.environ.get("SOURCE_DATE_EPOCH") or _LONG_AGO)
    with (
        tarfile.open(archive) as before,
        packed.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, moment) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before, key=lambda one: one.name):
            member.mtime, member.pax_headers = moment, {}
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(member, before.extractfile(member) if member.isfile() else None)
