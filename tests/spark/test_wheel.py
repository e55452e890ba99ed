"""What is installed: the module by which Spark finds the data source stands at the top level of the wheel."""

from __future__ import annotations

import pkgutil
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.timing import scaled

ROOT = Path(__file__).resolve().parents[2]


def test_a_wheel_has_the_module_that_spark_looks_for(tmp_path: Path) -> None:
    source, out, installed = tmp_path / "source", tmp_path / "out", tmp_path / "installed"
    shutil.copytree(ROOT / "zkconsumer", source / "zkconsumer", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(source)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120), check=False)
    assert built.returncode == 0, built.stderr
    assert not list((source / "zkconsumer").rglob("*.egg-info"))
    (wheel,) = out.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert sorted(module.name for module in pkgutil.iter_modules([str(installed)])) == [
        "pyspark_zkconsumer",
        "zkconsumer",
    ]
    assert not list((installed / "zkconsumer").rglob("pyspark_*"))
