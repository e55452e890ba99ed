"""What the other parts of ``zkconsumer.operations`` conclude about a watched group, as plain values.

Pure; any thread. A judgement is made once a reading and then shared by all answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zkconsumer.model import Assignment, ConsumerId, TopicPartition

Document = Mapping[str, object]
"""A JSON object."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is concluded about a group.

    ``state`` is a word such as ``Stable``, ``reason`` a sentence. ``strategy`` is empty if it is unknown, and
    ``strategy_why`` says how it is known. ``kinds`` maps members to the software that registered them.
    ``owners`` and ``expected`` map partitions to thread ids, or to member ids of a group that brokers coordinate.
    ``member_of`` maps these ids to members. ``subscribed`` are the topics that a member subscribes to, None if a
    registration cannot be read. ``explanations`` are one sentence a partition.
    """

    state: str = "Unknown"
    reason: str = ""
    coordination: str = ""
    strategy: str = ""
    strategy_why: str = ""
    kinds: Mapping[ConsumerId, str] = field(default_factory=dict)
    owners: Assignment = field(default_factory=dict)
    expected: Assignment = field(default_factory=dict)
    member_of: Mapping[str, str] = field(default_factory=dict)
    subscribed: frozenset[str] | None = None
    explanations: Mapping[TopicPartition, str] = field(default_factory=dict)
    events: Sequence[Document] = ()
    rebalances: Sequence[Document] = ()
    findings: Sequence[Document] = ()
    plans: Mapping[str, Document] = field(default_factory=dict)

    def abandoned(self, topic: str) -> bool:
        """Return whether the group has members, and none of them subscribes to this topic."""
        return self.subscribed is not None and bool(self.kinds) and topic not in self.subscribed
