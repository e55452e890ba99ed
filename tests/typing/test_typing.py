"""The types of the public interface and of the Python examples of the documents, as mypy and pyright see them."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """All examples, after a file with errors, which shows that errors would be told."""
    found = [tmp_path / "wrong.py"]
    found[0].write_text(WRONG)
    for page in PAGES:
        for number, text in enumerate(examples(page)):
            found.append(tmp_path / f"{page.stem.replace('-', '_')}_{number}.py")
            found[-1].write_text(whole(text), encoding="utf-8")
    assert len(found) > 15
    return found


def test_the_public_interface_and_all_examples_have_types(files: list[Path]) -> None:
    """``public.py`` says the types with ``assert_type``; its ``type: ignore`` are uses that must be wrong.

    All go through one run of mypy, which takes long to begin.
    """
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


LIBRARIES = {
    '"NewTopic" is not exported from module "confluent_kafka.admin"',
    '"sum" is not a known attribute of module "pyarrow.compute"',
    '"binary_length" is not a known attribute of module "pyarrow.compute"',
}
"""What pyright does not know of other libraries."""


@pytest.mark.skipif(importlib.util.find_spec("pyright") is None, reason="needs pyright: pip install 'pyright[nodejs]'")
def test_pyright_accepts_the_public_interface_and_all_examples(files: list[Path], tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(tmp_path),
    ]
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(ROOT)]}))
    (tmp_path / "public.py").write_text((Path(__file__).parent / "public.py").read_text())
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
    )
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files) + 1, done.stdout + done.stderr
    told = [(Path(one["file"]).name, one["message"].partition("\n")[0]) for one in report["generalDiagnostics"]]
    own = [one for one in told if one[1] not in LIBRARIES]
    assert own == [("wrong.py", '"nothing" is not a known attribute of module "zkconsumer"')], done.stdout
