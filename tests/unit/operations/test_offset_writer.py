"""Writes of offsets from outside a group: owners, races with owners, lost answers, and the reports of the writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.cluster import group_offsets as group_offsets_admin
from zkconsumer.core.offset_file_formats import parse_undo_file
from zkconsumer.core.offset_move_plan import MoveVerdict, SavedEntry, Step, Store, StoreEntry
from zkconsumer.core.registration import CONFLICT_KEY
from zkconsumer.errors import ConfigException, RegistryUnavailableError
from zkconsumer.model import TopicPartition
from zkconsumer.operations import offset_writer
from zkconsumer.operations.offset_writer import (
    GroupOwners,
    OffsetRun,
    OwnedZooKeeperOffsets,
    OwnerCheckedKafkaOffsets,
    WriteState,
    wait_until_followed,
)
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing.fake_zookeeper import FakeSession, FakeZooKeeper

T0, T1, T2 = (TopicPartition("t", n) for n in range(3))
GROUP = "/consumers/g"
SESSION = 77


class House:
    """A group in ZooKeeper, the operator's session, and a place to act right before the next transaction."""

    def __init__(self) -> None:
        self.server = FakeZooKeeper()
        self.session = self.server.session()
        self.session.open(Deadline(5.0))
        self.stored = OwnedZooKeeperOffsets(self.session, "g")

    def offset(self, partition: TopicPartition, data: bytes | int) -> None:
        self.server.put(f"{GROUP}/offsets/t/{partition.partition}", data if isinstance(data, bytes) else b"%d" % data)

    def member(self, name: str, session: int = SESSION, **extra: object) -> None:
        document = {"version": 1, "subscription": {"t": 1}, "pattern": "static", "timestamp": "1", **extra}
        self.server.put(f"{GROUP}/ids/{name}", json.dumps(document).encode(), ephemeral_owner=session)

    def ours(self, name: str, session: int = SESSION, policy: str = "adopt") -> None:
        self.member(name, session, zkconsumer="1.0", **{CONFLICT_KEY: policy})

    def owns(self, name: str, *partitions: TopicPartition, session: int = SESSION, scala: bool = False) -> None:
        for partition in partitions:
            path = f"{GROUP}/owners/t/{partition.partition}"
            if self.server.node(path) is not None:
                self.server.remove(path)
            for _ in range(1 if scala else 2):  # a claim of ours writes the node once more
                self.server.put(path, f"{name}-0".encode(), ephemeral_owner=session)

    def adopts(self, *partitions: TopicPartition, at: int | None = None) -> None:
        """Let the member ``g_a``, which adopts offsets, own partitions; ``at`` is the offset of each."""
        self.ours("g_a")
        self.owns("g_a", *partitions)
        if at is not None:
            for partition in partitions:
                self.offset(partition, at)

    def offsets(self) -> dict[int, bytes]:
        return {int(path.rpartition("/")[2]): data for path, data in self.server.tree(f"{GROUP}/offsets/t").items()}

    def run(self, timeout: float = 5.0, **more: Any) -> OffsetRun:
        return OffsetRun("g", "h:1", self.stored, timeout, **more)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.chdir(tmp_path)
    made = House()
    yield made
    made.session.close(Deadline(5.0))


def write(partition: TopicPartition, offset: int) -> Step:
    return Step(partition, MoveVerdict.WRITE, after=StoreEntry(offset))


def entry(offset: int) -> StoreEntry:
    return StoreEntry(offset, text=str(offset))


def before_transaction(house: House, monkeypatch: pytest.MonkeyPatch, *actions: Callable[[], None]) -> None:
    """Act before the first transactions, one action each."""
    left, transact = list(actions), FakeSession.transact

    def acting(self: FakeSession, *arguments: Any) -> Any:
        if left:
            left.pop(0)()
        return transact(self, *arguments)

    monkeypatch.setattr(FakeSession, "transact", acting)


# ---- owners ----


def test_unowned_and_adopted_partitions_are_written(house: House) -> None:
    house.adopts(T1, at=5)
    house.stored.read(Deadline(5.0))
    assert house.stored.write([write(T0, 1), write(T1, 2)], Deadline(5.0)) == {}
    assert house.offsets() == {0: b"1", 1: b"2"}
    assert {tp: version for tp, (_, version) in house.stored.adopted.items()} == {T1: 1}


def test_an_owned_partition_without_offset_nodes_is_written(house: House) -> None:
    house.adopts(T0)
    house.stored.read(Deadline(5.0))
    assert house.server.node(f"{GROUP}/offsets") is None
    assert house.stored.write([write(T0, 7)], Deadline(5.0)) == {}
    assert house.offsets() == {0: b"7"}


def test_owners_that_do_not_adopt_are_refused_by_name(house: House) -> None:
    house.member("g_scala")
    house.ours("g_b", policy="overwrite")
    house.owns("g_scala", T0, scala=True)
    house.owns("g_b", T1)
    house.owns("g_gone", T2)
    refused = house.stored.write([write(T0, 1), write(T1, 1), write(T2, 1)], Deadline(5.0))
    assert [next(name for name in ("g_scala", "g_b", "g_gone") if name in refused[tp]) for tp in (T0, T1, T2)]
    assert house.offsets() == {}


@pytest.mark.parametrize("data", [b"\xff\xfe", b"", b"a/b-0", b"\x1b[2J-0", b"." * 2000, b"g", b"-", b"-0", b".-0"])
def test_a_hostile_owner_node_refuses_its_partition_alone(house: House, data: bytes) -> None:
    house.server.put(f"{GROUP}/owners/t/0", data, ephemeral_owner=SESSION)
    refused = house.stored.write([write(T0, 1), write(T1, 2)], Deadline(5.0))
    assert set(refused) == {T0}
    assert house.offsets() == {1: b"2"}


@pytest.mark.parametrize(
    ("path", "operation", "words"),
    [("offsets/t/0", "read", "ACL"), ("offsets/t/0", "write", "refused"), ("owners/t/0", "read", "cannot be read")],
)
def test_a_missing_right_refuses_its_partition_alone(house: House, path: str, operation: str, words: str) -> None:
    house.adopts(T0, at=5)
    house.server.refuse(f"{GROUP}/{path}", operation)
    house.stored.read(Deadline(5.0))
    refused = house.stored.write([write(T0, 1), write(T1, 2)], Deadline(5.0))
    assert list(refused) == [T0]
    assert words in refused[T0]
    house.server.refuse(f"{GROUP}/{path}")
    assert house.offsets() == {0: b"5", 1: b"2"}


def test_an_offset_of_an_owned_partition_is_not_removed(house: House) -> None:
    house.adopts(T0, at=5)
    assert "stop it" in house.stored.write([Step(T0, MoveVerdict.REMOVE)], Deadline(5.0))[T0]
    assert house.offsets() == {0: b"5"}


# ---- races ----


def test_a_commit_of_the_owner_comes_in_between(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.adopts(T0, at=5)
    before_transaction(house, monkeypatch, lambda: house.offset(T0, 6), lambda: house.offset(T0, 7))
    assert house.stored.write([write(T0, 1)], Deadline(5.0)) == {}
    assert house.offsets() == {0: b"1"}


def test_an_owner_that_always_commits_is_given_up(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.adopts(T0, at=5)
    before_transaction(house, monkeypatch, *[lambda: house.offset(T0, 6)] * 100)
    assert house.stored.write([write(T0, 1)], Deadline(5.0)) == {
        T0: "its owner changed or committed at each of 8 tries; run the command again"
    }
    assert house.offsets() == {0: b"6"}


def test_an_owner_that_registers_anew_comes_in_between(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new registration says that it does not adopt offsets any more."""
    house.adopts(T0, at=5)
    house.stored.read(Deadline(5.0))

    def register_anew() -> None:
        house.server.remove(f"{GROUP}/ids/g_a")
        for _ in range(2):
            house.ours("g_a", SESSION, "overwrite")

    before_transaction(house, monkeypatch, register_anew)
    assert "overwrite" in house.stored.write([write(T0, 1)], Deadline(5.0))[T0]
    assert house.offsets() == {0: b"5"}


def test_an_unowned_offset_that_somebody_wrote_is_kept(house: House) -> None:
    house.offset(T0, 5)
    house.stored.read(Deadline(5.0))
    house.offset(T0, 6)
    assert house.stored.write([write(T0, 1)], Deadline(5.0)) == {T0: "somebody wrote it meanwhile"}
    assert house.offsets() == {0: b"6"}


ADOPTS, OVERWRITES, SCALA = "g_adopts", "g_overwrites", "g_scala"
SESSIONS = {ADOPTS: 11, OVERWRITES: 12, SCALA: 13}


def claim(house: House, name: str) -> None:
    """Take the partition over as a rebalance does: a claim of ours also writes the offset node once more."""
    house.owns(name, T0, session=SESSIONS[name], scala=name == SCALA)
    if name != SCALA:
        house.offset(T0, house.offsets()[0])


def release(house: House) -> None:
    if house.server.node(f"{GROUP}/owners/t/0") is not None:
        house.server.remove(f"{GROUP}/owners/t/0")


def happens(house: House, event: str) -> None:
    """Something that members do at any moment."""
    if event in SESSIONS:
        claim(house, event)
    elif event == "release":
        release(house)
    elif event == "commit":
        house.offset(T0, house.offsets()[0])


EVENTS = [*SESSIONS, "release", "commit", "nothing"]


@given(events=st.lists(st.sampled_from(EVENTS), min_size=1, max_size=6))
def test_no_race_writes_over_an_owner_that_does_not_adopt(events: list[str]) -> None:
    """Something changes before each transaction. The offset is written only for the right owner of that moment."""
    house = House()
    house.member(SCALA, SESSIONS[SCALA])
    house.ours(ADOPTS, SESSIONS[ADOPTS])
    house.ours(OVERWRITES, SESSIONS[OVERWRITES], "overwrite")
    house.offset(T0, 5)
    claim(house, ADOPTS)
    house.stored.read(Deadline(5.0))
    left, written_for = list(events), list[str | None]()

    def racing(*arguments: Any) -> Any:
        if left:
            happens(house, left.pop(0))
        owner, before = house.server.node(f"{GROUP}/owners/t/0"), house.offsets()
        results = transact(*arguments)
        if house.offsets() != before:
            written_for.append(None if owner is None else owner.data.decode())
        return results

    transact = house.session.transact
    setattr(house.session, "transact", racing)  # noqa: B010
    refused = house.stored.write([write(T0, 1)], Deadline(5.0))
    assert written_for in ([None], [f"{ADOPTS}-0"], [])
    assert bool(refused) == (written_for == [])
    house.session.close(Deadline(5.0))


# ---- followers ----


def followed(house: House, *actions: Callable[[], None]) -> Mapping[TopicPartition, str]:
    """Return the partitions that have not followed after these actions; then the user stops the wait."""
    left = list(actions)

    def stopped() -> bool:
        if not left:
            return True
        left.pop(0)()
        return False

    return wait_until_followed(house.stored, 60.0, stopped, 5.0)


@pytest.fixture
def adopting(house: House, monkeypatch: pytest.MonkeyPatch) -> House:
    """Partitions 0 and 1 are written at 1, and g_a owns them."""
    monkeypatch.setattr(offset_writer, "sleep", lambda _: None)
    house.ours("g_a")
    house.owns("g_a", T0, T1)
    house.offset(T0, 5)
    assert house.stored.write([write(T0, 1), write(T1, 1)], Deadline(5.0)) == {}
    return house


def test_an_owner_follows_by_writing_the_offset_again(adopting: House) -> None:
    assert followed(adopting, lambda: adopting.offset(T0, 1), lambda: adopting.offset(T1, 1)) == {}


def test_owners_that_do_not_follow_are_named(adopting: House) -> None:
    assert followed(adopting) == {T0: "g_a", T1: "g_a"}
    assert followed(adopting, lambda: adopting.offset(T0, 1)) == {T1: "g_a"}
    adopting.server.remove(f"{GROUP}/offsets/t/0")
    assert followed(adopting) == {T0: "g_a", T1: "g_a"}


def test_owners_are_told_by_their_own_registrations(adopting: House) -> None:
    """The content stays the same, so nobody takes it for another registration."""
    path = f"{GROUP}/ids/g_a"
    before = adopting.server.node(path)
    followed(adopting)
    after = adopting.server.node(path)
    assert before is not None
    assert after is not None
    assert (after.data, after.ephemeral_owner) == (before.data, before.ephemeral_owner)
    assert after.version == before.version + 1


# ---- runs ----


def steps(results: Mapping[TopicPartition, object]) -> dict[int, str]:
    return {tp.partition: str(result).partition(":")[0] for tp, result in results.items()}


def test_the_undo_file_is_complete_before_the_first_write(house: House) -> None:
    house.offset(T0, b"+7")
    run = house.run()
    assert run.begin({T0: entry(1), T1: entry(2)}, {T0: 7, T1: None}) == 2
    saved = parse_undo_file(run.save(None).read_text())
    assert house.offsets() == {0: b"+7"}
    assert saved.saved == {T0: SavedEntry(StoreEntry(7, text="+7"), entry(1)), T1: SavedEntry(None, entry(2))}
    assert (saved.group, saved.store, saved.cluster) == ("g", Store.ZOOKEEPER, "h:1")
    assert run.write() == ""
    assert run.done


def test_a_live_reset_is_computed_from_the_overwritten_offset(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reset by -30 said 192 -> 162 and overwrote 202: it repeated 40, and the undo file had 192."""
    house.adopts(T0, at=192)
    run = house.run(computed=lambda _, current: (current or 0) - 30)
    run.begin({T0: entry(162)}, {T0: 192}, live=[T0])
    file = run.save(None)
    before_transaction(house, monkeypatch, lambda: house.offset(T0, 202))
    assert run.write() == ""
    assert run.done
    assert house.offsets() == {0: b"172"}
    assert run.overwritten == {T0: 202}
    assert parse_undo_file(file.read_text()).saved == {T0: SavedEntry(entry(202), entry(172))}


def test_a_reset_follows_the_last_commit_of_an_owner_that_left(house: House) -> None:
    """The owner released the partition after the plan was made. The reset was computed from the offset of the plan."""
    house.offset(T0, 202)
    run = house.run(computed=lambda _, current: (current or 0) - 30)
    run.begin({T0: entry(162)}, {T0: 192}, live=[T0])
    run.save(None)
    assert run.write() == ""
    assert house.offsets() == {0: b"172"}
    assert run.overwritten == {T0: 202}


def test_a_live_reset_without_an_offset_to_compute_from(house: House) -> None:
    def refuse(_: TopicPartition, current: int | None) -> int:
        raise ValueError(f"nothing to shift: {current}")

    house.adopts(T0)
    run = house.run(computed=refuse)
    run.begin({T0: entry(162)}, {T0: 192}, live=[T0])
    run.save(None)
    assert run.write() == ""
    assert str(run.results[T0]) == "not written: nothing to shift: None"
    assert house.offsets() == {}


def test_an_existing_file_is_never_overwritten(house: House) -> None:
    Path("there").write_text("something")
    run = house.run()
    run.begin({T0: entry(1)}, {})
    with pytest.raises(ConfigException, match="there"):
        run.save(Path("there"))
    assert house.offsets() == {}


def test_what_is_the_same_already_is_not_written(house: House) -> None:
    """An owner may be ahead of the same offset, so for it the offset is written all the same."""
    house.offset(T0, 4)
    house.offset(T1, 4)
    run = house.run()
    assert run.begin({T0: entry(4), T1: entry(4)}, {}, live=[T1]) == 1
    assert run.results[T0].state is WriteState.WRITTEN


def test_an_offset_that_moved_since_the_plan_is_kept(house: House) -> None:
    house.offset(T0, 5)
    run = house.run()
    assert run.begin({T0: entry(1)}, {T0: 4}) == 0
    assert str(run.results[T0]) == "not written: somebody wrote it meanwhile: 5"


@pytest.mark.parametrize("performed", [True, False])
def test_a_lost_answer_is_looked_for(house: House, monkeypatch: pytest.MonkeyPatch, *, performed: bool) -> None:
    """It is lost in the second of three slices; nothing is written after it."""
    monkeypatch.setattr(group_offsets_admin, "BATCH", 1)
    lose_answers(monkeypatch, performed=performed)
    run = house.run()
    run.begin({T0: entry(1), T1: entry(2), T2: entry(3)}, {})
    run.save(None)
    assert run.write() == "the answer is lost"
    assert steps(run.results) == {0: "written", 1: "unknown", 2: "not written"}
    run.settle()
    assert steps(run.results) == {0: "written", 1: "written" if performed else "not written", 2: "not written"}
    assert house.offsets() == ({0: b"1", 1: b"2"} if performed else {0: b"1"})


def lose_answers(monkeypatch: pytest.MonkeyPatch, *, performed: bool) -> None:
    """Lose the answers from the second transaction on."""
    count, transact = 0, FakeSession.transact

    def losing(self: FakeSession, *arguments: Any) -> Any:
        nonlocal count
        count += 1
        if count == 1:
            return transact(self, *arguments)
        if performed:
            transact(self, *arguments)
        raise RegistryUnavailableError("the answer is lost")

    monkeypatch.setattr(FakeSession, "transact", losing)


def test_what_cannot_be_read_back_stays_unknown(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_answers(monkeypatch, performed=True)
    monkeypatch.setattr(group_offsets_admin, "BATCH", 1)
    run = house.run(timeout=0.1)
    run.begin({T0: entry(1), T1: entry(2)}, {})
    run.write()
    house.session.suspend()
    run.settle()
    assert steps(run.results) == {0: "written", 1: "unknown"}
    assert [run.count(state) for state in WriteState] == [1, 0, 1]


def test_a_connection_that_comes_back_settles_the_results(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    lose_answers(monkeypatch, performed=True)
    monkeypatch.setattr(group_offsets_admin, "BATCH", 1)
    monkeypatch.setattr(offset_writer, "sleep", lambda _: house.session.resume())
    run = house.run()
    run.begin({T0: entry(1), T1: entry(2)}, {})
    run.write()
    house.session.suspend()
    run.settle()
    assert run.done


# ---- Kafka ----


class FakeKafka:
    """A side that takes every write."""

    store = Store.KAFKA

    def __init__(self) -> None:
        self.held: dict[TopicPartition, StoreEntry] = {}
        self.removed: list[TopicPartition] = []

    def read(self, deadline: Deadline) -> dict[TopicPartition, StoreEntry]:
        return dict(self.held)

    def members(self, deadline: Deadline) -> list[str]:
        return []

    def catch_up(self, deadline: Deadline) -> None:
        pass

    def write(self, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        self.held.update({step.partition: step.after for step in steps if step.after is not None})
        self.removed += [step.partition for step in steps if step.after is None]
        return {}


def test_owners_are_looked_up_right_before_a_commit_to_kafka(house: House) -> None:
    house.member("g_scala")
    house.owns("g_scala", T0, scala=True)
    kafka = FakeKafka()
    offsets = OwnerCheckedKafkaOffsets(kafka, GroupOwners(house.session, "g"))
    assert "Scala member g_scala" in offsets.write([write(T0, 1), write(T1, 2)], Deadline(5.0))[T0]
    assert kafka.held == {T1: StoreEntry(2)}
    assert OwnerCheckedKafkaOffsets(kafka, None).write([write(T0, 1)], Deadline(5.0)) == {}


def test_an_offset_in_kafka_is_not_removed_under_its_owner(house: House) -> None:
    """The owner would commit its old place again, and the removal was told as done."""
    house.adopts(T0)
    kafka = FakeKafka()
    offsets = OwnerCheckedKafkaOffsets(kafka, GroupOwners(house.session, "g"))
    removals = [Step(tp, MoveVerdict.REMOVE, before=StoreEntry(5)) for tp in (T0, T1)]
    assert "g_a owns it and would make the offset again" in offsets.write(removals, Deadline(5.0))[T0]
    assert (kafka.removed, offsets.adopting) == ([T1], {})
