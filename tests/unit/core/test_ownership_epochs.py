"""How long a partition stays with us, generation by generation."""

from __future__ import annotations

from zkconsumer.core.ownership_epochs import Stays
from zkconsumer.model import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


def in_generation(number: int, *given: TopicPartition) -> Stays:
    stays = Stays()
    stays.joined(number, ())
    stays.given(given)
    return stays


def test_what_the_next_generation_gives_back_has_stayed_although_everything_was_given_up_for_it() -> None:
    stays = in_generation(5, A, B)
    before = stays.held
    stays.joined(6, ())
    assert not any(stays.held.ended(tp, before.stays[tp]) for tp in (A, B)), "nobody has said yet"
    assert not stays.held.stays
    stays.given([A, C])
    assert stays.held.stays[A] == before.stays[A]
    assert not stays.held.ended(A, before.stays[A])
    assert stays.held.ended(B, before.stays[B])
    assert stays.held.stays[C] != before.stays[A]


def test_what_comes_back_after_a_generation_that_we_have_missed_is_another_stay() -> None:
    stays = in_generation(5, A)
    before = stays.held.stays[A]
    stays.joined(6, ())  # and the next one begins before its leader has decided, or told us
    stays.joined(7, ())
    stays.given([A])
    assert stays.held.ended(A, before)


def test_what_is_kept_while_joining_stays_also_where_the_leader_wants_it_given_up() -> None:
    stays = in_generation(5, A, B)
    before = stays.held.stays
    for generation in (6, 7):
        stays.joined(generation, [A, B])
        assert stays.held.stays == before
    stays.given([A])
    assert stays.held.stays == before, "ours until we have given it up, and nobody else's in this generation"
    stays.joined(8, [A])
    stays.given([A])
    assert stays.held.stays == {A: before[A]}
    stays.joined(9, [A])
    stays.given([A, B])
    assert stays.held.ended(B, before[B])


def test_a_loss_ends_all_stays() -> None:
    stays = in_generation(5, A)
    before = stays.held.stays[A]
    stays.lost()
    assert stays.held.ended(A, before)
    assert stays.held.ended(A, None)
    stays.joined(6, [A])
    stays.given([A])
    assert stays.held.ended(A, before)


def test_a_group_that_counts_from_one_again_gives_nothing_back() -> None:
    stays = in_generation(5, A)
    before = stays.held.stays[A]
    stays.joined(1, ())
    stays.given([A])
    assert stays.held.ended(A, before)
