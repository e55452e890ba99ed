"""The plan of a group whose strategy needs one: its inputs, the assignment, and reservations. Pure; any thread.

One member, the planner, writes the plan to one node; all others follow (``assignors.placement_decision``). The content
is JSON of a version. It may be anybody's: a decoder returns a whole and consistent plan, or raises InvalidPlanError.
Whole means that each partition which a member or a reservation may have is assigned once. So no partition stays without
an owner because a plan forgot it.

Members of ``lag-aware`` report to the planner the lag of each partition, and its rate of messages. A report that cannot
be read counts as none, since it only decides about moves.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from zkconsumer.core.names import name_problem
from zkconsumer.core.registration import PLAN_VERSION
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition, thread_id

MAX_PLAN_BYTES = 512 * 1024
"""The size of the largest plan. ZooKeeper refuses nodes of 1 MB."""
MOST_PARTITIONS = 200_000
"""Partitions in a plan. A run such as ``0-2147483647`` is a few bytes and fills the memory."""
MOST_STREAMS = 500_000
"""Streams of all members and reservations, counted for each topic. A plan of a few bytes can name any number."""
_MOST_NUMBER = (1 << 31) - 1
_MOST_STREAMS_EACH = 100_000
_LONGEST_NAME = 1_000

Streams = Mapping[str, int]
"""The number of streams that a member has for each topic."""


class InvalidPlanError(Exception):
    """The bytes are no plan that can be followed; the message says why."""


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """The group as the planner saw it. A member follows a plan only while it sees the same.

    ``streams`` are those of each member, for topics that exist. ``lasting`` are the members with a
    ``group.instance.id``, whose partitions are reserved after they have left. ``partitions`` are the numbers of each
    topic that a member wants.
    """

    strategy: str
    streams: Mapping[ConsumerId, Streams]
    partitions: Mapping[str, tuple[int, ...]]
    lasting: frozenset[ConsumerId] = frozenset()


@dataclass(frozen=True, slots=True)
class PlacementPlan:
    """A plan: which thread should own which partition.

    ``reserved`` are members that have left, with their streams. The assignment may give partitions to their threads;
    these partitions have no owner for a while, on purpose.
    """

    inputs: PlanInputs
    assignment: Mapping[TopicPartition, ThreadId]
    reserved: Mapping[ConsumerId, Streams] = field(default_factory=dict)
    planner: str = ""

    @property
    def present(self) -> dict[TopicPartition, ThreadId]:
        """The assignment without reserved partitions."""
        return {tp: thread for tp, thread in self.assignment.items() if consumer_of(thread) not in self.reserved}

    @property
    def held_back(self) -> dict[TopicPartition, ConsumerId]:
        """The reserved partitions, with the member that each waits for."""
        return {
            tp: consumer for tp, thread in self.assignment.items() if (consumer := consumer_of(thread)) in self.reserved
        }


def too_large(inputs: PlanInputs) -> str:
    """Return in words why a group is too large for a plan; empty if it is not. Costs little, whatever the numbers."""
    partitions = sum(map(len, inputs.partitions.values()))
    streams = sum(sum(one.values()) for one in inputs.streams.values())
    if partitions > MOST_PARTITIONS:
        return f"{partitions} partitions are more than the {MOST_PARTITIONS} of a plan"
    if streams > MOST_STREAMS:
        return f"{streams} streams of all topics are more than the {MOST_STREAMS} of a plan"
    return ""


def consumer_of(thread: ThreadId) -> ConsumerId:
    """Return the member that a thread belongs to."""
    return ConsumerId(thread.rpartition("-")[0])


# ---- writing


def encode_plan(plan: PlacementPlan) -> bytes:
    """Return the content of the plan's node. Raises ValueError if no member could read it."""
    subscriptions: dict[tuple[tuple[str, int], ...], int] = {}

    def known(streams: Streams) -> int:
        return subscriptions.setdefault(tuple(sorted(streams.items())), len(subscriptions))

    inputs = plan.inputs
    members = {c: [known(streams), int(c in inputs.lasting)] for c, streams in sorted(inputs.streams.items())}
    reserved = {c: known(streams) for c, streams in sorted(plan.reserved.items())}
    document = {
        "version": PLAN_VERSION,
        "strategy": inputs.strategy,
        "planner": plan.planner,
        "partitions": {topic: _runs(numbers) for topic, numbers in sorted(inputs.partitions.items())},
        "subscriptions": [dict(streams) for streams in subscriptions],
        "members": members,
        "reserved": reserved,
        "assignment": _by_thread(plan.assignment),
    }
    data = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(data) > MAX_PLAN_BYTES:
        raise ValueError(f"the plan takes {len(data)} bytes, more than the {MAX_PLAN_BYTES} that members read")
    # the planner would write a plan that it cannot read again and again, and each write wakes all members
    try:
        same = decode_plan(data) == plan
    except InvalidPlanError as error:
        raise ValueError(f"no member could read the plan: {error}") from error
    if not same:
        raise ValueError("members would read another plan than the one that was made")
    return data


def _by_thread(assignment: Mapping[TopicPartition, ThreadId]) -> dict[str, dict[str, str]]:
    numbers: dict[ThreadId, dict[str, list[int]]] = {}
    for tp, thread in sorted(assignment.items()):
        numbers.setdefault(thread, {}).setdefault(tp.topic, []).append(tp.partition)
    return {
        thread: {topic: _runs(listed) for topic, listed in topics.items()} for thread, topics in sorted(numbers.items())
    }


def _runs(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text: ``0-3,9``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)


# ---- reading


def decode_plan(data: bytes) -> PlacementPlan:
    """Return the plan in a node. Raises InvalidPlanError for anything that is no whole plan of our version."""
    if len(data) > MAX_PLAN_BYTES:
        _refuse(f"{len(data)} bytes are more than the {MAX_PLAN_BYTES} of a plan")
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        _refuse(f"no JSON: {error}")
    found = _object(document, "the plan")
    version = found.get("version")
    if type(version) is not int or version != PLAN_VERSION:
        _refuse(f"version {version!r:.40}, ours is {PLAN_VERSION}")
    budget = [MOST_PARTITIONS]
    partitions = {
        _name(t): _numbers(text, budget) for t, text in _object(found.get("partitions"), "partitions").items()
    }
    subscriptions = _Subscriptions(_list(found.get("subscriptions"), "subscriptions"))
    streams: dict[ConsumerId, Streams] = {}
    lasting = set()
    for consumer, entry in _object(found.get("members"), "members").items():
        at, lasts = _pair(entry)
        streams[_consumer(consumer)] = subscriptions.of(at)
        if lasts:
            lasting.add(ConsumerId(consumer))
    reserved = {_consumer(c): subscriptions.of(at) for c, at in _object(found.get("reserved"), "reserved").items()}
    if reserved.keys() & streams.keys():
        _refuse("a member is present and reserved for")
    inputs = PlanInputs(_name(_text(found.get("strategy"), "strategy")), streams, partitions, frozenset(lasting))
    assignment = _assignment(_object(found.get("assignment"), "assignment"))
    plan = PlacementPlan(inputs, assignment, reserved, _name(_text(found.get("planner"), "planner")))
    _check_whole(plan)
    return plan


def _assignment(found: Mapping[str, object]) -> dict[TopicPartition, ThreadId]:
    assignment: dict[TopicPartition, ThreadId] = {}
    budget = [MOST_PARTITIONS]
    for thread, topics in found.items():
        for topic, text in _object(topics, "a thread").items():
            for number in _numbers(text, budget):
                tp = TopicPartition(topic, number)
                if tp in assignment:
                    _refuse(f"{tp} is assigned twice")
                assignment[tp] = ThreadId(thread)
    return assignment


def _check_whole(plan: PlacementPlan) -> None:
    """Refuse a plan that forgets a partition, or gives one to a thread that takes no part in its topic."""
    inputs = plan.inputs
    taking: dict[str, set[ThreadId]] = {}
    wanted = {topic for streams in inputs.streams.values() for topic in streams}
    assigned: dict[str, set[int]] = {}
    for tp, thread in plan.assignment.items():
        consumer, _, number = thread.rpartition("-")
        streams = inputs.streams.get(ConsumerId(consumer)) or plan.reserved.get(ConsumerId(consumer)) or {}
        known = taking.setdefault(tp.topic, set())
        if thread not in known:
            count = streams.get(tp.topic, 0)
            if not (number.isascii() and number.isdecimal() and len(number) <= 6 and int(number) < count):
                _refuse(f"{thread} takes no part in {tp.topic}")
            if thread != thread_id(ConsumerId(consumer), int(number)):
                _refuse(f"{thread} is no thread")
            known.add(thread)
        assigned.setdefault(tp.topic, set()).add(tp.partition)
    for topic, numbers in inputs.partitions.items():
        if assigned.pop(topic, set()) != (set(numbers) if topic in wanted else set()):
            _refuse(f"the partitions of {topic} are not assigned as a whole")
    if assigned:
        _refuse(f"{min(assigned)} is assigned and does not exist")


def _refuse(why: str) -> NoReturn:
    raise InvalidPlanError(why)


def _object(value: object, what: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        _refuse(f"{what} should be a JSON object, not {value!r:.40}")
    return value


def _list(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        _refuse(f"{what} should be a list, not {value!r:.40}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str):
        _refuse(f"{what} should be text, not {value!r:.40}")
    return value


def _whole(value: object, most: int, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        _refuse(f"{what} should be a number from 0 to {most}, not {value!r:.40}")
    return value


def _pair(value: object) -> tuple[object, bool]:
    entry = _list(value, "a member")
    if len(entry) != 2:
        _refuse(f"a member should be a pair, not {value!r:.40}")
    return entry[0], _whole(entry[1], 1, "the second part of a member") == 1


class _Subscriptions:
    """The subscriptions of a plan, each named by members and reservations. Counts the streams that these have."""

    def __init__(self, listed: Sequence[object]) -> None:
        self._known = [_streams(one) for one in listed]
        self._sizes = [sum(streams.values()) for streams in self._known]
        self._left = MOST_STREAMS

    def of(self, at: object) -> Streams:
        """Return the subscription of this number."""
        number = _whole(at, len(self._known) - 1, "a subscription")
        self._left -= self._sizes[number]
        if self._left < 0:
            _refuse(f"there are more than {MOST_STREAMS} streams")
        return self._known[number]


def _streams(value: object) -> Streams:
    counts = _object(value, "streams")
    return {_name(t): _whole(count, _MOST_STREAMS_EACH, "a number of streams") for t, count in counts.items()}


def _consumer(name: str) -> ConsumerId:
    _check_name(name, name_problem(name))
    return ConsumerId(name)


def _name(name: str) -> str:
    _check_name(name, name_problem(name, slash_allowed=True))
    return name


def _check_name(name: str, problem: str | None) -> None:
    """Refuse a name that no node can have: logs and states would show it."""
    if problem is not None or len(name) > _LONGEST_NAME:
        _refuse(problem or f"{name[:40]!r}... has {len(name)} characters")


def _numbers(value: object, budget: list[int]) -> tuple[int, ...]:
    """Return the numbers of ``0-3,9``, ascending. ``budget`` has the numbers that may still come."""
    text = _text(value, "a list of partitions")
    numbers: list[int] = []
    for run in text.split(",") if text else ():
        first, dash, last = run.partition("-")
        begin = _decimal(first)
        end = _decimal(last) if dash else begin
        budget[0] -= max(0, end - begin) + 1
        if end < begin or (numbers and begin <= numbers[-1]) or budget[0] < 0:
            _refuse(f"{run!r:.40} is no run of partitions, or there are more than {MOST_PARTITIONS}")
        numbers.extend(range(begin, end + 1))
    return tuple(numbers)


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10) or int(text) > _MOST_NUMBER:
        _refuse(f"{text!r:.40} is no partition number")
    return int(text)


def streams_of(threads: Mapping[str, Iterable[ThreadId]], partitions: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the number of streams of a member for each of its topics that has partitions."""
    return {topic: len(tuple(ids)) for topic, ids in threads.items() if partitions.get(topic)}


VERSION = 1
MAX_REPORT_BYTES = 256 * 1024
"""The size of the largest report. A member with more partitions tells nothing of the last ones."""
_LARGEST = 1e15
_ENTRY_BYTES = 40


class PartitionLoad(NamedTuple):
    """The messages that a partition still has, and the new ones in a second."""

    lag: float
    rate: float


Loads = Mapping[TopicPartition, PartitionLoad]


def encode_loads(loads: Loads) -> bytes:
    """Return the content of a member's node."""
    topics: dict[str, dict[str, list[float]]] = {}
    size = 0
    for tp, load in sorted(loads.items()):
        size += _ENTRY_BYTES + (len(tp.topic.encode()) if tp.topic not in topics else 0)
        if size > MAX_REPORT_BYTES:
            break
        topics.setdefault(tp.topic, {})[str(tp.partition)] = [round(load.lag), round(load.rate, 3)]
    return json.dumps({"version": VERSION, "loads": topics}, ensure_ascii=False, separators=(",", ":")).encode()


def decode_loads(data: bytes) -> dict[TopicPartition, PartitionLoad]:
    """Return the loads in a member's node; those that can be read."""
    if len(data) > MAX_REPORT_BYTES:
        return {}
    try:
        document = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or type(version := document.get("version")) is not int or version != VERSION:
        return {}
    topics = document.get("loads")
    return {
        TopicPartition(topic, int(number)): PartitionLoad(*load)
        for topic, numbers in (topics.items() if isinstance(topics, dict) else ())
        for number, load in (numbers.items() if isinstance(numbers, dict) else ())
        if number.isascii() and number.isdecimal() and len(number) <= 10 and _is_load(load)
    }


def _is_load(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_amount, value))


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _LARGEST
