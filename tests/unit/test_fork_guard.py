"""A forked process: the parent's objects refuse to work in the child and say so, and the parent is not disturbed.

The tests run in processes of their own, because pytest's process has threads that should not be forked.
"""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.programs import run_python
from tests.timing import scaled

_BEGINNING = """
import os, sys, threading, time, traceback
from zkconsumer import ConsumerTimeoutException, TopicPartition, ZookeeperConsumerConnector
from zkconsumer.errors import ForkedProcessError
from zkconsumer.testing import FakeCluster


def refuses(ask):
    try:
        ask()
    except ForkedProcessError as e:
        assert f"belongs to process {os.getppid()}" in str(e), e
    else:
        raise AssertionError(f"{ask} did not refuse")


def child(work):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "the child failed"


with FakeCluster(zookeeper=True) as cluster:
    cluster.create_topic("events", 2)
    cluster.append("events", 0, [b"%d" % number for number in range(1000)])
    config = {
        "zookeeper.connect": cluster.zookeeper_connect,
        "group.id": "readers",
        "auto.offset.reset": "smallest",
        "consumer.timeout.ms": 20_000,
        "zookeeper.session.timeout.ms": 6_000,
    }
    end = 1000
    connector = ZookeeperConsumerConnector(config)
    stream = connector.create_message_streams({"events": 1})["events"][0]
"""
_END = """
    before = connector.state.rebalances
    cluster.append("events", 1, [b"last"])
    got = {stream.get(20).value for _ in range(left + 1)}
    assert b"last" in got and len(got) == left + 1, sorted(got)[:3]
    connector.commit_offsets()
    assert connector.state.rebalances == before
    assert cluster.zookeeper.tree("/consumers/readers/offsets/events").popitem()[1] == b"1", "of events-1"
    assert connector.committed(TopicPartition("events", 0)) == end
    connector.shutdown()
"""


def _run(script: str) -> None:
    code = _BEGINNING + indent(dedent(script), "    ") + _END
    done = run_python("-W", "ignore::DeprecationWarning", "-c", code)
    assert "Connection dropped" not in done.stderr, done.stderr
    assert "closed the connection" not in done.stderr, done.stderr


def test_a_child_that_goes_on_with_the_loop_gets_nothing() -> None:
    """The child is told why, also with columns and with merged streams."""
    _run("""
        loop = iter(stream)
        assert next(loop).value == b"0"
        child(lambda: (refuses(lambda: next(loop)), refuses(lambda: next(stream)), refuses(lambda: stream.get(0))))
        assert next(loop).value == b"1"
        batches = stream.batches(max_rows=10)
        assert next(batches).num_rows == 10
        child(lambda: (refuses(lambda: next(batches)), refuses(lambda: stream.to_arrow(timeout=0))))
        merged = connector.messages()
        assert merged.get(20).value == b"12"
        child(lambda: (refuses(lambda: next(iter(merged))), refuses(lambda: merged.get(0))))
        left = 987
    """)


def test_every_call_in_a_child_is_refused_at_once() -> None:
    """The end of the child does not concern the group."""
    _run("""
        assert stream.get(20).value == b"0"

        def work():
            here = TopicPartition("events", 0)
            began = time.monotonic()
            assert not connector.health().live, connector.health()
            for ask in (
                connector.commit_offsets,
                connector.messages,
                lambda: connector.run(print),
                lambda: connector.pause([here]),
                lambda: connector.seek(here, 0),
                lambda: connector.position(here),
                lambda: connector.create_message_streams({"events": 1}),
                lambda: connector.add_topics({"others": 1}),
            ):
                refuses(ask)
            assert str(connector.state).startswith("closed; ") and "forked" in str(connector.state), connector.state
            assert connector.assignment() == frozenset() and connector.lag() == {}
            with connector:
                pass
            connector.shutdown()
            assert time.monotonic() - began < 30.0  # nothing was waited for

        child(work)
        left = 999
    """)


def test_a_child_may_make_a_connector_of_its_own() -> None:
    _run("""
        def work():
            with ZookeeperConsumerConnector({**config, "group.id": "children"}) as own:
                assert own.create_message_streams({"events": 1})["events"][0].get(20).value == b"0"

        child(work)
        left = 1000
    """)


def test_a_fork_while_another_thread_waits_for_a_message() -> None:
    _run("""
        for _ in range(1000):
            stream.get(20)
        got = []
        waiting = threading.Thread(target=lambda: got.append(stream.get(20).value))
        waiting.start()
        while not stream.being_read:
            time.sleep(0.001)
        child(lambda: (refuses(lambda: stream.get(0)), refuses(lambda: next(stream)), connector.shutdown()))
        cluster.append("events", 0, [b"more"])
        waiting.join(20)
        assert got == [b"more"], got
        connector.seek(TopicPartition("events", 0), 990)
        left, end = 11, 1001
    """)


def test_a_childs_signals_end_nothing_of_its_parents() -> None:
    """The child has the parent's handlers, and shares the socket to which its signals would be written."""
    _run("""
        import signal
        from zkconsumer import shutdown_on_signal
        came = []
        signal.signal(signal.SIGUSR1, lambda *_: came.append(1))
        unused = ZookeeperConsumerConnector(config)
        guards = [shutdown_on_signal(one, signal.SIGUSR1) for one in (connector, unused)]

        def work():
            assert signal.set_wakeup_fd(-1) == -1
            signal.raise_signal(signal.SIGUSR1)
            assert came == [1]

        child(work)
        time.sleep(0.3)
        assert [guard.received for guard in guards] == [None, None]
        assert not connector.lifecycle.end.begun and not unused.lifecycle.end.begun
        for guard in reversed(guards):
            guard.restore()
        left = 1000
    """)


@pytest.mark.parametrize("form", ["plain", "threads", "batches", "asyncio", "processes"])
def test_a_forked_handler_takes_no_further_message(form: str, tmp_path: Path) -> None:
    """The child returned from the handler into the loop of its worker: a copy of that lived on, or answered.

    Its parent's handler is still running when the child ends.
    """
    script = tmp_path / "script.py"
    script.write_text(_FORKING_HANDLER)
    arguments = (str(script), str(tmp_path / "out"), form, str(scaled(20)))
    done = run_python("-W", "ignore::DeprecationWarning", *arguments)
    assert done.stderr.count("ValueError: of the child") == 1, done.stderr
    handled = [int(offset) for offset in (tmp_path / "out").read_text().split()]
    assert sorted(handled) == list(range(50))


_FORKING_HANDLER = """
import asyncio, os, sys, time
from pathlib import Path
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.testing import FakeCluster

out, form, seconds = sys.argv[1:]
ENDS = {10: ("return", 0), 20: ("raise", 1), 30: ("exit", 3)} | ({40: ("await", 1)} if form == "asyncio" else {})

def begin(message):
    if message.offset in ENDS:
        end, code = ENDS[message.offset]
        child = os.fork()
        if not child:
            if end == "raise":
                raise ValueError("of the child")
            if end == "exit":
                sys.exit(code)
            return True
        limit = time.monotonic() + float(seconds)
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
            if time.monotonic() > limit:
                os.kill(child, 9)
                os._exit(70)
            time.sleep(0.01)
        if os.waitstatus_to_exitcode(ended[1]) != code:
            os._exit(71)
    with Path(out).open("a") as file:
        file.write(f"{message.offset}\\n")
    return False

def handle(message):
    begin(message)

def handle_batch(messages):
    for message in messages:
        if begin(message):
            return

async def handle_coroutine(message):
    if begin(message) and ENDS[message.offset][0] == "await":
        await asyncio.sleep(0)
        Path(out).write_text("of a child")

options = {
    "plain": {},
    "threads": {"concurrency": 2, "order": "none", "until": "end"},
    "batches": {"concurrency": 2, "order": "none", "until": "end", "batch": 10},
    "asyncio": {"concurrency": 2, "order": "none", "until": "end", "executor": "asyncio"},
    "processes": {"concurrency": 1, "order": "none", "until": "end", "executor": "processes"},
}[form]
handler = {"batches": handle_batch, "asyncio": handle_coroutine}.get(form, handle)
timeout = {"consumer.timeout.ms": 500, "consumer.timeout.action": "end"} if form == "plain" else {}

if __name__ == "__main__":
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("events", 1)
        cluster.append("events", 0, [b"v"] * 50)
        connector = ZookeeperConsumerConnector(
            {"zookeeper.connect": cluster.zookeeper_connect, "group.id": "g", "auto.offset.reset": "smallest"} | timeout
        )
        connector.run(handler, "events", **options)
        connector.shutdown()
        assert cluster.zookeeper.tree("/consumers/g/offsets/events").popitem()[1] == b"50"
"""
