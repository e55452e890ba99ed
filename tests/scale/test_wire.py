"""The rules of the simulation: whose turn it is, and the bytes and the time of a request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.measurements.scale.flow import largest_gap
from scripts.measurements.scale.owners import range_owners
from scripts.measurements.scale.wire import Costs, CountedServer
from tests.cluster.member_process import Consumed
from tests.simulated_clock import Simulation
from zkconsumer.assignors.assignor import Member
from zkconsumer.assignors.scala_assignors import RangeAssignor
from zkconsumer.model import ConsumerId, ThreadId
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper.node_requests import NodeFailure, Transaction
from zkconsumer.zookeeper.node_values import NodeEvent

COSTS = Costs(round_trip=0.2, read=0.01, write=0.05, part=0.02, client=0.0, bandwidth=1e12)
EXACT = pytest.approx


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    made = Simulation()
    with made.clocks():
        yield made
    made.close()


def test_an_ended_task_stops_and_a_failure_comes_out(simulation: Simulation) -> None:
    seen = []
    task = simulation.start("ended", lambda: (simulation.sleep_until(1005.0), seen.append("too late")))  # type: ignore[arg-type]
    simulation.at(1001.0, lambda: simulation.end(task))
    simulation.run(1010.0)
    assert seen == []
    simulation.start("failing", lambda: (_ for _ in ()).throw(ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        simulation.run(1020.0)


def test_requests_sent_together_share_a_round_trip(simulation: Simulation) -> None:
    """The server handles the requests in turn."""
    server = CountedServer(simulation)
    for number in range(10):
        server.put(f"/n/{number}", b"123")
    ended = {}

    def reads(name: str) -> None:
        session = server.connect(lambda _: None, COSTS)
        session.open(Deadline(10))
        simulation.sleep_until(1001.0)
        server.traffic.bytes = 0
        assert len(session.read([f"/n/{number}" for number in range(10)], Deadline(10))) == 10
        ended[name] = simulation.now - 1001.0

    simulation.start("first", lambda: reads("first"))
    simulation.start("second", lambda: reads("second"))
    simulation.run(1010.0)
    assert ended == {"first": EXACT(0.2 + 0.1), "second": EXACT(0.2 + 0.2)}
    assert server.traffic.requests["read"] == 20
    # a request: 12, path 4 + 4, watch 1; an answer: 20, content 4 + 3, stat 68
    assert server.traffic.bytes == 20 * (12 + 9 + 20 + 7 + 68)


def test_a_transaction_is_one_request_with_its_parts(simulation: Simulation) -> None:
    server = CountedServer(simulation)
    server.put("/n")
    seen: list[list[NodeFailure | None]] = []

    def build(transaction: Transaction) -> None:
        transaction.create("/n/a", b"12", ephemeral=True)
        transaction.write("/n/a", b"3", 0)

    def acts() -> None:
        session = server.connect(lambda _: None, COSTS)
        session.open(Deadline(10))
        simulation.sleep_until(1001.0)
        server.traffic.bytes = 0
        seen.append(session.transact(build, Deadline(10)))
        seen.append(session.transact(build, Deadline(10)))

    simulation.start("acts", acts)
    simulation.run(1010.0)
    assert seen == [[None, None], [NodeFailure.NODE_EXISTS, None]]
    assert (server.traffic.requests["multi"], server.traffic.parts) == (2, 4)
    create, write, ends = 9 + 8 + 4 + 2 + 31 + 4, 9 + 8 + 4 + 1 + 4, 9
    assert server.traffic.bytes == 2 * (12 + create + write + ends + 20 + 9 + (4 + 4) + 68 + 2 * 9)
    assert server.traffic.paths["/n/a"] == 2
    assert server.owners_changed == 1000.0, "no owner node"


def test_an_event_comes_before_an_answer_that_knows_more(simulation: Simulation) -> None:
    server = CountedServer(simulation)
    server.put("/n", b"1")
    order: list[tuple[str, float]] = []

    def watches() -> None:
        session = server.connect(lambda _: None, COSTS)
        session.open(Deadline(10))

        def fired(event: NodeEvent) -> None:
            order.append((event.path, round(simulation.now - 1001.0, 3)))

        session.read(["/n", "/later"], Deadline(10), fired)
        simulation.sleep_until(1000.95)
        (node,) = session.read(["/n"], Deadline(10))
        assert node is not None
        order.append((node.data.decode(), round(simulation.now - 1001.0, 3)))

    simulation.start("watches", watches)
    simulation.at(1001.0, lambda: server.put("/n", b"2"))
    simulation.run(1010.0)
    assert order == [("/n", 0.1), ("2", 0.16)]
    assert server.traffic.events == 1
    assert server.traffic.requests["exists"] == 1, "to watch a node that is missing takes another request"


def test_the_expected_owners_are_those_of_range() -> None:
    members = {ConsumerId(f"g_{name}"): Member({"t": [ThreadId(f"g_{name}-0")]}) for name in ("c1", "c10", "c2", "c3")}
    assigned = RangeAssignor().assign(members, {"t": range(10)})
    assert range_owners([f"{name}-0" for name in members], 10) == {
        tp.partition: str(thread) for tp, thread in assigned.items()
    }


def test_a_gap_counts_from_the_start_and_to_the_end() -> None:
    messages = [
        Consumed("t", partition, n, None, None, at) for n, (partition, at) in enumerate([(0, 1), (0, 4), (1, 3)])
    ]
    assert largest_gap(messages, [0], 0.0, 5.0) == 3.0
    assert largest_gap(messages, [0, 1], 0.0, 7.0) == 4.0
    assert largest_gap(messages, [2], 0.0, 7.0) == 7.0
    assert largest_gap(messages, [], 0.0, 7.0) is None
