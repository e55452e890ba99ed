"""Random faults around balanced members: one group, one load, one fault after the other, and the checks of the records.

The same seed chooses the same faults. What a fault meets differs from run to run, since the processes run on.
"""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from time import monotonic_ns, sleep
from typing import Any, Self

from kazoo.exceptions import KazooException, NoNodeError

from tests.balance_recorder import Place, repeated
from tests.cluster.balanced_group import BalancedGroup, BalancedMember
from tests.cluster.legacy_member import LegacyMember
from tests.faults.proxy import Proxy
from tests.sessions import end_session
from tests.timing import eventually, scaled
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

RETRY = json.dumps({"attempts": 40, "delays": [0.05, 0.2, 0.5], "park_after": 3, "park_seconds": 2.0})
"""So many attempts that no message is given up because its members died."""
DRAIN_S = 90.0
_PAUSE_S = 0.1
_KEYS = 40

MEMBERS = ("kill", "freeze", "expire", "leave", "cut")
WORKERS = ("kill_worker", "freeze_worker")
NODES = ("rewind", "delete_offset", "spoil_note", "delete_note")
SCALA = ("scala",)
EVERYTHING = (*MEMBERS, *WORKERS, *NODES, *SCALA)


class Flow:
    """Produces messages with few keys to all partitions of a group's topic until it is stopped: a context manager.

    Of a hundred messages about two fail before they succeed, one is asked for again, one finishes elsewhere, one takes
    its time, and one in two hundred is refused.
    """

    def __init__(self, group: BalancedGroup, chance: random.Random, rate: int, *, lethal: bool) -> None:
        self._group, self._random, self._rate, self._lethal = group, chance, rate, lethal
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="flow", daemon=True)
        self.refused: set[Place] = set()
        self._error: BaseException | None = None

    def _words(self) -> str:
        draw = self._random.random()
        for share, words in (
            (0.02, f"fail={self._random.randint(1, 5)}"),
            (0.03, "later=1"),
            (0.04, f"sleep={self._random.uniform(0.05, 1.0):.2f}"),
            (0.045, "reject"),
            (0.047, "kill=2" if self._lethal else "fail=2"),
        ):
            if draw < share:
                return words
        return "sleep=0.002"

    def _run(self) -> None:
        try:
            self._produce()
        except BaseException as error:  # raised at the end: a campaign without messages finds nothing
            self._error = error

    def _produce(self) -> None:
        group = self._group
        each = max(1, int(self._rate * _PAUSE_S / group.topics[group.topic]))
        while not self._stop.wait(_PAUSE_S):
            for partition in range(group.topics[group.topic]):
                values = [f"x {self._words()}" for _ in range(each)]
                keys = [self._key() for _ in values]
                places = group.produce(values, partition=partition, key=keys.__getitem__)
                self.refused |= {place for place, value in zip(places, values, strict=True) if "reject" in value}

    def _key(self) -> str | None:
        """A few keys have most messages, and some messages have none."""
        drawn = int(self._random.paretovariate(1.0))
        return None if drawn > _KEYS else str(drawn)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


class Campaign:
    """Faults in one group. One thread uses it.

    Arguments: ``chance`` chooses; ``executors`` of the members by their names; ``properties`` of every member.
    """

    def __init__(
        self,
        group: BalancedGroup,
        chance: random.Random,
        executors: dict[str, str],
        *,
        order: str = "key",
        session_s: float = 2.0,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        self.group, self.order, self.session_s = group, order, session_s
        self.log: list[str] = []
        self.faults = 0
        self._random = chance
        self._executors = executors
        self._properties = properties or {}
        self._proxies: dict[str, Proxy] = {}
        self._anew: dict[tuple[str, int], int] = {}
        self._legacy: list[LegacyMember] = []

    def __enter__(self) -> Self:
        host, _, port = self.group.connect.partition("/")[0].partition(":")
        for name in self._executors:
            self._proxies[name] = Proxy((host, int(port)))
            self._join(name)
        for member in self.group.members.values():
            member.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in self._proxies.values():
            proxy.carry()
        for member in self._legacy:
            member.close()
        for one in self.group.members.values():
            with suppress(Exception):
                one.resume()
                one.close()
        for proxy in self._proxies.values():
            proxy.close()

    def _join(self, name: str) -> None:
        properties = {"zookeeper.session.timeout.ms": int(self.session_s * 1000), **self._properties}
        executor = self._executors[name]
        more = {"batch": 4} if executor == "processes" else {}
        self.group.start(
            name,
            connect=self._proxies[name].address,
            properties=properties,
            concurrency=6,
            executor=executor,
            order=self.order,
            retry=RETRY,
            **more,
        )

    # ---- faults

    def break_something(self, kinds: Collection[str]) -> None:
        """Do one fault of these kinds to a member, and heal it."""
        kind = self._random.choice(list(kinds))
        name = self._random.choice(sorted(self._executors))
        member = self.group.members[name]
        self.log.append(f"{monotonic_ns() // 1_000_000} {kind} {name}")
        self.faults += 1
        doing: Callable[[BalancedMember], None] = getattr(self, f"_{kind}")
        doing(member)
        if not self.group.members[name].running:
            self.log.append(f"{name} has ended by itself: {member.log_text()[-2000:]}")
            self._join(name)
        self._wait(0.5, 2.0)

    def _wait(self, least: float, most: float) -> None:
        sleep(self._random.uniform(least, most))

    def _kill(self, member: BalancedMember) -> None:
        member.kill()
        self._wait(0.0, 1.5 * self.session_s)
        self._join(member.name)

    def _freeze(self, member: BalancedMember) -> None:
        member.suspend()
        self._wait(0.2, 2.0 * self.session_s)
        member.resume()

    def _expire(self, member: BalancedMember) -> None:
        session = member.session
        if session[0]:
            end_session(self.group.connect, session)

    def _leave(self, member: BalancedMember) -> None:
        if member.stop() is None:
            self.log.append(f"{member.name} did not end cleanly: {member.log_text()[-2000:]}")
        self._wait(0.0, 0.5)
        self._join(member.name)

    def _cut(self, member: BalancedMember) -> None:
        proxy = self._proxies[member.name]
        if self._random.random() < 0.5:
            proxy.drop()
        else:
            proxy.swallow(*self._random.choice([("up",), ("down",), ("up", "down")]))
        self._wait(0.1, 1.8 * self.session_s)
        proxy.carry()

    def _worker(self) -> int | None:
        """Return a worker process that has a message in hand, None if there is none."""
        mains = {member.pid for member in self.group.members.values()}
        pids = sorted({one.pid for one in self.group.in_hand()} - mains)
        return self._random.choice(pids) if pids else None

    def _kill_worker(self, _: BalancedMember) -> None:
        if (pid := self._worker()) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _freeze_worker(self, _: BalancedMember) -> None:
        if (pid := self._worker()) is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._wait(0.1, 1.5 * self.session_s)
                os.kill(pid, signal.SIGCONT)

    def _some_partition(self) -> TopicPartition:
        topic = self.group.topic
        return TopicPartition(topic, self._random.randrange(self.group.topics[topic]))

    def _rewind(self, _: BalancedMember) -> None:
        partition = self._some_partition()
        offset = self.group.offset(partition.partition)
        if offset:
            self._anew.setdefault((partition.topic, partition.partition), monotonic_ns())
            back = max(0, offset - self._random.randint(1, 60))
            with suppress(KazooException):
                self.group.zookeeper.set(paths.offset(self.group.name, partition), str(back).encode())

    def _delete_offset(self, _: BalancedMember) -> None:
        partition = self._some_partition()
        self._anew.setdefault((partition.topic, partition.partition), monotonic_ns())
        with suppress(NoNodeError):
            self.group.zookeeper.delete(paths.offset(self.group.name, partition))

    def _spoil_note(self, _: BalancedMember) -> None:
        with suppress(NoNodeError):
            path = paths.ack(self.group.name, self._some_partition())
            self.group.zookeeper.set(path, self._random.randbytes(self._random.choice([0, 3, 60])))

    def _delete_note(self, _: BalancedMember) -> None:
        with suppress(NoNodeError):
            self.group.zookeeper.delete(paths.ack(self.group.name, self._some_partition()))

    def _scala(self, _: BalancedMember) -> None:
        """Let a member of the original take part for a while."""
        quick = {"zookeeper.session.timeout.ms": int(self.session_s * 1000), "consumer.id": f"scala{len(self._legacy)}"}
        member = LegacyMember("1.1.1", self.group.connect, self.group.name, {self.group.topic: 1}, properties=quick)
        self._legacy.append(member)
        member.start().wait_ready()
        # its commits tell of its own messages alone, and so the notes tell no more what was handled
        self._anew = {(self.group.topic, n): 0 for n in range(self.group.topics[self.group.topic])}
        self._wait(1.0, 2.0 * self.session_s)
        if member.stop() is None:
            self.log.append("the member of the original did not end cleanly")

    # ---- the end

    def others(self) -> set[Place]:
        """Return what members of the original have handed out."""
        return {Place(m.topic, m.partition, m.offset) for member in self._legacy for m in member.messages}

    def verdict(self, flow: Flow) -> list[str]:
        """Wait until everything is handled. Return everything that must never have been."""
        group = self.group

        def missing() -> set[Place]:
            return group.produced.keys() - group.records.done() - self.others() - group.dead()

        late: list[str] = []
        try:
            eventually(lambda: not missing(), DRAIN_S, "the drain")
        except AssertionError:
            late = [f"not handled within {scaled(DRAIN_S):g} s: {sorted(missing())[:9]}"]
        wrongly = group.dead() - flow.refused
        late += [f"given up without a reason: {place}" for place in sorted(wrongly)]
        return late + group.problems(self.order, others=self.others(), anew=self._anew)

    def figures(self) -> dict[str, Any]:
        """Return what is told of a run where nothing is wrong."""
        records = self.group.records
        return {
            "faults": self.faults,
            "messages": len(self.group.produced),
            "handled": len(records.handlings),
            "repeated": sum(repeated(records).values()),
            "dead": len(self.group.dead()),
        }
