"""The source distribution and the wheels, built and installed into environments of their own.

The environments borrow the libraries of the one that runs the tests, so that nothing is downloaded. No build is
isolated, for the same reason.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.timing import scaled
from tests.unit.kafka.sets import Batch, Written
from zkconsumer.data_plane.source_digest import MODULES, source_digest

ROOT = Path(__file__).resolve().parents[2]
BUILT_FROM = ("zkconsumer", "scripts", "setup.cfg", "pyproject.toml", "README.md", "LICENSE")
NOT_COPIED = shutil.ignore_patterns("__pycache__", "compiled_*", "generated", "*.egg-info")
ENDINGS = ["a", "bc", "def"]
COMPILER = sysconfig.get_config_var("CC").split()[0]
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")

_READ = """
import json, sys
from zkconsumer import data_plane, version
from zkconsumer.kafka.fetched_batches import batches
from zkconsumer.model import TopicPartition
found = batches(bytes.fromhex(sys.argv[1]), check_crc=True, where=TopicPartition("t", 0), fetch_offset=0)
print(json.dumps({
    "compiled": version.COMPILED,
    "why": version.DATA_PLANE,
    "files": data_plane.__file__,
    "values": [record.value.decode() for batch in found for record in batch],
}))
"""

needs_compiler = pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"there is no {COMPILER}")


class Built(NamedTuple):
    """A file that was built, and the output of the build."""

    path: Path
    output: str


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "ZKCONSUMER_PURE": "", "ZKCONSUMER_BUILD": "", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=scaled(240),
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def built_wheel(source: Path, folder: Path, environment: Mapping[str, str]) -> Built:
    """Return the wheel of a folder or a source distribution."""
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation"]
    output = run([*command, "--no-cache-dir", "--wheel-dir", str(folder), str(source)], source.parent, environment)
    (wheel,) = folder.iterdir()
    return Built(wheel, output)


def built_sdist(tree: Path, folder: Path, path: str = "") -> Path:
    program = "import build_backend, sys; print(build_backend.build_sdist(sys.argv[1]))"
    modules = os.pathsep.join([str(tree / "scripts" / "packaging"), path])
    return folder / run([sys.executable, "-c", program, str(folder)], tree, {"PYTHONPATH": modules}).split()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree without products of a build."""
    folder = tmp_path_factory.mktemp("source")
    for name in BUILT_FROM:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=NOT_COPIED)
        else:
            shutil.copy(ROOT / name, folder)
    return folder


@pytest.fixture(scope="module")
def without_cython(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of processes that cannot import Cython."""
    package = tmp_path_factory.mktemp("hidden") / "Cython"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('Cython is hidden')\n")
    return {"PYTHONPATH": str(package.parent)}


@pytest.fixture(scope="module")
def quick_compiler(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of builds that do not optimize, which would take most of their time."""
    path = tmp_path_factory.mktemp("compiler") / "cc"
    path.write_text(f'#!/bin/sh\nexec {COMPILER} "$@" -O0\n')
    path.chmod(0o700)
    return {"CC": str(path)}


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_sdist(source, tmp_path_factory.mktemp("sdist"))


def read_in_new_environment(wheel: Path, folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Install a wheel and read a message set in a process there."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=scaled(120))
    python = str(folder / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    # without PYTHONPATH, by which pip would find the tree under test and call the package installed
    run([*pip, str(wheel)], folder, {"PYTHONPATH": ""})
    (libraries,) = folder.glob("lib/python*/site-packages")
    # a line of a .pth file adds a folder, but no .pth file in it: the tree under test stays out
    (libraries / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    message_set = Batch([Written(value=ending.encode()) for ending in ENDINGS]).encode(0)[0]
    answer = run([python, "-c", _READ, message_set.hex()], folder, {"PYTHONPATH": "", **(environment or {})})
    read: dict[str, Any] = json.loads(answer)
    assert read.pop("files").startswith(str(libraries))
    return read


@needs_compiler
def test_a_wheel_of_the_source_distribution_is_compiled(
    sdist: Path, without_cython: dict[str, str], quick_compiler: dict[str, str], tmp_path: Path
) -> None:
    """It carries the C files: a compiler is all that it needs."""
    wheel, output = built_wheel(sdist, tmp_path / "wheel", {**without_cython, **quick_compiler})

    assert "-cp" in wheel.name
    assert "zkconsumer: this wheel is compiled, from C files of the source distribution" in output
    read = read_in_new_environment(wheel, tmp_path / "venv")
    assert read == {"compiled": True, "why": "compiled", "values": ENDINGS}


@pytest.mark.tier("all")
def test_a_source_distribution_makes_another_one(sdist: Path, without_cython: dict[str, str], tmp_path: Path) -> None:
    """Bug: that needed Cython, and took the C files away from the tree, so that its next wheel needed Cython, too."""
    shutil.unpack_archive(sdist, tmp_path)
    (tree,) = tmp_path.iterdir()
    before = sorted(tree.glob("scripts/packaging/generated/*/*.c"))

    again = built_sdist(tree, tmp_path, without_cython["PYTHONPATH"])

    assert sorted(tree.glob("scripts/packaging/generated/*/*.c")) == before != []
    assert again.read_bytes() == sdist.read_bytes()


@pytest.mark.tier("all")
def test_a_source_distribution_has_the_same_bytes_anywhere(source: Path, sdist: Path, tmp_path: Path) -> None:
    tree = shutil.copytree(source, tmp_path / "tree", copy_function=shutil.copyfile)  # at other times
    assert built_sdist(tree, tmp_path).read_bytes() == sdist.read_bytes()


@pytest.mark.tier("all")
@needs_compiler
def test_a_wheel_of_the_tree_is_compiled_and_can_be_pure(
    source: Path, quick_compiler: dict[str, str], tmp_path: Path
) -> None:
    wheel, output = built_wheel(source, tmp_path / "wheel", quick_compiler)

    assert "zkconsumer: this wheel is compiled, with Cython" in output
    read = read_in_new_environment(wheel, tmp_path / "venv", {"ZKCONSUMER_PURE": "1"})
    assert read == {"compiled": False, "why": "pure Python: ZKCONSUMER_PURE is set", "values": ENDINGS}
    assert not list(source.glob("build/*")), "the next wheel would have these, too"


def test_without_a_working_compiler_a_wheel_is_pure(sdist: Path, tmp_path: Path) -> None:
    wheel, output = built_wheel(sdist, tmp_path / "wheel", {"CC": "/bin/false"})

    assert wheel.name.endswith("-py3-none-any.whl")
    assert "zkconsumer: THIS WHEEL IS PURE PYTHON: " in output
    read = read_in_new_environment(wheel, tmp_path / "venv")
    assert read == {
        "compiled": False,
        "why": "pure Python: this installation has no compiled modules",
        "values": ENDINGS,
    }


@pytest.fixture
def refusing_cython(tmp_path: Path) -> dict[str, str]:
    """Variables of builds with a Cython that does not understand the sources, as a later release of it may."""
    package = tmp_path / "path" / "Cython"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "Build.py").write_text("def cythonize(*_, **__): raise SyntaxError('not understood')\n")
    return {"PYTHONPATH": str(package.parent)}


@pytest.mark.tier("all")
@pytest.mark.parametrize(
    ("obstacle", "said"),
    [
        ("no_compiler", "no C compiler was found"),
        pytest.param("without_cython", "Cython is not installed", marks=needs_compiler),
        pytest.param("refusing_cython", "Cython does not accept the sources: not understood", marks=needs_compiler),
    ],
)
def test_what_is_missing_is_in_the_output_of_the_build(
    source: Path, obstacle: str, said: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Bug: nothing could be installed beside a Cython that refused the sources."""
    environment = {"CC": "/nowhere/cc"} if obstacle == "no_compiler" else request.getfixturevalue(obstacle)

    wheel, output = built_wheel(source, tmp_path / "wheel", environment)

    assert wheel.name.endswith("-py3-none-any.whl")
    assert f"zkconsumer: THIS WHEEL IS PURE PYTHON: {said}" in output


@pytest.mark.tier("all")
def test_a_wheel_that_must_be_compiled_is_refused_else(source: Path, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"the modules of .*data_plane cannot be compiled"):
        built_wheel(source, tmp_path / "wheel", {"CC": "/bin/false", "ZKCONSUMER_BUILD": "compiled"})


@pytest.mark.tier("all")
@needs_compiler
@pytest.mark.parametrize("choice", ["", "compiled"])
def test_an_editable_installation_is_pure_unless_asked(
    source: Path, quick_compiler: dict[str, str], choice: str, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(source, tree, ignore=NOT_COPIED)
    program = "import build_backend, sys; build_backend.build_editable(sys.argv[1])"
    backend = {**quick_compiler, "PYTHONPATH": str(tree / "scripts" / "packaging"), "ZKCONSUMER_BUILD": choice}

    run([sys.executable, "-c", program, str(tmp_path)], tree, backend)

    assert bool(list((tree / "zkconsumer" / "data_plane").glob("compiled_*"))) is (choice == "compiled")


@needs_compiler
def test_modules_that_cannot_be_used_are_compiled_anew(
    source: Path, without_cython: dict[str, str], tmp_path: Path
) -> None:
    """Bug: a note of the last build was believed. Modules that something else had put there since, such as an editable
    installation, stayed unused for ever.
    """
    tree = tmp_path / "tree"
    shutil.copytree(source, tree, ignore=NOT_COPIED)
    for name in MODULES:
        (tree / "zkconsumer" / "data_plane" / f"compiled_{name}{SUFFIX}").write_text("of another system")
    digest = source_digest(lambda name: (tree / "zkconsumer" / "data_plane" / name).read_bytes())
    (tree / ".cache").mkdir()
    (tree / ".cache" / f"data_plane{SUFFIX}.digest").write_text(digest)  # the note

    command = [sys.executable, str(tree / "scripts" / "packaging" / "compile.py"), "--if-possible"]
    with pytest.raises(AssertionError, match=r"compiling zkconsumer/data_plane[^$]*Cython is hidden"):
        run(command, tree, without_cython)
