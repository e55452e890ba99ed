"""A sample of the interrupt sweep: operations at some of their boundaries (``python -m tests.interrupts``: at all)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import pytest

from tests.interrupts import members, pythons, reading
from tests.interrupts.boundaries import Interrupted, in_project
from tests.interrupts.signals import ring, storm
from tests.interrupts.sweep import AGAIN, Operation, sweep, told
from tests.interrupts.world import ELSEWHERE, InterruptedStreams
from tests.timing import scaled
from zkconsumer import KafkaStream
from zkconsumer.errors import ConsumerTimeoutException
from zkconsumer.fetch.fetcher_manager import FetcherManager
from zkconsumer.runtime.deadline import Deadline

SAMPLE = 30
"""Boundaries of each operation of readers; a whole sweep has some ten thousand."""
FEW = 2
"""Boundaries of each operation of members."""


@pytest.fixture(autouse=True, scope="module")
def _elsewhere() -> Iterator[None]:
    yield
    ELSEWHERE.end()


@pytest.fixture(scope="module")
def _cluster() -> Iterator[None]:
    members.shared_cluster()
    yield
    members.end_cluster()


def in_streams(code: CodeType) -> bool:
    """The hand-out path itself: what decodes is swept by the whole campaign."""
    return in_project(code) and "/streams/" in code.co_filename


@pytest.mark.parametrize("operation", reading.OPERATIONS, ids=lambda operation: operation.name)
def test_an_interrupted_reader_loses_nothing(operation: Operation) -> None:
    figures = sweep(operation, often=1, most=SAMPLE, rotate=True, scope=in_streams)
    assert figures.runs >= SAMPLE - figures.missed
    assert not figures.serious, "\n".join(told([figures]))


# An interrupt while a connection is made leaves its socket to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("_cluster")
@pytest.mark.parametrize("operation", members.OPERATIONS, ids=lambda operation: operation.name)
def test_an_interrupted_member_commits_nothing_unseen(operation: members.MemberOperation) -> None:
    figures = sweep(operation, often=1, most=FEW, rotate=True, aftermaths=[AGAIN])
    assert not figures.serious, "\n".join(told([figures]))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("_cluster")
@pytest.mark.parametrize("operation", members.FIRST_OPERATIONS, ids=lambda operation: operation.name)
def test_an_interrupted_newcomer_leaves_nothing_open(operation: members.FirstOperation) -> None:
    figures = sweep(operation, often=1, most=SAMPLE, kinds=[Interrupted], aftermaths=[AGAIN])
    assert not figures.serious, "\n".join(told([figures]))


@pytest.mark.usefixtures("_cluster")
def test_a_second_shutdown_ends_an_interrupted_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C during ``shutdown()`` left fetchers, committer and the session alive. The second one waited for nobody."""
    member = members.InterruptedMember(members.shared_cluster())

    def interrupted(manager: FetcherManager, deadline: Deadline) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(FetcherManager, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            member.connector.shutdown()
    member.end()
    member.check_committed()


ONE_BY_ONE = (
    *("for message in stream", "stream.get", "next(stream)"),
    *("for message in messages()", "messages().get", "next(messages())"),
)


@pytest.mark.parametrize(
    "name", [*ONE_BY_ONE, "stream.batches", "next(stream.batches())", "stream.to_arrow", "stream.take"]
)
def test_a_signal_at_any_moment_loses_nothing(name: str) -> None:
    figures = ring(named(name), scaled(20), seed=1, enough=10)
    assert figures.inside >= 10
    assert not figures.findings


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_storm_of_signals_loses_nothing(name: str) -> None:
    """A signal may come while the exception of an earlier signal is still on its way out of a read."""
    figures = storm(named(name), scaled(20), seed=1, enough=100)
    assert figures.inside >= 20
    assert not figures.findings


def named(name: str) -> Operation:
    return next(one for one in reading.OPERATIONS if one.name == name)


def test_a_failed_allocation_loses_nothing() -> None:
    """In a process of its own, as any thread may allocate."""
    pytest.importorskip("_testcapi")
    command = [sys.executable, "-m", "tests.interrupts.without_memory"]
    done = subprocess.run(command, cwd=pythons.ROOT, capture_output=True, text=True, timeout=scaled(200), check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 100, done.stdout


# ---- the sweep finds planted bugs


def _swept(act: Any) -> list[str]:
    """Return the findings of a sweep of this module's code, which stands for the project's."""
    operation = Operation("planted", reading.filled(), act)
    figures = sweep(
        operation, kinds=[Interrupted], scope=lambda code: code.co_filename == __file__ and "_get" in code.co_name
    )
    assert figures.runs > 5
    return [finding.what.split(":")[0] for finding in figures.findings]


def _lossy_get(stream: KafkaStream[Any, Any]) -> Any:
    message = stream.get(timeout=0)
    message = [message][0]
    return message  # noqa: RET504 - an interrupt before this line loses it


def _by(get: Any) -> Any:
    def act(world: InterruptedStreams) -> None:
        while True:
            try:
                message = get(world.stream)
            except ConsumerTimeoutException:
                return
            world.took(message)

    return act


@pytest.mark.one_way
def test_a_sweep_finds_a_message_that_is_lost_on_its_way_out() -> None:
    assert "committed unseen" in _swept(_by(_lossy_get))


@pytest.mark.one_way
def test_a_sweep_finds_an_interrupt_that_is_swallowed() -> None:
    def deaf_get(stream: KafkaStream[Any, Any]) -> Any:
        while True:
            try:
                return [stream][0].get(timeout=0)
            except Interrupted:
                continue

    assert "swallowed" in _swept(_by(deaf_get))
    assert sys.exc_info() == (None, None, None), "an exception of the sweep would appear in the failures of other tests"


@pytest.mark.one_way
def test_a_sweep_of_sound_code_finds_nothing() -> None:
    def plain_get(stream: KafkaStream[Any, Any]) -> Any:
        return stream.get(timeout=0)

    assert not _swept(_by(plain_get))
