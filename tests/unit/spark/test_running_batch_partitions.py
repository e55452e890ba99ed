"""The partitions that a query keeps although the group would have them, and the end of that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from zkconsumer.model import ThreadId, TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.spark.query_member import NEVER, BatchRetention

A, B, C = (TopicPartition("t", number) for number in range(3))
ME, OTHER = ThreadId("g_me-0"), ThreadId("g_other-0")
VIEW: Any = SimpleNamespace(partitions={"t": (0, 1, 2)})


class Group:
    """A retention with a clock by hand; ``told`` is what it told the group."""

    def __init__(self, release_after: float | None = None) -> None:
        self.now = 100.0
        self.told: list[str] = []
        self.retention = BatchRetention(release_after, self.told.append, lambda: self.now)
        self.owned = {tp: PartitionPosition(tp, ME) for tp in (A, B, C)}

    def plan(self, *mine: TopicPartition) -> set[TopicPartition]:
        """The strategy gives us ``mine``; returns what is ours after the amendment."""
        assignment = {tp: ME if tp in mine else OTHER for tp in (A, B, C)}
        amended = self.retention.amend(assignment, self.owned, VIEW)
        return {tp for tp, thread in amended.items() if thread == ME}


def test_what_a_batch_reads_is_kept_and_the_rest_is_not() -> None:
    group = Group()
    assert group.retention.keep([A, B, C]) == {A, B, C}
    group.retention.keep_only([A])
    assert group.plan() == {A}
    assert group.retention.keeps(A)
    assert not group.retention.keeps(B)


def test_while_nothing_runs_nothing_is_kept() -> None:
    group = Group()
    assert group.plan(B) == {B}
    group.retention.keep([A, B, C])
    group.retention.keep_only(())
    assert group.plan() == set()


def test_a_wanted_partition_leaves_after_the_batch() -> None:
    """It is in no further batch."""
    group = Group()
    group.retention.keep([A, B, C])
    assert group.plan(A) == {A, B, C}
    assert group.told == []
    assert group.retention.keep([A, B, C]) == {A}
    assert group.told == ["a batch has ended"]
    assert group.plan(A) == {A}


def test_what_leaves_is_not_taken_into_a_batch() -> None:
    group = Group()
    assert group.plan(A) == {A}
    assert group.retention.keep([A, B, C]) == {A}
    assert group.plan(A, B, C) == {A, B, C}  # whoever wanted them has left again
    assert group.retention.keep([A, B, C]) == {A, B, C}


def test_partitions_that_a_batch_does_not_read_are_told_of() -> None:
    """Somebody waits for them, and the planned batch turns out not to read them."""
    group = Group()
    group.retention.keep([A, B, C])
    assert group.plan(A) == {A, B, C}
    group.retention.keep_only([A, B])
    assert group.told == ["a batch does not read what others wait for"]
    assert group.plan(A) == {A, B}
    group.retention.keep_only([A, B])
    assert len(group.told) == 1


def test_after_a_time_it_is_given_up_although_the_batch_runs() -> None:
    group = Group(release_after=10)
    assert group.retention.look_at_the_time() == NEVER
    group.retention.keep([A, B, C])
    assert group.plan(A) == {A, B, C}
    group.now += 4
    assert group.retention.look_at_the_time() == 6
    assert group.told == []
    group.now += 6
    assert group.retention.look_at_the_time() == NEVER
    assert group.told == ["releaseAfter has passed"]
    assert group.plan(A) == {A}
    assert not group.retention.keeps(A)
    assert group.retention.keep([A]) == {A}
    assert group.plan() == {A}


def test_a_partition_that_was_deleted_is_not_kept() -> None:
    group = Group()
    group.retention.keep([A, B])
    view: Any = SimpleNamespace(partitions={"t": (0,)})
    assert group.retention.amend({A: OTHER}, group.owned, view) == {A: ME}


def test_what_is_not_ours_is_not_claimed_by_keeping_it() -> None:
    # A batch that is repeated after a restart reads what others may own by now.
    group = Group()
    group.retention.keep([A, B])
    del group.owned[A]
    assert group.plan() == {B}
