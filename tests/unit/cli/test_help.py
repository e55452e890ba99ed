"""``zkconsumer help`` and ``zkconsumer errors``: what they explain, and suggestions for what is mistyped."""

from __future__ import annotations

import re
from functools import partial

import pytest

from tests.unit.cli.command_line import Printed, printed
from zkconsumer.cli.help import error_text, error_types
from zkconsumer.operations.doctor import CHECKS, Check


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Printed:
    return partial(printed, capsys)


@pytest.mark.parametrize("name", error_types())
def test_every_error_says_what_to_do(name: str) -> None:
    assert "\nWhat to do" in error_text(name) or name == "ZkConsumerError"


def test_an_error_is_explained_by_its_docstring_and_its_page(said: Printed) -> None:
    text = said("errors", "unknowntopicerror")
    assert text.startswith("UnknownTopicError (BrokerUnavailableError, BrokerError, ZkConsumerError, LookupError)\n")
    assert "They may not know a new one yet." in text
    assert "The message has similar names." in text
    assert "├── RegistryError" in said("errors")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_help_explains_every_check(said: Printed, check: Check) -> None:
    assert said("help", check.name).startswith(f"### {check.name}\n")


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        (["groups", "describe"], "usage: zkconsumer groups"),
        (["offsets", "reset"], "usage: zkconsumer offsets reset"),
        (["auto.offset.reset"], "smallest"),
        (["on-call"], "# A morning on call"),
        (["sizing"], "## Sizing: threads, processes and cores"),
        (["What", "to", "do"], None),
        (["SessionLostError"], "raise `zookeeper.session.timeout.ms`"),
        ([], "troubleshooting"),
    ],
)
def test_help_explains_a_topic(said: Printed, topic: list[str], text: str | None) -> None:
    assert (text or "is no topic") in said("help", *topic, code=0 if text else 1, err=text is None)


@pytest.mark.parametrize(
    ("words", "code", "meant"),
    [
        (["gropus", "list"], 2, "'groups'"),
        (["doctor", "--zookeper", "h:1"], 2, "'--zookeeper'"),
        (["doctor", "--formt=json"], 2, "'--format'"),
        (["doctor", "--format", "jsno"], 2, "'json'"),
        (["groups", "descirbe", "g"], 2, "'describe'"),
        (["offsets", "rest", "g"], 2, "'reset'"),
        (["errors", "UnknownTopic"], 1, "UnknownTopicError"),
        (["help", "standing-stil"], 1, "standing-still"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(said: Printed, words: list[str], code: int, meant: str) -> None:
    text = said(*words, code=code, err=True)
    assert re.search(f"([Dd]id you mean|maybe you meant) {meant}", text)  # argparse suggests by itself from 3.15 on
