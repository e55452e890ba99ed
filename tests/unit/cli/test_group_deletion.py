"""``zkconsumer groups --delete`` and ``--delete-offsets`` on a ZooKeeper and a broker in memory, in both stores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.timing import scaled
from tests.unit.clusters import commit_from_outside
from zkconsumer.cli import main
from zkconsumer.model import TopicPartition
from zkconsumer.operations import group_deletion
from zkconsumer.operations.group_snapshot import GroupSnapshot, Problem
from zkconsumer.testing import FakeCluster

OFFSETS = "/consumers/g/offsets/t"
REGISTRATION = b'{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'
Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """A group with offsets 0 to 3 in both stores."""
    with FakeCluster(zookeeper=True) as made:
        made.create_topic("t", 4)
        commit_from_outside(made, {TopicPartition("t", n): n for n in range(4)})
        for n in range(4):
            made.zookeeper.put(f"{OFFSETS}/{n}", b"%d" % n)
        yield made


@pytest.fixture
def run(cluster: FakeCluster, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(arguments: str) -> tuple[int, str, str]:
        where = ["--zookeeper", cluster.zookeeper_connect, "--timeout", "20000"]
        verb, *rest = arguments.split()
        code = main(["groups", verb, *where, *rest])
        return (code, *capsys.readouterr())

    return command


def stored(cluster: FakeCluster) -> tuple[set[int], set[int]]:
    """The partitions with an offset in ZooKeeper, and in Kafka."""
    nodes = {int(path.rpartition("/")[2]) for path in cluster.zookeeper.tree(OFFSETS)}
    return nodes, {partition for _, partition in cluster.committed("g")}


def test_offsets_are_deleted_where_the_brokers_can(cluster: FakeCluster, run: Run) -> None:
    """These brokers are as those before 2.4."""
    code, out, err = run("delete-offsets g --topic t:0,1")
    assert (code, "dry run" in err) == (0, True)
    assert out.count("would be deleted: offset 1") == 2
    assert stored(cluster) == ({0, 1, 2, 3}, {0, 1, 2, 3})
    code, out, err = run("delete-offsets g --topic t:0,1 --execute")
    assert (code, err) == (1, "")
    assert out.count("Request succeed for deleting offsets with topic t:0,1 group g") == 1
    assert out.count("UnsupportedVersionException: Brokers before 2.4") == 2
    assert stored(cluster) == ({2, 3}, {0, 1, 2, 3})
    rows = json.loads(run("delete-offsets g --topic t:2,7 --execute --format json")[1])
    assert [(row["partition"], row["status"][:8], row["coordination"]) for row in rows] == [
        (2, "Successf", "ZooKeeper"),
        (7, "Error: :", "ZooKeeper"),
        (2, "Error: :", "brokers"),
        (7, "Error: :", "brokers"),
    ]
    assert stored(cluster)[0] == {3}


def test_a_group_is_deleted_in_both_stores(cluster: FakeCluster, run: Run) -> None:
    code, out, _ = run("delete g")
    assert (code, out) == (0, "Group 'g' would be deleted: 4 offsets in ZooKeeper and 4 offsets at the brokers.\n")
    assert stored(cluster) == ({0, 1, 2, 3}, {0, 1, 2, 3})
    code, out, _ = run("delete g --execute")
    assert (code, out) == (0, "Deletion of requested consumer groups ('g') was successful.\n")
    assert stored(cluster) == (set(), set())
    assert cluster.zookeeper.node("/consumers/g") is None


def test_one_refused_group_stops_no_other(cluster: FakeCluster, run: Run) -> None:
    cluster.zookeeper.put("/consumers/live/ids/live_a", REGISTRATION, ephemeral_owner=7)
    code, out, _ = run("delete live g --execute")
    assert code == 1
    assert out.splitlines() == [
        "",
        "Error: Deletion of some consumer groups failed:",
        "* Group 'live' could not be deleted due to:"
        " org.apache.kafka.common.errors.GroupNotEmptyException: The group is not empty. (live_a)",
        "",
        "These consumer groups were deleted successfully: 'g'",
    ]
    assert cluster.zookeeper.node("/consumers/live/ids/live_a") is not None


@pytest.mark.parametrize("node", ["ids/g_a", "owners/t/0"])
def test_members_in_zookeeper_protect_both_stores(node: str, cluster: FakeCluster, run: Run) -> None:
    """A member that ZooKeeper coordinates may keep its offsets in Kafka."""
    cluster.zookeeper.put(f"/consumers/g/{node}", REGISTRATION if "ids" in node else b"g_a-0", ephemeral_owner=7)
    code, out, _ = run("delete-offsets g --topic t --execute")
    assert code == 1
    assert "Error: Deleting offsets of a consumer group 'g' is forbidden if the group is not empty." in out
    assert run("delete g --execute")[0] == 1
    assert stored(cluster) == ({0, 1, 2, 3}, {0, 1, 2, 3})


@pytest.mark.parametrize("command", ["delete g", "delete-offsets g --topic t:1"])
def test_unseen_members_protect_the_offsets_in_kafka(
    command: str, cluster: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scala members may keep their offsets in Kafka; to the brokers, such a group has no members."""
    away = ["--zookeeper", "127.0.0.1:1", "--bootstrap-server", cluster.bootstrap_servers]
    away += ["--timeout", str(int(scaled(2) * 1000))]
    assert main(["groups", *command.split(), *away, "--execute"]) == 1
    assert "whether the group has members in ZooKeeper is unknown: ZooKeeper 127.0.0.1:1" in capsys.readouterr().out
    assert stored(cluster)[1] == {0, 1, 2, 3}


def test_an_offset_that_is_written_meanwhile_stays(
    cluster: FakeCluster, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition that somebody claims meanwhile keeps its offset too; the others lose theirs."""
    delete = group_deletion.delete_zookeeper_offsets

    def disturbed(*arguments: object) -> object:
        cluster.zookeeper.put(f"{OFFSETS}/1", b"9")
        cluster.zookeeper.put("/consumers/g/owners/t/2", b"g_a-0", ephemeral_owner=7)
        return delete(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(group_deletion, "delete_zookeeper_offsets", disturbed)
    code, out, _ = run("delete-offsets g --topic t --execute")
    assert code == 1
    assert "Error: :somebody wrote the offset meanwhile" in out
    assert "Error: :somebody owns the partition" in out
    assert stored(cluster)[0] == {1, 2}


def test_offsets_of_a_deleted_topic_can_be_deleted(cluster: FakeCluster, run: Run) -> None:
    cluster.zookeeper.put("/consumers/g/offsets/gone/0", b"5")
    cluster.zookeeper.put("/consumers/g/offsets/gone/1", b"no number")
    assert run("delete-offsets g --topic gone --execute")[0] == 1, "at the brokers there is no such topic"
    assert cluster.zookeeper.tree("/consumers/g/offsets/gone") == {}


def test_an_unknown_group_is_told_with_the_nearest(run: Run) -> None:
    code, out, err = run("delete-offsets G --topic t --execute")
    assert (code, out, err) == (1, "\nError: Consumer group 'G' does not exist.\n", "Did you mean 'g'?\n")


@pytest.mark.parametrize("node", ["", "/ids", "/owners"])
def test_a_node_that_must_not_be_read_may_hide_members(node: str) -> None:
    snapshot = GroupSnapshot("g", 1, problems=(Problem(f"/consumers/g{node}", "we may not read it"),))
    assert "we may not read it" in group_deletion.why_not(snapshot)
    assert "we may not read it" in group_deletion.why_not_offset(snapshot, TopicPartition("t", 0), in_zookeeper=False)


def test_what_nobody_knows_cannot_be_deleted() -> None:
    assert "GroupIdNotFoundException" in group_deletion.why_not(GroupSnapshot("g", 1))
    unread = GroupSnapshot("g", 1, problems=(Problem("/consumers/g/offsets", "not permitted"),))
    assert group_deletion.why_not(unread) == "not everything could be asked"
    assert "GroupIdNotFoundException" in group_deletion.why_not(GroupSnapshot("a/b", 1)), "a name of brokers' groups"
    unseen = GroupSnapshot("g", 1, problems=(Problem("/consumers/g", "not permitted"),))
    assert "members in ZooKeeper is unknown" in group_deletion.why_not(unseen)


def test_nothing_is_deleted_while_the_brokers_are_away(cluster: FakeCluster, run: Run) -> None:
    """They may have members of the group."""
    for number, _, _ in cluster.addresses():
        cluster.stop_broker(number)
    for arguments in ("delete g --execute", "delete-offsets g --topic t --execute"):
        code, out, err = run(f"{arguments} --timeout 1000")
        assert code == 1
        assert group_deletion.BROKERS_UNKNOWN in out
        assert "Warning: " in err
    assert len(cluster.zookeeper.tree(OFFSETS)) == 4
