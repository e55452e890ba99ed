"""The check of many cases in one test."""

from __future__ import annotations

import pytest

from tests.vectors.cases import Case, check_each


def test_a_check_of_many_cases_names_each_that_fails() -> None:
    def check(case: Case) -> None:
        assert case.line == 2, "not the second"

    cases = [Case("file", line, {}, f"file-{line}") for line in (1, 2, 3)]
    with pytest.raises(AssertionError, match="(?s)2 of 3 cases failed.*file-1:.*not the second.*file-3:"):
        check_each(cases, check)
