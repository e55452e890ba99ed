"""The scenario of ``scripts/demo --balance``: eight workers in three processes on two partitions.

One flight in a hundred fails twice, ten are damaged, and one process is killed. At the end every flight is handled or a
dead letter, and the flights of each carrier were handled in order. All steps run in the main thread. Every wait has a
deadline and checks that no process has ended by itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

from scripts.demonstration.balanced_account import BalancedTotals, balanced_totals
from scripts.demonstration.balanced_member import FAILING, FAILURES, BalancedMember, attempts_in
from scripts.demonstration.flight_producer import FlightProducer, log_ends
from scripts.demonstration.group_owners import GroupInZooKeeper, GroupOwners, wait_until
from scripts.demonstration.message_account import MessageAccount
from scripts.demonstration.scenario import DemoSettings, calm_end, start_cluster
from scripts.demonstration.screen import Screen
from scripts.demonstration.shared_group import DemoTopic
from zkconsumer.core.message_pointers import PointerKind
from zkconsumer.errors import ZkConsumerError

PARTITIONS = 2
MEMBERS = {"ann": 3, "ben": 3, "cid": 2}
"""The processes and their workers."""
DAMAGED = 10
FLIGHTS = 60_000
"""The number of flights unless the user gives one."""
_SESSION_TIMEOUT_MS = 4000
_PRODUCE_S, _PRODUCE_LEAST_S = 12.0, 5.0
_KILLED_AT = 0.4
_STEP_S = 90.0
_COMMAND_S = 30.0
_WIDTH = 77


def play(settings: DemoSettings) -> int:
    """Run the demo. Return the exit code, 0 only if all numbers agree. Raises: ZkConsumerError."""
    began = monotonic()
    with ExitStack() as stack:
        stack.enter_context(calm_end())
        folder = Path(tempfile.mkdtemp(prefix="zkconsumer-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        screen = stack.enter_context(Screen())
        screen.opening("scripts/demo: more workers than partitions, on a real Kafka")
        place, kept = start_cluster(settings, screen, stack, PARTITIONS)
        total = min(settings.flights or FLIGHTS, settings.total)
        totals = BalancedSteps(total, place, screen, folder).play()
        if settings.report is not None:
            settings.report.write_text(json.dumps({"agrees": totals.good, **vars(totals)}, indent=2) + "\n")
        if kept is not None:
            kept.pop_all()
    rest = "The cluster is left up." if settings.keep else "Nothing is left running."
    screen.say("")
    screen.title(
        f"{'All numbers agree.' if totals.good else 'THE NUMBERS DO NOT AGREE.'} {rest} ({monotonic() - began:.0f} s)"
    )
    return 0 if totals.good else 1


class BalancedSteps:
    """Steps 2 to 5: the members, the failures, the kill and the account."""

    def __init__(self, total: int, place: DemoTopic, screen: Screen, folder: Path) -> None:
        self._total = total
        self._place = place
        self._screen = screen
        self._folder = folder
        self._account = MessageAccount()
        self._members: dict[str, BalancedMember] = {}
        self._view = GroupOwners()
        damaged = range(total // DAMAGED // 2, total, max(1, total // DAMAGED))[:DAMAGED]
        seconds = max(_PRODUCE_LEAST_S, _PRODUCE_S * total / FLIGHTS)
        self._producer = FlightProducer(place.bootstrap, place.topic, total, total, seconds, damaged)
        self._zookeeper = GroupInZooKeeper(place.zookeeper, place.group, place.topic, PARTITIONS)

    def play(self) -> BalancedTotals:
        """Return the account."""
        with ExitStack() as stack:
            stack.enter_context(self._zookeeper)
            stack.callback(self._producer.stop)
            stack.callback(self._close_members)
            self._all_join()
            self._one_is_killed()
            self._rest_is_handled()
            totals = self._totals()
            self._show(totals)
        return totals

    def _all_join(self) -> None:
        workers = sum(MEMBERS.values())
        self._screen.step(2, f"Three processes with {workers} workers together handle {PARTITIONS} partitions")
        self._screen.say('connector.run(handle, "flights", concurrency=3, order="key")', "green")
        for name, count in MEMBERS.items():
            self._members[name] = member = BalancedMember(
                name,
                self._place.zookeeper,
                self._place.group,
                self._place.topic,
                count,
                _SESSION_TIMEOUT_MS,
                self._folder,
            )
            member.start()
            self._screen.say(f"{name} is process {member.pid}, with {count} workers")
        self._until(lambda: self._view.members == MEMBERS.keys(), "all processes are members")
        self._until(lambda: len(self._view.owners) == PARTITIONS, "all partitions have an owner")
        # owners may still change, because the last member has just joined
        self._until(lambda: self._zookeeper.borrowers() >= self._idle, "keys are lent to the member without partitions")
        self._screen.say(f"{' and '.join(sorted(self._idle))} owns no partition, and the owners lend keys to it")
        self._producer.start(self._account)
        self._producer.let_finish()
        self._screen.say(
            f"{self._total:,} flights are being produced, keyed by carrier.\n"
            f"One in {FAILING} fails {FAILURES} times. {DAMAGED} are damaged, and every attempt at them fails."
        )
        self._until(lambda: all(one.recorded for one in self._members.values()), "every process handles flights")
        self._until(lambda: self._recorded >= self._total * _KILLED_AT, "a good part is handled")

    def _one_is_killed(self) -> None:
        owner = self._view.owners.get(0, ("ann", 0))[0]
        self._screen.step(3, f"{owner}, the owner of partition 0, is killed (SIGKILL)")
        self._members[owner].kill()
        self._screen.say(f"its keys wait until its session times out, set to {_SESSION_TIMEOUT_MS / 1000:.0f} s")
        began = monotonic()
        self._until(lambda: owner not in self._view.members, "its session times out")
        self._until(lambda: len(self._view.owners) == PARTITIONS, "all partitions have an owner")
        self._screen.say(f"the others own everything {monotonic() - began:.1f} s after the kill")

    def _rest_is_handled(self) -> None:
        self._screen.step(4, "The others handle the rest, and leave")
        self._until(lambda: self._producer.finished, "all flights are produced")
        ends = log_ends(self._place.bootstrap, self._place.topic)
        self._until(lambda: self._zookeeper.committed() == ends, "the committed offsets reach the ends")
        for member in self._members.values():
            if not member.gone:
                member.leave()
        self._until(lambda: not self._view.members, "the group is empty")
        for member in self._members.values():
            member.join()

    @property
    def _idle(self) -> set[str]:
        return MEMBERS.keys() - {member for member, _ in self._view.owners.values()}

    @property
    def _recorded(self) -> int:
        return sum(member.recorded for member in self._members.values())

    def _totals(self) -> BalancedTotals:
        pointers = self._zookeeper.pointers()
        parked = [place for place, pointer in pointers.items() if pointer.kind is PointerKind.PARKED]
        if parked:
            raise ZkConsumerError(f"{len(parked)} flights are still parked, for instance {min(parked)}")
        return balanced_totals(
            self._account.produced_checksums(),
            self._producer.damaged,
            pointers.keys(),
            {name: attempts_in(member.file) for name, member in self._members.items()},
        )

    def _show(self, totals: BalancedTotals) -> None:
        self._screen.settle()
        self._screen.step(5, "The dead letters, and the account")
        where = ["--zookeeper", self._place.zookeeper, "--group", self._place.group]
        self._screen.say("zkconsumer dead list", "green")
        for line in _said(["dead", "list", *where]).splitlines():
            self._screen.say(line[:_WIDTH])
        self._screen.say("")
        rows = [
            ("produced", totals.produced, "flights"),
            ("handled", totals.handled, "different ones, each just as produced"),
            ("dead letters", totals.dead, f"of {DAMAGED} damaged ones"),
            ("lost", totals.lost, ""),
            ("failed attempts", totals.failed_attempts, "came again"),
            ("repeated", totals.repeated, "were in hand, or not yet noted, at the kill"),
            ("overtaken", totals.overtaken, "by a later flight of their carrier"),
            ("at the same time", totals.overlapping, "as another one of their carrier"),
        ]
        if totals.unexpected:
            rows += [("UNEXPECTED", totals.unexpected, "came otherwise than they were produced")]
        self._screen.figures(rows)
        shares = ", ".join(f"{name} {count:,}" for name, count in sorted(totals.by_member.items()))
        self._screen.say(f"handled by: {shares}")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until ``done``. Show the progress meanwhile."""
        wait_until(done, self._look, what, _STEP_S)

    def _look(self) -> GroupOwners:
        self._producer.check()
        for member in self._members.values():
            member.check()
        self._view = self._zookeeper.look()
        counts = ", ".join(f"{name} {member.recorded:,}" for name, member in self._members.items())
        self._screen.count(f"so far  {self._account.produced_count:,} produced; attempts: {counts}")
        return self._view

    def _close_members(self) -> None:
        self._screen.settle()
        with ExitStack() as last:  # a failure of one does not prevent the others
            for member in self._members.values():
                last.callback(member.close)


def _said(arguments: list[str]) -> str:
    """Return the output of a command of zkconsumer. Raises: ZkConsumerError if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "zkconsumer", *arguments],
        capture_output=True,
        text=True,
        timeout=_COMMAND_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise ZkConsumerError(f"zkconsumer {' '.join(arguments)} failed: {done.stderr}")
    return done.stdout.rstrip()
