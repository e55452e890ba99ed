"""``scripts/soak MINUTES``: injects random faults into a group for a long time and reports the results.

The group has six members, each behind its own proxies. Every few seconds there is a fault of a member, of ZooKeeper or
of a broker, or a member leaves and comes back. Faults overlap: the next one does not wait for the recovery from the
last. Now and then there is a pause until the group is settled, which gives times of recovery.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from tests.faults.group import Open, RecordedGroup, Timing, sleep
from tests.faults.history import History
from tests.faults.lab import Lab
from tests.faults.processes import MemberProcess
from tests.faults.soak_report import report, slow_alone
from tests.faults.verdict import Rules, Verdict
from tests.timing import scaled

_ROOT = Path(__file__).resolve().parents[2]
MEMBERS = 6
PARTITIONS = 12
EVERY_S = 3.0
REST_EVERY = 6
REST_S = 60.0
FLAPPING_S = 3.0
FEWEST = 3


class Soak:
    """The soak. Arguments: ``lab`` with the servers; ``chance``, the random numbers."""

    def __init__(self, lab: Lab, group: RecordedGroup, chance: random.Random) -> None:
        self.lab = lab
        self.group = group
        self.chance = chance
        self.done: Counter[str] = Counter()
        self.rests = 0
        self.unrest: list[str] = []
        self._busy: set[str] = set()  # members that something has befallen just now
        self._running: list[threading.Thread] = []
        self._lock = threading.Lock()  # the group's log of faults and table of members
        self._servers_busy = False

    def churn(self, seconds: float) -> None:
        """Run for so many seconds."""
        end = monotonic() + seconds
        number = 0
        while monotonic() < end:
            self._one()
            number += 1
            if number % REST_EVERY == 0:
                self._rest()
            sleep(self.chance.uniform(0.6, 1.4) * EVERY_S)
        self._rest()

    def _rest(self) -> None:
        """Pause until the group is settled, and log it."""
        for thread in self._running:
            thread.join(scaled(REST_S))
        self._running.clear()
        for name in sorted(set(_names()) - self.group.members.keys()):
            self._join(name)
        try:
            self.group.settle(REST_S)
        except AssertionError as failure:
            self.unrest.append(str(failure))
        self.rests += 1
        self.group.note("rested")

    def _one(self) -> None:
        deeds: dict[str, Callable[[], None]] = {
            "kill": self._kill,
            "short pause": self._short_pause,
            "freeze": self._freeze,
            "expiry": self._expire,
            "black hole": self._black_hole,
            "flapping": self._flapping,
            "zookeeper crash": self._zookeeper,
            "broker bounce": self._broker,
            "leave": self._leave,
            "join": self._join_any,
        }
        name = self.chance.choice(list(deeds))
        self._in_background(name, deeds[name])

    def _in_background(self, name: str, deed: Callable[[], None]) -> None:
        def run() -> None:
            try:
                deed()
            except Exception as failure:
                self.group.wrong(f"soak: {name}: {failure!r}")

        thread = threading.Thread(target=run, name=f"soak-{name}", daemon=True)
        self._running.append(thread)
        thread.start()

    @contextmanager
    def _victim(self, name: str, *, spare: int = FEWEST) -> Iterator[MemberProcess | None]:
        """Reserve a member for one fault. None if too few others would be left."""
        with self._lock:
            free = sorted(n for n, m in self.group.members.items() if n not in self._busy and m.running)
            if len(free) <= spare:
                victim = None
            else:
                victim = self.group.members[self.chance.choice(free)]
                self._busy.add(victim.name)
                self.done[name] += 1
        try:
            yield victim
        finally:
            if victim is not None:
                with self._lock:
                    self._busy.discard(victim.name)

    def _fault(self, kind: str, victim: MemberProcess | None = None, **about: object) -> Open:
        with self._lock:
            return self.group.fault(kind, victim, **about)

    def _kill(self) -> None:
        with self._victim("kill") as victim:
            if victim is not None:
                with self._lock:
                    self.group.kill(victim)

    def _pause(self, kind: str, seconds: float, **about: object) -> None:
        with self._victim(kind) as victim:
            if victim is None:
                return
            fault = self._fault(kind, victim, **about)
            victim.signal(signal.SIGSTOP)
            sleep(seconds)
            self.group.log("cont", victim=victim.name, pid_of=victim.pid)
            victim.signal(signal.SIGCONT)
            fault.healed()
            sleep(1.0)

    def _short_pause(self) -> None:
        self._pause("short pause", self.lab.timing.session / 2, loses=False, heals=True)

    def _freeze(self) -> None:
        self._pause("freeze", 2 * self.lab.timing.session)

    def _expire(self) -> None:
        with self._victim("expiry") as victim:
            if victim is not None:
                if self._servers_busy:
                    return
                with self._lock:
                    self.group.expire(victim)
                sleep(1.0)

    def _black_hole(self) -> None:
        with self._victim("black hole") as victim:
            if victim is not None:
                fault = self._fault("black hole", victim)
                link = self.group.links[victim.name].zookeeper
                link.swallow()
                sleep(self.lab.timing.session + self.chance.uniform(0.5, 3.0))
                link.carry()
                fault.healed()
                sleep(1.0)

    def _flapping(self) -> None:
        with self._victim("flapping") as victim:
            if victim is None:
                return
            fault = self._fault("flapping", victim, loses=False, heals=True)
            link = self.group.links[victim.name].zookeeper
            end = monotonic() + FLAPPING_S
            while monotonic() < end:
                link.drop()
                sleep(0.3)
                link.carry()
                sleep(0.3)
            fault.healed()
            sleep(1.0)

    @contextmanager
    def _servers(self, name: str) -> Iterator[bool]:
        """Reserve the servers for one fault, unless they have one now."""
        with self._lock:
            free, self._servers_busy = not self._servers_busy, True
        try:
            if free:
                self.done[name] += 1
            yield free
        finally:
            if free:
                self._servers_busy = False

    def _zookeeper(self) -> None:
        with self._servers("zookeeper crash") as free:
            if free:
                fault = self._fault("zookeeper crash", loses=False, heals=True)
                self.lab.cluster.zookeeper.kill()
                sleep(1.0)
                self.lab.cluster.zookeeper.start()
                fault.healed()
                sleep(2.0)

    def _broker(self) -> None:
        with self._servers("broker bounce") as free:
            if free:
                broker = self.chance.choice(self.lab.cluster.brokers)
                fault = self._fault("broker bounce", loses=False, heals=True)
                (broker.kill if self.chance.random() < 0.5 else broker.stop)()
                sleep(1.0)
                broker.start()
                fault.healed()
                sleep(2.0)

    def _leave(self) -> None:
        with self._victim("leave") as victim:
            if victim is not None:
                plan = self._fault("leave", loses=False, moves=True)
                victim.signal(signal.SIGTERM)
                ended = victim.wait_end(15)
                with self._lock:
                    if not ended:
                        self.group.wrong(f"I6: {victim.name} did not end:\n{victim.errors_text()}")
                    self.group.members.pop(victim.name, None)
                victim.kill()
                plan.settled()

    def _join_any(self) -> None:
        with self._lock:
            absent = sorted(set(_names()) - self.group.members.keys())
            name = self.chance.choice(absent) if absent else None
        if name is not None:
            self._join(name)

    def _join(self, name: str) -> None:
        with self._lock:
            self.done["join"] += 1
            self.group.fault("join", loses=False, moves=True)
            member = self.group.join(name, linked=True, ready=False)
        member.wait_for("ready", 60)


def _names() -> list[str]:
    return [chr(ord("a") + number) for number in range(MEMBERS)]


def soak(minutes: float, seed: int, timing: Timing) -> tuple[Verdict, History, Soak, str]:
    """Run a soak. Return its results, and the directory of the logs after a failure."""
    chance = random.Random(seed)
    with Lab(timing, seed=seed) as lab, lab.group("soak", PARTITIONS) as group:
        group.start(MEMBERS, linked=tuple(_names()))
        churn = Soak(lab, group, chance)
        churn.churn(minutes * 60)
        group.finish(drain=90)
        # where faults overlap, how long one of them takes cannot be told from the others: see slow_alone
        rules = Rules(commit=timing.commit, bound=float("inf"), slack=2.0)
        verdict, found = group.judge(rules)
        verdict.violations += [f"soak: no order in {REST_S:.0f} s of rest: {text}" for text in churn.unrest]
        verdict.violations += [
            f"I5: recovery from {one.kind} took {one.seconds:.2f} s, more than {timing.bound:g} s beside no other fault"
            for one in slow_alone(verdict, timing.bound)
        ]
        group.keep = group.keep or bool(verdict.violations)
        return verdict, found, churn, str(group.directory)


def main() -> int:
    """Run the command. Return the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description="Churns a group with random faults and prints a report. Exit code: 0 if all went well.",
    )
    parser.add_argument("minutes", type=float, help="how long, beside the start and the last rest")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(1 << 32),
        help="repeats a run's faults; default: any",
    )
    parser.add_argument(
        "--session",
        type=float,
        default=2.0,
        metavar="SECONDS",
        help="the members' session timeout (default: %(default)s)",
    )
    arguments = parser.parse_args()
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # broken connections are expected
    # members run in the root directory of the machine
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    print(
        f"seed {arguments.seed}, {arguments.minutes:g} minutes, {MEMBERS} members, {PARTITIONS} partitions", flush=True
    )
    timing = Timing(session=arguments.session, tick=arguments.session / 10)
    loads = [os.getloadavg()[0]]
    verdict, found, churn, where = soak(arguments.minutes, arguments.seed, timing)
    loads.append(os.getloadavg()[0])
    print(report(verdict, found, churn.done, churn.rests, where, timing.bound))
    print(f"load average {loads[0]:.1f} at the start, {loads[1]:.1f} at the end, of {os.cpu_count()} processors")
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
