"""What happens to a member that the brokers coordinate, beside what ``member.events`` has. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zkconsumer.kafka.cluster_metadata import TopicsSeen
from zkconsumer.kafka.group_channel import Joined, Membership
from zkconsumer.model import Endpoint


@dataclass(frozen=True, slots=True)
class Found:
    """The coordinator is known; ``topics`` where they were wanted too."""

    coordinator: Endpoint
    topics: TopicsSeen | None


@dataclass(frozen=True, slots=True)
class Synced:
    """Our share of the partitions, as the coordinator gave it; it was asked at ``sent_at`` (monotonic seconds)."""

    assignment: bytes
    sent_at: float


Answer = Found | Joined | TopicsSeen | Synced | None


@dataclass(frozen=True, slots=True)
class Answered:
    """A question was answered, or failed. ``ticket`` says which."""

    ticket: int
    answer: Answer = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatFailed:
    """A heartbeat or a commit was refused, or nobody answered it. ``who`` sent it."""

    who: Membership
    error: Exception
