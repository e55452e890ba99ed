"""Whitelists and blacklists, as 1.1.1 evaluated them."""

from __future__ import annotations

import pytest

from tests.vectors.cases import DATA, Case
from zkconsumer.core.topic_filter import Blacklist, InvalidTopicFilterError, UntranslatableTopicFilterError, Whitelist

FILES = ("kafka111_topic_filter",)


def test_a_filter_allows_what_the_original_allows(case: Case, request: pytest.FixtureRequest) -> None:
    kind = Whitelist if case.data["kind"] == "white_list" else Blacklist
    if "error" in case.data:
        with pytest.raises(InvalidTopicFilterError):
            kind(case.data["raw"])
        return
    try:
        wanted = kind(case.data["raw"])
    except UntranslatableTopicFilterError as error:
        if request.config.getoption("vectors", default=None) in (None, str(DATA)):
            raise  # Java accepts no recorded filter that we refuse: see core/java_regex.py
        pytest.skip(f"refused by name: {error}")
    assert wanted.regex == case.data["regex"]
    allowed = [topic for topic in case.data["topics"] if wanted.allows(topic, case.data["exclude_internal"])]
    assert allowed == case.data["allowed"]
