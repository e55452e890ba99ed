"""Many messages that are finished at once, and a log that is read again, beside single messages and a plain set."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from zkconsumer.core.unfinished_offsets import UnfinishedOffsets

OFFSETS = st.integers(0, 40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(1, 8)),
        st.tuples(st.just("again"), OFFSETS),
        st.tuples(st.just("finish"), st.lists(OFFSETS, max_size=6)),
    ),
    max_size=25,
)


def _finished_together(unfinished: UnfinishedOffsets, offsets: Sequence[int]) -> int:
    if unfinished.finish_together(offsets):
        return len(set(offsets))
    return sum(unfinished.finish(offset) for offset in offsets)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_messages_finished_at_once_count_as_each_alone(steps: Sequence[tuple[str, object]]) -> None:
    bulk, single = UnfinishedOffsets(0), UnfinishedOffsets(0)
    for step, argument in steps:
        if step == "read":
            assert isinstance(argument, int)
            for one in (bulk, single):
                begin = one.read_to
                one.read([o for o in range(begin, begin + argument) if one.wants(o, 0)], begin + argument)
        elif step == "again":
            assert isinstance(argument, int)
            again = min(argument, bulk.read_to)
            assert [one.take_on(0, again, ()) for one in (bulk, single)] == [again, again]
        else:
            assert isinstance(argument, list)
            assert _finished_together(bulk, argument) == sum(single.finish(offset) for offset in argument)
        assert len(bulk) == len(single)
        assert bulk.base == single.base == min([o for o in range(60) if o in single] + [single.read_to])
