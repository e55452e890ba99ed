"""One consumer group under test: a topic, a load, a watcher, members, and the faults.

One thread uses ``RecordedGroup``. The driver's event log has all its actions, so the checker needs only the logs.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, monotonic_ns, time_ns
from typing import Any, NamedTuple, Self

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from tests.cluster.in_process import by_range
from tests.cluster.legacy_member import LegacyMember
from tests.faults.checker import check
from tests.faults.events import SUFFIX, EventLog, Tail, read_all
from tests.faults.history import History, history
from tests.faults.processes import MemberProcess, Producer, Watcher, driver_log
from tests.faults.proxy import Proxy
from tests.faults.verdict import Rules, Verdict
from tests.sessions import end_session
from tests.timing import eventually, scaled

DRAIN_S = 40.0
SETTLE_S = 40.0
ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Timing:
    """The pace of a run. In seconds: ``session`` (T), ``tick`` of ZooKeeper and ``commit`` interval.

    ``rate`` is in messages a second over all partitions. ``scale`` multiplies the repetitions of a row.
    """

    session: float = 2.0
    tick: float = 0.2
    commit: float = 1.0
    rate: int = 200
    runs: int | None = None

    @property
    def bound(self) -> float:
        """B0: the bound of a recovery from the loss of a session."""
        return self.session + self.tick + 2.0

    def times(self, quick: int, full: int) -> int:
        """Return the repetitions of a row: the requested number, else ``quick`` with short sessions, else ``full``."""
        return self.runs if self.runs is not None else quick if self.session < 3 else full


class Servers(NamedTuple):
    """The addresses of the servers: ZooKeeper's own, and the brokers'."""

    connect: str
    bootstrap: str


@dataclass(slots=True)
class Open:
    """A fault that the driver has begun."""

    number: int
    log: EventLog

    def healed(self) -> None:
        """Log that the cause is gone."""
        self.log("healed", number=self.number)

    def settled(self) -> None:
        """Log that the group is settled again, as far as the driver can see."""
        self.log("settled", number=self.number)


@dataclass(slots=True)
class Links:
    """The proxies of one member."""

    zookeeper: Proxy
    brokers: dict[str, Proxy] = field(default_factory=dict)

    def close(self) -> None:
        """Close the proxies."""
        for proxy in (self.zookeeper, *self.brokers.values()):
            proxy.close()


class RecordedGroup:
    """A group under test. A context manager: it starts topic, watcher and load, and ends every process."""

    def __init__(
        self,
        servers: Servers,
        name: str,
        timing: Timing,
        topics: Mapping[str, int],
        *,
        properties: Mapping[str, object] | None = None,
        load: bool = True,
        work: float = 0.0,
    ) -> None:
        self.servers = servers
        self.name = name
        self.timing = timing
        self.topics = dict(topics)
        self.members: dict[str, MemberProcess] = {}
        self.legacy: dict[str, LegacyMember] = {}
        self.links: dict[str, Links] = {}
        self.directory = Path(tempfile.mkdtemp(prefix=f"zkconsumer-faults-{name}-"))
        self.log = driver_log(self.directory)
        self.random = random.Random()
        self._properties = dict(properties or {})
        self._work = work
        self._wants_load = load
        self._lives: dict[str, int] = {}
        self._tails: dict[Path, Tail] = {}  # of processes that have ended
        self._faults = 0
        self._mishap: list[str] = []
        self.keep = False
        self.zookeeper = KazooClient(servers.connect, timeout=10.0)
        self.watcher = Watcher(self.directory, "watcher", connect=servers.connect, group=name)
        self.producers: list[Producer] = []
        self.drained = True

    # ---- life ----

    def __enter__(self) -> Self:
        self.zookeeper.start(timeout=scaled(20))
        self.watcher.start()
        if self._wants_load:
            self.produce()
        self.watcher.wait_for("watching")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for process in (*self.members.values(), *self.producers, self.watcher):
            with contextlib.suppress(Exception):
                process.kill()
        for member in self.legacy.values():
            with contextlib.suppress(Exception):
                member.kill()
                member.close()
        for links in self.links.values():
            links.close()
        self.log.close()
        with contextlib.suppress(Exception):
            self.zookeeper.stop()
            self.zookeeper.close()
        if kind is None and not self.keep:
            shutil.rmtree(self.directory, ignore_errors=True)

    def produce(self, topics: Mapping[str, int] | None = None, rate: float | None = None, epoch: str = "") -> Producer:
        """Start a load on topics (all of the group's)."""
        producer = Producer(
            self.directory, "producer", len(self.producers), bootstrap=self.servers.bootstrap,
            topics=dict(topics or self.topics), rate=rate or self.timing.rate,
            epoch=epoch or f"{len(self.producers)}:",
        )  # fmt: skip
        self.producers.append(producer.start())
        return producer

    def partitions_changed(self) -> None:
        """Start a second load for the partitions that the topics have gained."""
        self.producers[-1].signal(signal.SIGTERM)
        self.produce()

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return sum(self.topics.values())

    # ---- members ----

    def properties(self, name: str) -> dict[str, object]:
        """Return the properties of a member with this name, without links."""
        return {
            "zookeeper.connect": self.servers.connect,
            "group.id": self.name,
            "consumer.id": name,
            "zookeeper.session.timeout.ms": int(self.timing.session * 1000),
            "zookeeper.connection.timeout.ms": 20_000,
            "zookeeper.sync.time.ms": 200,
            "rebalance.backoff.ms": 300,
            "rebalance.max.retries": 60,
            "refresh.leader.backoff.ms": 100,
            "auto.offset.reset": "smallest",
            "auto.commit.interval.ms": int(self.timing.commit * 1000),
            **self._properties,
        }

    def join(self, name: str, *, linked: bool = False, ready: bool = True, **config: Any) -> MemberProcess:
        """Start a member; ``linked``: through proxies of its own (``links``). ``config``: as the process takes it,
        ``properties`` over the group's.
        """
        properties = {**self.properties(name), **config.pop("properties", {})}
        if linked:
            properties |= self._link(name)
        if "whitelist" not in config:
            config.setdefault("topics", dict.fromkeys(self.topics, 1))
        life = self._lives[name] = self._lives.get(name, -1) + 1
        member = MemberProcess(
            self.directory, name, life, properties=properties, **{"work": self._work, **config}
        ).start()  # fmt: skip
        self.members[name] = member
        if ready:
            member.wait_for("ready")
        return member

    def _link(self, name: str) -> dict[str, object]:
        if name in self.links:
            self.links[name].close()
        host, _, port = self.servers.connect.partition("/")[0].partition(",")[0].rpartition(":")
        links = Links(Proxy((host, int(port))))
        for address in self.servers.bootstrap.split(","):
            broker_host, _, broker_port = address.rpartition(":")
            links.brokers[address] = Proxy((broker_host, int(broker_port)))
        self.links[name] = links
        return {
            "zookeeper.connect": links.zookeeper.address,
            "broker.address.map": ",".join(f"{at}={proxy.address}" for at, proxy in links.brokers.items()),
        }

    def start(self, count: int = 3, *, linked: tuple[str, ...] = (), **config: Any) -> list[MemberProcess]:
        """Start ``count`` members a, b, c ... and wait until they are settled and every partition has hand-outs."""
        for number in range(count):
            name = chr(ord("a") + number)
            self.join(name, linked=name in linked, ready=False, **config)
        for member in self.members.values():
            member.wait_for("ready")
        self.settle()
        return list(self.members.values())

    def join_legacy(self, name: str, version: str = "1.1.1") -> LegacyMember:
        """Start a member of the original connector."""
        properties = self.properties(name)
        for own in ("zookeeper.connect", "group.id"):
            properties.pop(own)
        member = LegacyMember(
            version, self.servers.connect, self.name, dict.fromkeys(self.topics, 1), properties=properties, heap_mb=96
        )
        self.legacy[name] = member
        member.start().wait_ready()
        return member

    def leave(self, member: MemberProcess) -> None:
        """End a member cleanly and wait for its end."""
        member.signal(signal.SIGTERM)
        if not member.wait_end(15):
            self._mishap.append(f"I6: {member.name} does not end:\n{member.errors_text()}")
        self.members.pop(member.name, None)
        member.kill()

    # ---- the present state ----

    def owners(self) -> dict[str, tuple[str, int]]:
        """Return the present owners: partition -> (thread id, session). Empty while ZooKeeper is away."""
        found: dict[str, tuple[str, int]] = {}
        try:
            base = f"/consumers/{self.name}/owners"
            for topic in self._get(self.zookeeper.get_children_async(base)):
                names = self._get(self.zookeeper.get_children_async(f"{base}/{topic}"))
                pending = [(name, self.zookeeper.get_async(f"{base}/{topic}/{name}")) for name in names]
                for name, request in pending:
                    with contextlib.suppress(NoNodeError):
                        data, stat = self._get(request)
                        found[f"{topic}-{name}"] = (data.decode(), stat.ephemeralOwner)
        except (KazooException, KazooTimeoutError):
            return {}
        return found

    @staticmethod
    def _get(request: Any) -> Any:
        return request.get(timeout=ANSWER_S)

    def threads(self) -> list[str]:
        """Return the thread ids of all running members."""
        running = [m for m in self.members.values() if m.running and "topics" in m.config]
        ours = [f"{m.consumer}-{number}" for m in running for number in range(next(iter(m.config["topics"].values())))]
        return ours + [f"{self.name}_{name}-0" for name, member in self.legacy.items() if member.running]

    def in_order(self) -> bool:
        """Return whether every partition has the owner of the range strategy over the running members."""
        owners = self.owners()
        for topic, count in self.topics.items():
            mine = {int(tp.rpartition("-")[2]): thread for tp, (thread, _) in owners.items() if _topic(tp) == topic}
            if mine != by_range(self.threads(), range(count)):
                return False
        return True

    def settle(self, seconds: float = SETTLE_S, *, flowing: bool = True) -> None:
        """Wait until the group is settled, and each partition has a new hand-out while there is a load."""
        eventually(self.in_order, seconds, f"order in {self.name}: {self.describe}")
        if flowing and self.producers:
            self.flow(seconds)

    def flow(self, seconds: float = SETTLE_S, among: set[str] | None = None) -> None:
        """Wait until each partition has a hand-out from now on."""
        since, since_wall = monotonic_ns(), time_ns() / 1e9
        wanted = among or {f"{topic}-{n}" for topic, count in self.topics.items() for n in range(count)}

        def seen() -> set[str]:
            found = {event["tp"] for member in self.members.values() for event in member.hand_outs(since)}
            for legacy in self.legacy.values():
                found |= {f"{m.topic}-{m.partition}" for m in legacy.messages if m.at >= since_wall}
            return found

        eventually(lambda: seen() >= wanted, seconds, f"hand-outs of all of {self.name}: {self.describe}")

    def abandoned(self, victim: MemberProcess) -> None:
        """Wait until other members own all partitions of this member."""

        def others_own() -> bool:
            owners = self.owners()
            return len(owners) == self.partitions and f"{victim.consumer}-0" not in {t for t, _ in owners.values()}

        eventually(others_own, SETTLE_S, f"successors of {victim.name}: {self.describe}")

    @property
    def describe(self) -> _Description:
        return _Description(self)

    # ---- faults ----

    def fault(self, kind: str, victim: MemberProcess | None = None, **about: Any) -> Open:
        """Log a fault. Call it right before the fault."""
        if victim is not None:
            about |= {"victim": victim.name, "pid_of": victim.pid}
        self.log("fault", kind=kind, **about)
        self._faults += 1
        return Open(self._faults - 1, self.log)

    def kill(self, victim: MemberProcess, kind: str = "kill") -> Open:
        """Kill a member (SIGKILL). It is no member of the group any more."""
        fault = self.fault(kind, victim)
        victim.signal(signal.SIGKILL)
        victim.wait_end()
        self.members.pop(victim.name, None)
        victim.kill()
        return fault

    @contextlib.contextmanager
    def frozen(self, victim: MemberProcess, kind: str = "freeze", **about: Any) -> Iterator[Open]:
        """Freeze a member (SIGSTOP) for a block (SIGCONT)."""
        fault = self.fault(kind, victim, **about)
        victim.signal(signal.SIGSTOP)
        try:
            yield fault
        finally:
            self.log("cont", victim=victim.name, pid_of=victim.pid)
            victim.signal(signal.SIGCONT)
            fault.healed()

    def expire(self, victim: MemberProcess) -> Open:
        """End a member's session on the server: another client takes it over and closes it."""
        identity = victim.session
        fault = self.fault("expiry", victim)
        end_session(self.servers.connect, identity, self.timing.session)
        fault.healed()  # until then the session lived
        return fault

    def plan(self, kind: str) -> Open:
        """Log the beginning of a planned change: a join or a clean leave."""
        return self.fault(kind, loses=False, moves=True)

    # ---- the end ----

    def drain(self) -> None:
        """End the load and wait until all acknowledged messages are handed out."""
        for producer in self.producers:
            producer.signal(signal.SIGTERM)
        for producer in self.producers:
            if producer.running and not producer.wait_end(70):
                raise AssertionError(f"the load does not end:\n{producer.errors_text()}")
        told = (e for p in self.producers for e in p.events if e["e"] == "acked")
        acked = {(e["tp"], e["o"]) for e in told if e["o"] is not None}

        def all_of_it() -> bool:
            return not acked - self._handed_out()

        self.drained = _within(all_of_it, DRAIN_S)

    def _handed_out(self) -> set[tuple[str, int]]:
        found = {(m_["tp"], m_["o"]) for m_ in self._every_hand_out()}
        for legacy in self.legacy.values():
            found |= {(f"{m.topic}-{m.partition}", m.offset) for m in legacy.messages}
        return found

    def _every_hand_out(self) -> Iterator[dict[str, Any]]:
        for path in self.directory.glob(f"*{SUFFIX}"):
            if path.name.startswith(("producer", "watcher", "driver")):
                continue
            tail = next((m.tail for m in self.members.values() if m.log_path == path), None)
            if tail is None:
                tail = self._tails.setdefault(path, Tail(path))
            yield from (event for event in tail.look() if event["e"] == "h")

    def finish(self) -> None:
        """Drain the group, end every member cleanly, and end the watcher a moment later."""
        self.drain()
        for member in list(self.members.values()):
            member.signal(signal.SIGTERM)
        for member in list(self.members.values()):
            if not member.wait_end(15):
                self._mishap.append(f"I6: {member.name} does not end:\n{member.errors_text()}")
            member.kill()
        for legacy in self.legacy.values():
            if legacy.running:
                legacy.stop()
        self._tell_legacy()
        _within(lambda: not self.owners(), 2 * self.timing.session + 5)
        threading.Event().wait(0.3)
        self.watcher.kill()

    def _tell_legacy(self) -> None:
        """Log the output of the original's members as events, with the times at which it was read."""
        shift = monotonic_ns() - time_ns()
        for name, member in self.legacy.items():
            log = EventLog(self.directory / f"legacy-{name}{SUFFIX}", name, role="legacy")
            log("ready", consumer=f"{self.name}_{name}", streams=[])
            for m in member.messages:
                value = (m.value or b"").decode(errors="replace")[:40]
                place = {"tp": f"{m.topic}-{m.partition}", "o": m.offset}
                log.at(int(m.at * 1e9) + shift, "h", **place, v=value, th=0, legacy=True)
            log.close()

    def history_so_far(self) -> History:
        """Return the history of all logs."""
        return history(read_all(self.directory))

    def judge(self, rules: Rules | None = None) -> tuple[Verdict, History]:
        """Return the verdict and the history of the logs. Call it after :meth:`finish`."""
        found = self.history_so_far()
        rules = rules or Rules(commit=self.timing.commit, bound=self.timing.bound)
        verdict = check(found, rules)
        verdict.violations += self._mishap
        self.keep = self.keep or bool(verdict.violations)
        return verdict, found


class _Description:
    """A description of a group for the message of a failure, made when it is printed."""

    def __init__(self, group: RecordedGroup) -> None:
        self._group = group

    def __str__(self) -> str:
        group = self._group
        states = "; ".join(
            f"{m.name}: {m.state or '-'}{'' if m.running else ' (ended)'}" for m in group.members.values()
        )
        return f"owners {group.owners()}, states {states}, logs in {group.directory}"


def _topic(tp: str) -> str:
    return tp.rpartition("-")[0]


def _within(predicate: Callable[[], bool], seconds: float) -> bool:
    end = monotonic() + scaled(seconds)
    pause = threading.Event()
    while not predicate():
        if monotonic() > end:
            return False
        pause.wait(0.05)
    return True


def sleep(seconds: float) -> None:
    """Let a fault last. This is the length of the fault, and not a wait for a condition."""
    threading.Event().wait(seconds)
