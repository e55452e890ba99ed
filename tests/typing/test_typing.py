"""The types of the public interface and of the Python examples of the documents, as ``mypy --strict`` sees them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from tests.documents import PAGES, ROOT, examples
from tests.timing import scaled

SESSION = "from pyspark.sql import SparkSession\n\nspark = SparkSession.builder.getOrCreate()\n"
"""What precedes an example that continues another one's session."""
WRONG = "import zkconsumer\n\nzkconsumer.nothing()\n\n\ndef untyped(a):\n    pass\n"


def whole(text: str) -> str:
    """Return an example with the session that it may need."""
    names = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name) and node.id == "spark"]
    made = any(isinstance(node.ctx, ast.Store) for node in names)
    return SESSION + text if names and not made else text


def test_the_public_interface_and_all_examples_have_types(tmp_path: Path) -> None:
    """``public.py`` says the types with ``assert_type``; its ``type: ignore`` are uses that must be wrong.

    All go through one run of mypy, which takes long to begin. The file with errors shows that they would be told.
    """
    files = [tmp_path / "wrong.py"]
    files[0].write_text(WRONG)
    for page in PAGES:
        for number, text in enumerate(examples(page)):
            files.append(tmp_path / f"{page.stem.replace('-', '_')}_{number}.py")
            files[-1].write_text(whole(text), encoding="utf-8")
    assert len(files) > 15
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "setup.cfg")]
    done = subprocess.run(
        [*command, "--scripts-are-modules", str(Path(__file__).parent / "public.py"), *map(str, files)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
    )
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert all("/wrong.py:" in line for line in errors), done.stdout
    codes = [line.rpartition(" ")[2] for line in errors]
    assert codes == ["[attr-defined]", "[no-untyped-def]"], done.stdout + done.stderr
