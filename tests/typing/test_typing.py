"""The types of the public interface, as a type checker sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.documents import example
from tests.timing import scaled

ROOT = Path(__file__).resolve().parents[2]


def test_the_public_interface_has_the_types_it_says() -> None:
    """``public.py`` says them with ``assert_type``; its ``type: ignore`` are uses that must be wrong."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "setup.cfg")]
    done = subprocess.run(
        [*command, str(Path(__file__).parent / "public.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_examples_of_databases_have_right_types(tmp_path: Path) -> None:
    for name in ("sqlite", "postgres"):
        (tmp_path / f"{name}_example.py").write_text(example(name))
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "setup.cfg")]
    done = subprocess.run(
        [*command, *map(str, sorted(tmp_path.glob("*_example.py")))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=scaled(300),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
