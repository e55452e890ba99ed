"""The tiers of the tests: every test is in one, and the highest tier has them all."""

from __future__ import annotations

from itertools import chain
from pathlib import PurePosixPath

import pytest

from tests.distribution import FIRST, TOGETHER
from tests.tiers import BOTH_WAYS, MARKS, ONE_WAY, ROOT, TIERS, Tier, left_out, one_way_only, tier_of, tier_of_item

FILES = [PurePosixPath(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
OTHERS = {"tests/docker", "tests/cluster", "tests/spark", "tests/contract", "tests/faults"}
"""Folders whose tests start servers."""


def test_every_test_file_is_in_a_tier() -> None:
    assert len(FILES) > 100
    for file in FILES:
        tier_of(file)


def test_every_path_of_the_tables_exists() -> None:
    paths = (*TIERS, *BOTH_WAYS, *ONE_WAY, *MARKS, *FIRST, *chain(*TOGETHER))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_nothing_runs_twice_that_does_not_run_once() -> None:
    twice = [file for tier in Tier for file in FILES if not one_way_only(ROOT / file, tier) and tier_of(file) > tier]
    assert twice == []


def test_every_file_is_in_the_tier_of_ci_or_in_the_campaigns() -> None:
    campaigns = {file for file in FILES if not left_out(ROOT / file, Tier.CAMPAIGNS)}
    assert campaigns == {file for file in FILES if left_out(ROOT / file, Tier.CI)}
    assert 0 < len(campaigns) < 10


def test_the_quick_tier_starts_no_server() -> None:
    quick = {str(file) for file in FILES if tier_of(file) is Tier.QUICK}
    assert not [file for file in quick if PurePosixPath(file).parts[1] in {PurePosixPath(o).name for o in OTHERS}]
    assert {PurePosixPath(file).parts[1] for file in quick} == {"unit", "vectors", "concurrency"}


@pytest.mark.one_way
def test_a_marked_test_does_not_run_again(request: pytest.FixtureRequest) -> None:
    assert not request.config.getoption("both_ways")


@pytest.mark.tier("all")
def test_a_marker_raises_a_test(request: pytest.FixtureRequest) -> None:
    assert tier_of_item(request.node) is Tier.ALL
