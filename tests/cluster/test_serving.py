"""``run`` on all streams of a real member: worker threads, one thread, fetch sessions, a rate limit, memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from time import monotonic
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic, owners_of
from tests.cluster.in_process import offsets_of
from tests.timing import eventually, scaled
from zkconsumer import (
    ConnectorClosedException,
    ConsumerTimeoutException,
    MessageStreamsExistException,
    StringDecoder,
    Whitelist,
    ZookeeperConsumerConnector,
)
from zkconsumer.devcluster import DevCluster

Make = Callable[..., ZookeeperConsumerConnector]
Produce = Callable[..., int]
NewGroup = Callable[[], str]


class Taken:
    """A handler that records its messages and threads. ``at`` adds actions at chosen messages."""

    def __init__(self, at: Callable[[Any], None] = lambda _: None) -> None:
        self.places: list[tuple[str, int, int]] = []
        self.threads: dict[tuple[str, int], set[str]] = defaultdict(set)
        self._at = at

    def __call__(self, message: Any) -> None:
        self.threads[message.topic, message.partition].add(threading.current_thread().name)
        self.places.append((message.topic, message.partition, message.offset))
        self._at(message)

    def of(self, partition: int) -> list[int]:
        return [offset for _, one, offset in self.places if one == partition]


class Running:
    """A call of ``run`` on its own thread, and its end."""

    def __init__(self, connector: ZookeeperConsumerConnector, *arguments: Any, **options: Any) -> None:
        self.error: BaseException | None = None
        self.ended = False

        def call() -> None:
            try:
                connector.run(*arguments, **options)
            except BaseException as e:
                self.error = e
            self.ended = True

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


def test_an_exception_of_the_handler_is_raised_with_its_position(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce, zookeeper: KazooClient
) -> None:
    """An exception of the handler stops all workers and is raised with the message's position."""
    topic, group = new_topic(2), new_group()
    produce(topic, [str(n) for n in range(40)], partitions=2)
    other_holds, failed = threading.Event(), threading.Event()

    def fail(message: Any) -> None:
        if message.partition == 1 and message.offset == 5:
            other_holds.set()
            assert failed.wait(scaled(10))
        elif message.partition == 0 and message.offset == 7:
            assert other_holds.wait(scaled(10))
            failed.set()
            raise ZeroDivisionError("the application's own")

    member, taken = connector(group, auto_commit_interval_ms=60_000), Taken(fail)
    with pytest.raises(ZeroDivisionError, match="own") as raised:
        member.run(taken, topic, workers=2)
    assert f"{topic}-0 at offset 7" in raised.value.__notes__[0]
    assert raised.traceback[-1].name == "fail"
    committed = offsets_of(zookeeper, group, topic)
    assert committed[0] == 7, "the failed message comes again"
    assert committed[1] == len(taken.of(1)) >= 6, "what the other worker had in hand was finished"
    assert workers_left() == []
    with pytest.raises(ConnectorClosedException):
        member.run(taken)
    again = Taken()
    running = Running(second := connector(group), again, topic, workers=2)
    eventually(lambda: len(again.places) == 40 - 7 - committed[1], 20, "the rest")
    assert again.of(0)[0] == 7
    second.shutdown()
    running.join()


def test_shutdown_inside_a_handler_counts_its_message(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce, zookeeper: KazooClient
) -> None:
    topic, group = new_topic(1), new_group()
    produce(topic, ["x"] * 10, partitions=1)
    member = connector(group)
    taken = Taken(lambda message: member.shutdown() if message.offset == 4 else None)
    member.run(taken, {topic: 1})
    assert taken.of(0) == [0, 1, 2, 3, 4]
    assert offsets_of(zookeeper, group, topic) == {0: 5}


def test_commits_inside_a_handler_mean_what_they_say(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce, zookeeper: KazooClient
) -> None:
    topic, group = new_topic(2), new_group()
    produce(topic, ["x"] * 10, partitions=2)
    member, seen = connector(group, auto_commit_enable="false"), []

    def commit(message: Any) -> None:
        member.commit_offsets()
        seen.append(offsets_of(zookeeper, group, topic)[message.partition] == message.offset + 1)
        if len(seen) == 10:
            member.shutdown()

    member.run(commit, topic, workers=1)
    assert seen == [True] * 10


def test_without_messages_it_times_out_and_may_be_run_again(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce
) -> None:
    topic, group = new_topic(3), new_group()
    produce(topic, ["x"] * 9, partitions=3)
    member, taken = connector(group, consumer_timeout_ms=1500), Taken()
    with pytest.raises(ConsumerTimeoutException):
        member.run(taken, topic, workers=3)
    assert len(taken.places) == 9
    produce(topic, ["x"] * 3, partitions=3)
    with pytest.raises(ConsumerTimeoutException):
        member.run(taken, workers=2)
    assert len(taken.places) == len(set(taken.places)) == 12
    with pytest.raises(MessageStreamsExistException):
        member.run(taken, topic)
    ending = connector(new_group(), consumer_timeout_ms=500, consumer_timeout_action="end")
    ending.run(taken, topic, workers=2)
    assert len(taken.places) == 24


def test_workers_get_topics_of_a_filter_and_later_topics(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce
) -> None:
    """Workers get the topics of a filter, also those that are created later."""
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


@pytest.mark.parametrize("misuse", ["no handler", "coroutine", "no streams", "no workers", "twice", "no topics"])
def test_what_makes_no_sense_is_refused(misuse: str, connector: Make, new_topic: NewTopic, new_group: NewGroup) -> None:
    member = connector(new_group())

    async def later(_: Any) -> None: ...

    if misuse == "no handler":
        with pytest.raises(TypeError, match="callable"):
            member.run(None)  # type: ignore[arg-type]
    elif misuse == "coroutine":
        with pytest.raises(TypeError, match="plain function"):
            member.run(later, "t")
    elif misuse == "no streams":
        for ask in (lambda: member.run(print), member.messages):
            with pytest.raises(ValueError, match="no streams yet"):
                ask()
    elif misuse == "no workers":
        with pytest.raises(ValueError, match="workers"):
            member.run(print, "t", workers=0)
    elif misuse == "no topics":
        with pytest.raises(ValueError, match="no topics"):
            member.run(print, [])
    else:
        running = Running(member, print, new_topic(1))
        eventually(workers_left, 10, "the run")
        for ask in (lambda: member.run(print), member.messages):
            with pytest.raises(ValueError, match="run"):
                ask()
        member.shutdown()
        running.join()


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


_SERVICE = """
import os, signal, sys, threading
from zkconsumer import ZookeeperConsumerConnector, shutdown_on_signal
connector = ZookeeperConsumerConnector({"zookeeper.connect": sys.argv[1], "group.id": sys.argv[2],
                                        "auto.offset.reset": "smallest", "group.coordination": sys.argv[4]})
def handle(message):
    threading.Event().wait(0.01)
    os.write(1, f"{message.partition} {message.offset}\\n".encode())
if sys.argv[5] == "run":
    connector.run(handle, sys.argv[3], workers=2, stop_on=(signal.SIGTERM, signal.SIGINT))
else:
    with connector, shutdown_on_signal(connector, signal.SIGTERM, signal.SIGINT):
        for message in connector.create_message_streams({sys.argv[3]: 1})[sys.argv[3]][0]:
            handle(message)
"""


class Service:
    """A process that ends on a signal. ``lines`` are its handled messages."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-c", _SERVICE, *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(line.strip() for line in self.process.stdout)

    def end(self, number: int) -> None:
        self.process.send_signal(number)
        try:
            assert self.process.wait(scaled(20)) == 0, self.process.stderr.read()  # type: ignore[union-attr]
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(scaled(10))
            for pipe in (self.process.stdout, self.process.stderr):
                assert pipe is not None
                pipe.close()


@pytest.mark.parametrize(("coordination", "reading"), [("zookeeper", "run"), ("kafka", "loop")])
def test_signals_lose_and_repeat_nothing(
    cluster: DevCluster, new_topic: NewTopic, new_group: NewGroup, produce: Produce, coordination: str, reading: str
) -> None:
    """Replace services one after the other, each in the middle of its messages."""
    topic, group = new_topic(4), new_group()
    produced = 0
    arguments = (cluster.zookeeper_connect, group, topic, coordination, reading)
    services: list[Service] = []

    def handled() -> list[str]:
        return [line for service in services for line in service.lines]

    def some_by_the_last() -> bool:
        nonlocal produced
        if len(set(handled())) == produced:  # the one before has handled everything already
            produced += produce(topic, ["x"] * 200, partitions=4)
        return len(services[-1].lines) > 40

    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            services.append(Service(*arguments))
            eventually(some_by_the_last, 60, "some messages")
            if len(services) > 1:
                services[-2].end(number)
        eventually(lambda: len(set(handled())) == produced, 60, "all messages")
    finally:
        services[-1].end(signal.SIGTERM)
    assert len(handled()) == produced, "each once"


def test_one_thread_reads_all_streams_fairly(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce, zookeeper: KazooClient
) -> None:
    busy, quiet, group = new_topic(4), new_topic(1), new_group()
    produce(busy, [b"x" * 1000] * 40_000, partitions=4)
    produce(quiet, ["x"] * 5, partitions=1)
    member = connector(group, consumer_timeout_ms=3000)
    member.create_message_streams({busy: 2, quiet: 1})
    messages = member.messages()
    assert member.messages() is messages
    count, seen = 0, []
    for message in messages:
        count += 1
        if message.topic == quiet:
            seen.append(message.offset)
        if len(seen) == 5:
            break
    assert count < 40_000, "the quiet topic was not left to the end"
    member.commit_offsets()
    committed = offsets_of(zookeeper, group, quiet)
    assert committed == {0: 5}, "the message in hand counts, as with streams"
    rest: list[int] = []
    with pytest.raises(ConsumerTimeoutException):
        rest.extend(message.offset for message in messages)
    assert count + len(rest) == 40_005
    assert member.lag() == dict.fromkeys(member.assignment(), 0)
    member.shutdown()
    assert list(messages) == []


def test_a_pace_holds_back_the_burst_and_nothing_else(
    connector: Make, new_topic: NewTopic, new_group: NewGroup, produce: Produce
) -> None:
    topic = new_topic(4)
    produce(topic, ["x"] * 1000, partitions=4)
    member, taken = connector(new_group(), consumed_max_per_second=250), Taken()
    running = Running(member, taken, topic, workers=4)
    eventually(lambda: taken.places, 20, "the first message")
    begin = monotonic()
    eventually(lambda: len(taken.places) >= 500, 30, "500 messages")
    assert monotonic() - begin >= (500 - 25 - 4 - 50) / 250
    member.shutdown()
    assert running.join() is None
