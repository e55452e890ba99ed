"""The Python examples of README and the docs, as mypy --strict sees them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.documents import PAGES, ROOT, examples
from tests.timing import scaled

SESSION = "from pyspark.sql import SparkSession\n\nspark = SparkSession.builder.getOrCreate()\n"
"""What precedes an example that continues another one's session."""


def whole(text: str) -> str:
    """Return an example with the session that it may need."""
    names = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id == "spark"]
    made = any(isinstance(node.ctx, ast.Store) for node in names)
    return SESSION + text if names and not made else text


def checked(files: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run mypy --strict on files that are modules of their own."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "setup.cfg")]
    return subprocess.run(
        [*command, "--scripts-are-modules", *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
    )


def test_every_example_of_the_documents_passes_mypy_strict(tmp_path: Path) -> None:
    files = []
    for page in PAGES:
        for number, text in enumerate(examples(page)):
            files.append(tmp_path / f"{page.stem.replace('-', '_')}_{number}.py")
            files[-1].write_text(whole(text), encoding="utf-8")
    assert len(files) > 15
    done = checked(files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_example_does_not_pass(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import zkconsumer\n\nzkconsumer.nothing()\n\n\ndef untyped(a):\n    pass\n")
    done = checked([wrong])
    assert done.returncode == 1
    assert "[attr-defined]" in done.stdout, done.stdout + done.stderr
    assert "[no-untyped-def]" in done.stdout
