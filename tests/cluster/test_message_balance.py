"""Balanced members on real servers, beside members of the original and of the release before: nothing is ever lost.

Each fault is staged: a message tells its handler what to do, and a test goes on when the recorder has seen it. What
must never be is checked from the records at the end of each test (``BalancedGroup.check``). The simulation has more
faults, at random moments.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from kazoo.client import KazooClient

from tests.balance_recorder import Place, repeated
from tests.cluster.balanced_group import BalancedGroup
from tests.cluster.conftest import unique
from tests.cluster.kafka_tools import tool
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.our_member import OurMember
from tests.faults.proxy import Proxy
from tests.timing import eventually
from zkconsumer.core.message_pointers import Fate
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

FORMER_RELEASE = "846409b"
"""The last commit without balanced members."""
QUICKLY = json.dumps({"attempts": 3, "delays": [0.05], "jitter": 0.0, "park_after": 2})
"""Arguments of ``Retry``: each message is tried three times within a fraction of a second."""
PATIENTLY = QUICKLY.replace("3", "6")
"""Enough attempts for a batch to be halved until the message that kills its worker is alone."""

Balanced = Callable[..., BalancedGroup]


@pytest.fixture
def balanced(cluster: DevCluster) -> Iterator[Balanced]:
    """Make groups with a topic of their own: ``balanced(partitions)``."""
    made: list[BalancedGroup] = []

    def make(partitions: int = 1) -> BalancedGroup:
        topic = unique("balanced")
        cluster.create_topic(topic, partitions)
        group = BalancedGroup(
            cluster.zookeeper_connect, cluster.bootstrap_servers, unique("group"), {topic: partitions}
        )
        made.append(group)
        return group.__enter__()

    yield make
    for group in made:
        group.__exit__(*sys.exc_info())


@pytest.fixture
def proxy(cluster: DevCluster) -> Iterator[Proxy]:
    """A way to ZooKeeper that can be cut."""
    host, _, port = cluster.zookeeper_connect.partition("/")[0].partition(":")
    made = Proxy((host, int(port)))
    yield made
    made.close()


def numbers(count: int, words: str = "") -> list[str]:
    return [f"{n} {words}" for n in range(count)]


# ---- the owner dies


@pytest.mark.parametrize("executor", ["threads", "processes", "asyncio"])
def test_a_killed_owner_repeats_only_what_was_not_noted(balanced: Balanced, proxy: Proxy, executor: str) -> None:
    """It has messages noted beyond the base, in hand, and finished without a commit."""
    group = balanced()
    owner = group.start("owner", connect=proxy.address, executor=executor, concurrency=3)
    base = group.produce(["x hold=base", "x hold=end"])
    noted = group.produce(numbers(50))
    group.wait_in_hand(base, "owner")
    group.wait_done(noted)
    group.wait_noted(noted)
    assert group.offset() == 0
    proxy.swallow("up", "down")
    group.release("end")
    group.wait_done(base[1:])
    owner.kill()
    group.start("next", executor=executor, concurrency=3)
    group.wait_in_hand(base[:1], "next")
    group.release("base")
    group.wait_done()
    group.wait_done(group.produce(numbers(5)))
    assert repeated(group.records) == {base[1]: 1}
    group.check()


@pytest.mark.parametrize("version", ["1.1.1", "0.8.2.2"])
def test_a_scala_member_takes_over_and_gives_back(
    balanced: Balanced, legacy_member: Callable[..., LegacyMember], version: str
) -> None:
    """500 messages are finished beyond the base. The Scala member repeats them, and its offset counts from then on."""
    group = balanced()
    owner = group.start("owner")
    held = group.produce(["x hold=a"])
    rest = group.produce(numbers(500))
    group.wait_in_hand(held, "owner")
    group.wait_noted(rest)
    owner.kill()
    scala = legacy_member(version, group.name, {group.topic: 1}, properties={"consumer.id": "scala"}).wait_ready()
    offsets = [message.offset for message in scala.wait_messages(501, 40)]
    assert offsets == list(range(501))
    assert scala.stop() is not None
    assert group.offset() == 501
    assert group.note() is None
    group.start("next")
    group.release("a")
    last = group.produce(numbers(20))
    group.wait_done(last)
    assert {one.place for one in group.records.handlings if one.member == "next"} == set(last)
    group.check(others=[*held, *rest])


# ---- operators


def test_what_an_operator_writes_makes_the_note_void(balanced: Balanced, zookeeper: KazooClient) -> None:
    """While nobody runs: a rewind into the finished range, a deletion, and a step forward."""
    group = balanced(3)
    places = {n: group.produce(["x hold=a", *numbers(30)], partition=n) for n in range(3)}
    owner = group.start("owner", concurrency=6)
    for number in range(3):
        group.wait_in_hand(places[number][:1], "owner")
        group.wait_noted(places[number][1:])
    owner.kill()
    nodes = [paths.offset(group.name, TopicPartition(group.topic, n)) for n in range(3)]
    zookeeper.set(nodes[0], b"10")
    zookeeper.delete(nodes[1])
    zookeeper.set(nodes[2], b"25")
    assert [group.note(n) for n in range(3)] == [None] * 3
    group.release("a")
    group.start("next", concurrency=6)
    expected = [*places[0][10:], *places[1], *places[2][25:]]
    again = group.produce(numbers(5))

    def by_next() -> set[Place]:
        return {one.place for one in group.records.handlings if one.member == "next" and one.done}

    eventually(lambda: by_next() == {*expected, *again}, 20, lambda: group.told("what the operator asked for"))
    group.check(anew=dict.fromkeys([(group.topic, n) for n in range(3)], 0), others=[places[0][0], places[2][0]])


def test_an_operator_rewinds_under_a_running_member(balanced: Balanced, zookeeper: KazooClient) -> None:
    """The member adopts the offset: it repeats from there, and a message in hand is not begun beside itself."""
    group = balanced()
    group.start("owner", properties={"rebalance.drain.timeout.ms": 500})
    done = group.produce(numbers(30))
    held = group.produce(["x hold=a"])
    group.wait_in_hand(held, "owner")
    group.wait_noted(done)
    zookeeper.set(paths.offset(group.name, TopicPartition(group.topic, 0)), b"10")
    late = group.produce(numbers(1))  # the commit of it meets the operator's offset
    eventually(lambda: {*done[10:]} <= repeated(group.records).keys(), 20, lambda: group.told("20 repetitions"))
    group.release("a")
    group.wait_done()
    group.wait_noted([*done, *held, *late])
    group.check(anew={(group.topic, 0): 0})


def test_the_old_tools_delete_a_group_with_our_nodes(balanced: Balanced) -> None:
    """``--delete --group`` removes notes and pointers with the rest, and the group begins anew."""
    group = balanced()
    owner = group.start("owner", retry=json.dumps({"attempts": 9, "delays": [600.0], "park_after": 1}))
    parked, held = group.produce(["x fail=1", "x hold=a"])
    rest = group.produce(numbers(20))
    group.wait_in_hand([held], "owner")
    group.wait_noted(rest)
    eventually(lambda: group.pointers().keys() == {parked.offset}, 15, lambda: group.told("a parked message"))
    owner.kill()
    eventually(lambda: not group.zookeeper.get_children(paths.ids(group.name)), 15, "the end of its session")
    said = tool(
        *("1.1.1", "kafka.admin.ConsumerGroupCommand", "--zookeeper", group.connect),
        *("--delete", "--group", group.name),
    )
    assert "Deleted" in " ".join(said), said
    assert group.zookeeper.exists(paths.consumers_group(group.name)) is None
    group.release("a")
    group.start("next")
    everything = [parked, held, *rest]
    eventually(
        lambda: {one.place for one in group.records.handlings if one.member == "next" and one.done} == {*everything},
        20,
        lambda: group.told("all of it again"),
    )
    group.check(anew={(group.topic, 0): 0})


# ---- handlers that kill and hang


@pytest.mark.parametrize("poison", ["kill", "exit"])
def test_poison_that_kills_its_worker_ends_as_a_dead_letter(balanced: Balanced, poison: str) -> None:
    group = balanced()
    group.start("owner", executor="processes", concurrency=2, batch=8, retry=PATIENTLY)
    before, (bad,), after = group.produce(numbers(40)), group.produce([f"x {poison}"]), group.produce(numbers(40))
    group.wait_done(dead=True, seconds=60)  # each death costs the start of a process
    group.wait_noted([*before, bad, *after])
    assert {offset: p.fate for offset, p in group.pointers().items()} == {bad.offset: Fate.DEAD}
    attempts = len(group.records.by_place()[bad])
    assert attempts <= 7, attempts
    group.check()


def test_a_killed_worker_costs_its_messages_one_attempt(balanced: Balanced) -> None:
    """SIGKILL, as by the system when memory is short. SIGSTOP alone holds its messages, until it is continued."""
    group = balanced()
    owner = group.start("owner", executor="processes", concurrency=2, retry=QUICKLY)
    first, second = group.produce(["x hold=a", "x hold=b"])
    group.wait_in_hand([first, second])
    workers = {one.place: one.pid for one in group.in_hand()}
    assert owner.pid not in workers.values()
    os.kill(workers[first], signal.SIGKILL)
    eventually(lambda: len(group.records.by_place()[first]) == 2, 20, lambda: group.told("another attempt"))
    os.kill(workers[second], signal.SIGSTOP)
    group.release("a")
    group.release("b")
    rest = group.produce(numbers(10))
    group.wait_done([first, *rest])
    assert second not in group.records.done()
    os.kill(workers[second], signal.SIGCONT)
    group.wait_done()
    assert repeated(group.records) == {}
    group.check()


def test_a_hung_process_handler_is_killed_in_time(balanced: Balanced) -> None:
    group = balanced()
    group.start("owner", executor="processes", concurrency=2, retry=QUICKLY, properties={"handler.timeout.ms": 1000})
    (hung,), rest = group.produce(["x hold=never"]), group.produce(numbers(20))
    group.wait_done(dead=True)
    assert group.dead() == {hung}
    assert set(rest) <= group.records.done()
    group.check()


# ---- partitions that are shared


SHARING = {"share.partitions": "true"}


@pytest.mark.parametrize(("victim", "how"), [("a", "kill"), ("b", "freeze")])
def test_lender_and_borrower_die_with_messages_in_hand(balanced: Balanced, victim: str, how: str) -> None:
    """``a`` owns the partition, and ``b`` and ``c`` borrow slots. One dies, or freezes until its session has ended."""
    group = balanced()
    for name in "abc":
        group.start(name, concurrency=2, properties=SHARING)
    for member in group.members.values():
        member.wait_ready()
    group.wait_owners({0: "a"})
    held = group.produce(numbers(60, "hold=a"))

    def all_busy() -> bool:
        return all(len(group.in_hand(name)) == 2 for name in "abc")

    eventually(all_busy, 30, lambda: group.told("two messages in hand at each of three"))
    dying = group.members[victim]
    if how == "kill":
        dying.kill()
    else:
        session = dying.session[0]
        dying.suspend()
        eventually(lambda: session in group.records.sessions, 20, "the end of its session")
    rest = group.produce(numbers(60))
    group.release("a")
    group.wait_done([*held, *rest])
    if how == "freeze":
        dying.resume()
        group.wait_done(group.produce(numbers(40)))
    group.wait_noted(group.produced)
    group.check()


# ---- beside the former release and the original


@pytest.fixture(scope="module")
def former_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it was before balanced members, from the history of this repository."""
    root = Path(__file__).parents[2]
    archive = ["git", "-C", str(root), "archive", FORMER_RELEASE, "zkconsumer"]
    done = subprocess.run(archive, capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        pytest.skip(f"the history of this clone does not reach back to {FORMER_RELEASE}: {done.stderr.decode()}")
    target = tmp_path_factory.mktemp("former")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        tar.extractall(target, filter="data")
    return target


class FormerMember(OurMember):
    """A member of the former release, which reads streams."""

    who = "former"

    def __init__(self, release: Path, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._release = release

    def command(self) -> list[str]:
        return ["/usr/bin/env", f"PYTHONPATH={self._release}", *super().command()]


def test_the_former_release_is_what_runs(former_release: Path) -> None:
    """Else the next test would test nothing."""
    command = ["/usr/bin/env", f"PYTHONPATH={former_release}", sys.executable, "-c"]
    program = "import zkconsumer.handler_loop, inspect as i; print(i.getsource(zkconsumer.handler_loop.RunLoop.run))"
    done = subprocess.run([*command, program], capture_output=True, text=True, timeout=60, check=True, cwd="/")
    assert "workers" in done.stdout
    assert "concurrency" not in done.stdout


class Flow:
    """Produces numbered messages with 7 keys to all partitions of a group's topic, until it is stopped."""

    def __init__(self, group: BalancedGroup) -> None:
        self._group = group
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)
        self.places: set[Place] = set()

    def _run(self) -> None:
        while not self._stop.wait(0.05):
            for partition in range(self._group.topics[self._group.topic]):
                places = self._group.produce(numbers(5), partition=partition, key=lambda n: str(n % 7))
                self.places |= set(places)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def test_an_upgrade_one_by_one_loses_nothing(
    balanced: Balanced, former_release: Path, legacy_member: Callable[..., LegacyMember]
) -> None:
    """Two members of the former release and a Scala member are in the group. The two are replaced, one by a kill."""
    group = balanced(4)
    quick = {"zookeeper.session.timeout.ms": 2000}
    wanted = {group.topic: 1}

    def former(name: str) -> FormerMember:
        return FormerMember(
            *(former_release, group.connect, group.name, wanted), properties={**quick, "consumer.id": name}
        ).start()

    others = [former("old1"), former("old2")]
    scala = legacy_member("1.1.1", group.name, wanted, properties={**quick, "consumer.id": "scala"})
    try:
        with Flow(group):
            eventually(lambda: set(group.owners().values()) == {"old1", "old2", "scala"}, 30, "all three own")
            assert others[0].stop() is not None, others[0].log_text()
            group.start("new1", properties={"share.partitions": "true"})
            eventually(lambda: set(group.owners().values()) == {"new1", "old2", "scala"}, 30, "one is upgraded")
            seen = len(group.records.done())
            eventually(lambda: len(group.records.done()) > seen, 20, lambda: group.told("work of the new one"))
            others[1].kill()
            group.start("new2", properties={"share.partitions": "true"})
            eventually(lambda: set(group.owners().values()) == {"new1", "new2", "scala"}, 30, "both are upgraded")
            seen = len(group.records.done())
            eventually(lambda: len(group.records.done()) > seen, 20, lambda: group.told("work of the new ones"))

        def by_others() -> set[Place]:
            return {Place(m.topic, m.partition, m.offset) for one in (*others, scala) for m in one.messages}

        def missing() -> set[Place]:
            return group.produced.keys() - group.records.done() - by_others()

        eventually(lambda: not missing(), 30, lambda: group.told(f"not handled: {sorted(missing())[:5]}"))
        # members of the original write offsets without notes, and so the notes tell nothing of repetitions
        group.check(others=by_others(), anew=dict.fromkeys([(group.topic, n) for n in range(4)], 0))
    finally:
        for one in others:
            one.close()
