"""The scenario ``operators``: operators change the offsets of a live group, by commands and by hand, and are stopped.

The commands are those of ``zkconsumer``, in processes of their own. Their sessions are sessions of the simulated
ZooKeeper. :mod:`tests.simulation.operator_promises` says what is promised.
"""

from __future__ import annotations

import concurrent.futures.thread
import io
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from tests.simulation.applications import APPLICATIONS, CALL, StreamsApplication
from tests.simulation.operator_promises import OperatedObserver, OperatorProcess
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Process, world
from tests.simulation.zookeeper import SimulatedSession
from zkconsumer import cli
from zkconsumer.cli.offsets import write_report
from zkconsumer.errors import OffsetConflictError
from zkconsumer.model import TopicPartition
from zkconsumer.operations import snapshot_reader
from zkconsumer.zookeeper import paths

ENDS = 60.0
"""Seconds after which a command has ended: its wait for the owners, and some requests."""
AT_A_TIME = 2
"""Operators at a time."""
_DEAD = ("gone-0", "gone-1", "t-77")
"""Partitions that do not exist, whose offsets are pruned."""
# a lock of the operating system, which a task would hold while another one waits for it
vars(concurrent.futures.thread)["_global_shutdown_lock"] = nullcontext()


class OperatedApplication(StreamsApplication):
    """Decides where to go on when ``offset.conflict`` is ``raise``."""

    def read(self, stream: Any) -> list[Any]:
        try:
            return super().read(stream)
        except OffsetConflictError as error:
            tp, offset = error.partition, self.world.random.choice([error.offset, error.ours or 0])
            self.seek(tp, offset, CALL)
            return []

    def seek(self, tp: TopicPartition, offset: int, patience: float) -> bool:
        done, observer = super().seek(tp, offset, patience), cast("OperatedObserver", self.scenario.observer)
        if done and tp in observer.moved:  # by an operator during the call: the seek came after that
            observer.sought(self.member.consumer, tp, offset)
        return done


APPLICATIONS["operated"] = OperatedApplication


class PerTask(io.StringIO):
    """An output that each process has of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}

    def write(self, text: str) -> int:
        task = world().current
        name = "" if task is None else task.process.name
        self.texts[name] = self.texts.get(name, "") + text
        return len(text)


class Signals:
    """The signals of each process, in place of the module ``signal``."""

    SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM

    def __init__(self) -> None:
        self.handlers: dict[tuple[str, int], Any] = {}

    def signal(self, number: int, handler: Any) -> Any:
        """Set a handler of the present process. Return the one before."""
        task = world().current
        assert task is not None
        place = (task.process.name, number)
        before = self.handlers.get(place)
        self.handlers[place] = handler
        return before


class OperatorScenario(Scenario):
    """A group that operators work on."""

    observer_class = OperatedObserver
    observer: OperatedObserver

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.observer.conflict = str(self.properties["offset.conflict"])
        self.folder = Path(self.at_end.enter_context(TemporaryDirectory(ignore_cleanup_errors=True)))
        self.operators: list[OperatorProcess] = []
        self.undo_files: list[Path] = []
        self.out, self.err, self.signals = PerTask(), PerTask(), Signals()
        vars(sys).update(stdout=self.out, stderr=self.err)
        vars(write_report)["signal"] = self.signals
        vars(snapshot_reader)["server_statistics"] = lambda *_: ()

    def choose_properties(self) -> dict[str, str | int]:
        conflict = self.world.random.choice(["adopt", "adopt", "adopt", "overwrite", "raise"])
        return {**super().choose_properties(), "rebalance.interval.ms": 20_000, "offset.conflict": conflict}

    def new_session(self, config: Any, on_change: Any, connect: str | None = None) -> SimulatedSession:
        """Return a session. An operator's is often slow, so that owners commit between its requests."""
        made: SimulatedSession = super().new_session(config, on_change, connect)
        if isinstance(made.process, OperatorProcess):
            made.slow_until = self.world.now + self.world.random.choice([0.0, 20.0])
        return made

    def _renewed(self, process: Process) -> None:
        if not isinstance(process, OperatorProcess):
            super()._renewed(process)

    def produce(self, count: int) -> None:
        super().produce(count)
        working = [one for one in self.operators if one.alive]
        if self.world.random.random() < 0.15 and len(working) < AT_A_TIME:
            self._begin_operator()
        elif working and self.world.random.random() < 0.1:
            self._trouble(self.world.random.choice(working))

    def settle(self) -> None:
        end = self.world.now + ENDS
        while working := [one for one in self.operators if one.alive]:
            if self.world.now > end:
                self.broken(f"{working[0]} is still at work after {ENDS:g} s")
                return
            self.world.sleep(1.0)
        super().settle()

    # ---- what operators do

    def _begin_operator(self) -> None:
        chance = self.world.random
        often: tuple[Callable[[OperatorProcess], None], ...] = (self._reset, self._by_hand, self._undo, self._prune)
        work = chance.choice((self._reset, *often, *often, self._empty, self._delete_group, self._delete_offsets))
        process = OperatorProcess(f"op{len(self.operators)}")
        self.operators.append(process)

        def body() -> None:
            work(process)
            process.alive = False

        self.world.spawn(process.name, body, process)

    def _trouble(self, process: OperatorProcess) -> None:
        """Kill a command, interrupt it, or take its connections."""
        self.faults.count += 1
        trouble = self.world.random.choice(["kill", "kill", "interrupt", "cut", "lose answer", "cut brokers"])
        self.world.note(f"fault: {trouble} {process}")
        session = next((one for one in self.zookeeper.sessions if one.process is process), None)
        if trouble == "kill":
            process.alive = False
            self.network.cut(process)
            if session is not None:
                session.lose_watches()
        elif trouble == "interrupt":
            handler = self.signals.handlers.get((process.name, self.world.random.choice([2, 15])))
            if callable(handler):
                handler(signal.SIGINT, None)
        elif trouble == "cut brokers":
            self.network.cut(process)
        elif session is not None and trouble == "cut":
            session.cut(self.world.random.choice([0.2, 2.0, 12.0]))
        elif session is not None:
            session.lose_next = "any"

    def _command(self, process: OperatorProcess, *words: str, said: bool = False) -> int:
        self.world.note(f"{process}: zkconsumer {' '.join(words).replace(str(self.folder), '')}")
        process.undo_file = self.folder / process.name
        named = ["--undo-file", str(process.undo_file)] if words[0] == "offsets" else []
        code = cli.main([*words, "--execute", *named, "--zookeeper", "simulated:2181"])
        out, err = (one.texts.pop(process.name, "") for one in (self.out, self.err))
        self.world.note(f"{process}: exit code {code}: {(out + err).replace(str(self.folder), '')!r}")
        if process.undo_file.exists():
            self.undo_files.append(process.undo_file)
        if said:
            self.observer.said(process, code, out, err)
        return code

    def _reset(self, process: OperatorProcess) -> None:
        chance = self.world.random
        number = chance.choice([chance.randrange(200), 0])
        where = chance.choice(["--to-earliest", "--to-latest", "--to-current", "--to-offset", *["--shift-by"] * 3])
        words = [where] + ([str(number)] if where == "--to-offset" else [])
        if where == "--to-current":
            process.shift = 0
        elif where == "--shift-by":
            process.shift = number - 100
            words = [f"--shift-by={process.shift}"]
        some = sorted(chance.sample(range(self.partitions), chance.randrange(1, self.partitions + 1)))
        which = chance.choice([["--all-topics"], ["--topic", "t:" + ",".join(map(str, some))]])
        wait = chance.choice(["0", "5", "25"])
        form = ["--verbose", "--format", "json", "--wait", wait]
        self._command(process, "offsets", "reset", self.group, *words, *which, *form, said=True)

    def _undo(self, process: OperatorProcess) -> None:
        if not self.undo_files:
            return
        file = str(self.world.random.choice(self.undo_files))
        force = self.world.random.choice([[], ["--force"]])
        self._command(process, "offsets", "undo", file, *force, "--format", "json", "--wait", "25", said=True)

    def _prune(self, process: OperatorProcess) -> None:
        """Prune what the group has of partitions that do not exist. Nobody else may put them back meanwhile."""
        names = [name.rpartition("-") for name in _DEAD]
        dead = [paths.offset(self.group, TopicPartition(topic, int(number))) for topic, _, number in names]
        for path in dead:
            if self.world.random.random() < 0.7:
                self.zookeeper.put(path, b"17")
        alone, count = [one for one in self.operators if one.alive] == [process], len(self.operators)
        code = self._command(
            process, "offsets", "prune", self.group, *self.world.random.choice([[], ["--unsubscribed"]])
        )
        left = [path for path in dead if self.zookeeper.node(path) is not None]
        if code == 0 and left and alone and count == len(self.operators):
            self.broken(f"{process} pruned the group, and {left[0]} is still there")

    def _delete_group(self, process: OperatorProcess) -> None:
        self._command(process, "groups", "delete", self.group)

    def _delete_offsets(self, process: OperatorProcess) -> None:
        self._command(process, "groups", "delete-offsets", self.group, "--topic", self.topic)

    def _empty(self, process: OperatorProcess) -> None:
        """Work on a group whose members have left, and have others join meanwhile."""
        for member in self.live():
            self.world.spawn(f"{member.name}-leaver", member.leave, member.process)
        self.world.sleep(self.world.random.choice([1.0, 4.0, 8.0]))
        self.world.spawn("joiner", self._join_soon, self.world.system)
        self.world.random.choice([self._delete_group, self._delete_offsets, self._reset])(process)

    def _join_soon(self) -> None:
        self.world.sleep(self.world.random.random() * 2)
        if not self.live():
            self.join()

    def _by_hand(self, process: OperatorProcess) -> None:
        """Set or delete one offset node, as with ``zkCli``."""
        tp = TopicPartition(self.topic, self.world.random.randrange(self.partitions))
        path = paths.offset(self.group, tp)
        if self.zookeeper.node(path) is None:
            return
        if self.world.random.random() < 0.2:
            self.zookeeper.remove(path)
        else:
            self.zookeeper.put(path, b"%d" % self.world.random.randrange(self.produced[tp] + 1))
