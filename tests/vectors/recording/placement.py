"""Chains of changes of a group, with the plans that sticky and lag-aware placement make of them.

``python -m tests.vectors.recording.placement`` writes them again. They show in a review what a change of the code does
to groups: a member of another release must follow the plans of this one, and restarts should not shuffle a group.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from zkconsumer.assignors.even_load import WIDE_GAP, even_load
from zkconsumer.assignors.fewest_moves import fewest_moves
from zkconsumer.assignors.placement import threads_by_topic
from zkconsumer.core.load_report import PartitionLoad
from zkconsumer.model import LAG_AWARE, STICKY, Assignment, ConsumerId, ThreadId, TopicPartition

PLACE = Path(__file__).parent.parent / "data" / "zkconsumer_placement.jsonl"
CHAINS, STEPS = 24, 4


def assigned(case: dict[str, Any]) -> Assignment:
    """Compute the assignment of a case."""
    members = {ConsumerId(name): streams for name, streams in case["members"].items()}
    partitions = {topic: range(count) for topic, count in case["topics"].items()}
    before = {_partition(text): ThreadId(thread) for text, thread in case["before"].items()}
    if case["strategy"] == STICKY:
        return fewest_moves(threads_by_topic(members), partitions, before)
    loads = {_partition(text): PartitionLoad(*load) for text, load in case["loads"].items()}
    return even_load(threads_by_topic(members), partitions, before, loads, gap=WIDE_GAP)


def written(assignment: Assignment) -> dict[str, str]:
    """Return an assignment as a case has it."""
    return {str(tp): str(thread) for tp, thread in sorted(assignment.items())}


def _partition(text: str) -> TopicPartition:
    topic, _, number = text.rpartition("-")
    return TopicPartition(topic, int(number))


def _chain(number: int, chance: Random) -> list[dict[str, Any]]:
    strategy = STICKY if number % 3 else LAG_AWARE
    topics = {f"t{n}": chance.randint(1, 9) for n in range(chance.randint(1, 3))}
    alike = chance.random() < 0.6
    made: list[dict[str, Any]] = []
    before: dict[str, str] = {}
    members: dict[str, dict[str, int]] = {}
    for step in range(STEPS):
        while not members or chance.random() < 0.5:
            wanted = list(topics) if alike else [t for t in topics if chance.random() < 0.8]
            members[f"g_m{chance.randrange(100):02}"] = {topic: chance.randint(1, 2) for topic in wanted}
        if step and len(members) > 1 and chance.random() < 0.5:
            del members[chance.choice(sorted(members))]
        if chance.random() < 0.2:
            topics[chance.choice(sorted(topics))] += 2
        case: dict[str, Any] = {"strategy": strategy, "chain": f"{strategy}-{number}", "step": step}
        case |= {"members": dict(members), "topics": dict(topics), "before": before}
        if strategy == LAG_AWARE:
            named = [f"{topic}-{n}" for topic, count in topics.items() for n in range(count)]
            case["loads"] = {name: [chance.randrange(9000), chance.randrange(100)] for name in named}
        case["result"] = before = written(assigned(case))
        made.append(case)
    return made


def main() -> None:
    """Write all chains."""
    chance = Random(20)
    lines = [json.dumps(case, separators=(",", ":")) for n in range(CHAINS) for case in _chain(n, chance)]
    PLACE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
