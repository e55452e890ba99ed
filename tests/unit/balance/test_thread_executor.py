"""The threads of a run: what one slow handler must not hold up."""

from __future__ import annotations

import threading
from typing import Any

from tests.timing import eventually, scaled
from tests.unit.balance.work_list import WorkList, new_works
from zkconsumer.balance.idle_workers import BatchSize
from zkconsumer.balance.outcomes import DONE
from zkconsumer.balance.thread_executor import ThreadExecutor
from zkconsumer.runtime.deadline import Deadline


def test_a_handler_that_hangs_holds_back_no_outcome() -> None:
    """A worker takes several messages at once. One that does not return leaves the others finished, or to be taken."""
    values, hung = [b"%d" % n for n in range(9)], threading.Event()
    sizes = BatchSize()
    source = WorkList(new_works(values))

    def handle(message: Any) -> None:
        if message.value == b"4":
            hung.wait()

    executor = ThreadExecutor(handle, 1, sizes=sizes)
    sizes.size = len(values)
    executor.start(source)
    try:

        def noted() -> bool:
            executor.reclaim()  # as the reader does a few times a second
            return [source.outcomes.get(offset, [])[-1:] for offset in range(4)] == [[DONE]] * 4

        eventually(noted, 10, "the outcomes of the messages before")
        assert 4 not in source.outcomes
        assert all(source.outcomes[offset][-1] is not DONE for offset in range(5, 9)), "others may take them"
    finally:
        hung.set()
        eventually(lambda: source.settled == len(values), 10, "the rest")
        source.ended = True
        assert executor.stop(Deadline(scaled(10)))


def test_a_worker_that_cannot_go_on_ends_the_run() -> None:
    """Otherwise its messages would stay in hand for ever, and nobody would be told."""

    class Broken(WorkList):
        def settle(self, outcomes: Any) -> None:
            raise ValueError("no more")

    source = Broken(new_works([b"0"]))
    executor = ThreadExecutor(lambda _: None, 2)
    executor.start(source)
    eventually(lambda: source.ended, 10, "the end of the run")
    assert str(source.error) == "no more"
    assert executor.stop(Deadline(scaled(10)))
