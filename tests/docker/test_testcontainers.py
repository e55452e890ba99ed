"""A member registers in a ZooKeeper that testcontainers starts, the way projects with Java tests do it."""

from __future__ import annotations

from collections.abc import Iterator

import docker
import pytest
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer

from tests.docker.engine import UnavailableError, need_image
from tests.timing import eventually, scaled
from zkconsumer.core.registration import STATIC, Registration
from zkconsumer.errors import ChrootMissingError
from zkconsumer.model import ConsumerId
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.node_codecs import decode_registration, encode_registration
from zkconsumer.zookeeper.node_values import NodeEvent, NodeEventKind
from zkconsumer.zookeeper.session import Session

IMAGE = "zookeeper:3.9"


@pytest.fixture(scope="module")
def reaper(docker_engine: docker.DockerClient) -> Iterator[None]:
    """Leave testcontainers its reaper if the reaper's image can be had. The reaper cleans up after killed test runs."""
    before = testcontainers_config.ryuk_disabled
    try:
        need_image(docker_engine, testcontainers_config.ryuk_image)
    except UnavailableError:
        testcontainers_config.ryuk_disabled = True
    yield
    testcontainers_config.ryuk_disabled = before


@pytest.fixture
def zookeeper(docker_engine: docker.DockerClient, reaper: None) -> Iterator[str]:
    try:
        need_image(docker_engine, IMAGE)
    except UnavailableError as reason:
        pytest.skip(str(reason))
    container = DockerContainer(IMAGE).with_exposed_ports(2181)
    try:
        with container:
            eventually(lambda: container.exec(["zkServer.sh", "status"]).exit_code == 0, 90, "a ZooKeeper that serves")
            yield f"{container.get_container_host_ip()}:{container.get_exposed_port(2181)}"
    finally:
        container.get_docker_client().client.close()


def opened(hosts: str) -> Session:
    session = Session(hosts, timeout=6.0, on_change=lambda change: None)
    session.open(Deadline(scaled(30)))
    return session


def test_a_registration_is_visible_until_its_session_ends(zookeeper: str) -> None:
    """Another session sees a registration, which ends with the member's session."""
    group, consumer = "g", ConsumerId("g_host-1400000000000-1a2b3c4d")
    registration = Registration(pattern=STATIC, subscription={"orders": 2}, timestamp="1400000000000")
    deadline = Deadline(scaled(60))
    events: list[NodeEvent] = []
    member, observer = opened(zookeeper), opened(zookeeper)
    try:
        member.ensure([paths.ids(group)], deadline)
        path = paths.member(group, consumer)
        assert member.create(path, encode_registration(registration), deadline, ephemeral=True)

        assert observer.children(paths.ids(group), deadline, watch=events.append) == (consumer,)
        (node,) = observer.read([path], deadline)
        assert node is not None
        assert node.ephemeral_owner == member.session_id
        assert decode_registration(node.data, path) == registration

        member.close(deadline)
        eventually(lambda: NodeEvent(NodeEventKind.CHILDREN, paths.ids(group)) in events, 15, "the watch on ids")
        assert observer.children(paths.ids(group), deadline) == ()
    finally:
        member.close(Deadline(5))
        observer.close(Deadline(5))


def test_a_registration_under_a_missing_chroot_is_refused(zookeeper: str) -> None:
    """A registration under a missing chroot is refused before any write."""
    with pytest.raises(ChrootMissingError, match="/nowhere"):
        opened(f"{zookeeper}/nowhere")
