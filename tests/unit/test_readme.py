"""README and the pages it links to say what the code says."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from tests.unit.assignors.groups import member, owners
from zkconsumer.config import markdown_table
from zkconsumer.model import ConsumerId

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "zkconsumer" / "docs").glob("*.md"))]


def examples(page: Path) -> list[str]:
    """The blocks of Python."""
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What a link may name after ``#``, by GitHub's rule."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_table_of_properties_is_the_codes() -> None:
    text = README.read_text(encoding="utf-8")
    table = text.split("<!-- properties -->")[1].split("<!-- /properties -->")[0]
    assert table.strip() == markdown_table().strip(), "write zkconsumer.config.markdown_table() between the markers"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_an_example_imports_is_there(page: Path) -> None:
    for text in examples(page):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("zkconsumer"):
                module = importlib.import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []
            elif isinstance(node, ast.Import):
                assert [name.name for name in node.names if importlib.util.find_spec(name.name) is None] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_links_to_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


def test_the_strategy_of_the_example_chooses_machines() -> None:
    (code,) = [text for text in examples(README) if "OnlyAssignor" in text]
    made: dict[str, type] = {}
    exec(code, made)
    members = {
        ConsumerId("g_a"): member("g_a", {"t": 1}, host="big-1"),
        ConsumerId("g_b"): member("g_b", {"t": 1}, address="10.1.2.3"),
        ConsumerId("g_c"): member("g_c", {"t": 1}, host="small-1"),
    }
    strategy = made["OnlyTheBigOnes"]()

    assert set(owners(strategy, members, {"t": [0, 1]})) == {"g_a-0", "g_b-0"}
    assert set(owners(strategy, {ConsumerId("g_c"): members[ConsumerId("g_c")]}, {"t": [0]})) == {"g_c-0"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tests_that_a_page_names_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|scripts|zkconsumer)/[\w/.]+)", text) + re.findall(
        r"^    (scripts/\w+)", text, re.MULTILINE
    )
    assert [path for path in named if not (ROOT / path).exists()] == []
    written = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    told = re.findall(r"`([a-z]+(?:_[a-z]+){5,})`", text)
    assert [name for name in told if f"def test_{name}(" not in written] == []
    assert len(told) > 15 or page != README
