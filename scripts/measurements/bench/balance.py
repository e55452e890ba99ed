"""Messages balanced to more workers than partitions, beside what a user has without it.

- ``waiting``: handlers that wait 50 ms, four processes with ten workers each, three partitions, order by key
- ``zipf``: the same with keys of which few have most of the messages
- ``computing``: handlers of 2 ms of CPU time in worker processes, one for each core
- ``empty``: a handler that only counts, in 64 threads
- ``requests``: packets that ZooKeeper receives in a second at 20,000 messages a second, by its own counter
- ``notes``: the size of the notes in ZooKeeper while one message in a hundred fails twice

Messages are written while the members wait for them. The time runs from the beginning of the first handler to the end
of the last one, or to the end of the turn for those that are slower. The ideal is computed from the keys: all workers
are busy all the time, and the messages of one key come one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from os import sched_getaffinity
from threading import Event
from time import monotonic
from typing import Any

from scripts.measurements.bench.balance_group import (
    PARTITIONS,
    PROCESSES,
    WORKERS,
    BalanceMember,
    BenchedGroup,
    Way,
    even_keys,
    group_of,
    ideal_seconds,
    produce,
    zipf_keys,
)
from scripts.measurements.bench.balance_handlers import FAILING, FAILURES, SPIN_S, WAIT_S
from scripts.measurements.bench.contest import RATE, Column, Measures, in_turns
from scripts.measurements.bench.peers import OURS
from scripts.measurements.bench.plan import Plan
from scripts.measurements.bench.producing import paced
from zkconsumer.devcluster import DevCluster
from zkconsumer.model import TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import paths
from zkconsumer.zookeeper.server_statistics import server_statistics
from zkconsumer.zookeeper.session import Session

NAME = "balance"
HELP = "three partitions and forty workers: handlers that wait, that compute, that do nothing; what ZooKeeper gets"

PLAIN, CONFLUENT = "zkconsumer run(handler)", "confluent, own pool"
_SHARED = {"share.partitions": "true"}
_BY_KEY = {"run": {"concurrency": WORKERS, "order": "key"}}
_KEYS, _SKEWED_KEYS, _EXPONENT = 2_000, 5_000, 0.8
_TURN_S = 20.0
_SLOW_S = 7.0
_PER_SECOND = 20_000
_FAILING_PER_SECOND = 2_000
_DELAYS = (1.0, 5.0)
WAYS = {
    OURS: Way("balanced", "wait", _BY_KEY, _SHARED),
    CONFLUENT: Way("confluent", "wait", {"workers": WORKERS}),
    PLAIN: Way("plain", "wait", {"workers": WORKERS}),
}
SHARE, CPU = "share_of_ideal", "cpu_ms_per_message"
COLUMNS = (
    Column(RATE, "msg/s", digits=0),
    Column(SHARE, "of ideal"),
    Column("repeated", "repeated", digits=0),
    Column(CPU, "CPU ms"),
)


def run(plan: Plan) -> dict[str, Any]:
    """Measures and prints. Returns: everything, for the JSON file."""
    with DevCluster() as cluster:
        cases = [_waiting(cluster, plan), _skewed(cluster, plan), _computing(cluster, plan), _empty(cluster, plan)]
        requests = _requests(cluster, plan)
        notes = _notes(cluster, plan)
    settings = {"partitions": PARTITIONS, "processes": PROCESSES, "workers_of_each": WORKERS, "wait_seconds": WAIT_S}
    return {"scenario": NAME, "cases": cases, **settings, "zookeeper_requests": requests, "notes": notes}


# ---- handlers that record what they did


def _waiting(cluster: DevCluster, plan: Plan) -> dict[str, Any]:
    keys = even_keys(500 if plan.quick else 6_000, _KEYS)
    return _contest(cluster, plan, "waiting", keys, WAYS, PROCESSES * WORKERS, WAIT_S)


def _skewed(cluster: DevCluster, plan: Plan) -> dict[str, Any]:
    keys = zipf_keys(500 if plan.quick else 4_000, _SKEWED_KEYS, _EXPONENT)
    ways = {name: way for name, way in WAYS.items() if name != PLAIN}
    print(
        f"Keys by Zipf's law with exponent {_EXPONENT}; the largest has {_largest(keys):.1%} of the messages, so that"
    )
    print(f"its messages alone take {_largest(keys) * len(keys) * WAIT_S:.1f} s.")
    return _contest(cluster, plan, "zipf", keys, ways, PROCESSES * WORKERS, WAIT_S)


def _largest(keys: list[bytes]) -> float:
    return max(Counter(keys).values()) / len(keys)


def _computing(cluster: DevCluster, plan: Plan) -> dict[str, Any]:
    cores = len(sched_getaffinity(0))
    keys = even_keys(500 if plan.quick else 6_000, _KEYS)
    told = {"run": {"concurrency": cores, "order": "key", "executor": "processes"}}
    ways = {
        OURS: Way("balanced", "spin", told, processes=1),
        PLAIN: Way("plain", "spin", {"workers": cores}, processes=1),
    }
    return _contest(cluster, plan, "computing", keys, ways, cores, SPIN_S)


def _contest(
    cluster: DevCluster, plan: Plan, case: str, keys: list[bytes], ways: Mapping[str, Way], workers: int, each: float
) -> dict[str, Any]:
    """Have each way handle messages with these keys in turns. ``each`` takes so many seconds of a worker."""
    ideal = len(keys) / ideal_seconds(keys, workers, each)
    print(f"{case}: {len(keys):,} messages; the ideal of {workers} workers is {ideal:.0f} a second.\n")

    def contestant(number: int, way: Way) -> Callable[[int], Measures]:
        def handle(turn: int) -> Measures:
            with group_of(cluster, f"bench-{case}-{number}-{turn}", way) as group:
                produce(cluster.bootstrap_servers, group.topic, keys)
                before = group.cpu_seconds
                handled = group.wait_handled(len(keys), _SLOW_S if way.kind == "plain" else _TURN_S)
                cpu = (group.cpu_seconds - before) * 1000 / max(1, len(handled))
                rate, repeated = _recorded_rate(group, each)
            return {RATE: rate, SHARE: rate / ideal, "repeated": repeated, CPU: cpu}

        return handle

    contestants = {name: contestant(number, way) for number, (name, way) in enumerate(ways.items())}
    return {**in_turns(f"{case}", contestants, plan.turns, COLUMNS), "messages": len(keys), "ideal": ideal}


def _recorded_rate(group: BenchedGroup, each: float) -> tuple[float, int]:
    handled = group.handled()
    if not handled:
        raise RuntimeError(f"nothing was handled:\n{group.members[0].log_text()}")
    different = len({(one.partition, one.offset) for one in handled})
    times = [one.at for one in handled]
    return different / (max(times) - min(times) + each), len(handled) - different


# ---- handlers that count


def _empty(cluster: DevCluster, plan: Plan) -> dict[str, Any]:
    """Measure a handler that does nothing. The messages are there before."""
    keys = even_keys(400_000 if plan.quick else 1_000_000, _KEYS)
    run: dict[str, Any] = {"concurrency": 64, "order": "key"}
    ways = {
        OURS: Way("balanced", "count", {"run": run}, processes=1),
        f"{OURS}, no order": Way("balanced", "count", {"run": {**run, "order": "none"}}, processes=1),
        PLAIN: Way("plain", "count", {"workers": PARTITIONS}, processes=1),
    }

    def contestant(number: int, way: Way) -> Callable[[int], Measures]:
        def count(turn: int) -> Measures:
            name = f"bench-empty-{number}-{turn}"
            with group_of(cluster, name, way, lambda topic: produce(cluster.bootstrap_servers, topic, keys)) as group:
                (member,) = group.members
                group.wait(lambda: bool(member.counted) and member.counted[-1][1] >= len(keys), _TURN_S)
                return {RATE: middle_rate(member.counted)}

        return count

    contestants = {name: contestant(number, way) for number, (name, way) in enumerate(ways.items())}
    columns = (Column(RATE, "k msg/s", 1e-3, 0),)
    return {**in_turns("empty", contestants, plan.turns, columns), "messages": len(keys)}


def middle_rate(counted: Sequence[tuple[float, int]]) -> float:
    """Return the messages a second between the first and the last tenth of the counted messages.

    Arguments: (seconds, number so far), in ascending order. Raises RuntimeError if there is too little.
    """
    last = counted[-1][1] if counted else 0
    middle = [one for one in counted if last * 0.1 <= one[1] <= last * 0.9]
    if len(middle) < 2:
        raise RuntimeError(f"too little was counted to tell a rate: {counted[-5:]}")
    (begun, first), (ended, end) = middle[0], middle[-1]
    return (end - first) / (ended - begun)


# ---- what ZooKeeper gets


def _requests(cluster: DevCluster, plan: Plan) -> dict[str, Any]:
    """Measure the packets that ZooKeeper receives in a second, at a steady rate of messages and while none come."""
    seconds = plan.seconds(8.0, 2.0)
    ways = {OURS: Way("balanced", "count", _BY_KEY, _SHARED), PLAIN: Way("plain", "count", {"workers": WORKERS})}
    found = {}
    for number, (name, way) in enumerate(ways.items()):
        found[name] = row = _requests_of(cluster, f"bench-requests-{number}", way, seconds)
        packets, idle = row["packets_per_second"], row["idle_packets_per_second"]
        print(f"{name:<26}{packets:8.1f} packets a second at {row[RATE]:,.0f} messages a second, {idle:.1f} while idle")
    print()
    return found


def _requests_of(cluster: DevCluster, name: str, way: Way, seconds: float) -> Measures:
    with group_of(cluster, name, way) as group:
        idle = _packets_a_second(cluster, seconds / 2)
        pace: dict[str, Any] = {"partitions": PARTITIONS, "per_second": _PER_SECOND, "keys": _KEYS}
        with paced(cluster.bootstrap_servers, group.topic, 1_000_000, **pace):
            group.wait(lambda: _sum_counted(group.members) > _PER_SECOND, _TURN_S)
            before = _sum_counted(group.members)
            packets = _packets_a_second(cluster, seconds)
            rate = (_sum_counted(group.members) - before) / seconds
    return {"packets_per_second": packets, "idle_packets_per_second": idle, RATE: rate}


def _sum_counted(members: Sequence[BalanceMember]) -> int:
    return sum(member.counted[-1][1] for member in members if member.counted)


def _packets_a_second(cluster: DevCluster, seconds: float) -> float:
    """Return the packets that the server receives in a second, without the command that asks for them."""
    before, began = _packets(cluster), monotonic()
    Event().wait(seconds)
    return (_packets(cluster) - before - 1) / (monotonic() - began)


def _packets(cluster: DevCluster) -> int:
    host, _, port = cluster.zookeeper_connect.rpartition(":")
    (server,) = server_statistics([(host, int(port))], Deadline(5.0))
    return int(server.statistics["Received"])


def _notes(cluster: DevCluster, plan: Plan) -> dict[str, Any]:
    """Look at the sizes of the note and of the pointers while one message in a hundred fails twice."""
    way = Way("balanced", "fail_twice", {"run": {"concurrency": 64, "order": "key", "delays": _DELAYS}}, processes=1)
    seconds = plan.seconds(24.0, 4.0)
    samples: list[dict[str, float]] = []
    session = Session(cluster.zookeeper_connect, timeout=10.0, on_change=lambda _: None)
    session.open(Deadline(10.0))
    try:
        with group_of(cluster, "bench-notes", way) as group:
            pace: dict[str, Any] = {"partitions": PARTITIONS, "per_second": _FAILING_PER_SECOND, "keys": 10**9}
            with paced(cluster.bootstrap_servers, group.topic, 10_000_000, **pace):
                began = monotonic()
                while (passed := monotonic() - began) < seconds:
                    Event().wait(1.0)
                    group.check()
                    samples.append({"seconds": round(passed + 1, 1), **_sizes(session, group)})
    finally:
        session.close(Deadline(10.0))
    _print_notes(samples)
    return {"per_second": _FAILING_PER_SECOND, "samples": samples}


def _sizes(session: Session, group: BenchedGroup) -> dict[str, float]:
    partitions = [TopicPartition(group.topic, number) for number in range(PARTITIONS)]
    found: dict[str, float] = {"handled": _sum_counted(group.members)}
    for name, path in (("note_bytes", paths.ack), ("pointer_bytes", paths.pointers)):
        nodes = session.read([path(group.topic, tp) for tp in partitions], Deadline(5.0))
        found[name] = max((len(node.data or b"") for node in nodes if node is not None), default=0)
    return found


def _print_notes(samples: Sequence[Mapping[str, float]]) -> None:
    delays = " and ".join(f"{seconds:.0f} s" for seconds in _DELAYS)
    print(f"One message in {FAILING} of {_FAILING_PER_SECOND:,} a second fails {FAILURES} times, and comes again after")
    print(f"{delays}. The largest node of a partition, in bytes:\n")
    print(f"{'seconds':>8}{'handled':>12}{'note':>8}{'pointers':>10}")
    for sample in samples:
        cells = (sample["handled"], sample["note_bytes"], sample["pointer_bytes"])
        print(f"{sample['seconds']:>8.0f}{cells[0]:>12,.0f}{cells[1]:>8.0f}{cells[2]:>10.0f}")
    print()
