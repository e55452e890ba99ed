"""Small groups, written down shortly."""

from __future__ import annotations

from collections.abc import Mapping

from zkconsumer.assignors import Assignor, Member
from zkconsumer.model import ConsumerId, TopicPartition, thread_id


def member(consumer: str, topics: Mapping[str, int], **advertised: str) -> Member:
    """A member with that many threads for each topic."""
    threads = {t: tuple(thread_id(ConsumerId(consumer), n) for n in range(count)) for t, count in topics.items()}
    return Member(threads, **advertised)  # type: ignore[arg-type]


def group(members: Mapping[str, Mapping[str, int]]) -> dict[ConsumerId, Member]:
    """Members by name, each with its numbers of streams."""
    return {ConsumerId(name): member(name, topics) for name, topics in members.items()}


def owners(
    assignor: Assignor,
    members: Mapping[ConsumerId, Member],
    partitions: Mapping[str, list[int]],
    racks: Mapping[TopicPartition, str] | None = None,
) -> dict[str, list[str]]:
    """Each thread with its partitions as text, in order of topic and number."""
    found: dict[str, list[str]] = {}
    for partition, thread in sorted(assignor.assign(members, partitions, racks or {}).items()):
        found.setdefault(thread, []).append(str(partition))
    return found


def text(owned: Mapping[str, list[str]]) -> dict[str, str]:
    """The same, with the partitions in one text."""
    return {thread: " ".join(partitions) for thread, partitions in owned.items()}
