"""The repeat of failed tests at the end of a whole run, on a throw-away project and on staged sessions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.whole_run import MOST_ONCE, MOST_REPEATED, Results, Session, run

OPTIONS = ("-p", "no:cacheprovider")
ON_A_WORKER = ("-p", "xdist", "-n", "1")
FAILS = """
from pathlib import Path

def fails(times):
    "Whether this is one of the first calls. A file keeps their number."
    calls = Path("calls")
    made = int(calls.read_text()) if calls.exists() else 0
    calls.write_text(str(made + 1))
    return made < times
"""
Project = Callable[..., None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Write the files of a project, into the folder in which pytest starts then."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer than the tests
    Path("pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    Path("fails.py").write_text(FAILS)

    def write(**modules: str) -> None:
        for name, text in modules.items():
            Path(f"{name}.py").write_text(f"import os, pytest\nfrom fails import fails\n{text}\n")

    return write


def kept(folder: str = "kept") -> dict[str, str]:
    return {path.name: path.read_text() for path in Path(folder).glob("*")}


OTHERS = "def test_good(): pass\n@pytest.mark.skip(reason='staged')\ndef test_left_out(): pass\n"


@pytest.mark.parametrize(
    "test",
    [
        "def test_one(): print('said'); assert not fails(1)",
        "@pytest.fixture\ndef late():\n    yield\n    print('said'); assert not fails(1)\ndef test_one(late): pass",
    ],
    ids=["call", "teardown"],
)
def test_a_test_that_fails_once_leaves_the_run_green(
    project: Project, capfd: pytest.CaptureFixture[str], test: str
) -> None:
    project(test_it=OTHERS + test)

    assert run([Session("compiled", OPTIONS)], Path("kept")) == 0

    printed = capfd.readouterr().out
    assert " failed once ====" in printed
    assert "\ntest_it.py::test_one (compiled)\n" in printed
    assert printed.splitlines()[-1] == "2 passed, 0 failed, 1 skipped"
    outputs = kept()
    assert sorted(outputs) == ["1-test_one-first.txt", "1-test_one-repeated.txt"]
    assert "assert not fails(1)" in outputs["1-test_one-first.txt"]
    assert "said" in outputs["1-test_one-first.txt"]
    assert "1 passed" in outputs["1-test_one-repeated.txt"]


def test_a_test_that_fails_again_fails_the_run(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    project(test_it=OTHERS + "@pytest.mark.parametrize('of', ['a::b[c]'])\ndef test_one(of): assert not fails(2)")

    assert run([Session("compiled", OPTIONS)], Path("kept")) == 1

    printed = capfd.readouterr().out
    assert "failed once" not in printed
    assert printed.splitlines()[-1] == "1 passed, 1 failed, 1 skipped"
    assert Path("calls").read_text() == "2", "it is repeated once"


def test_a_test_whose_worker_dies_is_repeated_alone(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    alone = "assert not hasattr(pytestconfig, 'workerinput')"
    project(test_it=f"{OTHERS}def test_one(pytestconfig):\n    if fails(1): os._exit(3)\n    {alone}")

    assert run([Session("compiled", OPTIONS, ON_A_WORKER)], Path("kept")) == 0

    assert capfd.readouterr().out.splitlines()[-1] == "2 passed, 0 failed, 1 skipped"
    assert "crashed while running 'test_it.py::test_one'" in kept()["1-test_one-first.txt"]


DIES = "def pytest_sessionfinish(session):\n    if hasattr(session.config, 'workerinput') and fails(1): os._exit(3)"


@pytest.mark.parametrize(
    ("modules", "parallel", "said"),
    [
        ({"test_broken": "import nothing_of_this_name"}, (), "test_broken.py could not be collected"),
        ({"test_broken": "import nothing_of_this_name"}, ON_A_WORKER, "test_broken.py could not be collected"),
        ({"conftest": DIES}, ON_A_WORKER, "a worker died, and no test was running in it"),
        ({"test_stop": "def test_stop(): raise KeyboardInterrupt"}, (), "pytest ended with 2"),
        ({}, ("--no-such-option",), "pytest ended with 4"),
        (
            {"test_hangs": "import time\n@pytest.mark.timeout(0.2)\ndef test_hangs(): time.sleep(600)"},
            ("-p", "pytest_timeout"),
            "test_hangs.py::test_hangs was stopped by its time limit",
        ),
    ],
    ids=["collection", "collection in a worker", "worker", "interrupt", "usage", "time limit"],
)
def test_other_faults_fail_the_run_without_a_repeat(
    project: Project, capfd: pytest.CaptureFixture[str], modules: dict[str, str], parallel: tuple[str, ...], said: str
) -> None:
    project(test_it="def test_good(): pass", **modules)

    assert run([Session("compiled", OPTIONS, parallel)], Path("kept")) == 1

    printed = capfd.readouterr().out
    assert f"compiled: {said}\n" in printed
    assert " errors" in printed.splitlines()[-1]
    assert not Path("kept").exists()


@dataclass(frozen=True)
class Staged(Session):
    """A session whose results are given: its failed tests, and those that fail in the repeat."""

    results: Results = field(default_factory=Results)
    fail_again: tuple[str, ...] = ()
    repeated: list[str] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)

    def run(self) -> Results:
        """Return the given results."""
        self.runs.append(1)
        return self.results

    def repeat(self, test: str, output: Any) -> Results:
        """Let the test fail or pass."""
        self.repeated.append(test)
        return Results({test: "failed" if test in self.fail_again else "passed"})


def staged(name: str, failed: int, **more: Any) -> Staged:
    """Return a session with 10 passed tests and so many failed ones."""
    outcomes = {f"t.py::test_{n}": "failed" if n < failed else "passed" for n in range(10 + failed)}
    return Staged(name, results=Results(outcomes, {test: ["staged"] for test in outcomes}), **more)


@pytest.mark.parametrize(
    ("failed", "code", "closing"),
    [
        ((1, 2), 0, "23 passed, 0 failed, 0 skipped"),
        ((2, 2), 1, "20 passed, 4 failed, 0 skipped"),
        ((0, 0), 0, "20 passed, 0 failed, 0 skipped"),
    ],
)
def test_three_tests_of_both_sessions_may_fail_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], failed: tuple[int, int], code: int, closing: str
) -> None:
    assert MOST_ONCE == 3
    sessions = [staged(name, count) for name, count in zip(("compiled", "plain Python"), failed, strict=True)]

    assert run(sessions, tmp_path) == code

    assert [len(session.repeated) for session in sessions] == [*failed]
    assert capsys.readouterr().out.splitlines()[-1] == closing


def test_a_flaky_and_a_failing_test_are_told_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([staged("compiled", 2, fail_again=("t.py::test_1",))], tmp_path) == 1

    printed = capsys.readouterr().out
    assert printed.index("failed once") < printed.index("t.py::test_0 (compiled)") < printed.index(" failed ===")
    assert printed.splitlines()[-1] == "11 passed, 1 failed, 0 skipped"


def test_many_failed_tests_are_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    session = staged("compiled", MOST_REPEATED + 1)

    assert run([session], tmp_path) == 1

    assert session.repeated == []
    assert capsys.readouterr().out.splitlines()[-1] == f"10 passed, {MOST_REPEATED + 1} failed, 0 skipped"


def test_an_interrupt_ends_the_run(tmp_path: Path) -> None:
    """The second session began after a Ctrl-C in the first one."""
    stopped = Staged("compiled", results=Results(faults=["pytest ended with 2"], interrupted=True))
    second = staged("plain Python", 1)

    assert run([stopped, second], tmp_path) == 1

    assert (stopped.runs, second.runs) == ([1], [])


def test_a_broken_simulation_fails_the_run_and_hinders_no_repeat(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    failed = Results({"test_it.py::test_it": "failed"}, {"test_it.py::test_it": ["its output"]})
    session = Staged("compiled", results=failed)

    assert run([session], tmp_path, ["the simulation broke a promise"]) == 1

    printed = capfd.readouterr().out
    assert session.repeated == ["test_it.py::test_it"]
    assert "the simulation broke a promise\n" in printed
    assert printed.splitlines()[-1] == "1 passed, 0 failed, 0 skipped, 1 errors"
