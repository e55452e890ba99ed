"""Limits on the repository's own code: sizes, names of tests, and private attributes in tests.

Each limit stands beside the number of places that are still beyond it. That number may only go down.
"""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from scripts import shape

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "zkconsumer"
TESTS = ROOT / "tests"

MODULE_LINES = 500
LONG_MODULES = 0

FUNCTION_LINES = 40
LONG_FUNCTIONS = 5

COLLABORATORS = 8
LARGE_CONSTRUCTORS = 0

TEST_NAME = 60
LONG_TEST_NAMES = 0

PRIVATE_ACCESSES = 15
PRIVATE_TEXTS = 12
"""Private names in texts: ``monkeypatch.setattr(thing, "_name", ...)``."""

PUBLIC_METHODS = frozenset({"_replace"})
"""``NamedTuple`` documents them. Their underscore only keeps them apart from the names of fields."""

LIBRARY_NAMES: dict[str, set[str]] = {
    # kazoo's own method, below the one of the package
    "tests/unit/zookeeper/test_pipelined_connection.py": {"_connect"},
    # a client of kazoo gets the package's connection in place of its own
    "tests/unit/zookeeper/test_server_connection.py": {"_connection"},
    # kazoo's own call, by which its connection reports an expired session
    "tests/faults/member.py": {"_call"},
    # a module of the standard library: concurrent.futures._base
    "tests/interrupts/boundaries.py": {"_base"},
}
"""Private names of kazoo's classes. The contract with the library is the subject of these tests."""


_LOOKED_AT = (
    ast.Attribute,
    ast.AsyncFunctionDef,
    ast.Call,
    ast.ClassDef,
    ast.Constant,
    ast.FunctionDef,
    ast.ImportFrom,
    ast.Name,
)


@pytest.fixture(autouse=True, scope="module")
def _no_collection() -> Iterator[None]:
    """Collect no garbage: to look through millions of nodes again and again took most of the time."""
    gc.disable()
    yield
    _nodes.cache_clear()
    gc.enable()


@cache
def _nodes(folder: Path) -> list[tuple[str, Any]]:
    """Return the nodes of the modules below a folder, each with its module's path for messages."""
    found: list[tuple[str, Any]] = []
    for path in sorted(folder.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        found += ((name, node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, _LOOKED_AT))
    return found


def _check(found: list[str], most: int) -> None:
    assert len(found) <= most, f"{len(found)} places, at most {most} are left:\n" + "\n".join(found)


def test_modules_have_at_most_500_lines() -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    _check([f"{path}: {lines}" for path, lines in lengths.items() if lines > MODULE_LINES], LONG_MODULES)


def _constructors(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the place of each ``__init__`` and its number of arguments."""
    for place, node in _nodes(folder):
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                    arguments = member.args
                    yield f"{place} {node.name}", len(arguments.args) + len(arguments.kwonlyargs) - 1


def test_constructors_take_at_most_8_collaborators() -> None:
    found = [f"{place}: {count}" for place, count in _constructors(PACKAGE) if count > COLLABORATORS]
    _check(found, LARGE_CONSTRUCTORS)


def test_functions_have_at_most_40_lines() -> None:
    """The docstring does not count."""
    found = []
    for place, node in _nodes(PACKAGE):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            described = 0 if docstring is None else docstring.count("\n") + 1
            lines = (node.end_lineno or 0) - node.lineno + 1 - described
            if lines > FUNCTION_LINES:
                found.append(f"{place} {node.name}: {lines}")
    _check(found, LONG_FUNCTIONS)


_NO_LOCKS_OF_MEMBERS = ("testing/", "devcluster/", "cli/", "runtime/interruptible_wait.py")
_LOCK = re.compile(r"\b(?:Lock|RLock|Condition)\(\)|from threading import [^\n]*\bR?Lock\b")
_CONDITION = re.compile(r"(self\.\w+) = (?:threading\.)?Condition\(")


def test_every_lock_of_a_member_is_interruptible() -> None:
    """An interrupt may leave another lock held on CPython 3.14, and a lock that a condition enters on every version."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.relative_to(PACKAGE).as_posix().startswith(_NO_LOCKS_OF_MEMBERS):
            continue
        text = path.read_text()
        found += [f"{path}: {match[0]}" for match in _LOCK.finditer(text)]
        found += [f"{path}: {name}" for name in set(_CONDITION.findall(text)) if f"with {name}:" in text]
    _check(found, 0)


def test_test_names_have_at_most_60_characters() -> None:
    """The story of a test stands in its docstring."""
    functions = [(place, node.name) for place, node in _nodes(TESTS) if isinstance(node, ast.FunctionDef)]
    found = [f"{place} {name}" for place, name in functions if name.startswith("test_") and len(name) > TEST_NAME]
    _check(found, LONG_TEST_NAMES)


def _at(place: str, node: Any, name: str) -> str:
    return f"{place}:{node.lineno} {name}"


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _private_names() -> frozenset[str]:
    """Return the private names that the package defines or assigns."""
    names: set[str] = set()
    for _, node in _nodes(PACKAGE):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)  # in __slots__
    return frozenset(name for name in names if _private(name))


def _accesses(node: Any) -> Iterator[str]:
    """Yield the private names that a node takes from anything but its own object."""
    if isinstance(node, ast.Attribute):
        if not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
            yield node.attr
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("zkconsumer"):
        yield from (alias.name for alias in node.names)


def test_tests_use_few_private_attributes() -> None:
    """A test of a private attribute breaks with each change inside the package, though nothing is wrong."""
    private = _private_names() - PUBLIC_METHODS
    found = [
        _at(place, node, name)
        for place, node in _nodes(TESTS)
        for name in _accesses(node)
        if name in private and name not in LIBRARY_NAMES.get(place, ())
    ]
    _check(found, PRIVATE_ACCESSES)


def _texts(node: Any) -> Iterator[str]:
    """Yield the texts by which a call reads or replaces an attribute."""
    if isinstance(node, ast.Call):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in {"setattr", "getattr", "delattr", "hasattr", "attrgetter"}:
            texts = [given.value for given in node.args[:2] if isinstance(given, ast.Constant)]
            yield from (text.rpartition(".")[2] for text in texts if isinstance(text, str))


def test_tests_patch_few_private_attributes() -> None:
    found = [
        _at(place, node, text)
        for place, node in _nodes(TESTS)
        for text in _texts(node)
        if _private(text) and text not in LIBRARY_NAMES.get(place, ())
    ]
    _check(found, PRIVATE_TEXTS)


def test_the_shape_of_the_package_is_within_its_limits(capsys: pytest.CaptureFixture[str]) -> None:
    over = shape.main([])
    assert not over, capsys.readouterr().out


def test_imports_for_types_alone_make_no_circle() -> None:
    for_types = ast.parse("if TYPE_CHECKING:\n    import a.b\nelse:\n    import a.c\ndef late():\n    import a.d\n")
    names = ["a.a", "a.b", "a.c", "a.d"]
    trees = [for_types, *[ast.parse("import a.a")] * 3]
    among = [shape.Module(Path(name), name, 1, tree) for name, tree in zip(names, trees, strict=True)]
    graph = shape.imports(among)
    assert graph["a.a"] == {"a.c", "a.d"}
    assert shape.circles(graph) == [["a.a", "a.c", "a.d"]]
