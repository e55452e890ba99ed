"""Bugs of REGRESSIONS.md, each as a patch that puts it back, and the command that has the simulation find them again.

``NAME.patch`` begins with comments: which bug it is, and which promise it breaks. It is applied to a copy of the
package, so the checkout never changes. A patch that no longer applies, or a bug that no seed finds, is a failure of the
command.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
MOST = 200
"""Seeds in which a bug has to be found."""
_MISTAKES = ("AttributeError", "ImportError", "NameError", "SyntaxError", "TypeError", "UnboundLocalError")
"""How the result of a seed begins that shows a mistake of the patch. Any other error is a thread's end, and counts."""
_RESULT = re.compile(r"^seed (\d+): (.*?)(?:; digest .*)?$", re.MULTILINE)


class CannotRun(Exception):
    """A patch does not apply, or the copy is not what runs."""


@dataclass(frozen=True, slots=True)
class Search:
    """What came of one bug. ``seeds`` were run; ``promise`` is what broke in the last one, empty if nothing did."""

    name: str
    seeds: int
    promise: str
    trouble: str = ""

    @property
    def found(self) -> bool:
        """Whether a seed broke a promise."""
        return bool(self.promise) and not self.promise.startswith(_MISTAKES)

    def __str__(self) -> str:
        if self.trouble:
            return f"{self.name:44} {'-':>5}  CANNOT RUN: {self.trouble}"
        said = self.promise or f"NOT FOUND in {self.seeds} seeds"
        return f"{self.name:44} {self.seeds:5}  {said if self.found or not self.promise else f'FAILS: {said}'}"


def main(names: Sequence[str], most: int = MOST) -> int:
    """Look for these bugs (none: all), each in at most ``most`` seeds. Returns 1 if one was not found, else 0."""
    known = sorted(path.stem for path in HERE.glob("*.patch"))
    unknown = sorted(set(names).difference(known))
    if unknown:
        raise SystemExit(f"no such bugs: {', '.join(unknown)}; known are {', '.join(known)}")
    print(f"{'bug':44} {'seeds':>5}  the promise that broke", flush=True)
    results = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in as_completed([pool.submit(look_for, name, most) for name in names or known]):
            results.append(done.result())
            print(results[-1], flush=True)
    found = sum(search.found for search in results)
    print(f"{found} of {len(results)} known bugs were found")
    return 0 if found == len(results) else 1


def look_for(name: str, most: int) -> Search:
    """Put one bug into a copy, and run seeds until a promise breaks."""
    with TemporaryDirectory(prefix="zkconsumer-known-bug-") as directory:
        copy = Path(directory).resolve()
        try:
            make_copy(copy, (HERE / f"{name}.patch").read_bytes())
            return _search(name, copy, most, scenario_of(HERE / f"{name}.patch"))
        except CannotRun as e:
            return Search(name, 0, "", str(e))


def make_copy(copy: Path, patch: bytes) -> None:
    """Copy the package and the simulation, and patch the copy. Raises CannotRun."""
    for part in ("zkconsumer", "tests/simulation"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.patch"))
    shutil.copy(ROOT / "tests/__init__.py", copy / "tests")
    # without the ceiling, git would patch nothing, and say nothing, if the directory lies in a repository
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    applied = subprocess.run(
        ["git", "apply", "-"], cwd=copy, env=environment, input=patch, capture_output=True, check=False
    )
    if applied.returncode:
        raise CannotRun(f"the patch does not apply: {applied.stderr.decode().strip()}")


def scenario_of(patch: Path) -> str:
    """Return the scenario in which a bug is looked for: the one that its head names, else ``group``."""
    named = re.search(r"^# Scenario: (\S+)$", patch.read_text(), re.MULTILINE)
    return named[1] if named else "group"


def _search(name: str, copy: Path, most: int, scenario: str) -> Search:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    where = _output(copy, environment, ["-c", "import zkconsumer, tests; print(zkconsumer.__file__, tests.__file__)"])
    if where.split() != [str(copy / each / "__init__.py") for each in ("zkconsumer", "tests")]:
        raise CannotRun(f"not the copy is imported: {where.strip()}")
    seeds = ["--scenario", scenario, "--seed", "1", "--seeds", str(most), "--stop"]
    output = _output(copy, environment, ["-m", "tests.simulation", *seeds])
    results = _RESULT.findall(output)
    if not results:
        raise CannotRun(f"no seed was run: {output.strip()[-500:]}")
    said = results[-1][1]
    return Search(name, len(results), "" if said == "nothing broken" else said)


def _output(copy: Path, environment: dict[str, str], arguments: list[str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout or done.stderr
