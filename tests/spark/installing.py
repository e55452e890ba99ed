"""The package in the forms in which it gets to the nodes of a Spark cluster: a wheel, and an environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.metadata import distribution
from pathlib import Path

from tests.timing import scaled

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = ("kazoo", "cramjam", "regex", "google-crc32c", "pyarrow", "numpy")
"""What the package's extra ``arrow`` installs."""


def pure_wheel(folder: Path) -> Path:
    """Build a wheel without compiled modules from a copy of the tree, and return its file."""
    source, out = folder / "source", folder / "dist"
    products = shutil.ignore_patterns("__pycache__", "compiled_*", "generated")
    for name in ("zkconsumer", "scripts"):
        shutil.copytree(ROOT / name, source / name, ignore=products)
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(source)]
    pure = {**os.environ, "ZKCONSUMER_BUILD": "pure"}  # compiled ones: tests/contract/test_installations.py
    built = subprocess.run(command, env=pure, capture_output=True, text=True, timeout=scaled(120), check=False)
    assert built.returncode == 0, built.stderr
    assert not list((source / "zkconsumer").rglob("*.egg-info"))
    (wheel,) = out.iterdir()
    return wheel


def environment(folder: Path, *distributions: str) -> Path:
    """Make a virtual environment with copies of installed distributions. Return the folder of its packages."""
    venv.create(folder, clear=True, symlinks=True, with_pip=False)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name in distributions:
        for file in distribution(name).files or ():
            source, target = Path(str(file.locate())), packages / file
            if ".." in file.parts or "__pycache__" in file.parts or not source.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(source, target)
            except OSError:  # on another file system
                shutil.copy2(source, target)
    return packages
