"""Strategies with configured members: a fixed table, and a choice of machines."""

from __future__ import annotations

import pytest

from tests.unit.assignors.groups import group, member, owners, text
from zkconsumer.assignors import AssignmentError, Member, RoundRobinAssignor, assignor
from zkconsumer.assignors.fixed_table import ConfiguredAssignor, OnlyAssignor, machines
from zkconsumer.errors import ConfigException
from zkconsumer.model import ConsumerId, TopicPartition

FOUR = {"t": [0, 1, 2, 3]}


def tp(number: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, number)


def test_a_table_says_who_owns_what() -> None:
    members = group({"g_a": {"t": 2}, "g_b": {"t": 1}})
    table = {"g_a": [tp(0)], "g_a-1": [tp(2), tp(9), tp(0, "u")], "g_gone": [tp(3)]}
    assert text(owners(ConfiguredAssignor(table), members, FOUR)) == {"g_a-0": "t-0", "g_a-1": "t-2"}


def test_a_table_with_two_owners_is_refused() -> None:
    with pytest.raises(AssignmentError, match="t-0 is configured for both"):
        ConfiguredAssignor({"g_a": [tp(0)], "g_b": [tp(0)]}).assign(group({"g_a": {"t": 1}, "g_b": {"t": 1}}), FOUR)


def test_the_table_must_be_configured() -> None:
    with pytest.raises(ConfigException, match=r"assignment\.table"):
        assignor("configured")


@pytest.mark.parametrize(
    ("patterns", "advertised", "on_it"),
    [
        (["10.1.0.0/16"], {"address": "10.1.2.3"}, True),
        (["10.1.0.0/16"], {"address": "10.2.2.3"}, False),
        (["10.1.2.3"], {"address": "10.1.2.3"}, True),
        (["2001:db8::/32"], {"address": "2001:db8::7"}, True),
        (["2001:db8::/32"], {"address": "10.1.2.3"}, False),
        (["big-*"], {"host": "big-7.example"}, True),
        (["BIG-?"], {"host": "big-7"}, True),
        (["big-?"], {"host": "big-17"}, False),
        (["small", "big-1"], {"host": "big-1"}, True),
        (["10.1.0.0/16"], {"address": "nonsense"}, False),
        (["10.1.0.0/16", "*"], {}, False),
        ([], {"host": "h"}, False),
    ],
)
def test_machines_are_told_by_network_address_or_name(
    patterns: list[str], advertised: dict[str, str], on_it: bool
) -> None:
    assert machines(*patterns)(member("g_a", {"t": 1}, **advertised)) is on_it


def three() -> dict[ConsumerId, Member]:
    return {
        ConsumerId("g_a"): member("g_a", {"t": 1}, host="big-1"),
        ConsumerId("g_b"): member("g_b", {"t": 1}, host="small-1"),
        ConsumerId("g_c"): member("g_c", {"t": 1, "u": 1}),
    }


BOTH = FOUR | {"u": [0]}


def test_only_the_chosen_machines_consume() -> None:
    assert text(owners(OnlyAssignor(machines("big-*", "small-*")), three(), FOUR)) == {
        "g_a-0": "t-0 t-1",
        "g_b-0": "t-2 t-3",
    }


def test_when_none_is_left_all_consume_or_nobody_topic_by_topic() -> None:
    everybody = OnlyAssignor(machines("big-*"), RoundRobinAssignor())
    assert text(owners(everybody, three(), BOTH)) == {"g_a-0": "t-0 t-1 t-2 t-3", "g_c-0": "u-0"}
    nobody = OnlyAssignor(machines("big-*"), fallback="nobody")
    assert text(owners(nobody, three(), BOTH)) == {"g_a-0": "t-0 t-1 t-2 t-3"}
    left = {name: one for name, one in three().items() if name != "g_a"}
    assert text(owners(everybody, left, FOUR)) == {"g_b-0": "t-0 t-2", "g_c-0": "t-1 t-3"}
    assert owners(nobody, left, FOUR) == {}


def test_a_fallback_is_one_of_two() -> None:
    with pytest.raises(ValueError, match="fallback"):
        OnlyAssignor(machines("*"), fallback="some")  # type: ignore[arg-type]
