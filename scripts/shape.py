"""``scripts/check --shape``: counts that tell how much a reader of the package has to hold, each with its limit.

A count over its limit fails the command. Lower a limit with each change that lowers its count. A change may raise one,
with the reason beside it. ``scripts/check --shape circles private`` also prints the places of the counts that have one
of these words in their names.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "zkconsumer"

ATTRIBUTES, METHODS, PARAMETERS, SMALL = 15, 12, 8, 60

LIMITS = {
    # 828 and 358 before groups that are held by watches (700 lines and a file), the closest replica (250 and a file),
    # the history of "serve" with the totals of groups in its metrics (1,300 and three files), and the terminal (900):
    # top, --watch, help, errors, completion, suggestions, and remedies that mend. 862 before jars from Maven alone,
    # readings of a thousand groups that share what did not change, and examples in docstrings. A file for
    # auto.offset.reset, for unknown properties and for requests that may be withdrawn: readers looked for them in vain.
    # 870 before a bridge commits in ZooKeeper alone what the brokers took back, and before nodes are read ahead.
    # 872 before many contents are read by one request
    "hundreds of lines of the package": 873,
    "files of the package": 366,
    "classes with over 15 attributes": 8,
    "classes with over 12 public methods": 20,
    "callbacks assigned after construction": 0,
    "constructors over 8 parameters": 0,
    "circles of imports": 0,
    # 32 before kazoo's requests that are queued together, and its watchers by path
    "private attributes of other objects: package": 40,
    "private attributes of other objects: tests": 34,  # 32 before the two functions that asyncio documents for loops
    "names of files that occur more than once": 3,
    "names of classes that occur more than once": 5,
    "modules beside __init__ and __main__": 3,
    "modules under 60 lines with one importer": 5,
    "modules with one importer": 73,
    "methods that only forward": 54,
}

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class Module:
    """A file: the path below the root, the dotted name, and the tree."""

    path: Path
    name: str
    lines: int
    tree: ast.Module


@dataclass(slots=True)
class Class:
    """A class: the place, the attributes of its instances, and the methods by name."""

    module: Module
    node: ast.ClassDef
    attributes: set[str] = field(default_factory=set)
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """The class as ``module.Class``."""
        return f"{self.module.name}.{self.node.name}"


def modules(folder: str) -> list[Module]:
    """Return the modules below a folder of the root."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = path.read_text()
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(path.relative_to(ROOT), name, text.count("\n"), ast.parse(text)))
    return found


def classes(among: Sequence[Module]) -> Iterator[Class]:
    """Yield the classes of these modules, also those inside functions and classes."""
    for module in among:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield _class(module, node)


def _class(module: Module, node: ast.ClassDef) -> Class:
    found = Class(module, node)
    for part in node.body:
        if isinstance(part, FUNCTIONS):
            found.methods[part.name] = part
            found.attributes.update(_assigned(part))
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name) and not _of_class(part):
            found.attributes.add(part.target.id)
    return found


def _of_class(node: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(node.annotation)


def _assigned(method: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    """Yield the names that a method assigns to its instance."""
    if not method.args.args:
        return
    me = method.args.args[0].arg
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_name(node.value, me):
            yield node.attr


def _is_name(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def _body(method: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    first = method.body[0]
    text = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return method.body[1:] if text else method.body


def public_methods(one: Class) -> list[str]:
    """Return the public methods and properties of a class."""
    return [name for name in one.methods if not name.startswith("_")]


def forwards(one: Class) -> list[str]:
    """Return the methods that only call one method of an attribute, with their own arguments or none."""
    return [name for name, method in one.methods.items() if not name.startswith("__") and _forwards(method)]


def _forwards(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = _body(method)
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr):
        return False
    call = body[0].value
    if isinstance(call, ast.Await):
        call = call.value
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return False
    of = call.func.value
    if not (isinstance(of, ast.Attribute) and _is_name(of.value, "self")):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return all(isinstance(argument, ast.Name) for argument in given)


def parameters(one: Class) -> int:
    """Return how many arguments the constructor takes."""
    made = one.methods.get("__init__")
    if made is None:
        return 0
    arguments = made.args
    return len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) - 1


def private_reads(among: Sequence[Module]) -> list[str]:
    """Return the reads of private attributes of other objects."""
    found = []
    for module in among:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Attribute) or _is_name(node.value, "self", "cls"):
                continue
            if node.attr.startswith("_") and not node.attr.startswith("__") and node.attr != "_replace":
                found.append(f"{module.path}:{node.lineno} {ast.unparse(node)}")
    return found


def late_callbacks(among: Sequence[Module]) -> list[str]:
    """Return the assignments of a function or a bound method to an attribute of another object."""
    functions = {name for one in classes(among) for name, method in one.methods.items() if not _is_property(method)} - {
        name for one in classes(among) for name in one.attributes
    }
    found = []
    for module in among:
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.Assign):
                continue
            value = node.value
            callback = isinstance(value, ast.Lambda) or (isinstance(value, ast.Attribute) and value.attr in functions)
            others = [one for one in node.targets if isinstance(one, ast.Attribute) and not _is_name(one.value, "self")]
            if callback and others:
                found.append(f"{module.path}:{node.lineno} {ast.unparse(node)}")
    return found


def _is_property(method: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any("property" in ast.unparse(one) or "setter" in ast.unparse(one) for one in method.decorator_list)


def imports(among: Sequence[Module]) -> dict[str, set[str]]:
    """Return the modules of the package that each imports, also in functions, without those for types only."""
    names = {module.name for module in among}
    found: dict[str, set[str]] = defaultdict(set)
    for module in among:
        for node in _at_run_time(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for one in node.names:
                    whole = f"{node.module}.{one.name}"
                    found[module.name].add(whole if whole in names else node.module)
            elif isinstance(node, ast.Import):
                found[module.name].update(one.name for one in node.names)
        found[module.name] &= names
    return found


def _at_run_time(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes of a module, without the bodies of ``if TYPE_CHECKING:``, which never run."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
        waiting.extend(node.orelse if isinstance(node, ast.If) and for_types else ast.iter_child_nodes(node))


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other, by way of others or not."""
    reached = {name: _reached(graph, name) for name in graph}
    found: list[list[str]] = []
    seen: set[str] = set()
    for name in sorted(graph):
        circle = sorted(other for other in reached[name] if name in reached.get(other, ()))
        if name not in seen and len(circle) > 1:
            found.append(circle)
        seen.update(circle)
    return found


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph.get(name, ()))
    return found


def repeated(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once."""
    return sorted(name for name, times in Counter(names).items() if times > 1)


def measures() -> dict[str, list[str]]:
    """Return what is counted, by its name."""
    package, tests = modules(PACKAGE), modules("tests")
    found = list(classes(package))
    graph = imports(package)
    importers = Counter(name for names in graph.values() for name in names)
    files = [module.path for module in package if module.path.name not in ("__init__.py", "__main__.py")]
    return {
        "hundreds of lines of the package": [PACKAGE] * (sum(module.lines for module in package) // 100),
        "files of the package": [str(module.path) for module in package],
        f"classes with over {ATTRIBUTES} attributes": [
            f"{one.place} {len(one.attributes)}" for one in found if len(one.attributes) > ATTRIBUTES
        ],
        f"classes with over {METHODS} public methods": [
            f"{one.place} {len(public_methods(one))}" for one in found if len(public_methods(one)) > METHODS
        ],
        "callbacks assigned after construction": late_callbacks(package),
        f"constructors over {PARAMETERS} parameters": [one.place for one in found if parameters(one) > PARAMETERS],
        "circles of imports": [", ".join(circle) for circle in circles(graph)],
        "private attributes of other objects: package": private_reads(package),
        "private attributes of other objects: tests": private_reads(tests),
        "names of files that occur more than once": repeated([path.name for path in files]),
        "names of classes that occur more than once": repeated([one.node.name for one in found]),
        "modules beside __init__ and __main__": [str(path) for path in files if len(path.parts) == 2],
        f"modules under {SMALL} lines with one importer": [
            f"{module.path} {module.lines}"
            for module in package
            if module.lines < SMALL and importers[module.name] == 1 and module.path.name != "__init__.py"
        ],
        "modules with one importer": [m.name for m in package if importers[m.name] == 1],
        "methods that only forward": [f"{one.place}.{name}" for one in found for name in forwards(one)],
    }


def main(arguments: Sequence[str]) -> int:
    """Print the counts, and the places of those with one of the ``arguments`` in their name. Return the exit status."""
    over = 0
    print("  count   limit")
    for name, places in measures().items():
        limit = LIMITS[name]
        over += len(places) > limit
        print(f"{len(places):>7} {limit:>7}  {name}{'  <- too many' if len(places) > limit else ''}")
        if any(word in name for word in arguments):
            print(*(f"                 {place}" for place in places), sep="\n")
    return over > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
