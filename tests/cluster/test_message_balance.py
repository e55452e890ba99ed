"""Balanced members on real servers, beside members of the original and of the release before: nothing is ever lost.

Each fault is staged: a message tells its handler what to do, and a test goes on when the recorder has seen it. At the
end of each test ``BalancedGroup.check`` looks in the records for violations. The simulation has more faults, at random
moments.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

from tests.balance_recorder import Place
from tests.cluster.balanced_group import BalancedGroup
from tests.cluster.conftest import NewTopic, produce_in_transactions, unique
from tests.cluster.legacy_member import LegacyMember
from tests.cluster.member_process import QUICK
from tests.cluster.our_member import OurMember
from tests.timing import eventually, scaled
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.devcluster import DevCluster

FORMER_RELEASE = "846409b"
"""The last commit without balanced members."""

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


def numbers(count: int, words: str = "") -> list[str]:
    return [f"{n} {words}" for n in range(count)]


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


WITHIN = 30.0


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_log_that_ends_with_an_aborted_transaction(
    cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str], isolation: str
) -> None:
    """The last offset is the marker's, and with read_committed no message comes after the first transaction."""
    topic, taken = new_topic(prefix="until"), list[bytes]()
    produce_in_transactions(cluster.bootstrap_servers, topic, ("commit", [b"kept"] * 3), ("abort", [b"dropped"] * 3))
    properties: dict[str, Any] = {
        **QUICK,
        "zookeeper.connect": cluster.zookeeper_connect,
        "group.id": new_group(),
        "isolation.level": isolation,
        "consumer.timeout.ms": int(scaled(WITHIN) * 1000),  # the run may not hang
    }

    with ZookeeperConsumerConnector(properties) as connector:
        connector.run(lambda m: taken.append(m.value), topic, concurrency=2, order="none", until="end")
        position = connector.committed((topic, 0))

    assert sorted(taken) == [b"dropped"] * 3 * (isolation == "read_uncommitted") + [b"kept"] * 3
    assert position == 8  # both markers included
