"""Compiled and plain Python read mutated message sets alike. The command line reads many more of them."""

from __future__ import annotations

import pytest

from tests.unit.kafka.mutated_batches import UncompiledError, first_difference


@pytest.mark.parametrize("cases", [2000, pytest.param(8000, marks=pytest.mark.tier("all"))])
def test_mutated_batches_are_read_alike_compiled_and_not(cases: int) -> None:
    try:
        different = first_difference("--cases", str(cases), "--seed", str(cases))
    except UncompiledError:
        pytest.skip("the compiled modules are not there")
    assert not different
