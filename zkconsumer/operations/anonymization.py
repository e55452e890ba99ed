"""Replaces the names in group snapshots by random ones, so that a file can be sent to somebody else. Pure.

The same name becomes the same random name in all snapshots of one call. The new names have the order of the old ones by
Java's ``String.compareTo``. So every strategy that sorts names assigns the same partitions to the same members.

The orders of ``roundrobin`` and ``consistent-hash``, which sort hashes, are not kept; a problem says so of groups that
may use ``roundrobin``. Nor is the order of threads kept for two consumer ids of which one is the other with ``-`` and a
number behind it. A replacement keeps nothing of the name, not even the length, and no table is kept.

These stay: numbers of partitions and streams, offsets, times, transactions, session ids, broker ids, ports, versions,
names of strategies, Kafka's own topics, and figures of ZooKeeper's servers. Texts of problems are dropped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random, SystemRandom

from zkconsumer.core.registration import WHITE_LIST, Registration
from zkconsumer.core.subscription import subscribed_topics
from zkconsumer.core.topic_filter import InvalidTopicFilterError, TopicFilterTimeoutError
from zkconsumer.model import ConsumerId, TopicPartition, utf16_key
from zkconsumer.operations.group_snapshot import (
    BrokerNode,
    BrokersGroup,
    BrokersMember,
    GroupSnapshot,
    KafkaOffset,
    LoanNode,
    MemberNode,
    PlanNode,
    PointersNode,
    Problem,
)
from zkconsumer.zookeeper.node_values import ZooKeeperServer

HIDDEN = "(hidden)"
"""Stands for a text that may hold names."""

_KEPT = frozenset({"strategy", "plan", "zkconsumer", "scala.compat.version", "coordination", "message.model"})
"""The keys of a registration whose values are no names."""
_INTERNAL = ("__consumer_offsets", "__transaction_state")
_PREFIXES = ("T-", "__topic-", "t-")
"""Of topics before, between and after :data:`_INTERNAL`."""
_UNKEPT = "the random names of the topics do not keep its order: it would assign otherwise"
_THREAD = re.compile(r"(?P<consumer>.*)(?P<number>-[0-9]{1,9})", re.DOTALL)
_STARTED = re.compile(r"(?P<host>.+)-(?P<ms>[0-9]{13})-[0-9a-f]{8}", re.DOTALL)
_PLACES = 36**10
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def anonymized(snapshots: Sequence[GroupSnapshot], random: Random | None = None) -> list[GroupSnapshot]:
    """Return the snapshots with random names. ``random`` is for tests; the default cannot be foreseen."""
    return _Names(snapshots, random or SystemRandom()).snapshots()


def _rising(
    names: Iterable[str], prefix: str, random: Random, key: Callable[[str], bytes] = utf16_key
) -> dict[str, str]:
    """Return a random name for each name, in the same order."""
    wanted = sorted(set(names), key=key)
    return {
        name: prefix + _digits(value)
        for name, value in zip(wanted, sorted(random.sample(range(_PLACES), len(wanted))), strict=True)
    }


def _digits(value: int) -> str:
    found = ""
    for _ in range(10):
        value, digit = divmod(value, 36)
        found = _DIGITS[digit] + found
    return found


class _Names:
    """The new names of everything in some snapshots."""

    def __init__(self, snapshots: Sequence[GroupSnapshot], random: Random) -> None:
        self._snapshots = snapshots
        self._random = random
        self._groups = _rising((one.group for one in snapshots), "group-", random)
        self._topics = self._topic_names()
        ids = {group: self._consumer_ids(group) for group in self._groups}
        hosts = {_parts(group, name)[0] for group, names in ids.items() for name in names}
        self._hosts = _rising(hosts, "host", random, _thread_key)
        self._consumers: dict[str, str] = {}
        for group, names in ids.items():
            self._consumers |= self._consumer_names(group, names)
        brokers_members = [one for snapshot in snapshots for one in _members(snapshot)]
        self._member_ids = _rising((one.member_id for one in brokers_members), "member-", random)
        self._clients = _rising((one.client_id for one in brokers_members), "client-", random)
        self._instances = _rising((one.instance_id or "" for one in brokers_members), "instance-", random)
        self._others: dict[str, str] = {}

    def snapshots(self) -> list[GroupSnapshot]:
        """Return the snapshots with the new names."""
        return [self._snapshot(one) for one in self._snapshots]

    # ---- names

    def _topic_names(self) -> dict[str, str]:
        names: set[str] = set()
        for one in self._snapshots:
            names |= {tp.topic for tp in (*one.owners, *one.offsets, *(one.kafka_offsets or ()), *one.logs)}
            names |= {tp.topic for tp in (*one.acks, *one.pointers, *one.loans, *_planned(one))}
            names |= one.topics.keys()
            for node in one.members.values():
                if node.registration is not None and not node.registration.is_wildcard:
                    names |= node.registration.subscription.keys()
            for member in _members(one):
                names |= {*member.topics, *(tp.topic for tp in member.assignment or ())}
        found = {name: name for name in names.intersection(_INTERNAL)}
        kept = [utf16_key(name) for name in _INTERNAL]
        for at, prefix in enumerate(_PREFIXES):
            part = [name for name in names.difference(_INTERNAL) if sum(one < utf16_key(name) for one in kept) == at]
            found |= _rising(part, prefix, self._random)
        return found

    def _consumer_ids(self, group: str) -> set[str]:
        return {
            name
            for one in self._snapshots
            if one.group == group
            for name in (
                *one.members,
                *(_consumer(owner.thread) for owner in one.owners.values() if owner.thread),
                *(borrower for loans in one.loans.values() for borrower in loans),
                *(() if one.plan is None else (*one.plan.members, *one.plan.reserved)),
                *map(_consumer, _planned(one).values()),
            )
        }

    def _consumer_names(self, group: str, ids: set[str]) -> dict[str, str]:
        """Return new consumer ids of a group, with host, time and random part if the order of the ids allows."""
        ordered = sorted(ids, key=_thread_key)
        ends = sorted(self._random.sample(range(16**8), len(ordered)))
        made = {}
        for name, end in zip(ordered, ends, strict=True):
            host, started = _parts(group, name)
            made[name] = f"{self._groups[group]}_{self._hosts[host]}" + (f"-{started}-{end:08x}" if started else "")
        new = list(made.values())
        if len(set(new)) == len(new) and new == sorted(new, key=_thread_key):
            return made
        return _rising(ids, f"{self._groups[group]}_", self._random, _thread_key)

    def _host(self, name: str) -> str:
        """Return the new name of a host or an address; empty stays empty. A leading slash and a port stay."""
        slash, rest = ("/", name[1:]) if name.startswith("/") else ("", name)
        if not rest:
            return name
        if rest not in self._hosts:
            self._hosts[rest] = f"host{_digits(self._random.randrange(_PLACES))}"
        return slash + self._hosts[rest]

    def _address(self, text: str) -> str:
        host, colon, port = text.rpartition(":")
        if colon and port.isascii() and port.isdecimal():
            return f"{self._host(host)}:{port}"
        return self._host(text)

    def _other(self, name: str) -> str:
        """Return the new name of anything else, empty for an empty one."""
        if name and name not in self._others:
            self._others[name] = f"name-{_digits(self._random.randrange(_PLACES))}"
        return self._others.get(name, "")

    def _thread(self, thread: str) -> str:
        consumer = _consumer(thread)
        return self._consumers[consumer] + thread[len(consumer) :] if thread else ""

    def _tp(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(self._topics[tp.topic], tp.partition)

    def _path(self, path: str) -> str:
        """Return a path with new names; words of ZooKeeper's layout and numbers stay."""
        known = {**self._others, **self._topics, **self._consumers, **self._groups}
        layout = {"", "consumers", "ids", "owners", "offsets", "broadcast", "brokers", "topics", "partitions", "state"}
        layout |= {"acks", "parked", "loans", "report", "placement"}
        parts = path.split("/")
        return "/".join(
            part if part in layout or part.isdecimal() else known.get(part) or self._other(part) for part in parts
        )

    # ---- parts of a snapshot

    def _snapshot(self, one: GroupSnapshot) -> GroupSnapshot:
        return replace(
            one,
            group=self._groups[one.group],
            zookeeper=self._connect(one.zookeeper),
            bootstrap=self._connect(one.bootstrap),
            members={ConsumerId(self._consumers[name]): self._member(node, one) for name, node in one.members.items()},
            owners={
                self._tp(tp): replace(node, thread=self._thread(node.thread), problem=_hidden(node.problem))
                for tp, node in one.owners.items()
            },
            offsets={self._tp(tp): replace(node, problem=_hidden(node.problem)) for tp, node in one.offsets.items()},
            acks={self._tp(tp): replace(node, problem=_hidden(node.problem)) for tp, node in one.acks.items()},
            pointers={self._tp(tp): _without_reasons(node) for tp, node in one.pointers.items()},
            loans={self._tp(tp): self._loans(loans) for tp, loans in one.loans.items()},
            plan=None if one.plan is None else self._plan(one.plan),
            kafka_offsets=self._kafka_offsets(one.kafka_offsets),
            brokers_group=self._brokers_group(one.brokers_group),
            topics={
                self._topics[name]: replace(node, problem=_hidden(node.problem)) for name, node in one.topics.items()
            },
            logs={self._tp(tp): replace(log, problem=_hidden(log.problem)) for tp, log in one.logs.items()},
            brokers={number: self._broker(broker) for number, broker in one.brokers.items()},
            servers=tuple(map(self._server, one.servers)),
            other_nodes={self._path(path): node for path, node in one.other_nodes.items()},
            acls={self._path(path): self._rights(text) for path, text in one.acls.items()},
            problems=(
                *(Problem(self._what(problem.what), HIDDEN) for problem in one.problems),
                *((Problem("roundrobin", _UNKEPT),) if _may_use_roundrobin(one) else ()),
            ),
        )

    def _member(self, node: MemberNode, one: GroupSnapshot) -> MemberNode:
        return replace(node, registration=self._registration(node.registration, one), problem=_hidden(node.problem))

    def _kafka_offsets(
        self, offsets: Mapping[TopicPartition, KafkaOffset] | None
    ) -> dict[TopicPartition, KafkaOffset] | None:
        if offsets is None:
            return None
        return {
            self._tp(tp): replace(node, metadata=self._other(node.metadata), problem=_hidden(node.problem))
            for tp, node in offsets.items()
        }

    def _loans(self, loans: Mapping[ConsumerId, LoanNode]) -> dict[ConsumerId, LoanNode]:
        return {
            ConsumerId(self._consumers[name]): replace(loan, problem=_hidden(loan.problem))
            for name, loan in loans.items()
        }

    def _plan(self, plan: PlanNode) -> PlanNode:
        def renamed(names: Iterable[str]) -> tuple[str, ...]:
            return tuple(sorted(self._consumers[name] for name in names))

        return replace(
            plan,
            planner=self._consumers.get(plan.planner) or self._other(plan.planner),
            members=renamed(plan.members),
            reserved=renamed(plan.reserved),
            assignment={self._tp(tp): self._thread(thread) for tp, thread in plan.assignment.items()},
            problem=_hidden(plan.problem),
        )

    def _broker(self, broker: BrokerNode) -> BrokerNode:
        return replace(
            broker, host=self._host(broker.host), rack=None if broker.rack is None else self._other(broker.rack)
        )

    def _what(self, what: str) -> str:
        return self._path(what) if what.startswith("/") else what.split(" ")[0] if what.startswith("broker") else HIDDEN

    def _connect(self, text: str) -> str:
        servers, slash, chroot = text.partition("/")
        named = ",".join(self._address(part) for part in servers.split(",")) if servers else ""
        return named + "".join(f"/{self._other(part)}" for part in chroot.split("/")) if slash else named

    def _registration(self, given: Registration | None, one: GroupSnapshot) -> Registration | None:
        if given is None:
            return None
        extra: dict[str, object] = {}
        for key, value in given.extra.items():
            if key in _KEPT or not isinstance(value, str | Mapping | list):
                extra[key] = value
            elif isinstance(value, str):
                extra[key] = self._host(value) if key in ("host", "address") else self._other(value)
        return replace(given, subscription=self._subscription(given, one), extra=extra)

    def _subscription(self, given: Registration, one: GroupSnapshot) -> dict[str, int]:
        if not given.is_wildcard:
            return {self._topics[topic]: streams for topic, streams in given.subscription.items()}
        try:
            allowed = set(subscribed_topics(given, tuple(one.topics), exclude_internal=False))
        except (InvalidTopicFilterError, TopicFilterTimeoutError):
            allowed = set()
        named = allowed if given.pattern == WHITE_LIST else one.topics.keys() - allowed
        return {"|".join(sorted(self._topics[topic] for topic in named)) or "none": given.wildcard[1]}

    def _brokers_group(self, group: BrokersGroup | None) -> BrokersGroup | None:
        if group is None:
            return None
        where = group.coordinator
        return replace(
            group,
            coordinator=None if where is None else (where[0], self._host(where[1]), where[2]),
            members=tuple(
                replace(
                    one,
                    member_id=self._member_ids[one.member_id],
                    client_id=self._clients[one.client_id] if one.client_id else "",
                    host=self._host(one.host),
                    instance_id=None if one.instance_id is None else self._instances[one.instance_id],
                    assignment=None if one.assignment is None else tuple(map(self._tp, one.assignment)),
                    topics=tuple(self._topics[topic] for topic in one.topics),
                )
                for one in group.members
            ),
        )

    def _server(self, server: ZooKeeperServer) -> ZooKeeperServer:
        return replace(
            server,
            address=self._address(server.address),
            sessions={key: (self._address(where), timeout) for key, (where, timeout) in server.sessions.items()},
            problem=HIDDEN if server.problem else "",
        )

    def _rights(self, text: str) -> str:
        entries = []
        for entry in text.split(", "):
            who, equals, rights = entry.rpartition("=")
            scheme, _, name = who.partition(":")
            entries.append(entry if who == "world:anyone" else f"{scheme}:{self._other(name)}{equals}{rights}")
        return ", ".join(entries)


def _may_use_roundrobin(snapshot: GroupSnapshot) -> bool:
    """Return whether a member advertises ``roundrobin``, or no strategy, as Scala members do."""
    known = [node.registration for node in snapshot.members.values() if node.registration is not None]
    return any(one.extra.get("strategy", "roundrobin") == "roundrobin" for one in known)


def _hidden(problem: str) -> str:
    return HIDDEN if problem else ""


def _without_reasons(node: PointersNode) -> PointersNode:
    """Return pointers whose reasons, which tell what handlers raised, are hidden."""
    listed = tuple(replace(one, reason=_hidden(one.reason)) for one in node.listed)
    return replace(node, listed=listed, problem=_hidden(node.problem))


def _members(snapshot: GroupSnapshot) -> Sequence[BrokersMember]:
    return snapshot.brokers_group.members if snapshot.brokers_group is not None else ()


def _planned(snapshot: GroupSnapshot) -> Mapping[TopicPartition, str]:
    return snapshot.plan.assignment if snapshot.plan is not None else {}


def _consumer(thread: str) -> str:
    """Return the consumer id in a thread id, the whole text if it has no number."""
    found = _THREAD.fullmatch(thread)
    return found["consumer"] if found is not None else thread


def _parts(group: str, consumer: str) -> tuple[str, str]:
    """Return the host in a consumer id, and its time of creation; the name alone of an id with another form."""
    name = consumer.removeprefix(f"{group}_")
    found = _STARTED.fullmatch(name)
    return (found["host"], found["ms"]) if found is not None else (name, "")


def _thread_key(consumer: str) -> bytes:
    """Return the sort key of a member's thread ids among other members: the first thread id."""
    return utf16_key(f"{consumer}-0")
