"""``run`` with worker threads on a real member."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.in_process import offsets_of
from tests.timing import eventually, scaled
from zkconsumer import (
    StringDecoder,
    Whitelist,
    ZookeeperConsumerConnector,
)
from zkconsumer.devcluster import DevCluster

Make = Callable[..., ZookeeperConsumerConnector]
Produce = Callable[..., int]
NewGroup = Callable[[], str]


class Taken:
    """A handler that records its messages and threads."""

    def __init__(self) -> None:
        self.places: list[tuple[str, int, int]] = []
        self.threads: dict[tuple[str, int], set[str]] = defaultdict(set)

    def __call__(self, message: Any) -> None:
        self.threads[message.topic, message.partition].add(threading.current_thread().name)
        self.places.append((message.topic, message.partition, message.offset))

    def of(self, partition: int) -> list[int]:
        return [offset for _, one, offset in self.places if one == partition]


class Running:
    """A call of ``run`` on its own thread, and its end."""

    def __init__(self, connector: ZookeeperConsumerConnector, *arguments: Any, **options: Any) -> None:
        self.error: BaseException | None = None

        def call() -> None:
            try:
                connector.run(*arguments, **options)
            except BaseException as e:
                self.error = e

        self.thread = threading.Thread(target=call, name="running")
        self.thread.start()

    def join(self, seconds: float = 15) -> BaseException | None:
        self.thread.join(scaled(seconds))
        assert not self.thread.is_alive(), "run() does not return"
        return self.error


def workers_left() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "-worker-" in thread.name]


def test_workers_share_the_partitions_and_keep_their_order(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce, zookeeper: KazooClient
) -> None:
    topic, group = new_topic(6), new_group()
    produce(topic, [str(n) for n in range(600)], partitions=6)
    member, taken = connector(group, consumer_id="m"), Taken()
    running = Running(member, taken, topic, workers=3, value_decoder=StringDecoder())
    eventually(lambda: len(taken.places) == 600, 30, "all messages")
    for partition in range(6):
        assert taken.of(partition) == list(range(100))
        assert len(taken.threads[topic, partition]) == 1
    assert {name for names in taken.threads.values() for name in names} == {f"{group}_m-worker-{n}" for n in range(3)}
    assert set(owners_of(zookeeper, group, topic).values()) == {f"{group}_m-{n}" for n in range(3)}
    member.shutdown()
    assert running.join() is None
    assert offsets_of(zookeeper, group, topic) == dict.fromkeys(range(6), 100), "each was finished by its handler's end"
    assert workers_left() == []


def test_workers_get_topics_of_a_filter_and_later_topics(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce
) -> None:
    first, second = new_topic(2, prefix="dealt"), new_topic(2, prefix="dealt")
    for topic in (first, second):
        produce(topic, ["x"] * 10, partitions=2)
    filtered, by_filter = connector(new_group()), Taken()
    running = Running(filtered, by_filter, Whitelist(f"{first}|{second}"), workers=2)
    eventually(lambda: len(by_filter.places) == 20, 30, "both topics")
    filtered.shutdown()
    assert running.join() is None

    member, taken = connector(new_group()), Taken()
    running = Running(member, taken, first, workers=2)
    eventually(lambda: len(taken.places) == 10, 30, "the first topic")
    member.add_topics({second: 2})
    eventually(lambda: len(taken.places) == 20, 30, "the topic that was added")
    member.unsubscribe([first])
    produce(second, ["x"] * 10, partitions=2)
    eventually(lambda: len(taken.places) == 30, 30, "what goes on")
    member.shutdown()
    assert running.join() is None


async def later(_: Any) -> None: ...


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda member: member.run(None, "t"), TypeError, "callable"),
        (lambda member: member.run(later, "t"), TypeError, "plain function"),
        (lambda member: member.run(print), ValueError, "no streams yet"),
        (lambda member: member.run(print, []), ValueError, "no topics"),
        (lambda member: member.run(print, "t", workers=0), ValueError, "workers"),
        (lambda member: member.messages(), ValueError, "no streams yet"),
    ],
)
def test_what_makes_no_sense_is_refused(
    connector: Make, new_group: NewGroup, call: Callable[[Any], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        call(connector(new_group()))


_INTERRUPTED = """
import sys, threading
from zkconsumer import ZookeeperConsumerConnector
def handle(message):
    print("got", message.offset, flush=True)
    threading.Event().wait(0.3)
with ZookeeperConsumerConnector({"zookeeper.connect": sys.argv[1], "group.id": sys.argv[2],
                                 "auto.offset.reset": "smallest"}) as connector:
    try:
        connector.run(handle, sys.argv[3], workers=2)
    except KeyboardInterrupt:
        print("interrupted", [t.name for t in threading.enumerate() if "worker" in t.name], flush=True)
"""


def test_ctrl_c_ends_a_run_and_what_handlers_finish_is_committed(
    cluster: DevCluster, new_topic: NewTopic, new_group: NewGroup, produce: Produce, zookeeper: KazooClient
) -> None:
    topic, group = new_topic(1), new_group()
    produce(topic, ["x"] * 50, partitions=1)
    code = [sys.executable, "-c", _INTERRUPTED, cluster.zookeeper_connect, group, topic]
    process = subprocess.Popen(code, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        got = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=scaled(20))
    finally:
        process.kill()
        process.wait()
    lines = [*got, *rest.splitlines()]
    assert lines[-1].strip() == "interrupted []"
    handled = sum(line.startswith("got") for line in lines)
    assert offsets_of(zookeeper, group, topic) == {0: handled}
