"""README, the pages of zkconsumer/docs, DESIGN and CONTRIBUTING: their links, names, examples and generated parts."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import zkconsumer
from tests.documents import (
    DECISIONS,
    DOCS,
    EXAMPLES,
    PAGES,
    QUESTIONS,
    README,
    ROOT,
    Question,
    example,
    examples,
    regenerated,
)
from tests.programs import run_python
from tests.unit.assignors.groups import member, owners
from zkconsumer.core.message_pointers import decode_pointers
from zkconsumer.model import ConsumerId
from zkconsumer.testing import FakeCluster

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
every_question = pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked.typed)
WORDS = 1_250
"""Five minutes of reading. Code, generated tables and the marks of tables are not counted."""


def anchor(title: str) -> str:
    """Return the anchor of a heading, by GitHub's rule."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    return {anchor(title) for title in re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


def page_named(name: str) -> Path:
    """Return a page of the docs, or README."""
    return README if name == README.name else DOCS / name


def linked(page: Path) -> set[Path]:
    """Return the files to which a page has links."""
    targets = re.findall(r"\]\(([^)\s#:]+)[)#]", page.read_text(encoding="utf-8"))
    return {(page.parent / target).resolve() for target in targets}


def words(text: str) -> int:
    """Return the number of words that a reader of the page reads."""
    text = re.sub(r"```.*?```|<!-- (properties|checks|kafka).*?<!-- /\1 -->", " ", text, flags=re.DOTALL)
    return len(re.findall(r"[^\s|]*[A-Za-z][^\s|]*", text))


@every_page
def test_generated_parts_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == regenerated(text), "run: python -m tests.documents"


def test_every_property_and_state_table_is_in_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert sorted(re.findall(r"<!-- (\w+: \w+) -->", text)) == [
        "properties: coordination",
        "properties: original",
        "properties: own",
        "properties: security",
        "states: brokers",
        "states: zookeeper",
    ]


@every_page
def test_an_example_imports_only_existing_names(page: Path) -> None:
    for text in examples(page):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("zkconsumer"):
                module = importlib.import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []
            elif isinstance(node, ast.Import):
                assert [name.name for name in node.names if importlib.util.find_spec(name.name) is None] == []


def test_the_page_of_other_clients_names_existing_calls() -> None:
    page = (DOCS / "coming-from.md").read_text(encoding="utf-8")
    owners = {"connector": zkconsumer.ZookeeperConsumerConnector, "stream": zkconsumer.KafkaStream}
    owners["message"] = zkconsumer.MessageAndMetadata
    ours = {part[: part.find("\n")]: re.findall(r"\| ([^|]*) \|$", part, re.M) for part in page.split("\n## ")}
    called = re.findall(r"`(connector|stream|message)\.([a-z_]+)", str(ours))
    assert len(called) > 40
    assert [name for owner, name in called if not hasattr(owners[owner], name)] == []
    coroutines = re.findall(r"`(?:await )?([a-z_]+)(?:\([^`]*)?`", " ".join(ours["aiokafka"]))
    assert len(coroutines) > 3
    assert [name for name in coroutines if not hasattr(zkconsumer.AsyncZookeeperConsumerConnector, name)] == []
    listener = set(re.findall(r"`((?:before|on)_[a-z_]+)`", page))
    assert listener == {name for name in dir(zkconsumer.ConsumerRebalanceListener) if name[0] != "_"}


def test_every_example_has_a_name_and_is_run_by_a_test() -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in EXAMPLES if f'example("{name}")' not in code] == []
    everything = [text for page in PAGES for text in examples(page)]
    assert len(everything) == len(EXAMPLES) == len({example(name) for name in EXAMPLES})


@every_page
def test_a_link_leads_to_an_existing_file_and_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@every_page
def test_a_page_names_only_existing_files_and_tests(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|scripts|zkconsumer)/[\w/.]+)", text) + re.findall(
        r"^    (scripts/\w+)", text, re.MULTILINE
    )
    assert [path for path in named if not (ROOT / path).exists()] == []
    modules = [
        path
        for path in re.findall(r"`([\w/]+\.py)`", text)
        if not path.startswith(("tests/", "zkconsumer/", "scripts/"))
    ]
    assert [path for path in modules if not (ROOT / "zkconsumer" / path).exists()] == []
    written = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "tests").rglob("test_*.py"))
    told = re.findall(r"`(?:tests/[\w/]+\.py::)?(test_\w+)`", text)
    assert [name for name in told if f"def {name}(" not in written] == []
    assert len(told) > 15 or page.name != "spark-guarantees.md"


def test_every_docs_page_is_linked_from_readme_or_another_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [page.name for page in DOCS.glob("*.md") if not re.search(rf"\]\((?:\S*/)?{page.name}[)#]", text)] == []


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_docs_page_takes_at_most_five_minutes(page: Path) -> None:
    assert words(page.read_text(encoding="utf-8")) <= WORDS


def test_the_docs_are_no_longer_than_a_book() -> None:
    """Tables that are made from the code do not count, so a page of properties hardly does."""
    pages = [page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")]
    written = re.sub(r"<!-- (properties|checks|kafka).*?<!-- /\1 -->", " ", " ".join(pages), flags=re.DOTALL)
    assert len(pages) <= 42
    assert len(written.split()) <= 43_000


@every_question
def test_a_question_is_answered_in_its_section(asked: Question) -> None:
    """The search finds a section by words of its text, and of its title above all."""
    name, _, place = asked.place.partition("#")
    parts = re.split(r"^#+ (.*)$", page_named(name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = {anchor(title): f"{title}\n{text}" for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    assert asked.answer in re.sub(r"\s*\n\s*", " ", sections[place])
    for word in asked.typed.split():  # the search takes a word as the beginning of one
        assert re.search(rf"(?<!\w){re.escape(word)}", parts[1] + sections[place], re.IGNORECASE), word


@every_question
def test_an_answer_is_two_clicks_from_readme(asked: Question) -> None:
    page = page_named(asked.place.partition("#")[0])
    first = {file for file in linked(README) if file.suffix == ".md"}
    assert page in {README} | first | {file for one in first for file in linked(one)}


def test_readme_has_at_most_250_lines() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 250


def test_a_decision_stands_on_the_page_that_design_names() -> None:
    """Each has eight lines at most, so that a page of them can be read."""
    pages: dict[int, str] = {}
    for page in DECISIONS:
        for number, text in re.findall(
            r"^### (\d+)\n\n(.*?)\n(?=\n|\Z)", page.read_text(encoding="utf-8"), re.M | re.S
        ):
            assert int(number) not in pages, number
            pages[int(number)] = page.parent.name
            assert len(text.splitlines()) <= 8, number
    named: dict[int, str] = {}
    table = (ROOT / "zkconsumer/DESIGN.md").read_text(encoding="utf-8")
    for room, numbers in re.findall(r"\]\((\w+)/DECISIONS\.md\) \| ([\d, -]+) \|", table):
        for first, last in (part.partition("-")[::2] for part in numbers.split(", ")):
            named |= dict.fromkeys(range(int(first), int(last or first) + 1), room)
    assert pages == named
    assert sorted(pages) == list(range(1, max(pages) + 1))


def test_the_tour_has_at_most_3000_words_and_20_of_our_own() -> None:
    text = (ROOT / "zkconsumer/DESIGN.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 3000
    glossary = text.partition("\n## Glossary\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ", glossary, re.M)
    assert 2 <= len(rows) <= 1 + 20


def run(code: str) -> str:
    """Run an example in a process of its own and return its output."""
    return run_python("-W", "error", "-c", code).stdout


def test_the_example_of_the_test_kit_runs() -> None:
    assert run(example("test kit")) == "[b'a', b'b', b'c'] {}\n"


def test_the_example_of_commits_runs() -> None:
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("events", partitions=1)
        cluster.append("events", 0, [b"%d" % number for number in range(25)])
        code = example("commit").replace("127.0.0.1:2181", cluster.zookeeper_connect).replace('"5000"', '"500"')
        assert run(code) == "committed: 20\n"
        assert cluster.zookeeper.tree("/consumers/committers/offsets/events") == {
            "/consumers/committers/offsets/events/0": b"20"
        }


def test_the_example_of_placement_runs() -> None:
    """A second run is the same member again."""
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("events", partitions=8)
        code = example("placement").replace("127.0.0.1:2181", cluster.zookeeper_connect)
        assert [run(code) for _ in range(2)] == ["billing_billing-0 owns 8 partitions\n"] * 2


def test_the_example_of_message_balance_runs() -> None:
    """The empty message becomes a dead letter, and the offset passes it."""
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("events", partitions=1)
        cluster.append("events", 0, [b"1", b"", b"2"], [b"a", b"b", b"a"])
        code = example("balance").replace("127.0.0.1:2181", cluster.zookeeper_connect)
        assert run(code) == (
            "stored b'1'\nstored b'2'\n"
            "2 messages handled, 0 attempts failed, 0 messages parked, 1 dead letters; ended by until\n"
        )
        tree = cluster.zookeeper.tree("/consumers/balanced")
        assert tree["/consumers/balanced/offsets/events/0"] == b"3"
        assert [
            (p.offset, p.reason) for p in decode_pointers(tree["/consumers/balanced/parked/events/0"]).values()
        ] == [(1, "empty")]


def test_the_strategy_of_the_example_chooses_machines() -> None:
    made: dict[str, type] = {}
    exec(example("strategy"), made)
    members = {
        ConsumerId("g_a"): member("g_a", {"t": 1}, host="big-1"),
        ConsumerId("g_b"): member("g_b", {"t": 1}, address="10.1.2.3"),
        ConsumerId("g_c"): member("g_c", {"t": 1}, host="small-1"),
    }
    strategy = made["OnlyTheBigOnes"]()

    assert set(owners(strategy, members, {"t": [0, 1]})) == {"g_a-0", "g_b-0"}
    assert set(owners(strategy, {ConsumerId("g_c"): members[ConsumerId("g_c")]}, {"t": [0]})) == {"g_c-0"}
