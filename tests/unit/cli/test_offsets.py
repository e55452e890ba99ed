"""``zkconsumer offsets`` on a ZooKeeper and a Kafka in memory: what it writes, refuses, says and returns."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.timing import scaled
from tests.unit.cli.command_line import CommandLine
from zkconsumer import cli
from zkconsumer.cluster import group_offsets as group_offsets_admin
from zkconsumer.core.registration import CONFLICT_KEY
from zkconsumer.operations.offset_writer import OffsetRun, OwnedZooKeeperOffsets
from zkconsumer.testing import FakeCluster, ManualClock

PARTITIONS, MESSAGES = 3, 50
SENT_AT, SENT = 1_700_000_000.0, ["2023-11-14", "22:13:20", "UTC"]


class World(CommandLine):
    """A group ``g`` in both stores, and the command line."""

    def __init__(self, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(capsys)
        self.cluster = cluster
        self.zookeeper = cluster.zookeeper

    def __call__(self, *arguments: str, zookeeper: bool = True, timeout: float = 10.0) -> int:
        if zookeeper:
            where = ["--zookeeper", self.cluster.zookeeper_connect]
        else:
            where = ["--bootstrap-server", self.cluster.bootstrap_servers]
        return self.run("offsets", *arguments, *where, "--timeout", str(int(scaled(timeout) * 1000)))

    def put(self, *offsets: int | str, group: str = "g") -> None:
        for partition, offset in enumerate(offsets):
            self.zookeeper.put(f"/consumers/{group}/offsets/t/{partition}", str(offset).encode())

    def offsets(self, group: str = "g") -> list[str]:
        tree = self.zookeeper.tree(f"/consumers/{group}/offsets/t")
        return [tree[path].decode() for path in sorted(tree)]

    def owner(self, partition: int, **extra: object) -> None:
        document = {"version": 1, "subscription": {"t": 1}, "pattern": "static", "timestamp": "1", **extra}
        self.zookeeper.put("/consumers/g/ids/g_a", json.dumps(document).encode(), ephemeral_owner=77)
        for _ in range(2):
            self.zookeeper.put(f"/consumers/g/owners/t/{partition}", b"g_a-0", ephemeral_owner=77)

    def undo_files(self) -> list[str]:
        return sorted(path.name for path in Path().glob("*.undo.json"))


@pytest.fixture(scope="module")
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(zookeeper=True, clock=ManualClock(SENT_AT)) as made:
        made.create_topic("t", PARTITIONS)
        for partition in range(PARTITIONS):
            made.append("t", partition, [b"m"] * MESSAGES)
        yield made


@pytest.fixture
def world(
    cluster: FakeCluster, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    monkeypatch.chdir(tmp_path)
    yield World(cluster, capsys)
    for group in ("g", "h"):
        if cluster.zookeeper.node(f"/consumers/{group}") is not None:
            cluster.zookeeper.remove(f"/consumers/{group}")


def before_write(monkeypatch: pytest.MonkeyPatch, action: Callable[[int], None]) -> None:
    """Tell ``action`` the number of each write, from 1, right before it."""
    count, write = 0, OwnedZooKeeperOffsets.write

    def acting(self: OwnedZooKeeperOffsets, *arguments: Any) -> dict[Any, str]:
        nonlocal count
        count += 1
        action(count)
        return write(self, *arguments)

    monkeypatch.setattr(OwnedZooKeeperOffsets, "write", acting)


# ---- reset ----


def test_a_dry_run_writes_nothing_and_no_file(world: World) -> None:
    world.put(10, 20)
    assert world("reset", "g", "--all-topics", "--shift-by", "5", "--verbose") == 0
    assert "WARN: No action will be performed as the --execute option is missing.In a future" in world.err
    rows = [line.split() for line in world.out.splitlines() if line]
    assert rows[0] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "LAG-AFTER", "EFFECT"]
    assert rows[1:] == [
        ["g", "t", "0", "10", "15", "35", "skips", "5,", "next", "is", "of", *SENT],
        ["g", "t", "1", "20", "25", "25", "skips", "5,", "next", "is", "of", *SENT],
    ]
    assert (world.offsets(), world.undo_files()) == (["10", "20"], [])


def test_a_reset_keeps_what_it_overwrites(world: World) -> None:
    world.put("+10", 20)
    assert world("reset", "g", "--topic", "t", "--to-latest", "--execute") == 0, world.err
    assert world.offsets() == ["50", "50", "50"]
    (file,) = world.undo_files()
    assert f"zkconsumer offsets undo {file} --zookeeper {world.cluster.zookeeper_connect} --execute" in world.err
    assert world("undo", file, "--format", "json") == 0
    assert [row["effect"] for row in json.loads(world.out)] == ["put back", "put back", "remove"]
    assert world.offsets() == ["50", "50", "50"]
    assert world("undo", file, "--execute") == 0, world.err
    assert world.offsets() == ["+10", "20"]


def test_a_group_in_kafka_is_reset_without_zookeeper(world: World) -> None:
    reset = ("reset", "h", "--topic", "t:1", "--execute", "--undo-file", "before.json")
    assert world(*reset, "--to-offset", "7", zookeeper=False) == 0, world.err
    assert world.cluster.committed("h") == {("t", 1): 7}
    assert "neither members nor offsets" in world.err
    assert world("undo", "before.json", "--execute", zookeeper=False) == 0, world.err
    assert world.cluster.committed("h") == {}


def test_dual_commit_writes_both_stores_and_undoes_both(world: World) -> None:
    world.put(10)
    assert world("reset", "g", "--topic", "t:0", "--to-offset", "30", "--store", "kafka", "--execute") == 0, world.err
    reset = ("reset", "g", "--all-topics", "--shift-by", "-3", "--execute", "--undo-file", "before")
    assert world(*reset) == 0, world.err
    assert (world.offsets(), world.cluster.committed("g")) == (["27"], {("t", 0): 27})
    assert world("undo", "before", "before.kafka", "--execute") == 0, world.err
    assert (world.offsets(), world.cluster.committed("g")) == (["10"], {("t", 0): 30})
    (file,) = [name for name in world.undo_files() if "T" in name and parsed(name)["partitions"][0]["before"] is None]
    assert world("undo", file, "--execute") == 0, world.err
    assert world.cluster.committed("g") == {}


def before_begin(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Act once, after the plan and right before the writes read what is there."""
    left, begin = [action], OffsetRun.begin

    def acting(self: OffsetRun, *arguments: Any) -> int:
        if left:
            left.pop()()
        return begin(self, *arguments)

    monkeypatch.setattr(OffsetRun, "begin", acting)


@pytest.fixture
def dual(world: World) -> Iterator[World]:
    """Partition 0 of the group is at 10 in both stores."""
    world.put(10)
    reset = ("reset", "g", "--topic", "t:0", "--to-offset", "10", "--store", "kafka")
    assert world(*reset, "--execute", "--undo-file", "first") == 0, world.err
    yield world
    world.zookeeper.remove("/consumers/g")
    assert world("undo", "first", "--execute", "--force") == 0, world.err


def test_an_owner_leaves_before_the_reset_of_both_stores(dual: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka was left to the owner, and kept the larger offset, at which the next member starts."""
    dual.owner(0, zkconsumer="1.0", **{CONFLICT_KEY: "adopt"})
    before_begin(monkeypatch, lambda: dual.zookeeper.remove("/consumers/g/owners/t/0"))
    assert dual("reset", "g", "--all-topics", "--to-offset", "3", "--execute") == 0, dual.err
    assert (dual.offsets(), dual.cluster.committed("g")) == (["3"], {("t", 0): 3})


def test_both_stores_follow_the_last_commit_of_an_owner(dual: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner left after the plan was made. ZooKeeper got the new offset of the plan, or Kafka another one."""

    def leave() -> None:
        dual.put(15)
        dual.zookeeper.remove("/consumers/g/owners/t/0")

    dual.owner(0, zkconsumer="1.0", **{CONFLICT_KEY: "adopt"})
    before_begin(monkeypatch, leave)
    reset = ("reset", "g", "--all-topics", "--shift-by", "-3", "--execute", "--verbose", "--format", "json")
    assert dual(*reset) == 0, dual.err
    assert (dual.offsets(), dual.cluster.committed("g")) == (["12"], {("t", 0): 12})
    (row,) = json.loads(dual.out)
    assert (row["current_offset"], row["new_offset"]) == (15, 12)


def test_kafka_is_left_alone_where_zookeeper_was(dual: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in Kafka alone, an offset that is further ahead counts."""
    before_begin(monkeypatch, lambda: dual.put(12))
    assert dual("reset", "g", "--all-topics", "--to-offset", "30", "--execute") == 1
    assert (dual.offsets(), dual.cluster.committed("g")) == (["12"], {("t", 0): 10})
    assert "somebody wrote it meanwhile: 12" in dual.err
    assert "30" not in dual.out.split()


def test_a_signal_between_the_stores_is_told(dual: World, monkeypatch: pytest.MonkeyPatch) -> None:
    before_write(monkeypatch, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert dual("reset", "g", "--all-topics", "--to-offset", "30", "--execute") == 143
    assert (dual.offsets(), dual.cluster.committed("g")) == (["30"], {("t", 0): 10})
    assert "group g, Kafka: nothing was written: stopped by the user" in dual.err
    assert "30" not in dual.out.split(), "a row means: in all stores"


def parsed(name: str) -> Any:
    return json.loads(Path(name).read_text())


def test_one_refused_group_does_not_stop_the_others(world: World) -> None:
    world.put(10)
    world.put(10, group="h")
    world.owner(0)
    assert world("reset", "g", "h", "--all-topics", "--to-earliest", "--execute") == 1
    assert "Error: Assignments can only be reset if the group 'g' is inactive" in world.out
    assert "t-0: the Scala member g_a owns it" in world.out
    assert (world.offsets(), world.offsets("h")) == (["10"], ["0"])


def test_a_group_without_an_undo_file_stops_no_other(world: World) -> None:
    """The group's name is too long for an undo file, so no offset of the group is written."""
    long = "f" * 240
    world.put(10)
    world.put(10, group=long)
    assert world("reset", long, "g", "--all-topics", "--to-earliest", "--execute") == 1
    assert f"group {long}, ZooKeeper: nothing was written" in world.err
    assert (world.offsets(long), world.offsets()) == (["10"], ["0"])
    assert [line.split()[0] for line in world.out.splitlines() if line][1:] == ["g"]


@pytest.mark.parametrize(
    ("signal_number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_signal_lists_what_was_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch, signal_number: int, code: int
) -> None:
    monkeypatch.setattr(group_offsets_admin, "BATCH", 1)
    before_write(monkeypatch, lambda number: os.kill(os.getpid(), signal_number) if number == 2 else None)
    world.put(10, 10, 10)
    handler = signal.getsignal(signal_number)
    assert world("reset", "g", "--all-topics", "--to-offset", "3", "--execute") == code
    assert signal.getsignal(signal_number) is handler
    assert world.offsets() == ["3", "3", "10"]
    assert [line.split()[2] for line in world.out.splitlines()[2:]] == ["0", "1"], "only the written rows"
    assert "group g, ZooKeeper: 2 written, 1 not written, 0 unknown (stopped by the user)" in world.err
    assert "not written: the run ended before it" in world.err
    (file,) = world.undo_files()
    assert f"offsets undo {file}" in world.err
    assert world("undo", file, "--execute") == 0, world.err
    assert world.offsets() == ["10", "10", "10"]


def test_impatient_signals_do_not_hide_what_was_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second signal interrupts the write, and the third signal the look at the result."""

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    def impatient(number: int) -> None:
        if number == 2:
            interrupt()
            monkeypatch.setattr(OffsetRun, "settle", interrupt)
            interrupt()

    monkeypatch.setattr(group_offsets_admin, "BATCH", 1)
    before_write(monkeypatch, impatient)
    world.put(10, 10, 10)
    with suppress(KeyboardInterrupt):
        assert world("reset", "g", "--all-topics", "--to-offset", "3", "--execute") == 130
    assert "1 written, 1 not written, 1 unknown (it was interrupted)" in world.err
    assert f"offsets undo {world.undo_files()[0]}" in world.err
    assert world.offsets() == ["3", "10", "10"]


def test_an_owner_that_does_not_follow_is_listed(world: World) -> None:
    world.put(10)
    world.owner(0, zkconsumer="1.0", **{CONFLICT_KEY: "adopt"})
    reset = ("reset", "g", "--all-topics", "--to-offset", "3", "--execute", "--wait", "0")
    assert world(*reset) == 1
    assert "t-0 has its new offset, and g_a has not followed" in world.err
    assert world.offsets() == ["3"]


def test_an_undo_refuses_offsets_that_changed_since(world: World) -> None:
    world.put(10, 10)
    assert world("reset", "g", "--all-topics", "--to-offset", "3", "--execute", "--undo-file", "f") == 0
    world.put(4)
    assert world("undo", "f", "--execute") == 1
    assert "1 partitions were changed since" in world.err
    assert world.offsets() == ["4", "3"]
    assert world("undo", "f", "--execute", "--force") == 0, world.err
    assert world.offsets() == ["10", "10"]


def test_an_undo_refuses_an_owner_by_name(world: World) -> None:
    world.put(10, 10)
    assert world("reset", "g", "--all-topics", "--to-offset", "3", "--execute", "--undo-file", "f") == 0
    world.owner(1)
    assert world("undo", "f", "--execute") == 1
    assert "t-1: the Scala member g_a owns it" in world.err
    assert world.offsets() == ["3", "3"]


def test_exported_offsets_can_be_read_again(world: World) -> None:
    world.put(10, 20)
    world.put(5, group="h")
    assert world("reset", "g", "h", "--all-topics", "--to-current", "--dry-run", "--export") == 0
    assert world.out == "g,t,0,10\ng,t,1,20\nh,t,0,5\n\n"
    Path("offsets.csv").write_text(world.out)
    world.put(1, 1)
    assert world("reset", "g", "h", "--from-file", "offsets.csv", "--execute") == 0, world.err
    assert (world.offsets(), world.offsets("h")) == (["10", "20"], ["5"])
    assert world("reset", "x", "--from-file", "offsets.csv", "--dry-run") == 1
    assert "Error: No reset plan for group x found" in world.out


def test_a_dry_run_may_read_a_file_in_place_of_a_cluster(world: World) -> None:
    world.put(10)
    where = ["--zookeeper", world.cluster.zookeeper_connect]
    assert cli.main(["snapshot", "g", "--output", "g.json", *where]) == 0
    assert cli.main(["offsets", "reset", "g", "--all-topics", "--to-latest", "--export", "--from", "g.json"]) == 0
    assert world("prune", "g") == 0
    assert cli.main(["offsets", "prune", "g", "--from", "g.json"]) == 0
    for more in (["--to-latest", "--execute"], ["--by-duration", "P1D"]):
        assert cli.main(["offsets", "reset", "g", "--all-topics", *more, "--from", "g.json"]) == 2


def test_an_existing_undo_file_is_found_before_a_write(world: World) -> None:
    world.put(10)
    Path("before.kafka").write_text("of another run")
    for command in (["reset", "g", "--all-topics", "--to-offset", "3"], ["prune", "g"]):
        assert world(*command, "--execute", "--undo-file", "before") == 2
        assert "before.kafka exists" in world.err
    assert world.offsets() == ["10"]


# ---- prune ----


def test_offsets_of_existing_topics_go_only_if_asked(world: World, cluster: FakeCluster) -> None:
    if "other" not in cluster.topics():
        cluster.create_topic("other", 1)
    world.put(1, 2, 3, 4)
    world.zookeeper.put("/consumers/g/offsets/other/0", b"5")
    world.zookeeper.put("/consumers/g/offsets/gone/0", b"not a number\x1b[2J")
    world.owner(0)
    assert world("prune", "g", "--format", "json") == 0
    told = {(row["topic"], row["partition"]): row["deleted"] for row in json.loads(world.out)}
    assert told == {("gone", 0): True, ("other", 0): False, ("t", 3): True}
    assert world("prune", "g", "--execute", "--undo-file", "f") == 0, world.err
    offsets = world.zookeeper.tree("/consumers/g/offsets")
    assert sorted(path for path in offsets if path.count("/") == 5) == [
        f"/consumers/g/offsets/{where}" for where in ("other/0", "t/0", "t/1", "t/2")
    ]
    assert "/consumers/g/offsets/gone" not in offsets
    assert world("undo", "f", "--execute") == 0, world.err
    assert world.zookeeper.tree("/consumers/g/offsets/gone") == {"/consumers/g/offsets/gone/0": b"not a number\x1b[2J"}
    assert world("prune", "g", "--execute", "--unsubscribed") == 0, world.err
    assert not world.zookeeper.tree("/consumers/g/offsets/other")


def test_an_offset_that_is_written_meanwhile_is_not_dead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(1, 2, 3, 4, 5)
    before_begin(monkeypatch, lambda: world.zookeeper.put("/consumers/g/offsets/t/3", b"44"))
    assert world("prune", "g", "--execute") == 1
    assert "somebody wrote it meanwhile: 44" in world.err
    assert world.offsets() == ["1", "2", "3", "44"]


# ---- usage ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["reset", "g", "--all-topics"], "requires one of the following scenarios"),
        (["reset", "g", "--to-latest"], "One of the reset scopes should be defined: --all-topics, --topic."),
        (["reset", "--all-topics", "--to-latest"], "takes one of these options: [group], [all-groups]"),
        (["reset", "g", "--all-groups", "--all-topics", "--to-latest"], "can't be used with"),
        (["reset", "g", "--all-topics", "--to-latest", "--to-offset", "0"], "can't be used with option"),
        (["reset", "g", "--all-topics", "--topic", "t", "--to-latest"], "can't be used with option"),
        (["reset", "g", "--topic", "t:x", "--to-latest"], "'x' is no partition"),
        (["reset", "g", "--topic", "t", "--to-latest", "--dry-run", "--execute"], "only accepts one of"),
        (["reset", "a/b", "--topic", "t", "--to-latest"], "'a/b' is no group"),
        (["prune", "a/b"], "'a/b' is no group"),
        (["reset", "", "--topic", "t", "--to-latest"], "empty value"),
        (["reset", "g", "--topic", "t", "--to-offset", "9" * 19], "is no offset"),
        (["reset", "g", "--topic", "t", "--to-offset", "1_0"], "is no offset"),
        (["reset", "g", "--topic", "t", "--to-datetime", "today"], "'today' is no time"),
        (["reset", "g", "--topic", "t", "--by-duration", "1d"], "'1d' is no duration"),
        (["reset", "g", "--topic", "t", "--to-latest", "--undo-file", "f"], "--undo-file goes with --execute"),
        (["reset", "g", "h", "--all-topics", "--to-latest", "--execute", "--undo-file", "f"], "is for one group"),
        (["undo", "f", "--dry-run", "--execute"], "only one of"),
        (["prune", "g", "--undo-file", "f"], "--undo-file goes with --execute"),
    ],
)
def test_wrong_usage_is_told(world: World, arguments: list[str], words: str) -> None:
    assert world(*arguments) == 2
    assert words in world.err


HOSTILE = """{"format": "zkconsumer migrate, what was there before", "version": 1, "group": "g", "store": "zookeeper",
"zookeeper.connect":"","when":"","partitions": [{"topic": "a/b", "partition": 0, "before": null, "wrote": null}]}"""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{}", "no undo file of zkconsumer offsets or zkconsumer migrate"),
        ("t,0\n", "f: "),
        (HOSTILE, "'a/b'"),
        ("\xff", "f:"),
    ],
)
def test_a_bad_undo_file_is_named(world: World, content: str | None, words: str) -> None:
    if content is not None:
        Path("f").write_bytes(content.encode("latin-1"))
    assert world("undo", "f", "--execute") == 1
    assert words in world.err
    assert "f" in world.err


@pytest.mark.parametrize("content", [None, "t,0\n", "t,0,1\nt,0,2\n", "t,0,-1\n", "\x00"])
def test_a_bad_csv_file_is_named(world: World, content: str | None) -> None:
    if content is not None:
        Path("plan.csv").write_text(content)
    assert world("reset", "g", "--from-file", "plan.csv", "--dry-run") == 1
    assert "plan.csv" in world.err
