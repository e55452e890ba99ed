"""The JSON answers of Burrow's ``/v3/kafka`` paths, field by field. Pure; any thread.

Mirrors ``core/internal/httpserver`` and ``core/protocol`` of Burrow. Two things differ. Lists are sorted; Burrow's
have the order of a Go map. The paths that delete are missing, because this server writes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zkconsumer.model import TopicPartition
from zkconsumer.operations.group_snapshot import GroupSnapshot
from zkconsumer.operations.serving.api import Document
from zkconsumer.operations.serving.burrow_rules import (
    EXPIRE_GROUP,
    INTERVALS,
    NO_COMMIT,
    BurrowStatus,
    CommitWindow,
    ObservedCommit,
    status_of,
    status_of_group,
)
from zkconsumer.operations.serving.observed_group import ObservedGroup

OK = 200
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class BurrowAnswer:
    """An HTTP status and a JSON document."""

    status: int
    document: Document


@dataclass(frozen=True, slots=True)
class BurrowCluster:
    """The one cluster that Burrow's paths show.

    Arguments: ``name`` in the paths; ``groups`` as watched; ``now`` in milliseconds since 1970; ``host`` of this
    machine; ``interval`` of the polls in seconds.
    """

    name: str
    groups: Mapping[str, ObservedGroup]
    now: int
    host: str
    interval: float

    def answer(self, url: str, path: Sequence[str]) -> BurrowAnswer | None:
        """Return the answer to ``/v3/kafka/<path>``, None if Burrow has no such path.

        Arguments: ``url`` is the path as asked for, which the answer repeats.
        """
        match path:
            case []:
                return self._ok(url, "cluster list returned", clusters=[self.name])
            case [cluster]:
                return self._cluster(url) if cluster == self.name else self._missing(url, "cluster module not found")
            case [cluster, "topic"]:
                return self._in(cluster, url, "topic list returned", topics=sorted(self._ends()))
            case [cluster, "topic", topic]:
                return self._topic(url, cluster, topic)
            case [cluster, "topic", topic, "consumers"]:
                found = [group for group in self._current() if topic in _topics(self.groups[group])]
                return self._in(cluster, url, "consumers of topic returned", consumers=found)
            case [cluster, "consumer"]:
                return self._in(cluster, url, "consumer list returned", consumers=self._current())
            case [cluster, "consumer", group]:
                return self._consumer(url, cluster, group)
            case [cluster, "consumer", group, "status"]:
                return self._status(url, cluster, group, everything=False)
            case [cluster, "consumer", group, "lag"]:
                return self._status(url, cluster, group, everything=True)
        return None

    def _request(self, url: str) -> Document:
        return {"url": url, "host": self.host}

    def _ok(self, url: str, message: str, **what: object) -> BurrowAnswer:
        return BurrowAnswer(OK, {"error": False, "message": message, **what, "request": self._request(url)})

    def _missing(self, url: str, message: str) -> BurrowAnswer:
        return BurrowAnswer(NOT_FOUND, {"error": True, "message": message, "request": self._request(url)})

    def _in(self, cluster: str, url: str, message: str, **what: object) -> BurrowAnswer:
        return self._ok(url, message, **what) if cluster == self.name else self._missing(url, "cluster not found")

    def _cluster(self, url: str) -> BurrowAnswer:
        servers = sorted({f"{b.host}:{b.port}" for g in self.groups.values() for b in g.snapshot.brokers.values()})
        profile = {"name": "", "client-id": "zkconsumer-operations", "kafka-version": "", "tls": None, "sasl": None}
        module = {
            "class-name": "kafka",
            "servers": servers,
            "client-profile": profile,
            "topic-refresh": round(self.interval),
            "offset-refresh": round(self.interval),
        }
        return self._ok(url, "cluster module detail returned", module=module)

    def _topic(self, url: str, cluster: str, topic: str) -> BurrowAnswer:
        ends = self._ends().get(topic)
        if cluster != self.name or ends is None:
            return self._missing(url, "cluster or topic not found")
        return self._ok(url, "topic offsets returned", offsets=[ends[number] for number in sorted(ends)])

    def _ends(self) -> dict[str, dict[int, int]]:
        """Return the last known ends of all logs by topic and partition."""
        newest: dict[TopicPartition, tuple[int, int]] = {}
        for watched in self.groups.values():
            for tp, known in watched.logs.items():
                if known.log.end is not None:
                    newest[tp] = max(newest.get(tp, (0, 0)), (known.taken, known.log.end))
        found: dict[str, dict[int, int]] = {}
        for tp, (_, end) in newest.items():
            found.setdefault(tp.topic, {})[tp.partition] = end
        return found

    def _current(self) -> list[str]:
        """Return the groups that have committed since they would expire."""
        return [name for name in sorted(self.groups) if self._found(name)]

    def _found(self, group: str) -> bool:
        watched = self.groups.get(group)
        windows = () if watched is None else watched.windows.values()
        times = (time for window in windows if (time := window.last_time) is not None)
        return max(times, default=-1) >= self.now - EXPIRE_GROUP * 1000

    def _consumer(self, url: str, cluster: str, group: str) -> BurrowAnswer:
        if cluster != self.name or not self._found(group):
            return self._missing(url, "cluster or consumer not found")
        watched = self.groups[group]
        topics = {
            topic: [self._detail(watched, TopicPartition(topic, number)) for number in range(count)]
            for topic, count in sorted(_topics(watched).items())
        }
        return self._ok(url, "consumer detail returned", topics=topics)

    def _detail(self, watched: ObservedGroup, tp: TopicPartition) -> Document:
        window = watched.windows.get(tp, NO_COMMIT)
        owner, client = _owner(watched.snapshot, tp)
        missing = [None] * (INTERVALS - len(window) if len(window) else 0)
        return {
            "offsets": [*missing, *map(_offset, window.commits)],
            "owner": owner,
            "client_id": client,
            "current-lag": window.lag,
        }

    def _status(self, url: str, cluster: str, group: str, *, everything: bool) -> BurrowAnswer:
        status: dict[str, object] = {
            "cluster": cluster,
            "group": group,
            "status": BurrowStatus.NOTFOUND.name,
            "complete": 1,
        }
        if cluster != self.name or not self._found(group):
            status |= {"partitions": [], "partition_count": 0, "maxlag": None, "totallag": 0}
            answer = self._ok(url, "consumer status returned", status=status)
            return BurrowAnswer(NOT_FOUND, answer.document)
        watched = self.groups[group]
        judged = [self._judged(watched, tp) for tp in _partitions(watched)]
        complete = sum(window.complete == 1 for _, window, _ in judged)
        largest = max((window.lag for _, window, _ in judged), default=0)
        status |= {
            "status": status_of_group([state for state, _, _ in judged]).name,
            "complete": _float32(complete / len(judged)) if judged else 0,
            "partitions": [told for state, _, told in judged if everything or state > BurrowStatus.OK],
            "partition_count": len(judged),
            "maxlag": next((told for _, window, told in judged if window.lag == largest), None),
            "totallag": sum(window.lag for _, window, _ in judged),
        }
        return self._ok(url, "consumer status returned", status=status)

    def _judged(self, watched: ObservedGroup, tp: TopicPartition) -> tuple[BurrowStatus, CommitWindow, Document]:
        window = watched.windows.get(tp, NO_COMMIT)
        status, commits = status_of(window, self.now), window.commits
        owner, client = _owner(watched.snapshot, tp)
        return (
            status,
            window,
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "owner": owner,
                "client_id": client,
                "status": status.name,
                "start": _offset(commits[0]) if commits else None,
                "end": _offset(commits[-1]) if commits else None,
                "current_lag": window.lag,
                "complete": _float32(window.complete),
            },
        )


def _topics(watched: ObservedGroup) -> dict[str, int]:
    """Return the topics with a commit, and their numbers of partitions. Burrow drops what the brokers do not have.

    The numbers come from the topics and not from the offset nodes: a node may have any number for its name.
    """
    known = watched.snapshot.topics
    committed = {tp.topic for tp, window in watched.windows.items() if len(window)}
    return {topic: len(known[topic].partitions) for topic in committed if topic in known}


def _partitions(watched: ObservedGroup) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number) for topic, count in sorted(_topics(watched).items()) for number in range(count)
    ]


def _owner(snapshot: GroupSnapshot, tp: TopicPartition) -> tuple[str, str]:
    """Return the owner and the client id: the thread id in ZooKeeper, else the host and client id of the member."""
    node = snapshot.owners.get(tp)
    if node is not None:
        return node.thread, ""
    members = snapshot.brokers_group.members if snapshot.brokers_group is not None else ()
    return next(((m.host, m.client_id) for m in members if tp in (m.assignment or ())), ("", ""))


def _offset(commit: ObservedCommit) -> Document:
    return {"offset": commit.offset, "timestamp": commit.time, "observedAt": commit.observed, "lag": commit.lag}


def _float32(share: float) -> float:
    """Return a share as Go prints a 32-bit float: the shortest number that is the same one."""
    single = struct.unpack("f", struct.pack("f", share))[0]
    texts = (f"{single:.{digits}g}" for digits in range(1, 10))
    short = next(float(text) for text in texts if struct.unpack("f", struct.pack("f", float(text)))[0] == single)
    return int(short) if short.is_integer() else short
