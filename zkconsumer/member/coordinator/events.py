"""The events of a coordinated member, besides those in ``member.events``. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from zkconsumer.kafka.cluster_metadata import TopicsSeen
from zkconsumer.kafka.group_channel import Joined, Membership
from zkconsumer.model import Endpoint


@dataclass(frozen=True, slots=True)
class Found:
    """The coordinator is known; ``topics`` if they were asked for too."""

    coordinator: Endpoint
    topics: TopicsSeen | None


@dataclass(frozen=True, slots=True)
class Synced:
    """Our assignment, encoded; the request was sent at ``sent_at`` (monotonic seconds)."""

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
    """A heartbeat or commit of ``who`` was refused or not answered."""

    who: Membership
    error: Exception
