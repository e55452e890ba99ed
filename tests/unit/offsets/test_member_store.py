"""Offsets in one or two stores: fenced, merged, repeated."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.offsets.fakes import T0, T1, failing
from tests.unit.offsets.group_in_zookeeper import Group, soon, zookeeper_only
from tests.values import present
from zkconsumer import DatabaseOffsets
from zkconsumer.core.stored_start import MergedStart
from zkconsumer.errors import BrokerUnavailableError, CoordinatorUnavailableError, RegistryError
from zkconsumer.kafka import error_codes
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.offsets.member_store import MemberStore
from zkconsumer.offsets.store import CommitRefusedError, StoreMember
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.ownership_transactions import Outcome


@pytest.fixture
def group() -> Iterator[Group]:
    made = Group()
    yield made
    made.session.close(soon())


@pytest.mark.parametrize(
    ("kind", "start", "elsewhere", "nodes"),
    [
        ("zookeeper", MergedStart(5, True), {T0: 3}, {0: 8, 1: 2}),
        ("other", MergedStart(3, True), {T0: 8, T1: 2}, {0: 5}),
        ("dual", MergedStart(5, False), {T0: 8, T1: 2}, {0: 8, 1: 2}),
    ],
)
def test_offsets_are_kept_where_the_member_keeps_them(
    group: Group, kind: str, start: MergedStart, elsewhere: dict[TopicPartition, int], nodes: dict[int, int]
) -> None:
    group.claim(T0, 5)
    group.claim(T1)
    group.store.offsets = {T0: 3}
    offsets = zookeeper_only(group) if kind == "zookeeper" else group.owned(dual=kind == "dual")
    assert offsets.starts([T0], soon()) == {T0: start}
    assert offsets.commit({T0: 8, T1: 2}, {}, soon(), patient=True) == {}
    assert (group.store.offsets, group.nodes) == (elsewhere, nodes)


def test_only_what_the_other_store_took_is_written_to_zookeeper(group: Group) -> None:
    group.claim(T0, 5)
    group.claim(T1, 5)
    group.store.refuse = {T0: error_codes.error(error_codes.OFFSET_METADATA_TOO_LARGE, "commit")}
    failures = group.owned(dual=True).commit({T0: 8, T1: 9}, {}, soon(), patient=True)
    assert failures == group.store.refuse
    assert (group.store.offsets, group.nodes) == ({T1: 9}, {0: 5, 1: 9})


@pytest.mark.parametrize(
    ("elsewhere", "node", "start"), [(9, 7, 9), (7, 9, 9), (None, 7, 7), (7, None, 7), (-1, -1, None)]
)
def test_with_dual_commit_the_start_is_the_maximum(
    group: Group, elsewhere: int | None, node: int | None, start: int | None
) -> None:
    group.claim(T0, node)
    group.store.offsets = {} if elsewhere is None else {T0: elsewhere}
    assert group.owned(dual=True).starts([T0], soon())[T0].offset == start


def test_a_database_alone_decides_the_start(group: Group, tmp_path: Path) -> None:
    """The node is a copy. It may be ahead of rows that were never committed."""
    database = DatabaseOffsets(lambda: sqlite3.connect(tmp_path / "x.db"))
    database.open(StoreMember("g", ConsumerId("g_me"), lambda *_: ""), scaled(5))
    both = MemberStore(group.zookeeper, group.zookeeper, database)
    group.claim(T0, 9)
    assert both.starts([T0], soon()) == {T0: MergedStart(None, stores_agree=False)}
    assert not both.commit({T0: 4}, {}, soon(), patient=True)
    assert both.starts([T0], soon()) == {T0: MergedStart(4, stores_agree=True)}
    assert not both.commit({T0: 6}, {}, soon(), patient=True)
    assert both.starts([T0], soon()) == {T0: MergedStart(4, stores_agree=False)}
    group.server.remove(paths.owner("g", T0))
    with pytest.raises(RegistryError, match="not ours now"):
        both.starts([T0], soon())


def test_a_start_that_is_not_known_is_not_guessed(group: Group) -> None:
    group.claim(T0, 7)
    group.store.trouble = failing(BrokerUnavailableError("away"))
    with pytest.raises(BrokerUnavailableError):
        group.owned(dual=True).starts([T0], soon())


def test_what_we_no_longer_own_is_not_written_anywhere(group: Group) -> None:
    group.claim(T0, 5)
    group.claim(T1, 5)
    group.lose(T0)
    failures = group.owned(dual=True).commit({T0: 8, T1: 8}, {}, soon(), patient=True)
    assert list(failures) == [T0]
    refusal = failures[T0]
    assert isinstance(refusal, CommitRefusedError)
    assert refusal.outcome is Outcome.NOT_OURS
    assert (group.store.offsets, group.nodes) == ({T1: 8}, {0: 5, 1: 8})


def test_ownership_is_looked_at_before_each_try(group: Group) -> None:
    group.claim(T0, 5)

    def lost_meanwhile() -> None:
        group.store.trouble = lambda: None
        group.lose(T0)
        raise BrokerUnavailableError("the connection broke")

    group.store.trouble = lost_meanwhile
    failures = group.owned().commit({T0: 8}, {}, soon(), patient=True)
    assert isinstance(failures[T0], CommitRefusedError)
    assert len(group.store.commits) == 1


def test_unchanged_offsets_go_only_to_a_store_that_forgets_them(group: Group) -> None:
    """KAFKA-1510: offsets of idle partitions expired although their consumer was alive."""
    group.claim(T0, 5)
    group.claim(T1, 5)
    group.owned(dual=True).commit({T0: 8}, {T1: 5}, soon(), patient=False)
    group.owned(dual=True, expires=True).commit({T0: 9}, {T1: 5}, soon(), patient=False)
    assert group.store.commits == [{T0: 8}, {T1: 5, T0: 9}]
    assert present(group.server.node(paths.offset("g", T1))).version == 1  # by the claim; not rewritten (KAFKA-987)


def test_a_failed_commit_is_repeated_up_to_the_limit(group: Group) -> None:
    group.claim(T0, 5)
    error = error_codes.error(error_codes.NOT_COORDINATOR, "commit")
    group.store.trouble = failing(error, KeyError("oops"), OSError("of the user's store"))
    assert group.owned(max_retries=3).commit({T0: 8}, {}, soon(), patient=True) == {}
    assert len(group.store.commits) == 4
    group.store.trouble = failing(*[error] * 4)
    assert group.owned(max_retries=3).commit({T0: 9}, {}, soon(), patient=True) == {T0: error}


@pytest.mark.parametrize(
    ("troubles", "patient", "retries", "written"),
    [
        ([BrokerUnavailableError("away")], False, 5, False),
        ([BrokerUnavailableError("away")], True, 5, True),
        ([CoordinatorUnavailableError("loading")] * 9, True, 0, True),
    ],
    ids=["a timer's", "an explicit one", "the search for the coordinator does not count"],
)
def test_a_commit_is_tried_once_by_the_timer_only(
    group: Group, troubles: list[Exception], patient: bool, retries: int, written: bool
) -> None:
    """The original from 0.9 on repeats only the timer's commit, by a flag that means the opposite of its name."""
    group.claim(T0, 5)
    group.store.trouble = failing(*troubles)
    failures = group.owned(max_retries=retries).commit({T0: 8}, {}, soon(), patient=patient)
    assert list(failures) == ([] if written else [T0])
    assert len(group.store.commits) == (len(troubles) + 1 if written else 1)


@pytest.mark.parametrize(
    ("code", "tries"),
    [
        (error_codes.REQUEST_TIMED_OUT, [{T0: 8, T1: 8}, {T0: 8}]),
        (error_codes.GROUP_AUTHORIZATION_FAILED, [{T0: 8, T1: 8}]),
    ],
)
def test_only_what_failed_and_may_pass_is_repeated(group: Group, code: int, tries: list[dict[Any, int]]) -> None:
    group.claim(T0, 5)
    group.claim(T1, 5)
    group.store.refuse = {T0: error_codes.error(code, "commit")}
    assert list(group.owned(max_retries=1).commit({T0: 8, T1: 8}, {}, soon(), patient=True)) == [T0]
    assert group.store.commits == tries


def test_tries_end_with_the_deadline(group: Group) -> None:
    group.claim(T0, 5)
    group.store.trouble = failing(*[CoordinatorUnavailableError("nowhere")] * 100000)
    assert list(group.owned().commit({T0: 8}, {}, Deadline(0.1), patient=True)) == [T0]


def test_closing_ends_the_wait_between_tries(group: Group) -> None:
    group.claim(T0, 5)
    group.store.trouble = failing(*[BrokerUnavailableError("away")] * 9)
    offsets = MemberStore(group.zookeeper, None, group.store, backoff=scaled(60))
    closer = threading.Timer(0.05, offsets.close)
    began = monotonic()
    closer.start()
    assert list(offsets.commit({T0: 8}, {}, Deadline(scaled(100)), patient=True)) == [T0]
    assert monotonic() - began < scaled(30)
    closer.join()
    assert group.store.closed


def test_while_zookeeper_is_away_nothing_is_written(group: Group) -> None:
    group.claim(T0, 5)
    group.session.suspend()
    with pytest.raises(RegistryError):
        group.owned().commit({T0: 8}, {}, soon(), patient=True)
    assert group.store.commits == []


@pytest.mark.parametrize("dual", [False, True])
def test_a_partition_without_an_owner_may_be_written_by_anybody(group: Group, dual: bool) -> None:
    assert group.owned(dual=dual).commit_unowned({T0: 3}, soon()) == {}
    assert group.store.offsets == {T0: 3}
    assert group.nodes == ({0: 3} if dual else {})
    assert group.server.node(paths.owner("g", T0)) is None


@pytest.mark.parametrize("kind", ["zookeeper", "other", "dual"])
def test_a_partition_of_another_member_is_not_written(group: Group, kind: str) -> None:
    group.server.put(paths.owner("g", T0), b"g_other-0", ephemeral_owner=99)
    offsets = zookeeper_only(group) if kind == "zookeeper" else group.owned(dual=kind == "dual")
    failures = offsets.commit_unowned({T0: 3, T1: 4}, soon())
    assert [(tp, str(e)) for tp, e in failures.items()] == [(T0, Outcome.OWNED.value)]
    assert group.store.offsets == ({} if kind == "zookeeper" else {T1: 4})
    assert group.nodes == ({} if kind == "other" else {1: 4})


# ---- ZooKeeper first ----


def bridging(group: Group) -> MemberStore:
    nodes = group.zookeeper
    return MemberStore(nodes, nodes, group.store, backoff=0.01, max_retries=1, zookeeper_first=True)


def test_zookeeper_first_writes_nodes_if_the_other_store_fails() -> None:
    group = Group()
    group.claim(T0, 5)
    group.claim(T1, 5)
    group.store.refuse = {T1: BrokerUnavailableError("away")}
    failures = bridging(group).commit({T0: 7, T1: 8}, {}, soon(), patient=False)
    assert list(failures) == [T1]
    assert group.zookeeper.fetch([T0, T1], scaled(5)) == {T0: 7, T1: 8}
    assert group.store.offsets == {T0: 7}
    group.store.refuse = {}
    assert bridging(group).commit({T1: 8}, {}, soon(), patient=False) == {}
    assert group.store.offsets == {T0: 7, T1: 8}


def test_zookeeper_first_writes_nothing_elsewhere_if_not_ours() -> None:
    group = Group()
    group.claim(T0, 5)
    group.server.remove(paths.owner("g", T0))
    group.claim(T0, session=group.open())
    failures = bridging(group).commit({T0: 7}, {}, soon(), patient=True)
    assert isinstance(failures[T0], CommitRefusedError)
    assert (group.store.commits, group.store.offsets) == ([], {})
