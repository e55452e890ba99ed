"""Topics and threads of a member's subscription."""

from __future__ import annotations

import pytest

from zkconsumer.core.registration import Registration
from zkconsumer.core.subscription import failing_filters, thread_ids, topic_filter
from zkconsumer.core.topic_filter import InvalidTopicFilterError, TopicFilter
from zkconsumer.model import ConsumerId

C = ConsumerId("g_c")
TOPICS = ["a", "ab", "b", "__consumer_offsets"]


@pytest.mark.parametrize(
    ("pattern", "subscription", "exclude_internal", "expected"),
    [
        ("static", {"a": 2, "missing": 1}, True, {"a": ["g_c-0", "g_c-1"], "missing": ["g_c-0"]}),
        ("static", {"__consumer_offsets": 1}, True, {"__consumer_offsets": ["g_c-0"]}),
        ("static", {}, True, {}),
        ("static", {"a/b": 1, "a": 1}, True, {"a": ["g_c-0"]}),
        ("odd", {"a": 1}, True, {"a": ["g_c-0"]}),
        ("white_list", {"a.*": 2}, True, {"a": ["g_c-0", "g_c-1"], "ab": ["g_c-0", "g_c-1"]}),
        ("white_list", {".*": 1}, False, {t: ["g_c-0"] for t in TOPICS}),
        ("white_list", {"a,b": 1}, True, {"a": ["g_c-0"], "b": ["g_c-0"]}),
        ("white_list", {"a": 1, "b": 3}, True, {"a": ["g_c-0"]}),
        ("white_list", {}, True, {}),
        ("white_list", {"": 1}, True, {}),
        ("black_list", {"a": 1}, True, {"ab": ["g_c-0"], "b": ["g_c-0"]}),
    ],
)
def test_threads_of_a_subscription(
    pattern: str, subscription: dict[str, int], exclude_internal: bool, expected: dict[str, list[str]]
) -> None:
    found = thread_ids(C, Registration(pattern, subscription), TOPICS, exclude_internal)
    assert {topic: list(threads) for topic, threads in found.items()} == expected


def test_threads_are_numbered_without_padding() -> None:
    assert thread_ids(C, Registration("static", {"t": 12}), [], True)["t"][10:] == ("g_c-10", "g_c-11")


def test_an_error_names_the_bad_expression() -> None:
    with pytest.raises(InvalidTopicFilterError, match=r"'t\['"):
        topic_filter(Registration("white_list", {"t[": 1}))


def test_a_member_with_an_endless_expression_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TopicFilter.__init__, "__kwdefaults__", {"match_seconds": 0.05})
    members = {
        C: Registration("white_list", {"(a|aa)+$.": 1}),
        ConsumerId("g_d"): Registration("white_list", {"a+": 1}),
    }
    found = failing_filters(members, ["a" * 3000], True)
    assert list(found) == [C]
    assert "(a|aa)+$." in found[C]


def test_topics_with_one_count_share_their_threads() -> None:
    found = thread_ids(C, Registration("white_list", {".*": 50_000}), [f"t{n}" for n in range(2000)], True)
    assert len({id(threads) for threads in found.values()}) == 1
