"""A member that closes goes on with the next step where one fails: what one part cannot end, others must not keep."""

from __future__ import annotations

import pytest

from zkconsumer.config import ConsumerConfig
from zkconsumer.deadline import Deadline
from zkconsumer.model import ConsumerId
from zkconsumer.wiring import build_member

STEPS = ["delivery.end", "lookup.close", "fetching.close", "coordination.disconnect"]


@pytest.mark.parametrize("broken", STEPS)
def test_closing_goes_on_where_a_step_fails(monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """Each raises where the system gives it no thread to stop something with; the rest then stayed for good."""
    member = build_member(ConsumerConfig(zookeeper_connect="zk", group_id="g"), ConsumerId("g_c"))
    done: list[str] = []

    def step(name: str) -> None:
        done.append(name)
        if name == broken:
            raise RuntimeError("can't start new thread")

    for name in STEPS:
        part, method = name.split(".")
        monkeypatch.setattr(getattr(member, part), method, lambda *_, name=name: step(name))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        member.close(Deadline(1.0), finished=False)
    assert done == STEPS
