"""The scenario ``operators``: operators change the offsets of a live group, by commands and by hand, and are stopped.

The commands are those of ``zkconsumer``, in processes of their own, with sessions of the simulated ZooKeeper.

- A command writes an offset only if the undo file has the overwritten one, and only as the documents allow it.
- With ``offset.conflict=adopt`` the first offset that a member writes after an operator is the operator's. From then on
  that member hands out nothing below it.
- What a command says at its end is true.
"""

from __future__ import annotations

import concurrent.futures.thread
import io
import json
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

from tests.simulation.members import CALL, StreamsApplication
from tests.simulation.promises import Observer, Watched
from tests.simulation.scenario import Scenario
from tests.simulation.scheduler import Process, world
from tests.simulation.zookeeper import SimulatedSession
from zkconsumer import cli
from zkconsumer.cli.offsets import write_report
from zkconsumer.core.offset_file_formats import parse_undo_file
from zkconsumer.errors import OffsetConflictError
from zkconsumer.model import TopicPartition
from zkconsumer.operations import snapshot_reader
from zkconsumer.zookeeper import paths

ENDS = 60.0  # seconds after which a command has ended: its wait for the owners, and some requests
AT_A_TIME = 2  # operators at a time
_DEAD = ("gone-0", "gone-1", "t-77")  # partitions that do not exist, whose offsets are pruned
_NOT_WRITTEN = re.compile(r"^g +t +(\d+) +not written", re.MULTILINE)
# a lock of the operating system, which a task would hold while another one waits for it
vars(concurrent.futures.thread)["_global_shutdown_lock"] = nullcontext()


class OperatorProcess(Process):
    """The process of an operator's command, or of a write by hand (``undo_file`` None).

    ``shift`` is the number of ``--shift-by``. ``wrote`` has the new and the former offsets, None where there is none.
    """

    undo_file: Path | None = None
    shift: int | None = None

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.wrote: dict[TopicPartition, tuple[int | None, int | None]] = {}


@dataclass
class Moved:
    """An offset that an operator wrote ``at``. ``adopted`` is the time at which a member wrote it once more."""

    by: OperatorProcess
    offset: int
    owner: str | None
    at: float
    adopted: float | None = None


class OperatedObserver(Observer):
    """``conflict`` is the ``offset.conflict`` of all members."""

    conflict = "adopt"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._versions: dict[TopicPartition, tuple[int, int]] = {}
        self.moved: dict[TopicPartition, Moved] = {}
        self._last: dict[tuple[str, TopicPartition], int] = {}

    def look(self) -> None:
        """Compare the nodes with those of the last look, also those that were written with the same content."""
        before = {tp: (seen.committed["zookeeper"], seen.owner) for tp, seen in self.partitions.items()}
        operator = self._operator()
        if operator is not None:
            self._look_at_deletions(operator)
        super().look()
        for tp, seen in self.partitions.items():
            node, moved = self._zookeeper.node(paths.offset(self._group, tp)), self.moved.get(tp)
            version = (0, 0) if node is None else (node.czxid, node.version)
            if version != self._versions.get(tp, (0, 0)):
                self._versions[tp] = version
                if moved is not None and operator is None and node is not None and int(node.data) == moved.offset:
                    moved.adopted = moved.adopted or world().now
                    self._begins_at(self.partitions[tp], moved.offset)  # what it finished before is not committed
                elif operator is not None and node is not None and before[tp][0] == int(node.data):
                    self._operated(operator, tp, int(node.data))
            if moved is not None and before[tp][1] != seen.owner and moved.adopted is not None:
                self.moved.pop(tp)  # a later owner begins at its own start

    @staticmethod
    def _operator() -> OperatorProcess | None:
        process = world().current.process
        return process if isinstance(process, OperatorProcess) else None

    def committed(self, store: str, tp: TopicPartition, offset: int) -> None:
        operator, moved = self._operator(), self.moved.get(tp)
        if operator is not None:
            self._operated(operator, tp, offset)
            return
        seen = self.partitions[tp]
        adopts = self.conflict == "adopt" and moved is not None and moved.adopted is None
        if moved is not None and offset > moved.offset and self._zookeeper.silent[1] >= moved.at:
            adopts = False  # the member adopted the offset, and its confirmation found no quorum
        if adopts and moved is not None and offset != moved.offset and not seen.back_to:
            self.broke(f"{tp}: {moved.by} set offset {moved.offset}, and a member wrote {offset} over it")
        elif moved is not None and moved.adopted is None:
            moved.adopted = world().now
            self._begins_at(seen, offset)
        super().committed(store, tp, offset)

    def _operated(self, operator: OperatorProcess, tp: TopicPartition, offset: int) -> None:
        """An operator wrote an offset. Messages below it are skipped by name, and those from it on come again."""
        seen = self.partitions[tp]
        before = seen.committed["zookeeper"]
        world().note(f"operator set {tp} to {offset}, was {before}")
        self._allowed(operator, tp, before, offset)
        operator.wrote[tp] = (offset, before)
        seen.committed["zookeeper"] = offset
        seen.finished.update(range(seen.below, offset))
        if self.conflict == "adopt":
            seen.finished = {each for each in seen.finished if each < offset}
            seen.below = min(seen.below, offset)
            seen.back_to.clear()
        else:
            seen.may_go_back(0)
        self.moved[tp] = Moved(operator, offset, seen.owner, world().now)
        self._begins_at(seen, offset)

    def _begins_at(self, seen: Watched, offset: int) -> None:
        seen.change(seen.owner, began=world().now)
        seen.reopen(seen.owner, offset)

    def _allowed(self, operator: OperatorProcess, tp: TopicPartition, before: int | None, offset: int | None) -> None:
        if operator.undo_file is None:
            return
        saved = parse_undo_file(operator.undo_file.read_text()).saved.get(tp) if operator.undo_file.exists() else None
        kept = None if saved is None or saved.before is None else saved.before.valid
        if saved is None or kept != before:
            self.broke(f"{tp}: {operator} overwrote {before}, and its undo file has {saved and kept}")
        elif self.partitions[tp].owner is not None and (self.conflict != "adopt" or offset is None):
            self.broke(f"{tp}: {operator} changed the offset under an owner that does not adopt it")
        elif operator.shift is not None and offset is not None and before is not None:
            wanted = max(0, before + operator.shift)
            if offset != wanted and not before <= offset <= wanted:
                self.broke(f"{tp}: {operator} shifted {before} by {operator.shift} to {offset}")

    def _look_at_deletions(self, operator: OperatorProcess) -> None:
        by_hand = operator.undo_file is None
        # who registers after the operator's look has claimed nothing yet, and reads the offset after its claim
        owned = paths.owners(self._group)
        live = [path for path, node in self._zookeeper.nodes.items() if path.startswith(owned) and node.ephemeral_owner]
        for tp, seen in self.partitions.items():
            if seen.committed["zookeeper"] is None or self._zookeeper.node(paths.offset(self._group, tp)) is not None:
                continue
            world().note(f"{operator} deleted the offset of {tp}")
            if live and not by_hand:
                self.broke(f"{operator} deleted the offset of {tp}, and {live[0]} was there")
            operator.wrote[tp] = (None, seen.committed["zookeeper"])
            seen.committed["zookeeper"] = None
            self.moved.pop(tp, None)
            self._begins_at(seen, 0)

    def handed(self, member: str, tp: TopicPartition, offset: int, asked: float) -> None:
        moved, seen = self.moved.get(tp), self.partitions[tp]
        jumped = self._last.get((member, tp)) != offset - 1  # also from the start, where nothing was handed out yet
        self._last[member, tp] = offset
        goes_on = moved is not None and seen.owner == member and jumped and offset == moved.offset
        if moved is not None and goes_on and moved.adopted is None and self.conflict == "adopt":
            moved.adopted = world().now  # its confirmation was lost, and the next commit makes up for that
            self._begins_at(seen, offset)
        adopted = None if moved is None or self.conflict != "adopt" or seen.owner != member else moved.adopted
        if moved is not None and adopted is not None and asked > adopted and offset < moved.offset:
            self.broke(f"{tp}: {member} adopted {moved.offset} from {moved.by}, and handed out {offset}")
        super().handed(member, tp, offset, asked)

    def sought(self, member: str, tp: TopicPartition, offset: int) -> None:
        self.partitions[tp].finished.update(range(self.partitions[tp].below, offset))  # skipped by name
        super().sought(member, tp, offset)
        self.moved.pop(tp, None)

    # ---- the end of a command

    def said(self, operator: OperatorProcess, code: int, out: str, err: str) -> None:
        """A reset or an undo ended with an exit code and two texts."""
        rows = json.loads(out[out.index("[") :]) if "[" in out else []
        wrote = {tp: one for tp, one in operator.wrote.items() if tp.topic == "t"}
        kept = [TopicPartition("t", int(number)) for number in _NOT_WRITTEN.findall(err)]
        for tp in kept:
            if tp in wrote:
                self.broke(f"{operator} said that {tp} is not written, and wrote {wrote[tp][0]}")
        for row in rows:
            tp, told = TopicPartition(row["topic"], row["partition"]), (row["new_offset"], row["current_offset"])
            if "lag_after" in row and tp in wrote and wrote[tp] != told:  # that of an undo shows the plan
                self.broke(f"{operator} told {told} as new and old offset of {tp}, and it was {wrote[tp]}")
            moved = self.moved.get(tp)
            followed = code == 0 and moved is not None and moved.by is operator and moved.owner is not None
            if followed and moved is not None and moved.adopted is None:
                self.broke(f"{operator} said that {moved.owner} went on from {moved.offset} of {tp}, and it has not")


class OperatedApplication(StreamsApplication):
    """Decides where to go on when ``offset.conflict`` is ``raise``."""

    def read(self, stream: Any) -> list[Any]:
        try:
            return super().read(stream)
        except OffsetConflictError as error:
            tp, offset = error.partition, self.world.random.choice([error.offset, error.ours or 0])
            self.seek(tp, offset, CALL)
            return []

    def seek(self, tp: TopicPartition, offset: int, patience: float) -> list[Any]:
        done, observer = super().seek(tp, offset, patience), cast("OperatedObserver", self.observer)
        if done and tp in observer.moved:  # by an operator during the call: the seek came after that
            observer.sought(self.member.consumer, tp, offset)
        return done


class PerTask(io.StringIO):
    """An output that each process has of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: defaultdict[str, str] = defaultdict(str)

    def write(self, text: str) -> int:
        self.texts[world().current.process.name] += text
        return len(text)


class Signals:
    """The signals of each process, in place of the module ``signal``."""

    SIGINT, SIGTERM = signal.SIGINT, signal.SIGTERM

    def __init__(self) -> None:
        self.handlers: dict[tuple[str, int], Any] = {}

    def signal(self, number: int, handler: Any) -> Any:
        """Set a handler of the present process. Return the one before."""
        place = (world().current.process.name, number)
        before, self.handlers[place] = self.handlers.get(place), handler
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
                self.observer.broke(f"{working[0]} is still at work after {ENDS:g} s")
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
        some = self.world.random.choice([[], ["--unsubscribed"]])
        code = self._command(process, "offsets", "prune", self.group, *some)
        left = [path for path in dead if self.zookeeper.node(path) is not None]
        if code == 0 and left and alone and count == len(self.operators):
            self.observer.broke(f"{process} pruned the group, and {left[0]} is still there")

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
