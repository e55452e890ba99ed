"""``--vectors DIR``: run the cases of another folder."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from tests.vectors.cases import DATA, load


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--vectors", metavar="DIR", default=None, help="folder with recorded cases to run instead of ours")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with an argument ``case`` runs once for each case of the files that its module names in FILES.

    A test with an argument ``cases`` runs once for each of these files: its cases take less time than a test.
    """
    argument = next((name for name in ("case", "cases") if name in metafunc.fixturenames), None)
    if argument is None:
        return
    chosen = metafunc.config.getoption("vectors", default=None)
    folder = Path(chosen) if chosen else DATA
    if not folder.is_dir():
        raise pytest.UsageError(f"--vectors: {folder} is no folder")
    cases = load(folder, metafunc.module.FILES)
    if argument == "case":
        metafunc.parametrize("case", cases, ids=[case.name for case in cases])
    else:
        files = {name: list(group) for name, group in groupby(cases, key=lambda case: case.file)}
        metafunc.parametrize("cases", files.values(), ids=files.keys())
