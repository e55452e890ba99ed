"""Commits of a member that the brokers coordinate: as whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import pytest

from zkconsumer.brokers import errors
from zkconsumer.brokers.group_requests import Membership
from zkconsumer.brokers.search import CoordinatorSearch
from zkconsumer.deadline import Deadline
from zkconsumer.errors import BrokerUnavailableError, IllegalGenerationError, OffsetCommitError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.coordinated import GroupOffsets, NoOwnerNodes
from zkconsumer.offsets.owned import OwnedOffsets
from zkconsumer.registry.fenced import ABSENT

TP = TopicPartition("t", 0)


@dataclass
class Identity:
    settled: bool = True
    who: Membership = field(default_factory=lambda: Membership("g", 5, "first"))
    lives: int = 0


@dataclass
class Coordinator:
    """Is its own search and channel; ``first`` happens to the first commit."""

    first: Callable[[], None]
    commits: list[Membership] = field(default_factory=list)

    def find(self, _: Deadline) -> Coordinator:
        return self

    def discard(self, _: Coordinator) -> None:
        pass

    @property
    def endpoint(self) -> Membership:
        return Membership("g")

    def commit(self, who: Membership, offsets: Mapping[TopicPartition, int], _: Deadline) -> dict[TopicPartition, int]:
        self.commits.append(who)
        if len(self.commits) == 1:
            self.first()
        return dict.fromkeys(offsets, 0)


def owned(identity: Identity, coordinator: Coordinator) -> OwnedOffsets:
    store = GroupOffsets("g", cast(CoordinatorSearch, coordinator), identity, lambda *_: None)
    made = OwnedOffsets(NoOwnerNodes(identity), store, backoff=0.001)
    made.track(TP, ABSENT)
    return made


@pytest.mark.parametrize("code", [None, errors.ILLEGAL_GENERATION])
def test_what_was_lost_is_not_committed_in_the_next_life(code: int | None) -> None:
    """By then somebody else may own it, and the coordinator takes it from any member of the generation."""
    identity = Identity()

    def lose() -> None:
        identity.who, identity.lives = Membership("g", 7, "second"), 1
        raise BrokerUnavailableError("gone") if code is None else errors.error(code, "a commit")

    coordinator = Coordinator(lose)
    store = owned(identity, coordinator)
    failures = store.commit({TP: 42}, {}, Deadline(10.0), patient=True)
    assert coordinator.commits == [Membership("g", 5, "first")]
    assert isinstance(failures[TP], OffsetCommitError | IllegalGenerationError)
    store.untrack(TP)
    store.track(TP, ABSENT)
    assert not store.commit({TP: 50}, {}, Deadline(10.0), patient=True)


@pytest.mark.parametrize("code", [errors.ILLEGAL_GENERATION, errors.REBALANCE_IN_PROGRESS])
def test_between_two_generations_a_commit_waits_for_the_next_one(code: int) -> None:
    identity = Identity(settled=False)

    def go_on() -> None:
        identity.who, identity.settled = Membership("g", 6, "first"), True
        raise errors.error(code, "a commit")

    coordinator = Coordinator(go_on)
    assert not owned(identity, coordinator).commit({TP: 42}, {}, Deadline(10.0), patient=False)
    assert [who.generation for who in coordinator.commits] == [5, 6]
