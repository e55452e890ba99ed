"""The table of coordinator errors and their actions."""

from __future__ import annotations

import inspect

import pytest

from zkconsumer import errors as classes
from zkconsumer.errors import BrokerAuthenticationError, BrokerError, BrokerUnavailableError, GroupError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.error_codes import ACTIONS_BY_CODE, ErrorAction, action_for

GROUP_CODES = [code for code in range(200) if isinstance(error_codes.error(code, "q"), GroupError)]


def test_every_group_error_has_a_class_and_an_action() -> None:
    made = {type(error_codes.error(code, "q")) for code in GROUP_CODES}
    declared = {one for _, one in inspect.getmembers(classes, inspect.isclass) if issubclass(one, GroupError)}
    assert made == declared - {GroupError}
    assert set(GROUP_CODES) <= set(ACTIONS_BY_CODE)


@pytest.mark.parametrize("code", sorted(ACTIONS_BY_CODE))
def test_an_exception_has_the_action_of_its_code(code: int) -> None:
    assert action_for(error_codes.error(code, "q")) is ACTIONS_BY_CODE[code]


@pytest.mark.parametrize("code", sorted(ACTIONS_BY_CODE))
def test_repeated_requests_are_the_protocols_retriable_ones(code: int) -> None:
    assert error_codes.retriable(code) == (
        ACTIONS_BY_CODE[code] in (ErrorAction.RETRY, ErrorAction.FIND_COORDINATOR, ErrorAction.REJOIN)
    ), error_codes.name(code)


def test_an_error_without_a_known_code_is_raised() -> None:
    """Only a broker that is away may have a successor as coordinator."""
    assert action_for(BrokerUnavailableError("gone")) is ErrorAction.FIND_COORDINATOR
    assert action_for(BrokerAuthenticationError("no")) is ErrorAction.RAISE
    assert action_for(BrokerError("nonsense")) is ErrorAction.RAISE
    assert action_for(error_codes.error(77, "q")) is ErrorAction.RAISE
