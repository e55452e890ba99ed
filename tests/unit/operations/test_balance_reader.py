"""The nodes of balanced members, read from a ZooKeeper in memory and decoded for a snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.group_snapshots import stat
from tests.timing import scaled
from zkconsumer.balance.sharing.loan_format import Loan, LoanReport, encode_loan, encode_report
from zkconsumer.cluster.cluster_client import ClusterClient, command_config
from zkconsumer.core.finished_note import Attempts, FinishedNote, encode_note, note_as_text
from zkconsumer.core.key_slots import ALL_SLOTS
from zkconsumer.core.message_pointers import Pointer, PointerKind, encode_pointers
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.operations import balance_reader
from zkconsumer.operations.balance_reader import MOST_LISTED, ack_node, loan_node, note_in, pointers_node, summary_of
from zkconsumer.operations.group_snapshot import FailingMessage, GroupSnapshot, NoteSummary, PointedMessage
from zkconsumer.operations.snapshot_file import format_snapshot, parse_snapshot
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.testing import FakeCluster

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOTE = FinishedNote(1, (Finished(1, 9, (1, 4)),), {1: Attempts(2, 77)})
POINTERS = (Pointer(0, PointerKind.PARKED, 3, 900, 800, reason="ValueError: no"), Pointer(5, PointerKind.DEAD, 16))


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True) as running:
        running.create_topic("t", 2)
        running.append("t", 0, [b"x"] * 12)
        running.zookeeper.put("/consumers/g/offsets/t/0", b"1")
        yield running


def snapshot(cluster: FakeCluster) -> GroupSnapshot:
    config = command_config(cluster.zookeeper_connect, None)[0]
    with closing(LiveSource(ClusterClient(config, scaled(10.0)))) as source:
        return source.snapshot("g")


def test_notes_and_pointers_are_read(cluster: FakeCluster) -> None:
    zookeeper = cluster.zookeeper
    zookeeper.put("/consumers/g/acks/t/0", encode_note(NOTE))
    zookeeper.put("/consumers/g/parked/t/0", encode_pointers(POINTERS))
    zookeeper.put("/consumers/g/parked/t/1", b"")
    found = snapshot(cluster)
    assert found.acks[T0].note == NoteSummary(1, 9, 6, 2, (FailingMessage(1, 2, 77),))
    assert found.lag(T0) == 12 - 1 - 6
    node = found.pointers[T0]
    assert (node.parked, node.dead, node.due_ms) == (1, 1, 900)
    assert node.first(dead=False) == PointedMessage(0, False, 3, 900, 800, "ValueError: no")
    assert node.first(dead=True) == PointedMessage(5, True, 16)
    assert (found.pointers[T1].parked, found.pointers[T1].dead, found.pointers[T1].problem) == (0, 0, "")
    assert not found.problems
    assert not found.other_nodes
    assert parse_snapshot(format_snapshot(found)) == found


def test_loans_are_read_with_their_reports(cluster: FakeCluster) -> None:
    zookeeper, note = cluster.zookeeper, FinishedNote(7, (Finished(7, 9, (), 3),))
    loan = Loan(4, "1", "g_a", 11, 12, "key", 0b1111)
    for borrower, report in (("g_b", LoanReport(3, "1", 12, 0b11, note)), ("g_c", LoanReport(9, "0", 12, 1, note))):
        zookeeper.put(f"/consumers/g/loans/t/0/{borrower}", encode_loan(loan))
        zookeeper.put(f"/consumers/g/loans/t/0/{borrower}/report", encode_report(report))
    zookeeper.put("/consumers/g/loans/t/0/g_d", encode_loan(loan))
    zookeeper.put("/consumers/g/loans/t/0/g_e", b"?")
    zookeeper.put("/consumers/g/loans/t/0/g_e/report", b"?")
    found = snapshot(cluster).loans[T0]
    first, other, silent, bad = (found[ConsumerId(f"g_{name}")] for name in "bcde")
    assert (first.slots, first.number, first.session) == (4, 4, 11)
    assert (first.answered, first.held, first.base) == (3, 2, 7)
    assert (other.answered, other.held, other.base) == (None, None, None)  # it answers a loan of another stay
    assert other.report is not None
    assert (silent.slots, silent.report, silent.problem) == (4, None, "")
    assert (bad.slots, bad.number, bad.session) == (None, None, None)
    assert "not JSON" in bad.problem


def test_an_offset_written_after_its_note_voids_it(cluster: FakeCluster) -> None:
    cluster.zookeeper.put("/consumers/g/acks/t/0", encode_note(NOTE))
    cluster.zookeeper.put("/consumers/g/offsets/t/0", b"1")
    found = snapshot(cluster)
    assert found.acks[T0].note is not None
    assert (found.note(T0), found.lag(T0)) == (None, 11)


def test_what_cannot_be_decoded_is_unknown(cluster: FakeCluster) -> None:
    zookeeper = cluster.zookeeper
    zookeeper.put("/consumers/g/acks/t/0", b"{}")
    zookeeper.put("/consumers/g/acks/t/x", b"")
    zookeeper.put("/consumers/g/parked/t/0", b"\x8aZP\x09????")
    found = snapshot(cluster)
    assert (found.acks[T0].note, found.acks[T0].problem) == (None, "it is no note that this release knows")
    node = found.pointers[T0]
    assert (node.parked, node.dead) == (None, None)
    assert "version is 9" in node.problem
    assert [one.what for one in found.problems] == ["/consumers/g/acks/t"]


def test_too_many_nodes_and_bytes_are_problems(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (0, 1):
        cluster.zookeeper.put(f"/consumers/g/parked/t/{number}", encode_pointers(POINTERS))
    monkeypatch.setattr(balance_reader, "MOST_NODES", 2)
    monkeypatch.setattr(balance_reader, "MOST_BYTES", 10)
    found = snapshot(cluster)
    assert "more than 10 bytes" in found.pointers[T0].problem
    assert [(one.what, one.why) for one in found.problems] == [
        ("/consumers/g/parked/t/1", "not read: the group has more than 2 such nodes")
    ]


def test_a_note_in_metadata_is_known_by_its_form() -> None:
    assert note_in(note_as_text(encode_note(NOTE))) == summary_of(NOTE)
    assert note_in("") is note_in("their own words") is note_in("\u33ff\u3400") is None


def test_slots_on_loan_count_by_their_share() -> None:
    low = (1 << 128) - 1
    note = FinishedNote(0, (Finished(0, 1000, (0,), low), Finished(500, 700, (500, 501), ALL_SLOTS ^ low)))
    assert summary_of(note) == NoteSummary(0, 1000, 499 + 98, 3)


def test_only_the_first_messages_are_kept() -> None:
    many = [Pointer(n, kind) for at, kind in enumerate(PointerKind) for n in range(at * 900, at * 900 + 900)]
    node = pointers_node(encode_pointers(many), stat())
    assert (node.parked, node.dead, len(node.listed)) == (900, 900, 2 * MOST_LISTED)
    attempts = {n: Attempts(1, 0) for n in range(900)}
    assert len(summary_of(FinishedNote(0, (), attempts)).failing) == MOST_LISTED


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=60), head=st.sampled_from([b"", b"\x8aZN\x01", b"\x8aZP\x01"]))
def test_any_bytes_are_a_value_or_a_problem(data: bytes, head: bytes) -> None:
    noted, pointed = ack_node(head + data, stat()), pointers_node(head + data, stat())
    lent = loan_node(head + data, stat(), data, stat())
    assert (lent.slots is None) == bool(lent.problem)
    assert (noted.note is None) == bool(noted.problem)
    assert (pointed.parked is None) == bool(pointed.problem)
    assert note_in(data.decode("utf-16", "replace")) is None
