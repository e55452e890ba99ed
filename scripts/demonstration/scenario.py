"""The scenario of the demo: it starts the cluster, lets members join, crash and leave during the production of flights,
and checks the totals. At the end it stops all processes.

All steps run in the main thread; ``flights`` and ``member_process`` have threads of their own. Every wait has a
deadline and checks that no process has ended by itself.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from time import monotonic
from types import FrameType

from scripts.demonstration import report, shared_group
from scripts.demonstration.flight_producer import ALL_FLIGHTS, Delays, FlightProducer
from scripts.demonstration.group_owners import LOOK_S, GroupInZooKeeper, GroupOwners, wait_until
from scripts.demonstration.member_process import MemberProcess
from scripts.demonstration.message_account import AccountTotals, MessageAccount
from scripts.demonstration.screen import Screen
from scripts.demonstration.shared_group import DemoTopic, SharedGroupResult
from scripts.demonstration.spark_process import CarrierReport, SparkProcess, compare
from zkconsumer.devcluster import DevCluster, background_cluster
from zkconsumer.devcluster.kafka_server import DEFAULT_KAFKA, kafka_jars
from zkconsumer.devcluster.zookeeper_server import zookeeper_jars
from zkconsumer.zookeeper.cluster_admin import Admin

PARTITIONS = 8
STREAMS = 2
QUICK_FLIGHTS = 100_000
_SESSION_TIMEOUT_MS = (
    4000  # how long a killed member's partitions have no owner: the shortest that ZooKeeper allows here
)
_PRODUCE_S = 20.0
_PRODUCE_LEAST_S = 6.0
_STEP_S = 60.0
# The shares of all flights at whose production the steps begin.
_THIRD_JOINS, _ONE_IS_KILLED, _ONE_LEAVES = 0.15, 0.35, 0.75


@dataclass(frozen=True)
class DemoSettings:
    """The options of the command."""

    flights: int | None = None
    keep: bool = False
    spark: bool = True
    report: Path | None = None
    plot: Path | None = None

    @property
    def total(self) -> int:
        """The number of flights."""
        return min(self.flights or ALL_FLIGHTS, ALL_FLIGHTS)

    @property
    def production_seconds(self) -> float:
        """The time to produce them in seconds. Fewer flights take less time."""
        return max(_PRODUCE_LEAST_S, _PRODUCE_S * self.total / ALL_FLIGHTS)


def play(settings: DemoSettings) -> int:
    """Run the demo. Return the exit code, 0 only if all numbers agree. Raises: ZkConsumerError."""
    began = monotonic()
    with ExitStack() as stack:
        stack.enter_context(calm_end())
        folder = Path(tempfile.mkdtemp(prefix="zkconsumer-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        screen = stack.enter_context(Screen())
        what = "a crash and Spark" if settings.spark else "and a crash"
        screen.opening(f"scripts/demo: a consumer group{', ' if settings.spark else ' '}{what}, on a real Kafka")
        place, kept = start_cluster(settings, screen, stack)
        totals, delays, committed = GroupSteps(settings, place, screen, folder).play()
        good = report.show_account(screen, totals, committed, settings.total)
        rows: dict[str, CarrierReport] | None = None
        shared: SharedGroupResult | None = None
        if settings.spark:
            rows, shared, agrees = _spark(settings, place, delays, screen, folder)
            good = good and agrees
        if settings.report is not None:
            report.write(settings.report, totals, committed, rows, shared, good)
        if kept is not None:
            report.what_next(screen, 9 if settings.spark else 7, place.zookeeper, place.topic)
            kept.pop_all()
    screen.say("")
    rest = "The cluster is left up." if settings.keep else "Nothing is left running."
    screen.title(
        f"{'All numbers agree.' if good else 'THE NUMBERS DO NOT AGREE.'} {rest} ({monotonic() - began:.0f} s)"
    )
    return 0 if good else 1


@contextlib.contextmanager
def calm_end() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, and ignore both during the clean-up."""
    interrupted = Event()

    def interrupt(*_: object) -> None:
        interrupted.set()
        for number in before:
            signal.signal(number, signal.SIG_IGN)
        print("\nStopping everything ...", file=sys.stderr)
        raise KeyboardInterrupt

    before: dict[signal.Signals, Callable[[int, FrameType | None], object] | int | None] = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, interrupt)
    try:
        yield
    except Exception as error:
        if interrupted.is_set():  # an error during the interrupted clean-up is a result of the interruption
            raise KeyboardInterrupt from error
        raise
    else:
        if interrupted.is_set():  # Python drops what a handler raises in a finalizer or a callback of the collector
            raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def start_cluster(
    settings: DemoSettings, screen: Screen, stack: ExitStack, partitions: int = PARTITIONS
) -> tuple[DemoTopic, ExitStack | None]:
    """Start the cluster and create the topic. The ``stack`` stops it at the end.

    With ``--keep``, also return the part of the stack that stops the cluster, so that the caller can drop it.
    """
    screen.step(1, f"ZooKeeper and Kafka {DEFAULT_KAFKA} start on this machine")
    zookeeper_jars(progress=screen.progress)  # downloaded the first time
    kafka_jars(DEFAULT_KAFKA, screen.progress)
    began = monotonic()
    screen.progress("starting ...")
    kept = None
    if settings.keep:
        kept = stack.enter_context(ExitStack())
        state, started = background_cluster.up()
        if started:
            kept.callback(background_cluster.down)
        zookeeper, bootstrap = state.zookeeper_connect, state.bootstrap_servers
    else:
        cluster = stack.enter_context(DevCluster())
        zookeeper, bootstrap = cluster.zookeeper_connect, cluster.bootstrap_servers
    with Admin(zookeeper) as admin:
        there = admin.topics()
        suffix = next(text for text in ["", *(f"-{n}" for n in range(2, 10_000))] if f"flights{text}" not in there)
        place = DemoTopic(zookeeper, bootstrap, f"flights{suffix}", f"demo{suffix}")
        admin.create_topic(place.topic, partitions)
    screen.settle()
    screen.say(f"zookeeper.connect={zookeeper}   Kafka at {bootstrap}   ({monotonic() - began:.1f} s)")
    screen.say(f'topic "{place.topic}" with {partitions} partitions')
    return place, kept


class GroupSteps:
    """Steps 2 to 6 of the demo: the group and its members."""

    def __init__(self, settings: DemoSettings, place: DemoTopic, screen: Screen, folder: Path) -> None:
        self._settings = settings
        self._place = place
        self._screen = screen
        self._folder = folder
        self._account = MessageAccount()
        self._members: dict[str, MemberProcess] = {}
        self._view = GroupOwners()
        self._producer = FlightProducer(
            place.bootstrap, place.topic, settings.flights, settings.total, settings.production_seconds
        )
        self._zookeeper = GroupInZooKeeper(place.zookeeper, place.group, place.topic, PARTITIONS)

    def play(self) -> tuple[AccountTotals, dict[str, Delays], dict[int, int]]:
        """Return the account, the totals of the file, and the offsets in ZooKeeper."""
        with ExitStack() as stack:
            stack.enter_context(self._zookeeper)
            stack.callback(self._producer.stop)
            stack.callback(self._close_members)
            self._two_join()
            self._third_joins()
            self._one_is_killed()
            self._one_leaves()
            self._last_reads_all()
            committed = self._zookeeper.committed()
        return self._account.totals(), self._producer.totals.by_carrier, committed

    def _two_join(self) -> None:
        self._step(2, f'Two members join the group "{self._place.group}", with two streams each')
        self._screen.legend()
        self._producer.start(self._account)
        for name in ("ann", "ben"):
            self._start(name)
        self._settled({"ann", "ben"})
        self._screen.say(f"{self._settings.total:,} flights are being produced, keyed by carrier, as JSON")
        self._produced(_THIRD_JOINS)

    def _third_joins(self) -> None:
        self._step(3, "A third member joins")
        self._start("cid")
        self._until(lambda: "cid" in self._view.members, "cid registers")
        seconds = self._settled({"ann", "ben", "cid"})
        self._screen.say(f"it has its share {_brief(seconds)} after it registered")
        self._produced(_ONE_IS_KILLED)

    def _one_is_killed(self) -> None:
        self._step(4, "ben is killed (SIGKILL): it can neither commit nor say goodbye")
        lost = [str(number) for number, owner in sorted(self._view.owners.items()) if owner[0] == "ben"]
        self._members["ben"].kill()
        timeout = _SESSION_TIMEOUT_MS / 1000
        self._screen.say(
            f"partitions {','.join(lost)} wait until its ZooKeeper session times out, set to {timeout:.0f} s"
        )
        seconds = self._settled({"ann", "cid"})
        self._screen.say(f"the others own them {_brief(seconds)} after the kill")
        self._produced(_ONE_LEAVES)

    def _one_leaves(self) -> None:
        self._step(5, "ann leaves cleanly (SIGTERM, then connector.shutdown())")
        self._members["ann"].leave()
        seconds = self._settled({"cid"})
        self._members["ann"].join()
        self._screen.say(f"cid owns everything {_brief(seconds)} later")

    def _last_reads_all(self) -> None:
        self._step(6, "The last flights are produced, cid reads to the end and leaves")
        self._producer.let_finish()
        self._until(lambda: self._producer.finished, "all flights are produced")
        self._until(lambda: self._account.consumed_count >= self._account.produced_count, "all of them are consumed")
        self._members["cid"].leave()
        self._until(lambda: not self._view.members, "the group is empty")
        for member in self._members.values():
            member.join()

    def _step(self, number: int, text: str) -> None:
        self._account.begin(number)
        self._screen.step(number, text)

    def _start(self, name: str) -> None:
        place = self._place
        member = MemberProcess(name, place.zookeeper, place.group, place.topic, _SESSION_TIMEOUT_MS, self._folder)
        self._members[name] = member
        member.start(self._account)
        self._screen.say(f"{name} is process {member.pid}")

    def _settled(self, members: set[str]) -> float:
        """Wait until these members own all partitions. Return the time in seconds."""
        began = monotonic()
        self._until(lambda: self._view.settled(members, PARTITIONS, STREAMS), f"{', '.join(sorted(members))} own all")
        return monotonic() - began

    def _produced(self, share: float) -> None:
        wanted = share * self._settings.total
        self._until(lambda: self._account.produced_count >= wanted, f"{wanted:,.0f} flights are produced")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        """Wait until ``done``. Show the owners meanwhile."""
        wait_until(done, self._look, what, _STEP_S)

    def _look(self) -> GroupOwners:
        self._producer.check()
        for member in self._members.values():
            member.check()
        self._view = self._zookeeper.look()
        self._screen.group(self._view, self._account, PARTITIONS)
        return self._view

    def _close_members(self) -> None:
        self._screen.settle()
        with ExitStack() as last:  # a failure of one does not prevent the others
            for member in self._members.values():
                last.callback(member.close)


def _brief(seconds: float) -> str:
    """Return a time as text. The demo looks twenty times a second, so it cannot measure less than two looks."""
    return f"{seconds:.1f} s" if seconds >= 2 * LOOK_S else f"less than {2 * LOOK_S:.1f} s"


def _spark(
    settings: DemoSettings, place: DemoTopic, wanted: dict[str, Delays], screen: Screen, folder: Path
) -> tuple[dict[str, CarrierReport], SharedGroupResult, bool]:
    """Run steps 7 and 8. Also return whether all numbers agree."""
    options = {
        "zookeeper.connect": place.zookeeper,
        "group.id": f"{place.group}-spark",
        "subscribe": place.topic,
    }
    screen.step(7, f'Spark, as a second group "{options["group.id"]}", reads the same topic as a DataFrame')
    screen.say('zkconsumer.spark.register(spark)\nspark.read.format("zkconsumer")', "green")
    for name, value in options.items():
        screen.say(f'     .option("{name}", "{value}")', "green")
    screen.say("     .load()", "green")
    with SparkProcess(options, shared_group.options(settings.total), folder, screen.waiting) as spark:
        rows = spark.rows()
        screen.settle()
        table, agrees = compare(rows, wanted)
        screen.say("")
        screen.table(table)
        with GroupInZooKeeper(place.zookeeper, options["group.id"], place.topic, PARTITIONS) as group:
            share = shared_group.SharedGroup(spark, group, screen, folder)
            shared = share.play(options["group.id"], place, settings.total, settings.plot)
    return rows, shared, agrees and shared.good
