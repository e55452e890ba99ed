"""The choice between compiled modules and their sources, on a copy of the package with stand-ins for compiled modules.

A stand-in is the source's own text with a digest, as the build adds one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

from tests.programs import run_python
from zkconsumer import data_plane
from zkconsumer.data_plane.source_digest import DECLARATIONS, MODULES, source_digest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "zkconsumer"
LAST = MODULES[-1]

_TELL = f"""
import importlib, json, sys
from zkconsumer import data_plane
names = {MODULES!r}
print(json.dumps({{
    "compiled": data_plane.COMPILED,
    "choice": data_plane.CHOICE,
    "attributes": [getattr(data_plane, name).__name__.rpartition(".")[2] for name in names],
    "imported": [importlib.import_module("zkconsumer.data_plane." + n).__name__.rpartition(".")[2] for n in names],
    "cython": "Cython" in sys.modules or "cython" in sys.modules,
}}))
"""
SOURCES = {"attributes": list(MODULES), "imported": list(MODULES), "compiled": False}
COPIES = {
    "attributes": [f"compiled_{name}" for name in MODULES],
    "imported": [f"compiled_{name}" for name in MODULES],
    "compiled": True,
}


@pytest.fixture
def room(tmp_path: Path) -> Path:
    """The folder of a package's copy that has only the lowest layers and the data plane, with stand-ins."""
    package = tmp_path / "zkconsumer"
    package.mkdir()
    (package / "__init__.py").touch()
    for path in PACKAGE.iterdir():
        if path.name not in {"__init__.py", "data_plane", "__pycache__"}:
            (package / path.name).symlink_to(path)
    binaries = shutil.ignore_patterns("compiled_*", "__pycache__", ".*")
    room = package / "data_plane"
    shutil.copytree(PACKAGE / "data_plane", room, ignore=binaries)
    digest = source_digest(lambda name: (room / name).read_bytes())
    for name in MODULES:
        text = (room / f"{name}.py").read_text()
        (room / f"compiled_{name}.py").write_text(f'{text}\nSOURCE_DIGEST = "{digest}"\n')
    return room


def told(room: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    variables = {"ZKCONSUMER_PURE": "", "PYTHONPATH": str(room.parents[1]), **(environment or {})}
    done = run_python("-c", _TELL, folder=room, variables=variables)
    answer = json.loads(done.stdout)
    assert not answer.pop("cython"), "Cython was imported"
    return dict(answer)


def without_choice(answer: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "choice"}


@pytest.mark.parametrize(("value", "forced"), [("1", True), ("yes", True), ("0", False)])
def test_a_variable_forces_the_sources(room: Path, value: str, forced: bool) -> None:
    sources = SOURCES | {"choice": "pure Python: ZKCONSUMER_PURE is set"}
    assert told(room, {"ZKCONSUMER_PURE": value}) == (sources if forced else COPIES | {"choice": "compiled"})


@pytest.mark.parametrize("name", [f"{MODULES[0]}.py", f"{LAST}.py", DECLARATIONS[0]])
def test_an_edited_source_is_never_run_as_before(room: Path, name: str) -> None:
    with (room / name).open("a") as file:
        file.write("# edited\n")

    answer = told(room)

    assert without_choice(answer) == SOURCES
    assert answer["choice"] == "pure Python: the compiled modules were built from other sources"


def test_without_compiled_modules_the_sources_run(room: Path) -> None:
    for name in MODULES:
        (room / f"compiled_{name}.py").unlink()

    assert told(room) == SOURCES | {"choice": "pure Python: this installation has no compiled modules"}


def test_sources_that_hide_a_compiled_installation_say_so(room: Path, tmp_path: Path) -> None:
    """Bug: in a checkout ``python -m zkconsumer --version`` said that the installation has no compiled modules."""
    for name in MODULES:
        (room / f"compiled_{name}.py").unlink()
    site = tmp_path / "site"
    hidden = site / "zkconsumer" / "data_plane"
    hidden.mkdir(parents=True)
    (hidden / f"compiled_{LAST}{EXTENSION_SUFFIXES[0]}").touch()

    answer = told(room, {"PYTHONPATH": f"{room.parents[1]}{os.pathsep}{site}"})

    assert without_choice(answer) == SOURCES
    assert answer["choice"] == (
        f"pure Python: the sources in {room.parents[1]} are not compiled, and hide the installed copy in {site}, which "
        "is: run scripts/compile, or start Python in another folder"
    )


def test_one_compiled_module_less_and_none_is_used(room: Path) -> None:
    (room / f"compiled_{LAST}.py").unlink()

    assert without_choice(told(room)) == SOURCES


@pytest.mark.parametrize("error", ["ImportError", "ValueError", "TypeError", "RuntimeWarning"])
def test_a_compiled_module_that_cannot_be_loaded_is_left_out(room: Path, error: str) -> None:
    """ImportError comes of a module for another system. The others come of modules of two builds side by side, since
    Cython compares the types that they share. Bug: the package could not be imported then.
    """
    (room / f"compiled_{LAST}.py").write_text(f"raise {error}('wrong')\n")

    answer = told(room)

    assert without_choice(answer) == SOURCES
    assert answer["choice"] == "pure Python: a compiled module cannot be loaded: wrong"


def test_compiled_modules_in_this_tree_are_in_use() -> None:
    """Otherwise the tests would not run them, without a word."""
    if os.environ.get("ZKCONSUMER_PURE", "") not in {"", "0"}:
        pytest.skip("ZKCONSUMER_PURE is set")
    if not list(Path(str(data_plane.__file__)).parent.glob(f"compiled_{MODULES[0]}.*")):
        pytest.skip("there are none: no C compiler, or nobody ran scripts/compile")
    assert data_plane.CHOICE == "compiled", "run scripts/compile"
