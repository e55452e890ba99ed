"""Lag-aware placement: loads are evened out, and noise moves nothing."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.assignors.lag_aware_placement import (
    BARRED_LOOKS,
    BARRED_MOST,
    CATCH_UP_S,
    LOOKS,
    NARROW_GAP,
    PAUSE_LOOKS,
    WIDE_GAP,
    PlanJudgement,
    even_load,
    growing_lags,
    is_uneven,
    rescues,
    smoothed,
    weight,
)
from zkconsumer.core.placement_plan import PartitionLoad
from zkconsumer.model import Assignment, ThreadId, TopicPartition

THREADS = [ThreadId(f"g_{n}-0") for n in range(4)]
PARTITIONS = {"t": tuple(range(40))}
EVERYTHING = [TopicPartition("t", n) for n in range(40)]


def even(**others: float) -> dict[TopicPartition, PartitionLoad]:
    """Ten messages a second in each, but for some: ``p7=100``."""
    return {tp: PartitionLoad(0, others.get(f"p{tp.partition}", 10.0)) for tp in EVERYTHING}


def rates(assignment: Assignment, loads: dict[TopicPartition, PartitionLoad]) -> dict[ThreadId, float]:
    found = dict.fromkeys(THREADS, 0.0)
    for tp, thread in assignment.items():
        found[thread] += weight(loads[tp])
    return found


def placed(loads: dict[TopicPartition, PartitionLoad] | None = None, threads: list[ThreadId] = THREADS) -> Assignment:
    return even_load({"t": threads}, PARTITIONS, {}, loads or {})


@pytest.mark.parametrize("loads", [{}, even(**{f"p{n}": 0.0 for n in range(40)})], ids=["unknown", "idle"])
def test_partitions_without_load_are_spread_by_number(loads: dict[TopicPartition, PartitionLoad]) -> None:
    assert set(Counter(placed(loads).values()).values()) == {10}


def test_a_lag_counts_as_a_rate() -> None:
    assert weight(PartitionLoad(3 * CATCH_UP_S, 2.0)) == 5.0
    assert weight(PartitionLoad(-5.0, -1.0)) == 0.0, "a reading that makes no sense is no load"


def test_free_partitions_go_where_there_is_little_load() -> None:
    loads = even(p0=200.0)
    before = {tp: thread for tp, thread in placed(loads).items() if thread != THREADS[3]}
    after = even_load({"t": THREADS}, PARTITIONS, before, loads)
    assert all(after[tp] == thread for tp, thread in before.items())
    assert set(after.values()) == set(THREADS)


def test_hot_partitions_are_spread() -> None:
    loads = even(p0=200.0, p4=200.0, p8=200.0)
    before = placed()
    assert before[EVERYTHING[0]] == before[EVERYTHING[4]] == before[EVERYTHING[8]]
    assert is_uneven({"t": THREADS}, PARTITIONS, before, loads)
    after = even_load({"t": THREADS}, PARTITIONS, before, loads, gap=NARROW_GAP)
    assert max(rates(after, loads).values()) <= 1.2 * sum(rates(after, loads).values()) / 4
    assert not is_uneven({"t": THREADS}, PARTITIONS, after, loads)
    moved = sum(after[tp] != thread for tp, thread in before.items())
    assert moved <= 16, "not everything is shuffled for three partitions"


def test_a_single_hot_partition_moves_nothing_in_circles() -> None:
    """The owner of the hot partition has too much anywhere. The other loads are evened out all the same."""
    loads = even(p0=5000.0)
    after = even_load({"t": THREADS}, PARTITIONS, placed(), loads, gap=NARROW_GAP)
    assert not is_uneven({"t": THREADS}, PARTITIONS, after, loads)
    assert [tp for tp, thread in after.items() if thread == after[EVERYTHING[0]]] == [EVERYTHING[0]]


def test_a_newcomer_gets_a_share_and_a_leaver_s_is_dealt() -> None:
    three = placed(threads=THREADS[:3])
    four = even_load({"t": THREADS}, PARTITIONS, three, even(), gap=WIDE_GAP)
    assert Counter(four.values())[THREADS[3]] >= 7
    moved = [tp for tp in EVERYTHING if three[tp] != four[tp]]
    assert {four[tp] for tp in moved} == {THREADS[3]}
    again = even_load({"t": THREADS[:3]}, PARTITIONS, four, even(), gap=WIDE_GAP)
    assert all(again[tp] == thread for tp, thread in four.items() if thread != THREADS[3])


@given(st.integers(0, 1000))
def test_noise_is_not_uneven(seed: int) -> None:
    chance = Random(seed)
    loads = {tp: PartitionLoad(chance.uniform(0, 300), chance.uniform(8.0, 12.0)) for tp in EVERYTHING}
    assert not is_uneven({"t": THREADS}, PARTITIONS, placed(), loads)


weights = st.lists(st.floats(0, 1e6), min_size=40, max_size=40)


@given(weights, st.lists(st.sampled_from([*THREADS, ThreadId("g_gone-0")]), min_size=40, max_size=40))
def test_moves_end_and_leave_no_thread_with_too_much(rate: list[float], owners: list[ThreadId]) -> None:
    loads = {tp: PartitionLoad(0, one) for tp, one in zip(EVERYTHING, rate, strict=True)}
    before = dict(zip(EVERYTHING, owners, strict=True))
    first = even_load({"t": THREADS}, PARTITIONS, before, loads)
    assert set(first) == set(EVERYTHING)
    assert all(first[tp] == thread for tp, thread in before.items() if thread in THREADS)
    after = even_load({"t": THREADS}, PARTITIONS, first, loads, gap=NARROW_GAP)
    assert set(after) == set(EVERYTHING)
    assert even_load({"t": THREADS}, PARTITIONS, after, loads, gap=NARROW_GAP) == after
    assert not is_uneven({"t": THREADS}, PARTITIONS, after, loads)


def test_only_measurements_in_a_row_count() -> None:
    judgement = PlanJudgement()
    looks = [True, True, False, *[True] * LOOKS, *[True] * PAUSE_LOOKS, *[True] * LOOKS]
    judged = [judgement.looked(uneven) for uneven in looks]
    assert [at for at, moves in enumerate(judged) if moves] == [2 + LOOKS, 2 + 2 * LOOKS + PAUSE_LOOKS]


def test_a_relieved_lagging_thread_gets_nothing_back_for_long() -> None:
    """Or partitions of a slow member would move for ever: away while it lags, and back when it has caught up."""
    slow, fast = THREADS[:2]
    before: Assignment = {TopicPartition("t", n): slow if n < 2 else fast for n in range(4)}
    after: Assignment = {TopicPartition("t", n): slow if n < 1 else fast for n in range(4)}
    behind = {
        tp: PartitionLoad(10_000 if thread == slow else 1_000_000 * (tp.partition == 3), 10)
        for tp, thread in before.items()
    }
    judgement, lasted = PlanJudgement(), []
    for _ in range(4):
        judgement.moved(before, after, behind)
        assert judgement.barred == {slow}, "the other one gave nothing up"
        looks = 0
        while judgement.barred:
            judgement.looked(uneven=False)
            looks += 1
        lasted.append(looks)
    assert lasted == [BARRED_LOOKS, 2 * BARRED_LOOKS, 4 * BARRED_LOOKS, 8 * BARRED_LOOKS]
    for _ in range(BARRED_MOST):
        judgement.looked(uneven=False)
    judgement.moved(before, after, behind)
    for _ in range(BARRED_LOOKS):
        assert judgement.barred
        judgement.looked(uneven=False)
    assert not judgement.barred, "after a long time it begins anew"
    judgement.moved(before, after, dict.fromkeys(before, PartitionLoad(100, 10)))
    assert not judgement.barred, "who does not lag may get partitions back"


def test_a_barred_thread_gets_no_moved_partition() -> None:
    loads = even(p0=400.0)
    before = placed()
    full = before[TopicPartition("t", 0)]
    free = [thread for thread in THREADS if thread != full]
    after = even_load({"t": THREADS}, PARTITIONS, before, loads, gap=NARROW_GAP, barred=free[:1])
    assert any(after[tp] != thread for tp, thread in before.items())
    assert all(
        after[tp] == thread for tp, thread in before.items() if free[0] in (thread, after[tp]) and thread != full
    )
    assert free[0] not in {after[tp] for tp, thread in before.items() if thread != after[tp]}
    assert not is_uneven({"t": THREADS}, PARTITIONS, before, loads, barred=free)


def test_the_last_partition_of_a_slow_thread_is_rescued() -> None:
    slow, lagging, fast, idle = THREADS
    before: Assignment = dict(zip(EVERYTHING[:6], [slow, lagging, lagging, fast, fast, idle], strict=True))
    loads = dict.fromkeys(before, PartitionLoad(0, 10.0)) | dict.fromkeys(EVERYTHING[:3], PartitionLoad(90_000, 10.0))
    grow = EVERYTHING[:3]
    assert growing_lags(dict.fromkeys(before, PartitionLoad(0, 10.0)), loads) == set(grow)
    assert rescues({"t": THREADS}, before, loads, grow) == {EVERYTHING[0]: idle}, (
        "the other one can give one up as usual"
    )
    assert rescues({"t": THREADS}, before, loads, grow, {idle}) == {EVERYTHING[0]: fast}
    assert rescues({"t": THREADS}, before, loads, grow, {idle, fast}) == {}, "it was tried"
    assert rescues({"t": THREADS}, before, {**loads, EVERYTHING[0]: PartitionLoad(200, 10.0)}, grow) == {}, "no lag"
    assert rescues({"t": THREADS}, before, loads, ()) == {}, "its lag becomes less"
    two: Assignment = {EVERYTHING[0]: slow, EVERYTHING[1]: lagging, EVERYTHING[5]: idle}
    assert len(rescues({"t": THREADS[:3]}, two, loads, grow)) == 1, "a thread gets one at a time"


def test_loads_are_means_of_measurements() -> None:
    tp, new = EVERYTHING[:2]
    found = smoothed({tp: PartitionLoad(100, 4.0)}, {tp: PartitionLoad(0, 8.0), new: PartitionLoad(7, 1.0)})
    assert found == {tp: PartitionLoad(50, 6.0), new: PartitionLoad(7, 1.0)}
