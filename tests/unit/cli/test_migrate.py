"""``zkconsumer migrate`` on a ZooKeeper and a Kafka in memory: what it writes, refuses, says and returns."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tests.timing import scaled
from tests.unit.cli.command_line import CommandLine
from tests.unit.clusters import commit_from_outside
from zkconsumer.cli import migrate
from zkconsumer.cli.migrate.migration_steps import MigratedGroup
from zkconsumer.cluster import group_offsets as group_offsets_admin
from zkconsumer.cluster.cluster_client import ClusterClient
from zkconsumer.cluster.group_offsets import KafkaGroupOffsets, ZooKeeperGroupOffsets
from zkconsumer.config import ConsumerConfig
from zkconsumer.core.offset_move_plan import LogRange, Step, StoreEntry
from zkconsumer.errors import BrokerUnavailableError, MemberIdRequiredError, NoBrokersError, RegistryUnavailableError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.group_channel import GroupChannel, Membership
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.operations.offset_writer import OffsetRun
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeCluster
from zkconsumer.zookeeper.session import Session

OFFSETS = "/consumers/g/offsets/t"
PARTITIONS = 4


class World(CommandLine):
    """A cluster in memory, and ``zkconsumer migrate g`` on it; ``at_write`` is called before each write."""

    def __init__(self, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(capsys)
        self.cluster = cluster
        self.zookeeper = cluster.zookeeper
        self.at_write: Callable[[], None] = lambda: None
        self.writes = 0

    def __call__(self, *arguments: str) -> int:
        return self.run("migrate", "g", "--zookeeper", self.cluster.zookeeper_connect, *arguments)

    def in_zookeeper(self, offsets: Mapping[int, str | bytes | int]) -> None:
        for number, offset in offsets.items():
            self.zookeeper.put(f"{OFFSETS}/{number}", offset if isinstance(offset, bytes) else str(offset).encode())

    def in_kafka(self, offsets: Mapping[int, int]) -> None:
        commit_from_outside(self.cluster, {TopicPartition("t", number): offset for number, offset in offsets.items()})

    def zookeepers(self) -> dict[int, bytes]:
        found = self.zookeeper.tree(OFFSETS)
        return {int(path.rpartition("/")[2]): data for path, data in found.items()}

    def kafkas(self) -> dict[int, int]:
        return {tp[1]: offset for tp, offset in self.cluster.committed("g").items()}


def before_writes(
    monkeypatch: pytest.MonkeyPatch, side: type[ZooKeeperGroupOffsets | KafkaGroupOffsets], world: World
) -> None:
    write = side.write

    def watched(self: Any, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        world.writes += 1
        world.at_write()
        return write(self, steps, deadline)

    monkeypatch.setattr(side, "write", watched)


@pytest.fixture
def world(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[World]:
    """The log of each partition of ``t`` begins at offset 10 and ends at 100."""
    monkeypatch.chdir(tmp_path)
    with FakeCluster(zookeeper=True) as cluster:
        cluster.create_topic("t", PARTITIONS)
        for partition in range(PARTITIONS):
            cluster.append("t", partition, [b"m"] * 10)
            cluster.append("t", partition, [b"m"] * 90)
            cluster.truncate_before("t", partition, 10)
        made = World(cluster, capsys)
        for side in (ZooKeeperGroupOffsets, KafkaGroupOffsets):
            before_writes(monkeypatch, side, made)
        yield made


def backup() -> str:
    """Return the text of the only backup file. No other file is left."""
    (file,) = [path for path in Path().iterdir() if path.name.endswith(".undo.json")]
    assert len(list(Path().iterdir())) == 1
    return str(file)


# ---- there, back, and as it was ----


def test_offsets_go_to_kafka_and_back(world: World) -> None:
    world.in_zookeeper({0: 10, 1: 55, 2: 100})
    assert world("--to", "kafka") == 0
    assert world.kafkas() == {0: 10, 1: 55, 2: 100}
    assert "3 of 3 written" in world.out
    Path(backup()).unlink()
    world.in_kafka({0: 20, 3: 30})
    assert world("--to", "zookeeper") == 0
    assert world.zookeepers() == {0: b"20", 1: b"55", 2: b"100", 3: b"30"}
    assert "2 of 2 written" in world.out


def test_a_dry_run_says_what_would_be_written_and_writes_nothing(world: World) -> None:
    world.in_zookeeper({0: 10, 1: 55})
    world.in_kafka({1: 55})
    assert world("--to", "kafka", "--dry-run") == 0
    assert "t-0        10         -      10..100  write 10" in world.out
    assert "t-1        55         55     10..100  the same already" in world.out
    assert "1 partitions would be" in world.out
    assert (world.kafkas(), world.writes, list(Path().iterdir())) == ({1: 55}, 0, [])


@pytest.mark.parametrize("to", ["kafka", "zookeeper"])
def test_a_rollback_puts_back_exactly_what_was_there(world: World, to: str) -> None:
    world.in_zookeeper({0: b"+20", 1: 30, 2: b"rubbish"} if to == "zookeeper" else {0: 50, 1: 60, 2: 70})
    world.in_kafka({0: 50, 1: 60, 2: 70, 3: 80} if to == "zookeeper" else {0: 20, 1: 30, 2: 40})
    before = world.zookeepers(), world.kafkas()
    assert world("--to", to) == 0
    assert (world.zookeepers(), world.kafkas()) != before
    assert world("--rollback", backup(), "--backup", "again.json") == 0
    assert (world.zookeepers(), world.kafkas()) == before
    assert world("--rollback", "again.json") == 0
    assert (world.zookeepers(), world.kafkas()) != before


def test_what_an_old_broker_cannot_delete_is_said(world: World) -> None:
    world.in_zookeeper({0: 50, 1: 60})
    world.in_kafka({0: 20})
    assert world("--to", "kafka") == 0
    assert world("--rollback", backup(), "--backup", "again.json") == 1
    assert "t-1        not written: brokers before 2.4 can delete a group's offsets all together only" in world.out
    assert world.kafkas() == {0: 20, 1: 60}


def test_a_rollback_keeps_later_changes_unless_forced(world: World) -> None:
    world.in_zookeeper({0: 50, 1: 60})
    assert world("--to", "kafka") == 0
    world.in_kafka({0: 51})
    assert world("--rollback", backup()) == 4
    assert "it was changed since: 51 now, 50 written by that run" in world.out
    assert world.kafkas() == {0: 51, 1: 60}
    assert world("--rollback", backup(), "--force") == 0
    assert world.kafkas() == {}


def test_a_forced_rollback_restores_another_spelling(world: World) -> None:
    """A node with another text of the same offset was not written, and then counted as not restored."""
    world.in_zookeeper({0: 20})
    world.in_kafka({0: 50})
    assert world("--to", "zookeeper", "--execute", "--undo-file", "a.json") == 0
    world.in_zookeeper({0: b"+20"})
    assert world("--rollback", "a.json", "--force", "--execute") == 0
    assert "1 of 1 written" in world.out
    assert world.zookeepers() == {0: b"20"}


def test_a_rollback_from_a_foreign_file_is_refused(world: World) -> None:
    world.in_zookeeper({0: 50})
    assert world("--to", "kafka") == 0
    document = json.loads(Path(backup()).read_text())
    Path("other.json").write_text(json.dumps({**document, "group": "h"}))
    assert world("--rollback", "other.json") == 4
    assert "is of group 'h'" in world.err
    Path("other.json").write_text("{}")
    assert world("--rollback", "other.json") == 1
    assert "other.json: it is no undo file of zkconsumer offsets or zkconsumer migrate" in world.err
    assert world("--rollback", "none.json") == 1
    assert "none.json: cannot be read" in world.err
    assert world.kafkas() == {0: 50}


def test_former_options_work_with_a_warning(world: World) -> None:
    world.in_zookeeper({0: 50})
    assert world("--to", "kafka", "--backup", "a.json") == 0
    assert "warning: --backup is now --undo-file" in world.err
    assert "warning: the next release will write only with --execute" in world.err
    assert world.kafkas() == {0: 50}
    assert world("--rollback", "a.json", "--undo-file", "b.json") == 0
    assert (
        f"--rollback is now: zkconsumer offsets undo a.json --zookeeper {world.cluster.zookeeper_connect}" in world.err
    )
    assert world("--to", "kafka", "--execute", "--undo-file", "c.json") == 0
    assert "warning" not in world.err
    assert world("--to", "kafka", "--dry-run") == 0
    assert "warning" not in world.err


def test_the_command_in_place_of_rollback_can_be_copied(world: World) -> None:
    """It wrote also in place of a dry run, lacked --force, and its file was not quoted."""
    world.in_zookeeper({0: 50})
    assert world("--to", "kafka", "--execute", "--undo-file", "my file.json") == 0
    connect = f"--zookeeper {world.cluster.zookeeper_connect}"
    assert world("--rollback", "my file.json", "--dry-run", "--topic", "t:0") == 0
    assert f"is now: zkconsumer offsets undo 'my file.json' {connect}\n" in world.err
    assert "offsets undo has no --topic: it puts back all partitions of the file" in world.err
    assert world("--rollback", "my file.json", "--force", "--undo-file", "b;.json") == 0
    assert f"undo 'my file.json' {connect} --force --undo-file 'b;.json' --execute\n" in world.err
    assert "--topic" not in world.err


def test_offsets_undo_puts_back_what_a_migration_overwrote(world: World) -> None:
    world.in_zookeeper({0: 50, 1: 60})
    world.in_kafka({0: 20, 1: 30})
    assert world("--to", "kafka", "--execute") == 0
    assert f"zkconsumer offsets undo {backup()} --zookeeper {world.cluster.zookeeper_connect} --execute" in world.out
    connect = ("--zookeeper", world.cluster.zookeeper_connect, "--execute")
    assert world.run("offsets", "undo", backup(), *connect, "--undo-file", "again.json") == 0
    assert world.kafkas() == {0: 20, 1: 30}


# ---- what is not decided, and who lives ----


def test_nothing_is_written_before_everything_is_decided(world: World) -> None:
    world.in_zookeeper({0: 50, 1: 101, 2: 20, 3: b"rubbish"})
    world.in_kafka({2: 90})
    assert world("--to", "kafka") == 4
    assert world.out.count("UNDECIDED") == 3
    assert "3 partitions have to be decided first" in world.err
    assert (world.kafkas(), world.writes) == ({2: 90}, 0)
    decided = ["--out-of-range", "latest", "--ahead", "overwrite", "--topic", "t:0-2"]
    assert world("--to", "kafka", *decided) == 0
    assert world.kafkas() == {0: 50, 1: 100, 2: 20}


def test_nothing_is_written_while_members_live_on_either_side(world: World) -> None:
    world.in_zookeeper({0: 50})
    world.in_kafka({1: 60})
    world.zookeeper.put("/consumers/g/ids/g_ann", b"{}", ephemeral_owner=7)
    for to in ("kafka", "zookeeper"):
        assert world("--to", to) == 5
        assert "g_ann (ZooKeeper)" in world.err
    assert (world.writes, list(Path().iterdir())) == (0, [])
    assert world("--to", "zookeeper", "--rolling") == 5, "a rolling migration refuses members on the target"
    assert world.zookeepers() == {0: b"50"}
    assert world("--to", "kafka", "--rolling") == 0
    assert world.kafkas() == {0: 50, 1: 60}


def test_a_member_of_kafkas_is_named(world: World) -> None:
    world.in_zookeeper({0: 50})
    broker = Endpoint(*world.cluster.addresses()[0])
    channel = GroupChannel(BrokerChannel(broker, client_id="test", socket_timeout=scaled(5.0)))
    channel.connect(Deadline(scaled(5.0)))
    times: dict[str, Any] = {
        "session_timeout": scaled(30.0),
        "rebalance_timeout": scaled(30.0),
        "deadline": Deadline(scaled(10.0)),
    }
    try:
        joined = channel.join(Membership("g"), [("range", b"")], **times)
    except MemberIdRequiredError as required:
        joined = channel.join(Membership("g", -1, required.member_id), [("range", b"")], **times)
    assert world("--to", "kafka") == 5
    assert "test at 127.0.0.1 (Kafka)" in world.err
    channel.leave(Membership("g", joined.generation, joined.member_id), Deadline(scaled(5.0)))
    channel.close()
    assert world("--to", "kafka") == 0


@pytest.mark.parametrize("to", ["kafka", "zookeeper"])
def test_an_offset_written_after_the_plan_is_kept(world: World, to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world.in_zookeeper({0: 50, 1: 60} if to == "kafka" else {0: 20})
    world.in_kafka({0: 20} if to == "kafka" else {0: 50, 1: 60})
    keep = OffsetRun.save

    def meanwhile(*arguments: Any) -> Path:
        (world.in_kafka if to == "kafka" else world.in_zookeeper)({0: 90})
        return keep(*arguments)

    monkeypatch.setattr(OffsetRun, "save", meanwhile)
    assert world("--to", to) == 1
    assert "t-0        not written: somebody wrote it meanwhile; 90 stands there now" in world.out
    assert "t-1        written: 60" in world.out
    assert {
        number: int(offset) for number, offset in (world.kafkas() if to == "kafka" else world.zookeepers()).items()
    } == {0: 90, 1: 60}


def test_a_member_that_leaves_during_the_read_prevents_the_write(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read may have missed its last commit."""
    world.in_zookeeper({0: 50})
    world.zookeeper.put("/consumers/g/ids/g_ann", b"{}", ephemeral_owner=7)
    logs = MigratedGroup.logs

    def leaves(self: MigratedGroup, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, LogRange]:
        world.in_zookeeper({0: 60})
        world.zookeeper.remove("/consumers/g/ids/g_ann")
        return logs(self, partitions)

    with monkeypatch.context() as leaving:
        leaving.setattr(MigratedGroup, "logs", leaves)
        assert world("--to", "kafka") == 5
    assert "g_ann (ZooKeeper)" in world.err
    assert world.kafkas() == {}
    assert world("--to", "kafka") == 0
    assert world.kafkas() == {0: 60}


def after_writes(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Act after each write to Kafka, before its answer."""
    write = KafkaGroupOffsets.write

    def acting(self: KafkaGroupOffsets, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        refused = write(self, steps, deadline)
        action()
        return refused

    monkeypatch.setattr(KafkaGroupOffsets, "write", acting)


def test_an_answer_that_is_lost_is_looked_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.in_zookeeper({0: 50})
    with monkeypatch.context() as losing:
        after_writes(losing, Mock(side_effect=BrokerUnavailableError("the answer is lost")))
        assert world("--to", "kafka") == 0
    assert world.kafkas() == {0: 50}


def test_a_server_that_lags_is_not_read_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another server showed the nodes as before a write whose answer was lost: the write was told as not done."""
    world.in_kafka({0: 50})
    lags: list[bool] = []
    read, write, delete = ZooKeeperGroupOffsets.read, ZooKeeperGroupOffsets.write, Session.delete

    def losing(self: ZooKeeperGroupOffsets, steps: Sequence[Step], deadline: Deadline) -> dict[TopicPartition, str]:
        write(self, steps, deadline)
        lags.append(True)
        raise RegistryUnavailableError("the answer is lost")

    def lagging(self: ZooKeeperGroupOffsets, deadline: Deadline) -> dict[TopicPartition, StoreEntry]:
        return {} if lags else read(self, deadline)

    def deleting(self: Session, *arguments: Any) -> Any:
        lags.clear()  # a write makes the server catch up
        return delete(self, *arguments)

    monkeypatch.setattr(ZooKeeperGroupOffsets, "write", losing)
    monkeypatch.setattr(ZooKeeperGroupOffsets, "read", lagging)
    monkeypatch.setattr(Session, "delete", deleting)
    assert world("--to", "zookeeper", "--execute") == 0
    assert "t-0        written: 50" in world.out


def test_an_offset_overwritten_at_once_counts_as_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.in_zookeeper({0: 50})
    with monkeypatch.context() as overwriting:
        after_writes(overwriting, lambda: world.in_kafka({0: 70}))
        assert world("--to", "kafka") == 1
    assert "t-0        written; 70 stands there now" in world.out


def test_ctrl_c_lists_the_written_and_unwritten_offsets(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_offsets_admin, "BATCH", 1)
    world.in_zookeeper({0: 50, 1: 60, 2: 70})

    def interrupt() -> None:
        if world.writes == 2:
            raise KeyboardInterrupt

    world.at_write = interrupt
    assert world("--to", "kafka") == 130
    assert "t-0        written: 50" in world.out
    assert "t-1        not written" in world.out
    assert "t-2        not written" in world.out
    assert "1 of 3 written" in world.out
    assert world.kafkas() == {0: 50}
    world.at_write = lambda: None
    assert world("--rollback", backup(), "--backup", "again.json") == 0
    assert world.kafkas() == {}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_of_the_reading_back_hides_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    """The outcomes and the command to undo were not printed, and SIGTERM ended with the code of Ctrl-C."""
    world.in_zookeeper({0: 50, 1: 60})

    def impatient(_: OffsetRun) -> None:
        signal.raise_signal(number)
        signal.raise_signal(number)

    monkeypatch.setattr(OffsetRun, "_read_back", impatient)
    assert world("--to", "kafka", "--execute") == code
    assert "t-0        written; it was not read back" in world.out
    assert f"2 of 2 written; to put back what stood there: zkconsumer offsets undo {backup()} --zookeeper" in world.out
    assert world.kafkas() == {0: 50, 1: 60}


def test_the_backup_is_on_disk_before_the_first_write(world: World) -> None:
    world.in_zookeeper({0: 50})
    seen: list[dict[str, Any]] = []
    world.at_write = lambda: seen.append(json.loads(Path(backup()).read_text()))
    assert world("--to", "kafka") == 0
    assert [document["partitions"] for document in seen] == [
        [{"topic": "t", "partition": 0, "before": None, "wrote": {"offset": 50}}]
    ]


def test_a_file_that_exists_is_never_written_over(world: World) -> None:
    world.in_zookeeper({0: 50})
    Path("mine").write_text("precious")
    assert world("--to", "kafka", "--backup", "mine") == 1
    assert world("--export", "zookeeper", "--output", "mine") == 1
    assert "mine: cannot be written: File exists" in world.err
    assert (Path("mine").read_text(), world.kafkas(), [p.name for p in Path().iterdir()]) == ("precious", {}, ["mine"])


# ---- looking ----


def test_verify_compares_and_returns_whether_they_agree(world: World) -> None:
    assert world("--verify") == 3
    world.in_zookeeper({0: 50, 1: -1})
    world.in_kafka({0: 50})
    assert world("--verify") == 0
    world.in_kafka({2: 5})
    assert world("--verify") == 4
    assert "t-2        -          5      10..100  only in Kafka; 5 not in the log" in world.out
    assert "1 of 3 partitions differ" in world.out
    assert world("--verify", "--topic", "t:0,1") == 0


def test_verify_waits_for_stores_written_one_by_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.in_zookeeper({0: 50, 1: 60})
    world.in_kafka({0: 51, 1: 60})
    looks = iter([{0: 51, 1: 61}])

    def meanwhile(_: float) -> None:
        world.in_zookeeper(next(looks, {}))  # partition 1 differs now, and was seen to agree

    monkeypatch.setattr("zkconsumer.cli.migrate.migration_steps.sleep", meanwhile)
    assert world("--verify") == 4
    assert world("--verify", "--wait", str(scaled(30))) == 0


def test_offsets_leave_and_come_as_the_java_tools_csv(world: World) -> None:
    assert world("--export", "kafka") == 3
    world.in_zookeeper({0: 50, 1: -1, 2: 70})
    assert world("--export", "zookeeper") == 0
    assert world.out == "t,0,50\nt,2,70\n"
    assert world("--export", "zookeeper", "--with-group", "--topic", "t:2", "--output", "out.csv") == 0
    assert Path("out.csv").read_text() == "g,t,2,70\n"
    Path("in.csv").write_text("g,t,0,60\ng,t,9,1\nother,t,1,1\n", encoding="utf-8-sig")  # as Windows' tools write
    world.in_kafka({3: 99})
    assert world("--to", "kafka", "--from-file", "in.csv") == 0
    assert world.kafkas() == {0: 60, 3: 99}
    assert "t-9        1       -      -        left as it is: the partition does not exist" in world.out
    assert "t-3" not in world.out


def test_what_went_wrong_is_said_and_not_that_time_was_over() -> None:
    looks = iter([NoBrokersError("no broker is registered")])

    class Away(ClusterClient):
        def brokers(self, deadline: Deadline) -> list[Endpoint]:
            raise next(looks, RegistryUnavailableError("no answer in time"))  # as ZooKeeper at a spent deadline

    client = Away(ConsumerConfig(zookeeper_connect="zk", group_id="g"))
    with pytest.raises(NoBrokersError, match="no broker is registered"):
        KafkaGroupOffsets(client, "g").members(Deadline(0.3))


def test_an_export_leaves_nothing_out_in_silence(world: World) -> None:
    world.in_zookeeper({0: 50, 1: b"rubbish"})
    assert world("--export", "zookeeper") == 1
    assert (world.out, "t-1: " in world.err) == ("", True)


def test_nothing_to_move_is_exit_code_3_and_nothing_to_change_0(world: World) -> None:
    assert world("--to", "kafka") == 3
    world.in_zookeeper({0: 50})
    world.in_kafka({0: 50})
    assert world("--to", "kafka") == 0
    assert (world.writes, list(Path().iterdir())) == (0, [])


# ---- usage ----


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--to", "kafka", "--force"], "--force goes with --rollback only"),
        (["--to", "kafka", "--with-group"], "--with-group goes with --export only"),
        (["--verify", "--rolling"], "--rolling goes with --to only"),
        (["--verify", "--dry-run"], "go with what writes"),
        (["--export", "kafka", "--execute"], "go with what writes"),
        (["--to", "kafka", "--execute", "--dry-run"], "only one of --execute and --dry-run"),
        (["--to", "kafka", "--backup", "a", "--undo-file", "b"], "--backup is the former name of --undo-file"),
        (["--verify", "--topic", "t:x"], "'x' is no partition"),
        (["--rollback", "f", "--ahead", "skip"], "--ahead goes with --to only"),
        (["--to", "kafka", "--wait", "1"], "--wait goes with --verify only"),
        # an empty name of a file is not taken as none
        *(
            (["--to", "kafka", option, ""], f"{option} names no file")
            for option in ("--from-file", "--backup", "--config", "--undo-file", "--command-config")
        ),
        (["--rollback", ""], "--rollback names no file"),
        (["--export", "kafka", "--output", ""], "--output names no file"),
    ],
)
def test_wrong_usage_is_told_and_writes_nothing(world: World, arguments: list[str], says: str) -> None:
    world.in_zookeeper({0: 50})
    assert world(*arguments) == 2
    assert says in world.err
    assert world.kafkas() == {}


def test_a_properties_file_says_where_and_as_whom(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert world.run("migrate", "g", "--verify") == 2
    assert "--zookeeper or --command-config" in world.err
    configs: list[ConsumerConfig] = []

    def group(config: ConsumerConfig, timeout: float) -> MigratedGroup:
        configs.append(config)
        return MigratedGroup(ConsumerConfig(zookeeper_connect=world.cluster.zookeeper_connect, group_id="g"), timeout)

    monkeypatch.setattr(migrate, "MigratedGroup", group)
    file = tmp_path / "c.properties"
    file.write_text("zookeeper.connect=a:1\ngroup.id=g\nsecurity.protocol=SSL\nsecurty.x=1\n")
    verify = ("migrate", "g", "--config", str(file), "--verify")
    assert world.run(*verify) == 3
    assert "unknown property 'securty.x'" in world.err
    assert world.run(*verify, "--zookeeper", "b:2") == 3
    assert [(c.zookeeper_connect, c.security_protocol) for c in configs] == [("a:1", "SSL"), ("b:2", "SSL")]
    assert world.run("migrate", "h", "--config", str(file), "--verify") == 1
    assert "is for 'g', and 'h' is asked for" in world.err
    assert world.run("migrate", "g", "--config", "nowhere", "--verify") == 1
    assert "nowhere" in world.err
    file.write_text("group.coordination=kafka\nbootstrap.servers=a:9092\n")
    assert world.run(*verify) == 1
    assert "zookeeper.connect: is missing" in world.err


def test_offsets_go_to_the_cluster_of_zookeeper_only(world: World) -> None:
    """The brokers of the file's ``bootstrap.servers`` were asked and written, also if they were of another cluster."""
    world.in_zookeeper({0: 50})
    with FakeCluster() as other:
        other.create_topic("t", PARTITIONS)
        brokers = ",".join(f"{address[1]}:{address[2]}" for address in other.addresses())
        connect = world.cluster.zookeeper_connect
        Path("c.properties").write_text(
            f"zookeeper.connect={connect}\nbootstrap.servers={brokers}\ngroup.coordination=kafka\ngroup.migration=true\n"
        )
        assert world.run("migrate", "g", "--command-config", "c.properties", "--to", "kafka", "--execute") == 0
        assert other.committed("g") == {}
    assert world.kafkas() == {0: 50}
    assert f"--zookeeper {connect} --command-config c.properties --execute" in world.out


def test_a_partition_that_brokers_do_not_know_yet_exists(world: World) -> None:
    """One broker's metadata decided: a partition that the broker did not know was left out, with exit code 0."""
    world.zookeeper.put("/brokers/topics/new", b'{"version":1,"partitions":{"0":[1]}}')
    world.zookeeper.put("/consumers/g/offsets/new/0", b"5")
    world.in_zookeeper({0: 50})
    assert world("--to", "kafka", "--execute", "--timeout", "1") == 1
    assert "no offset could be looked up for new-0" in world.err
    assert world.kafkas() == {}
