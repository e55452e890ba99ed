"""Switches of tasks between two statements of the package.

Each function of the chosen modules is compiled with a call before each statement, which is done if the world watches
the statement's place. A seed says how many calls pass until the next one gives the turn away, and at which places tasks
often stand still: a race of two threads has a window of some statements, which is wide only when one of them is slow.
The source decides where these calls stand, so all Pythons agree.
"""

from __future__ import annotations

import ast
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any
from zlib import crc32

from tests.simulation.scheduler import PLACES, WATCHED, before_statement

_CHOSEN = (
    "zkconsumer.streams", "zkconsumer.fetch", "zkconsumer.member", "zkconsumer.offsets", "zkconsumer.balance",
    "zkconsumer.connector.zookeeper_connector", "zkconsumer.connector.partition_control",
    "zkconsumer.connector.lifecycle", "zkconsumer.connector.subscribed_streams",
)  # fmt: skip
"""How the names of the modules begin."""
_CALL = "__before_statement__"
_WATCHED = "__watched_places__"


class _Insertion(ast.NodeTransformer):
    """Puts a call before each statement of functions."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._depth = 0

    def generic_visit(self, node: ast.AST) -> ast.AST:
        inside = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        self._depth += inside
        super().generic_visit(node)
        if self._depth and not isinstance(node, ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                statements: Any = getattr(node, name, None)
                if isinstance(statements, list):
                    setattr(node, name, [each for one in statements for each in self._with_call(one)])
        self._depth -= inside
        return node

    def _with_call(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return [statement]  # a docstring stays the first statement
        place = ast.Constant(crc32(f"{self._module}:{statement.lineno}".encode()) % PLACES)
        watched = ast.Compare(place, [ast.In()], [ast.Name(_WATCHED, ast.Load())])
        call = ast.If(watched, [ast.Expr(ast.Call(ast.Name(_CALL, ast.Load()), [place], []))], [])
        return [ast.fix_missing_locations(ast.copy_location(call, statement)), statement]


class _Loader(SourceFileLoader):
    """Compiles a module with the calls; neither reads nor writes bytecode files."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = _Insertion(fullname).visit(ast.parse(self.get_data(path), path))
        code: CodeType = compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)
        return code

    def exec_module(self, module: ModuleType) -> None:
        vars(module).update({_CALL: before_statement, _WATCHED: WATCHED})
        super().exec_module(module)


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname.startswith(_CHOSEN) else None
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = _Loader(fullname, spec.origin)
        return spec


def install() -> None:
    """Compile the chosen modules so from now on. Call it before the package is imported."""
    sys.meta_path.insert(0, _Finder())
