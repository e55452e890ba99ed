"""Failures of the original's groups (and one of ours), each staged on a ZooKeeper in memory.

The name of a test is the name of its report. The docstring tells the failure and the cause.
``zkconsumer/REGRESSIONS.md`` lists all regression tests.
"""

from __future__ import annotations

from time import monotonic

import pytest

from tests.concurrency.group import GROUP, SteppedMember, make_topic, offsets, settle, settled, tp
from tests.concurrency.staging import after, fail
from zkconsumer.core.topic_filter import TopicFilter
from zkconsumer.member.connector_state import Phase
from zkconsumer.member.events import StartsResolved, StopRequested
from zkconsumer.member.zookeeper.rebalancer import NEVER
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.broker_directory import registered_brokers

BROKER = b'{"version":1,"host":"h","port":9092,"jmx_port":-1,"timestamp":"1"}'


def phase(member: SteppedMember) -> Phase:
    return member.rebalancer.state.phase


def test_kafka_101_subscribing_makes_no_topic(server: FakeZooKeeper) -> None:
    """Subscribing to a topic that did not exist made its node, with which no broker could do anything."""
    member = settled(server, "a", topic="later")
    assert server.node(paths.topic("later")) is None
    make_topic(server, 1, "later")
    settle([member])
    assert list(member.owned) == [TopicPartition("later", 0)]


def test_kafka_265_a_burst_of_changes_is_one_rebalance(server: FakeZooKeeper) -> None:
    """Each notification caused a rebalance of its own, inside the callback, where it could lock up."""
    first = settled(server, "a")
    before = first.rebalancer.state.rebalances
    for n in range(5, 20):
        make_topic(server, n)
    others = [SteppedMember(server, f"b{n}") for n in range(5)]
    for other in others:
        other.step()
    first.step()
    assert first.rebalancer.state.rebalances == before + 1


def test_kafka_1010_a_broker_that_vanishes_harms_nothing(server: FakeZooKeeper) -> None:
    """Its missing node made the whole rebalance fail, past all retries: a consumer that was dead and did not say so.

    A node that cannot be read, or that no broker made, does no more.
    """
    for number, garbage in enumerate((b"", b"\xff\xfe", b"null", b"[1]", b'{"version":"x"}', b"[" * 900_000)):
        server.put(paths.broker(77 + number), garbage)
    for name in ("-1", "x", "9" * 30, "007"):
        server.put(f"{paths.BROKER_IDS}/{name}", b"{}")
    for broker in (1, 2):
        server.put(paths.broker(broker), BROKER)
    session = server.session()
    session.open(Deadline(1))
    after(session, "children", lambda: server.remove(paths.broker(2)))
    assert [broker.broker_id for broker in registered_brokers(session, Deadline(1))] == [1]


def test_kafka_1848_shutdown_does_not_wait_for_the_next_attempt(server: FakeZooKeeper) -> None:
    """Between the attempts of a rebalance nobody looked whether the consumer was to be shut down."""
    member = SteppedMember(server, "a")
    fail(member.session, "transact", 1)
    fail(member.session, "read", 1_000_000)
    member.step()
    assert member.rebalancer.state.phase is Phase.STARTING
    member.schedule.due = float("inf")
    member.rebalancer.start()
    member.events.put(StopRequested())
    assert member.rebalancer.join(Deadline(5))


def test_a_start_that_is_resolved_twice_moves_nothing(server: FakeZooKeeper) -> None:
    """A connection broke while the first start was being stored, so a second fetcher asked for the start as well. The
    partition jumped to the second answer: back, or with ``largest`` forward over messages.
    """
    member = settled(server, "a")
    position = member.owned[tp(0)]
    member.events.put(StartsResolved({position: 77}))
    member.events.put(StartsResolved({position: 90}))
    settle([member])
    assert (position.consumed, offsets(server)) == (77, {0: 77})
    member.finish(tp(0), 3)
    member.events.put(StartsResolved({position: 77}))
    settle([member])
    assert member.owned[tp(0)] is position
    assert position.consumed == 80


@pytest.mark.parametrize("away", ["ZooKeeper", "our registration"])
def test_a_due_reconciliation_does_not_spin_while_it_cannot_run(server: FakeZooKeeper, away: str) -> None:
    """The time of the next reconciliation moved on only after a round that succeeded. With ZooKeeper away for longer
    than its interval the group's thread took a whole core; with a round that failed each time it came again at once,
    however long the pause was to be.
    """
    member = settled(server, "a", interval=1000.0, backoff=1000.0, backoff_max=1000.0)
    if away == "ZooKeeper":
        member.session.suspend()
    else:
        path = paths.member(GROUP, member.consumer)
        server.remove(path)
        server.put(path, b"{}", ephemeral_owner=999)
    settle([member])
    member.schedule.reconcile_at = 0.0
    settle([member])
    due = min(member.schedule.reconcile_at, member.schedule.due if member.session.connected else NEVER)
    assert due > monotonic() + 100.0


def test_an_endless_expression_costs_its_time_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its second was spent at each look at the group, on the thread that also renews the lease."""
    server = FakeZooKeeper()
    make_topic(server, 2)
    make_topic(server, 1, topic="a" * 60)
    server.put(
        paths.member(GROUP, f"{GROUP}_bad"), b'{"version":1,"subscription":{"(a|aa)+b":1},"pattern":"white_list"}'
    )
    asked: list[str] = []
    allows = TopicFilter.allows

    def counted(self: TopicFilter, topic: str, exclude_internal: bool) -> bool:
        asked.append(topic)
        return allows(self, topic, exclude_internal)

    monkeypatch.setattr(TopicFilter, "allows", counted)
    monkeypatch.setattr(TopicFilter.__init__, "__kwdefaults__", {"match_seconds": 0.1})
    member = settled(server, "m")
    assert len(member.owned) == 2
    for partitions in range(3, 8):
        make_topic(server, partitions)
        settle([member], rounds=3)
    assert len(member.owned) == 7
    assert asked.count("a" * 60) == 1


def test_a_node_wanted_but_not_claimed_is_deleted_later(server: FakeZooKeeper) -> None:
    """An operator overwrote our owner node. The round that noticed wanted to claim the partition again, and newer
    events ended it before that. The next round gave the partition to another member. By then nobody remembered our
    node, so that member waited for it as long as our session lived.
    """
    member = settled(server, "a")
    nodes = member.coordinator.rounds.owner_nodes
    server.put(paths.owner(GROUP, tp(0)), b"garbage")
    nodes.doubt([tp(0)])
    nodes.sweep({tp(0)}, Deadline(60))
    assert server.node(paths.owner(GROUP, tp(0))) is not None
    nodes.sweep((), Deadline(60))
    assert server.node(paths.owner(GROUP, tp(0))) is None
