"""What is done about each error of a coordinator."""

from __future__ import annotations

import inspect

import pytest

from zkconsumer import errors as classes
from zkconsumer.core.error_actions import REMEDIES, Remedy, remedy, remedy_of_code
from zkconsumer.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError, GroupError
from zkconsumer.kafka import error_codes

GROUP_CODES = [code for code in range(200) if isinstance(error_codes.error(code, "q"), GroupError)]


def test_every_error_of_a_group_has_a_class_and_a_remedy() -> None:
    made = {type(error_codes.error(code, "q")) for code in GROUP_CODES}
    declared = {one for _, one in inspect.getmembers(classes, inspect.isclass) if issubclass(one, GroupError)}
    assert made == declared - {GroupError}
    assert set(GROUP_CODES) <= set(REMEDIES)


@pytest.mark.parametrize("code", sorted(REMEDIES))
def test_a_code_and_its_exception_have_the_same_remedy(code: int) -> None:
    assert remedy(error_codes.error(code, "q")) is remedy_of_code(code) is REMEDIES[code]


@pytest.mark.parametrize("code", sorted(REMEDIES))
def test_what_may_be_asked_again_is_what_the_protocol_calls_retriable(code: int) -> None:
    assert error_codes.retriable(code) == (REMEDIES[code] in (Remedy.RETRY, Remedy.FIND, Remedy.REJOIN)), (
        error_codes.name(code)
    )


def test_a_broker_that_is_away_may_have_a_successor_and_anything_else_surfaces() -> None:
    assert remedy(BrokerUnavailableError("gone")) is Remedy.FIND
    assert remedy(BrokerAuthenticationError("no")) is Remedy.SURFACE
    assert remedy(BrokerError("nonsense")) is Remedy.SURFACE
    assert remedy(error_codes.error(77, "q")) is Remedy.SURFACE
    assert remedy_of_code(0) is None
    assert remedy_of_code(12345) is Remedy.SURFACE
