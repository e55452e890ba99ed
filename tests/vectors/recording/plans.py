"""Chains of changes of a group, with the plan nodes that planners write: reservations, other planners, new topics.

``python -m tests.vectors.recording.plans`` writes them again. They show in a review what a change of the code does to
the bytes that members of other releases read, and to the times at which reservations end.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from zkconsumer.assignors.placement_decision import (
    NEVER,
    Measured,
    Placement,
    PlacementDecision,
    PlacementVerdict,
    SeenGroup,
)
from zkconsumer.core.placement_plan import PartitionLoad, PlacementPlan, PlanInputs, decode_plan, encode_plan
from zkconsumer.model import LAG_AWARE, STICKY, ConsumerId, TopicPartition

PLACE = Path(__file__).parent.parent / "data" / "zkconsumer_plans.jsonl"
CHAINS, STEPS = 16, 8
GRACE = 60.0


def replayed(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Compute the results of a chain: for each step the node, whether it was written, and when to decide again."""
    planners: dict[str, Placement] = {}
    plan: PlacementPlan | None = None
    results = []
    for step in case["steps"]:
        seen = _seen(case["strategy"], step)
        for name in seen.inputs.streams:
            planners.setdefault(name, Placement(name, wait=10.0, grace=GRACE))
        decision = _led(planners[seen.planner], seen, plan, step)
        assert decision.plan is not None
        node = encode_plan(decision.plan)
        plan = decode_plan(node)
        for name in seen.inputs.streams.keys() - {seen.planner}:
            assert planners[name].decide(seen, plan, step["now"]).verdict is PlacementVerdict.FOLLOW
        again = None if decision.again_at == NEVER else decision.again_at
        results.append({"write": decision.write, "again_at": again, "node": json.loads(node)})
    return results


def _led(planner: Placement, seen: SeenGroup, plan: PlacementPlan | None, step: dict[str, Any]) -> PlacementDecision:
    needed = planner.needs(seen, plan, step["now"])
    loads = {
        TopicPartition(t, n): PartitionLoad(*one) for t, listed in step["loads"].items() for n, one in enumerate(listed)
    }
    decision = planner.decide(seen, plan, step["now"], Measured(loads=loads if needed.loads else None))
    return planner.followed(decision) if decision.write else decision


def _seen(strategy: str, step: dict[str, Any]) -> SeenGroup:
    streams = {ConsumerId(name): member["streams"] for name, member in step["members"].items()}
    lasting = frozenset(ConsumerId(name) for name, member in step["members"].items() if member["lasts"])
    wanted = {topic for topics in streams.values() for topic in topics}
    partitions = {topic: tuple(range(count)) for topic, count in step["topics"].items() if topic in wanted}
    return SeenGroup(PlanInputs(strategy, streams, partitions, lasting), next(iter(streams)))


def _chain(number: int, chance: Random) -> dict[str, Any]:
    strategy = LAG_AWARE if number % 4 == 3 else STICKY
    known = {
        f"g_m{n}": {
            "streams": {t: chance.randint(1, 2) for t in ("t", "u")[: chance.randint(1, 2)]},
            "lasts": n % 3 > 0,
        }
        for n in range(5)
    }
    topics, now, steps = {"t": 7, "u": 3}, 0.0, []
    present = list(known)[:3]
    for _ in range(STEPS):
        loads = {
            t: [[chance.randrange(9000), chance.randrange(100)] for _ in range(count)] for t, count in topics.items()
        }
        members = {name: known[name] for name in present}
        steps.append(
            {"now": now, "members": members, "topics": dict(topics), "loads": loads if strategy == LAG_AWARE else {}}
        )
        now += chance.choice([1.0, 30.0, 60.0, 90.0])
        name = chance.choice(sorted(known))
        if name not in present:
            present = [*present, name]
        elif len(present) > 1:
            present = [one for one in present if one != name]
        if chance.random() < 0.15:
            topics["t"] += 2
    case: dict[str, Any] = {"note": f"{strategy}-{number}", "strategy": strategy, "steps": steps}
    case["results"] = replayed(case)
    return case


def main() -> None:
    """Write all chains."""
    chance = Random(140)
    lines = [json.dumps(_chain(n, chance), separators=(",", ":")) for n in range(CHAINS)]
    PLACE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
