"""A snapshot of a large group in a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from tests.cluster.conftest import NewTopic
from tests.cluster.in_process import live_source
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import ConsumerId
from zkconsumer.operations.snapshot_reader import LiveSource

MANY_MEMBERS = 10_000
LARGE = 1_000_000


@pytest.fixture
def source(cluster: DevCluster) -> Iterator[LiveSource]:
    """The cluster by its ZooKeeper alone, which names the broker."""
    with live_source(cluster.zookeeper_connect, seconds=60.0) as made:
        yield made


def test_a_large_and_hostile_group(
    source: LiveSource, zookeeper: KazooClient, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    """10,000 members, nodes of almost 1 MB, ACLs that forbid nodes: all the rest is read, and the problems named."""
    group, topic = new_group(), new_topic(1)
    root = f"/consumers/{group}"
    for name in ("ids", f"owners/{topic}", f"offsets/{topic}", "offsets/secret"):
        zookeeper.ensure_path(f"{root}/{name}")
    content = f'{{"version":1,"subscription":{{"{topic}":1}},"pattern":"static","timestamp":"1"}}'.encode()
    nodes = {f"{root}/ids/{group}_h-{n:05d}": content for n in range(MANY_MEMBERS)}
    nodes |= dict.fromkeys((f"{root}/ids/large", f"{root}/owners/{topic}/0"), b"9" * LARGE)
    nodes |= {f"{root}/offsets/{topic}/{n}": b"[" * LARGE for n in range(20)}
    # the nodes end with the client's session, which is quicker than to delete each of them
    for one in [zookeeper.create_async(path, data, ephemeral=True) for path, data in nodes.items()]:
        one.get(timeout=scaled(60))
    zookeeper.set_acls(f"{root}/offsets/secret", [make_digest_acl("somebody", "hunter2", all=True)])
    found = source.snapshot(group)
    assert len(found.members) == MANY_MEMBERS + 1
    assert sum(one.registration is not None for one in found.members.values()) == MANY_MEMBERS
    assert "more than" in found.members[ConsumerId("large")].problem
    assert len(found.offsets) == 20
    assert all(len(one.problem) < 200 and one.offset is None for one in found.offsets.values())
    assert [one.what for one in found.problems] == [f"{root}/offsets/secret"]
    assert "ACL" in found.problems[0].why
    assert "hunter2" not in str(found.acls)
