"""Unknown groups and wrong chroots: what the user probably meant."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager

import pytest

from tests.group_snapshots import Snapshots, group_snapshot
from tests.timing import scaled
from zkconsumer.cluster.cluster_client import ClusterClient, command_config
from zkconsumer.errors import ChrootMissingError
from zkconsumer.operations.group_lookup import (
    Root,
    UnknownGroupError,
    candidate_roots,
    chroot_text,
    require_group,
    similar_names,
    unknown_group_hint,
)
from zkconsumer.operations.group_snapshot import GroupSnapshot, Problem
from zkconsumer.operations.snapshot_reader import LiveSource
from zkconsumer.testing import FakeZooKeeperServer

BROKER = b'{"version":4,"host":"h","port":1,"endpoints":["PLAINTEXT://127.0.0.1:1"]}'
NOTHING, BROKERS, GROUP = Root(False, False, False), Root(True, False, False), Root(True, True, True)


@pytest.mark.parametrize(
    ("name", "names", "similar"),
    [
        ("events", {"event", "evants", "other"}, ["event", "evants"]),
        ("Events", {"events"}, ["events"]),
        ("orders", {"prod-orders-v2", "x"}, ["prod-orders-v2"]),
        ("a", {"b", "c"}, []),
        ("g", set(), []),
    ],
)
def test_similar_names(name: str, names: set[str], similar: list[str]) -> None:
    assert similar_names(name, names) == similar


@pytest.mark.parametrize(
    ("names", "advice", "text"),
    [
        ({"gg1"}, "", "Did you mean 'gg1'?"),
        ({"x"}, "", ""),
        (set(), "", "There are no groups at all."),
        ({"gg1"}, "It is elsewhere.", "It is elsewhere."),
        ({"gg\x1b"}, "", "Did you mean 'gg\\x1b'?"),
    ],
)
def test_the_hint_for_an_unknown_group(names: Collection[str], advice: str, text: str) -> None:
    assert unknown_group_hint("gg", names, advice) == text


@pytest.mark.parametrize(
    ("chroot", "children", "roots"),
    [
        ("", ["/kafka"], ("/kafka",)),
        ("/kafka", [], ("", "/kafka/kafka")),
        ("/kafka/kafka", ["/kafka"], ("/kafka", "", "/kafka/kafka/kafka/kafka")),
        ("/Kafka", [], ("", "/Kafka/Kafka", "/kafka")),
    ],
)
def test_roots_that_may_be_meant(chroot: str, children: list[str], roots: tuple[str, ...]) -> None:
    assert candidate_roots(chroot, children) == roots


@pytest.mark.parametrize(
    ("chroot", "here", "others", "text"),
    [
        ("", NOTHING, {"/kafka": GROUP}, "It is there with --zookeeper h:1/kafka."),
        ("/k", BROKERS, {"": Root(False, True, True)}, "It is there with --zookeeper h:1."),
        ("", NOTHING, {"/a": Root(False, True, True), "/b": GROUP}, "It is there with --zookeeper h:1/b."),
        (
            "/k/k",
            None,
            {"/k": BROKERS},
            "No brokers are registered under '/k/k/brokers/ids'. There are some with --zookeeper h:1/k.",
        ),
        ("", NOTHING, {"/k": NOTHING}, "There is neither /brokers/ids nor /consumers below '/': is the chroot right?"),
        ("", BROKERS, {"/k": BROKERS}, ""),
    ],
)
def test_advice_about_a_chroot(chroot: str, here: Root | None, others: Mapping[str, Root], text: str) -> None:
    assert chroot_text("h:1", chroot, here, others) == text


def test_a_known_group_is_returned() -> None:
    known = group_snapshot(members={"g_h-1": {"t": 1}})
    assert require_group(Snapshots(known), "g") is known


def test_a_group_nobody_could_look_up_is_no_error() -> None:
    doubtful = GroupSnapshot("g", 1, problems=(Problem("brokers", "away"),))
    assert require_group(Snapshots(doubtful), "g") is doubtful


def test_an_unknown_group_is_an_error() -> None:
    with pytest.raises(UnknownGroupError, match="Did you mean .orders1."):
        require_group(Snapshots(GroupSnapshot("orders1", 1)), "orders2")


@pytest.fixture
def server() -> Iterator[FakeZooKeeperServer]:
    """Brokers and the group ``g`` are in the chroot ``/kafka``, and the group ``h`` beside it."""
    with FakeZooKeeperServer() as made:
        made.zookeeper.put("/kafka/brokers/ids/0", BROKER)
        made.zookeeper.put("/kafka/consumers/g")
        made.zookeeper.put("/kafka/kafka2")
        made.zookeeper.put("/consumers/h")
        yield made


@contextmanager
def source_in(server: FakeZooKeeperServer, chroot: str) -> Iterator[LiveSource]:
    with closing(LiveSource(ClusterClient(command_config(server.connect + chroot, None)[0], scaled(5.0)))) as made:
        yield made


def test_another_chroot_counts_more_than_missing_brokers(server: FakeZooKeeperServer) -> None:
    with source_in(server, "") as source:
        with pytest.raises(UnknownGroupError, match=f"It is there with --zookeeper {server.connect}/kafka."):
            require_group(source, "g")
        (problem,) = require_group(source, "h").problems
        assert problem.why.endswith(f"There are some with --zookeeper {server.connect}/kafka.")


@pytest.mark.parametrize("chroot", ["", "/kafka/kafka", "/kafka/kafka2"])
def test_the_right_chroot_is_found(server: FakeZooKeeperServer, chroot: str) -> None:
    with source_in(server, chroot) as source:
        assert source.chroot_advice("g") == f"It is there with --zookeeper {server.connect}/kafka."
        if chroot == "/kafka/kafka":
            with pytest.raises(ChrootMissingError, match=f"--zookeeper {server.connect}/kafka$"):
                source.snapshot("g")
