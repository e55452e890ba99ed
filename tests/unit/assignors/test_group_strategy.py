"""Whether a group agrees on a strategy, and what happens where it does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from zkconsumer.assignors import AssignmentError, advertisement, assignment_strategy, concern
from zkconsumer.core.registration import Registration
from zkconsumer.member.zookeeper.claim_plan import GroupView, threads_of
from zkconsumer.model import ConsumerId


def configured(strategy: str, **more: str) -> SimpleNamespace:
    return SimpleNamespace(partition_assignment_strategy=strategy, **more)


def view(*extras: dict[str, object]) -> GroupView:
    members = {ConsumerId(f"g_{n}"): Registration("static", {"t": 1}, extra=extra) for n, extra in enumerate(extras)}
    return GroupView(members, {"t": (0, 1, 2, 3)})


def assigned(config: SimpleNamespace, seen: GroupView) -> list[str]:
    assignment = assignment_strategy(config)(seen, threads_of(seen, exclude_internal_topics=True))
    return [thread for _, thread in sorted(assignment.items())]


CIRCLE: dict[str, object] = {"strategy": "average-by-circle"}


def test_a_strategy_of_ours_takes_effect_where_all_advertise_it() -> None:
    assert assigned(configured("average-by-circle"), view(CIRCLE, CIRCLE)) == ["g_0-0", "g_1-0", "g_0-0", "g_1-0"]


@pytest.mark.parametrize("other", [{}, {"strategy": "range"}, {"strategy": 7}])
def test_a_mixed_group_falls_back_to_range_together_or_refuses(other: dict[str, object]) -> None:
    mixed = view(CIRCLE, other)
    assert assigned(configured("average-by-circle"), mixed) == ["g_0-0", "g_0-0", "g_1-0", "g_1-0"]
    with pytest.raises(AssignmentError, match="g_1 do not advertise the strategy average-by-circle"):
        assigned(configured("average-by-circle", assignment_mixed_group="refuse"), mixed)


def test_the_original_s_strategies_need_no_agreement() -> None:
    assert assigned(configured("roundrobin"), view({}, {})) == ["g_0-0", "g_1-0", "g_0-0", "g_1-0"]


@pytest.mark.parametrize(
    ("strategy", "release", "extras", "said"),
    [
        ("range", "1.1", [{}, {}], None),
        ("range", "1.1", [{}, {"strategy": "range"}], None),
        ("range", "1.1", [{}, {"strategy": "roundrobin"}], "g_1 advertise another strategy than range"),
        ("average", "1.1", [{"strategy": "average"}] * 2, None),
        ("average", "1.1", [{"strategy": "average"}, {}], "g_1 do not advertise the strategy average"),
        ("roundrobin", "1.1", [{"strategy": "roundrobin", "scala.compat.version": "1.0"}], None),
        ("roundrobin", "1.1", [{"strategy": "roundrobin", "scala.compat.version": "0.11"}], "we will contend"),
        ("roundrobin", "0.8.2", [{"strategy": "roundrobin", "scala.compat.version": "0.11"}], None),
        ("roundrobin", "1.1", [{"strategy": "range"}], "g_0 advertise another strategy than ours"),
        ("roundrobin", "1.1", [{}] * 5, "g_0, g_1, g_2 and 2 more do not advertise their release"),
    ],
)
def test_what_may_go_wrong_in_a_group_is_said(
    strategy: str, release: str, extras: list[dict[str, object]], said: str | None
) -> None:
    found = concern(configured(strategy, scala_compat_version=release), view(*extras).members)
    assert found is None if said is None else said in (found or "")


def test_we_advertise_what_we_know() -> None:
    config = configured("roundrobin", scala_compat_version="0.11")
    assert advertisement(config, host="h", address=None, version="0.1.0") == {
        "host": "h",
        "strategy": "roundrobin",
        "zkconsumer": "0.1.0",
        "scala.compat.version": "0.11",
    }
    assert advertisement(configured("range")) == {"strategy": "range"}
