"""``run`` with ``concurrency`` on a cluster in memory: order, retries, ends, and what is committed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.clusters import Join, cluster_with, committed, connectors_with
from zkconsumer import ConsumerTimeoutException
from zkconsumer.balance.balanced_run import BalancedRun
from zkconsumer.balance.dead_letters import DeadLetters
from zkconsumer.balance.failure_limit import FailureLimit
from zkconsumer.balance.retry_policy import Retry
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster

PARTITIONS = 3
EACH = 40
cluster = cluster_with({"events": [[b"%d" % number for number in range(EACH)]] * PARTITIONS})
join = connectors_with({"consumer.timeout.ms": int(scaled(0.4) * 1000), "auto.commit.interval.ms": 60_000})


def threads_left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "-worker-" in thread.name or "-reader" in thread.name]


def test_a_handler_may_shut_down_the_run(cluster: FakeCluster, join: Join) -> None:
    """Its own message counts as finished, as with streams; the shutdown does not wait for it."""
    connector, taken = join(**{"consumer.timeout.ms": -1}), list[tuple[int, int]]()

    def handle(message: Any) -> None:
        taken.append((message.partition, message.offset))
        if (message.partition, message.offset) == (1, 7):
            connector.shutdown()

    connector.run(handle, "events", concurrency=1, order="partition")
    assert committed(cluster)[1] == 8
    assert committed(cluster) == [sum(partition == number for number, _ in taken) for partition in range(PARTITIONS)]
    assert threads_left() == []


def test_a_run_may_end_while_a_shutdown_looks_at_it(
    cluster: FakeCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shutdown had seen that there is a run, and then asked the connector for it a second time."""
    connector, began = join(**{"consumer.timeout.ms": -1}), threading.Event()
    running = threading.Thread(
        target=lambda: connector.run(lambda _: began.set(), "events", concurrency=2), name="run", daemon=True
    )

    def ends_meanwhile(run: BalancedRun) -> None:
        if threading.current_thread() is not running:
            running.join(scaled(10))
        give_back(run)

    give_back = BalancedRun.give_back
    monkeypatch.setattr(BalancedRun, "give_back", ends_meanwhile)
    running.start()
    assert began.wait(scaled(10))
    connector.shutdown()
    assert not running.is_alive()


def test_an_interrupt_of_a_handler_ends_the_run(cluster: FakeCluster, join: Join) -> None:
    def handle(message: Any) -> None:
        if (message.partition, message.offset) == (2, 5):
            raise KeyboardInterrupt

    connector = join()
    with pytest.raises(KeyboardInterrupt) as raised:
        connector.run(handle, "events", concurrency=2, order="partition")
    assert raised.value.__notes__ == ["raised by the handler of events-2 at offset 5; this message is not committed"]
    assert committed(cluster)[2] == 5
    assert threads_left() == []


def test_a_second_interrupt_leaves_no_thread(cluster: FakeCluster, join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second Ctrl-C ended the steps of the end, and the reader ran on."""
    close, closed = DeadLetters.close, list[DeadLetters]()

    def interrupted(self: DeadLetters, deadline: Deadline) -> bool:
        closed.append(self)
        raise KeyboardInterrupt

    def handle(message: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DeadLetters, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        join().run(handle, "events", concurrency=2)
    for dead_letters in closed:
        close(dead_letters, Deadline(scaled(5.0)))
    assert closed
    assert threads_left() == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("batch", [0, -1, True, "3", None]),
        ("retry", [3, 0, False, Retry]),
        ("failure_limit", [5, "x", FailureLimit]),
        ("executor", [None, object(), "thread"]),
        ("order", [None, "keys"]),
        ("dead_letter", ["topic", 5]),
        ("concurrency", [0, True, "4"]),
    ],
)
def test_a_wrong_option_is_named_before_the_group_is_joined(
    cluster: FakeCluster, join: Join, name: str, wrong: list[Any]
) -> None:
    """Otherwise it would hang, or fail at the first message that fails."""
    connector = join()
    for value in wrong:
        with pytest.raises((TypeError, ValueError), match=f"^{name}"):
            connector.run(print, "events", **{"concurrency": 2, name: value})
    assert not cluster.zookeeper.tree("/consumers").keys() - {"/consumers"}


@pytest.mark.parametrize(
    "option",
    [
        {"retry": Retry()},
        {"dead_letter": print},
        {"order": "none"},
        {"executor": "processes"},
        {"batch": 2},
        {"failure_limit": None},
        {"until": "end"},
    ],
)
def test_options_that_need_concurrency_say_so(join: Join, option: dict[str, Any]) -> None:
    """Nothing would be tried again, although ``retry`` is given, and the first failure would end the run."""
    with pytest.raises(ValueError, match=f"{next(iter(option))} needs concurrency"):
        join().run(print, "events", workers=2, **option)


def test_misfit_arguments_are_refused(join: Join) -> None:
    connector = join()
    with pytest.raises(ValueError, match="workers or concurrency"):
        connector.run(print, "events", workers=2, concurrency=2)
    with pytest.raises(ValueError, match="give topics"):
        connector.run(print, concurrency=2)


@pytest.mark.parametrize("executor", ["threads", "asyncio"])
def test_a_nack_in_its_handler_holds_up_the_key(cluster: FakeCluster, join: Join, executor: Any) -> None:
    """The handler returns as if all were done, and later messages of the key were taken together with this one."""
    cluster.create_topic("keyed", 1)
    cluster.append("keyed", 0, [b"%d" % n for n in range(20)], [b"k"] * 20)
    connector, taken = join(), list[tuple[int, int]]()

    def handler(message: Any) -> None:
        taken.append((message.offset, message.attempt))
        if message.offset == 3 and message.attempt == 1:
            message.nack()

    async def coroutine(message: Any) -> None:
        handler(message)

    with pytest.raises(ConsumerTimeoutException):
        connector.run(
            handler if executor == "threads" else coroutine,
            "keyed",
            concurrency=4,
            executor=executor,
            retry=Retry(delays=(0.05,), jitter=0.0),
        )
    assert taken == [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), *((n, 1) for n in range(4, 20))]
