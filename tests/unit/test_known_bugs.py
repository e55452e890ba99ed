"""The patches that put known bugs back: each applies to today's package, and says what it is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.simulation import known_bugs
from tests.simulation.known_bugs import HERE, ROOT, CannotRun, Search

PATCHES = sorted(HERE.glob("*.patch"))


def test_every_known_bug_applies_to_todays_package() -> None:
    assert PATCHES
    for patch in PATCHES:
        done = subprocess.run(
            ["git", "apply", "--check", str(patch)], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{patch.stem}: mend the patch: {done.stderr}"


def test_every_known_bug_names_its_promise() -> None:
    for patch in PATCHES:
        head = patch.read_text().partition("--- a/")[0].splitlines()
        assert all(line.startswith("# ") for line in head), patch.stem
        assert any(line.startswith("# Promise: ") for line in head[1:]), patch.stem


def _bugs_of(patch: Path) -> list[str]:
    """Return the reports and the rows of REGRESSIONS.md that the head of a patch names."""
    head = " ".join(line[2:] for line in patch.read_text().partition("--- a/")[0].splitlines())
    return [report or text for report, text in re.findall(r'(KAFKA-\d+)|"([^"]+)"', head)]


def test_every_known_bug_is_named_by_its_rows_in_regressions() -> None:
    """A row is one of a table, or a point of the list at the end."""
    rows = re.split(r"\n(?=[-|#] ?)", (ROOT / "zkconsumer/REGRESSIONS.md").read_text())
    for patch in PATCHES:
        rows_of_it = " ".join(row for row in rows if f"`simulation: {patch.stem}`" in row)
        words = " ".join(rows_of_it.replace("`", "").split())
        assert _bugs_of(patch), patch.stem
        assert [bug for bug in _bugs_of(patch) if bug not in words] == [], f"add `simulation: {patch.stem}` to its row"


def test_a_patch_that_does_not_apply_cannot_run(tmp_path: Path) -> None:
    patch = PATCHES[0].read_bytes().replace(b"@@\n ", b"@@\n another line, ", 1)
    with pytest.raises(CannotRun, match="does not apply"):
        known_bugs.make_copy(tmp_path, patch)


def test_the_copy_alone_has_the_bug(tmp_path: Path) -> None:
    patch = PATCHES[0].read_text()
    changed = patch.partition("--- a/")[2].partition("\n")[0]
    before = (ROOT / changed).read_bytes()
    known_bugs.make_copy(tmp_path, patch.encode())
    assert (tmp_path / changed).read_bytes() != before == (ROOT / changed).read_bytes()


@pytest.mark.parametrize(
    ("search", "found"),
    [
        (Search("a", 3, "BrokenPromise: t-1 has no owner"), True),
        (Search("a", 3, "Stuck: all wait"), True),
        (Search("a", 200, ""), False),
        (Search("a", 1, "NameError: name 'x' is not defined"), False),
        (Search("a", 0, "", "the patch does not apply"), False),
    ],
)
def test_a_bug_is_found_by_a_broken_promise_alone(search: Search, found: bool) -> None:
    assert search.found is found
    assert search.name in str(search)


def test_the_exit_code_tells_whether_all_were_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for promise, code in (("BrokenPromise: b", 0), ("", 1)):
        monkeypatch.setattr(known_bugs, "look_for", lambda name, most, said=promise: Search(name, most, said))
        assert known_bugs.main([PATCHES[0].stem], 7) == code


def test_an_unknown_bug_is_refused_by_name() -> None:
    with pytest.raises(SystemExit, match="no such bugs: nothing"):
        known_bugs.main(["nothing"])
