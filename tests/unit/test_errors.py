"""Errors of the package in copies and in other processes."""

from __future__ import annotations

import copy
import pickle

import pytest

from zkconsumer import TopicPartition, errors


@pytest.mark.parametrize(
    "error",
    [
        errors.ConfigException("group.id", "must not be empty"),
        errors.UnknownKeywordError("auto_ofset_reset", "; did you mean 'auto_offset_reset'?"),
        errors.UnknownTopicError(["evnets"], ["events"]),
        errors.MissingExtraError("to_arrow", "arrow"),
        errors.OffsetConflictError(TopicPartition("t", 0), 3, None),
        errors.HandlerTimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_the_same_in_another_process(error: Exception) -> None:
    """Bug: constructors took other arguments than the text, so that a copy had another text, or failed."""
    error.add_note("as it was read")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
