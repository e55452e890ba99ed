"""Our translation of expressions against java.util.regex itself, on a table and on random expressions."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import regex  # type: ignore[import-untyped]

from tests.timing import scaled
from tests.unit.core.java_expressions import JAVA
from zkconsumer.core.java_regex import InvalidTopicFilterError, UntranslatableTopicFilterError, translate
from zkconsumer.devcluster import java

SOURCE = Path(__file__).parent / "legacy" / "MatchAll.java"

# \b and \B are left out, because Java's releases differ about letters beyond ASCII
PIECES = [
    r"a", r"b", r"c", r"A", r"1", r"_", r"-", r".", r"|", r"(", r")", r"(?:", r"(?i)", r"(?i:", r"(?iu)", r"(?s)",
    r"(?m)", r"(?d)", r"(?x)", r"(?U)", r"(?=", r"(?!", r"(?>", r"(?<=", r"(?<!", r"(?<n>", r"\k<n>", r"\1", r"\2",
    r"[", r"]", r"[^", r"&&", r"[a-c]", r"[^a]", r"[a-z&&[^b]]", r"\w", r"\W", r"\d", r"\s", r"\Q", r"\E", r"*", r"+",
    r"?", r"{1}", r"{2}", r"{", r"}", r"^", r"$", r"\z", r"\Z", r"\A", r"\h", r"\R", r"\v", r"\p{L}", r"\p{Lower}",
    r"\P{Alpha}", r"\p{IsGreek}", r"\\", r"\.", r"#", r"é", r"a-c", r"&", r"a&&b", r":", r"=", r"!", r"<n>", r"\x61",
    r"\x{62}", r"\u0063", r"\0101", r"\cA", r"\-", r"-c", r"\t",
]  # fmt: skip
CLASS_PIECES = [
    "a", "b", "c", "-", "_", r"\.", "&", "&&", "[", "]", "^", "[a-c]", "a-c", r"\d", r"\w", r"\p{L}", "é", "Ж", "(?i)",
    "(?iu)", "(?x)", " ", "#", "\n", "i", "k", "s", r"\[", r"\Q", r"\E",
]  # fmt: skip
CLASS_FLAGS = ["", "", "", "(?i)", "(?iu)", "(?x)", "(?U)"]
CLASS_NAMES = [*"abc-_.&[]^1éÉЖж #iIİıkK\u212aſsS\n"]
NAMES = [
    "", *"abcA1_-.&#\t][^=\n\x85\x01éÉσ", "aa", "ab", "ba", "cc", "abc", "a1", "aB", "ABC", "aé", "a-b", "a.b", "a b",
    "<n>", "a\n", "a\nb", "\r\n", "a\r\n",
]  # fmt: skip


def hexadecimal(text: str) -> str:
    return text.encode("utf-16-be").hex()


def ask_java(cases: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    lines = ["\t".join(map(hexadecimal, (expression, *names))) for expression, names in cases]
    done = subprocess.run(
        [java(), "-Xss8m", "-XX:TieredStopAtLevel=1", str(SOURCE)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(60),
    )
    if "jdk.compiler" in done.stderr or "ClassNotFoundException" in done.stderr:
        pytest.skip("this Java has no compiler: it is a runtime only")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def ours(expression: str, names: Sequence[str]) -> str:
    """Return our result in the format of the Java program, or "untranslatable"."""
    try:
        compiled = regex.compile(translate(expression), regex.VERSION1)
    except UntranslatableTopicFilterError:
        return "untranslatable"
    except InvalidTopicFilterError:
        return "refused"
    return "".join("1" if compiled.match(name, timeout=scaled(5)) else "0" for name in names)


def random_expressions(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    return ["".join(source.choice(PIECES) for _ in range(source.randint(1, 7))) for _ in range(count)]


def random_classes(count: int, seed: int) -> list[str]:
    source = random.Random(seed)
    return [
        source.choice(CLASS_FLAGS)
        + source.choice(["[", "[^"])
        + "".join(source.choice(CLASS_PIECES) for _ in range(source.randint(1, 12)))
        + "]"
        for _ in range(count)
    ]


def test_we_read_expressions_as_java_does() -> None:
    cases = [(expression, yes + no) for expression, yes, no in JAVA]
    cases += [(expression, NAMES) for expression in random_expressions(5000, seed=1)]
    cases += [(expression, CLASS_NAMES) for expression in random_classes(4000, seed=1)]
    answers = [ours(expression, names) for expression, names in cases]
    differing = [
        (expression, mine, theirs)
        for (expression, _), mine, theirs in zip(cases, answers, ask_java(cases), strict=True)
        if mine not in (theirs, "untranslatable") or (theirs == "fails" and mine != "untranslatable")
    ]
    assert differing == []
    assert answers.count("untranslatable") < len(cases) / 50, "too much is refused that Java accepts"
