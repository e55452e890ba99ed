"""The observer of a group whose offsets operators change, by commands or by hand.

- A command writes an offset only if the undo file has the overwritten one, and only as the documents allow it.
- With ``offset.conflict=adopt`` the first offset that a member writes after an operator is the operator's. From then on
  that member hands out nothing below it.
- What a command says at its end is true.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.simulation.promises import Observer, Watched
from tests.simulation.scheduler import Process, world
from zkconsumer.core.offset_files import parse_backup
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

_NOT_WRITTEN = re.compile(r"^g +t +(\d+) +not written", re.MULTILINE)


class OperatorProcess(Process):
    """The process of an operator's command, or of a write by hand (``undo_file`` None).

    ``shift`` is the number of ``--shift-by``. ``wrote`` has the new and the former offsets, None where there is none.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.undo_file: Path | None = None
        self.shift: int | None = None
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
        task = world().current
        return task.process if task is not None and isinstance(task.process, OperatorProcess) else None

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
        self.skip(tp, offset)
        if self.conflict == "adopt":
            seen.finished = {each for each in seen.finished if each < offset}
            seen.below = min(seen.below, offset)
            seen.back_to.clear()
        else:
            seen.may_go_back(0)
        self.moved[tp] = Moved(operator, offset, seen.owner, world().now)
        self._begins_at(seen, offset)

    def skip(self, tp: TopicPartition, offset: int) -> None:
        """Somebody skips the messages below ``offset`` by name."""
        seen = self.partitions[tp]
        seen.finished.update(range(seen.below, offset))

    def _begins_at(self, seen: Watched, offset: int) -> None:
        if seen.owner is not None:
            _, ended, lowest = seen.owned[seen.owner]
            seen.owned[seen.owner] = (world().now, ended, min(lowest, offset))

    def _allowed(self, operator: OperatorProcess, tp: TopicPartition, before: int | None, offset: int | None) -> None:
        if operator.undo_file is None:
            return
        saved = parse_backup(operator.undo_file.read_text()).saved.get(tp) if operator.undo_file.exists() else None
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
        adopted = None if moved is None or self.conflict != "adopt" or seen.owner != member else moved.adopted
        if moved is not None and adopted is not None and asked > adopted and offset < moved.offset:
            self.broke(f"{tp}: {member} adopted {moved.offset} from {moved.by}, and handed out {offset}")
        super().handed(member, tp, offset, asked)

    def sought(self, member: str, tp: TopicPartition, offset: int) -> None:
        self.skip(tp, offset)
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
