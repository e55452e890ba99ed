"""Ownership epochs over the generations of a brokers' group."""

from __future__ import annotations

from zkconsumer.core.generation_fence import OwnershipEpochs
from zkconsumer.model import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def in_generation(number: int, *assigned: TopicPartition) -> OwnershipEpochs:
    epochs = OwnershipEpochs()
    epochs.begin_generation(number, ())
    epochs.assigned(assigned)
    return epochs


def test_a_partition_given_back_by_the_next_generation_goes_on() -> None:
    """An eager rebalance takes everything away first; nobody else owned the partition meanwhile."""
    epochs = in_generation(5, A, B)
    before = epochs.current
    epochs.begin_generation(6, ())
    assert not any(epochs.current.ended(tp, before.epochs[tp]) for tp in (A, B)), "the leader has not decided yet"
    assert not epochs.current.epochs
    epochs.assigned([A, C])
    assert epochs.current.epochs[A] == before.epochs[A]
    assert not epochs.current.ended(A, before.epochs[A])
    assert epochs.current.ended(B, before.epochs[B])
    assert epochs.current.epochs[C] != before.epochs[A]


def test_a_missed_generation_ends_the_epoch() -> None:
    """The second generation begins before the first one's leader has decided, or has told this member."""
    epochs = in_generation(5, A)
    before = epochs.current.epochs[A]
    epochs.begin_generation(6, ())
    epochs.begin_generation(7, ())
    epochs.assigned([A])
    assert epochs.current.ended(A, before)


def test_a_partition_kept_while_joining_goes_on_until_given_up() -> None:
    """The epoch goes on even where the leader wants the partition given up."""
    epochs = in_generation(5, A, B)
    before = epochs.current.epochs
    for generation in (6, 7):
        epochs.begin_generation(generation, [A, B])
        assert epochs.current.epochs == before
    epochs.assigned([A])
    assert epochs.current.epochs == before, "B is ours until we give it up; nobody else owns it in this generation"
    epochs.begin_generation(8, [A])
    epochs.assigned([A])
    assert epochs.current.epochs == {A: before[A]}
    epochs.begin_generation(9, [A])
    epochs.assigned([A, B])
    assert epochs.current.ended(B, before[B])


def test_a_loss_ends_all_epochs() -> None:
    epochs = in_generation(5, A)
    before = epochs.current.epochs[A]
    epochs.lost()
    assert epochs.current.ended(A, before)
    assert epochs.current.ended(A, None)
    epochs.begin_generation(6, [A])
    epochs.assigned([A])
    assert epochs.current.ended(A, before)


def test_a_group_that_counts_from_one_again_gives_nothing_back() -> None:
    epochs = in_generation(5, A)
    before = epochs.current.epochs[A]
    epochs.begin_generation(1, ())
    epochs.assigned([A])
    assert epochs.current.ended(A, before)


def test_the_last_ended_epochs_are_known_until_the_member_leaves() -> None:
    epochs = in_generation(5, A, B)
    first = epochs.current.epochs[A]
    assert epochs.current.past == {}
    epochs.begin_generation(6, [A])
    assert epochs.current.past == {B: first}, "until the leader gives it back"
    epochs.assigned([A, B])
    assert epochs.current.past == {}
    epochs.lost()
    epochs.begin_generation(8, ())
    epochs.assigned([A])
    assert epochs.current.past == {A: first, B: first}
    second = epochs.current.epochs[A]
    epochs.lost()
    assert epochs.current.past == {A: second, B: first}
    epochs.left()
    epochs.lost()
    assert epochs.current.past == {}
