"""Commits of many balanced partitions on a busy machine.

The bug: all partitions shared one time limit. Successes before the limit were forgotten, each try encoded all pointers
again, and missing directories made each transaction fail as a whole. So nothing was committed for minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import Mock

import pytest

from tests.timing import scaled
from tests.unit.offsets.acks import GROUP, Member, Server, ledger_of
from zkconsumer.core import message_pointers
from zkconsumer.core.message_pointers import Pointer, PointerKind
from zkconsumer.errors import OffsetCommitError, RegistryError, RegistryUnavailableError
from zkconsumer.model import TopicPartition
from zkconsumer.offsets import commit_schedule
from zkconsumer.offsets import zookeeper_store as ack_store
from zkconsumer.ownership.partition_position import NONE_HELD, PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper import FakeZooKeeper
from zkconsumer.zookeeper import ownership_transactions, paths

PARTITIONS = [TopicPartition("t", number) for number in range(6)]
EACH = 10


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice has two partitions."""
    monkeypatch.setattr(commit_schedule, "SLICE", 2 * (EACH + 1))
    monkeypatch.setattr(commit_schedule, "SLICE_TIME", scaled(60.0))  # which no slice takes
    monkeypatch.setattr(commit_schedule, "LARGEST", 2 * (EACH + 1))


class Owner(Member):
    """Owns all partitions, and counts the transactions that it sends."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(server)
        self.owned = self.claim(*PARTITIONS)
        self.transactions = 0
        self.fails_from = 1 << 30
        """The number of the first transaction whose answer does not come."""
        transact = self.session.transact

        def counted(build: Callable[[Any], None], deadline: Deadline) -> Any:
            self.transactions += 1
            if self.transactions >= self.fails_from:
                raise RegistryUnavailableError("no answer")
            return transact(build, deadline)

        monkeypatch.setattr(self.session, "transact", counted)

    def reject(self, *positions: PartitionPosition) -> None:
        """Messages of these become dead letters."""
        for position in positions or self.owned:
            ledger = ledger_of(position)
            offsets = range(ledger.base, ledger.base + EACH)
            ledger.read(offsets, offsets.stop)
            assert ledger.point_at([Pointer(offset, PointerKind.DEAD, 1) for offset in offsets])

    def commit_by_timer(self) -> None:
        self.tracker.commit(NONE_HELD, Deadline(5.0), patient=False)

    def committed(self) -> list[int]:
        return [tp.partition for tp in PARTITIONS if self.server.offset(tp) == 100 + EACH]


@pytest.fixture
def server() -> Server:
    return Server(FakeZooKeeper(), PARTITIONS)


@pytest.fixture
def owner(server: Server, monkeypatch: pytest.MonkeyPatch) -> Owner:
    return Owner(server, monkeypatch)


def test_each_slice_is_one_transaction_also_at_first(owner: Owner) -> None:
    """No directory of pointers existed. ZooKeeper refused each transaction for one partition after the other."""
    owner.reject()
    owner.commit_by_timer()
    assert owner.committed() == [0, 1, 2, 3, 4, 5]
    assert owner.transactions == len(PARTITIONS) / 2


def test_what_was_answered_counts_if_the_next_answer_fails(owner: Owner) -> None:
    owner.reject()
    owner.fails_from = 3
    with pytest.raises(RegistryError):
        owner.commit_by_timer()
    noted = [position.tp.partition for position in owner.owned if position.stored.committed == 100 + EACH]
    assert noted == owner.committed()
    assert noted
    assert not any(ledger_of(owner.owned[number]).unnoted for number in noted)


def test_the_partition_that_was_tried_longest_ago_comes_first(owner: Owner) -> None:
    owner.reject()
    owner.fails_from = 2
    with pytest.raises(RegistryError):
        owner.commit_by_timer()
    first = owner.committed()
    owner.transactions, owner.fails_from = 0, 2
    for position in owner.owned:
        ledger_of(position).touch()
    with pytest.raises(RegistryError):
        owner.commit_by_timer()
    assert set(owner.committed()) > set(first), "the others come first now"


def test_a_slice_that_is_refused_does_not_stop_the_others(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = owner.store.commit

    def refusing(changed: Mapping[TopicPartition, int], *arguments: Any, **options: Any) -> Any:
        if PARTITIONS[0] in changed:
            return dict.fromkeys(changed, OffsetCommitError("no"))
        return commit(changed, *arguments, **options)

    monkeypatch.setattr(owner.store, "commit", refusing)
    owner.reject()
    with pytest.raises(OffsetCommitError, match="t-0"):
        owner.commit_by_timer()
    assert len(owner.committed()) >= len(PARTITIONS) - 2


def test_pointers_that_did_not_change_are_encoded_once(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    encode = message_pointers.encode_pointers

    def counted(pointers: Any) -> bytes:
        encoded.append(1)
        return encode(pointers)

    monkeypatch.setattr(ack_store, "encode_pointers", counted)
    owner.reject(owner.owned[0])
    owner.fails_from = 1
    for _ in range(3):
        with pytest.raises(RegistryError):
            owner.commit_by_timer()
    owner.fails_from = 1 << 30
    owner.commit_by_timer()
    assert owner.committed() == [0]
    assert len(encoded) == 1


@pytest.mark.parametrize("last", [False, True])
def test_slices_that_were_not_reached_are_told(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, last: bool
) -> None:
    """A commit that ran out of time between two slices counted as a success."""
    owner.reject()
    deadline, transact = Deadline(scaled(60.0)), owner.session.transact

    def over(build: Callable[[Any], None], _: Deadline) -> Any:
        deadline.expire()
        return transact(build, Deadline(scaled(60.0)))

    monkeypatch.setattr(owner.session, "transact", over)
    if last:
        owner.tracker.commit_last(owner.owned, commit=True, held=NONE_HELD, deadline=deadline, release=False)
        assert "not committed in time: t-" in caplog.text
    else:
        with pytest.raises(OffsetCommitError, match="not committed in time: t-"):
            owner.tracker.commit(NONE_HELD, deadline, patient=True)
    assert 0 < len(owner.committed()) < len(PARTITIONS)


def test_a_success_counts_if_the_repair_of_another_fails(
    owner: Owner, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = owner.owned[:2]
    owner.reject(first, second)
    owner.commit_by_timer()
    owner.reject(first, second)
    server.zookeeper.put(paths.pointers(GROUP, PARTITIONS[1]), b"")  # a tool wrote them
    monkeypatch.setattr(owner.session, "read", Mock(side_effect=RegistryUnavailableError("no answer")))
    monkeypatch.setattr(commit_schedule, "LARGEST", 1000)
    with pytest.raises((RegistryError, OffsetCommitError)):
        owner.tracker.commit(NONE_HELD, Deadline(scaled(60.0)), patient=True)
    assert server.offset(PARTITIONS[0]) == first.stored.committed


def test_an_unanswered_plain_commit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership_transactions, "REQUEST_BYTES", 400)
    member = Member(Server(FakeZooKeeper(), PARTITIONS), balanced=False)
    for position in member.claim(*PARTITIONS):
        position.consumed = 105
    transact, answers = member.session.transact, iter([True])

    def once(build: Callable[[Any], None], deadline: Deadline) -> Any:
        if not next(answers, False):
            raise RegistryUnavailableError("no answer")
        return transact(build, deadline)

    monkeypatch.setattr(member.session, "transact", once)
    with pytest.raises(OffsetCommitError, match="ZooKeeper did not answer in time"):
        member.commit()


def test_an_offset_is_written_if_the_one_between_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seek back was stored, and its answer lost. The commit of the offset before the seek was taken for unchanged."""
    server = Server(FakeZooKeeper(), PARTITIONS)
    member = Member(server, balanced=False)
    (position,) = member.claim(PARTITIONS[0])
    position.consumed = 105
    member.commit()
    position.consumed = 103
    with monkeypatch.context() as patched:
        transact, lost = member.session.transact, Mock(side_effect=RegistryUnavailableError("no answer"))
        patched.setattr(member.session, "transact", lambda *given: lost(transact(*given)))
        with pytest.raises(RegistryError):
            member.commit()
    position.consumed = 105
    member.commit()
    assert server.offset(PARTITIONS[0]) == 105
