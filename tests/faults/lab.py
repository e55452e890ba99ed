"""The lab of the rows: a real cluster that they share, and the report of a row."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Self

from tests.faults.group import RecordedGroup, Servers, Timing
from tests.faults.history import History
from tests.faults.verdict import Rules, Verdict
from zkconsumer.devcluster import DevCluster

PARTITIONS = 8
_numbers = itertools.count(1)
_directories: ContextVar[list[Path] | None] = ContextVar("_directories", default=None)
"""Where the groups of the row under way write, which is kept until the row is judged."""


def new_name(prefix: str) -> str:
    """Return a name for a topic or group that nothing else has."""
    return f"{prefix}-{os.getpid()}-{next(_numbers)}"


class Lab:
    """Two brokers and a ZooKeeper, shared by rows. A row that leaves them in a bad state is followed by new ones.

    One thread uses it, except for ``group`` and the servers' addresses.
    """

    def __init__(self, timing: Timing, *, mixed: bool = False, seed: int | None = None, keep: bool = False) -> None:
        """Arguments: ``mixed`` adds a member of the original to the group of every row that allows one."""
        self.timing = timing
        self.mixed = mixed
        self.keep = keep
        self.seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        self.random = random.Random(self.seed)
        self._cluster: DevCluster | None = None

    @property
    def cluster(self) -> DevCluster:
        """The servers, which start at the first access."""
        if self._cluster is None:
            self._cluster = DevCluster(
                tick_ms=int(self.timing.tick * 1000),
                brokers=2,
                zookeeper_properties={"maxSessionTimeout": 60_000},
                broker_properties={
                    "zookeeper.session.timeout.ms": int(self.timing.session * 1000),
                    "auto.leader.rebalance.enable": "false",
                },
            ).start()
        return self._cluster

    def renew(self) -> None:
        """Stop the servers. The next row gets new ones."""
        if self._cluster is not None:
            cluster, self._cluster = self._cluster, None
            cluster.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.renew()

    @contextlib.contextmanager
    def group(
        self,
        row: str,
        partitions: int = PARTITIONS,
        *,
        timing: Timing | None = None,
        assignment: Mapping[int, list[int]] | None = None,
        **options: Any,
    ) -> Iterator[RecordedGroup]:
        """Return a group with its own topic. ``assignment`` gives the topic's replicas."""
        cluster = self.cluster
        name = new_name(f"row{row}")
        cluster.create_topic(name, partitions, assignment=assignment)
        servers = Servers(cluster.zookeeper_connect, cluster.bootstrap_servers)
        with RecordedGroup(servers, name, timing or self.timing, {name: partitions}, **options) as group:
            group.random.seed(self.random.random())
            directories = _directories.get()
            group.keep = self.keep or directories is not None
            if directories is not None:
                directories.append(group.directory)
            yield group

    def populate(self, group: RecordedGroup, count: int = 3, **options: Any) -> None:
        """Start ``count`` members of ours and, in a mixed lab, one of the original."""
        if self.mixed:
            group.join_legacy("scala")
        group.start(count, **options)

    @property
    def patience(self) -> float:
        """The time by which a recovery in this lab may exceed its bound.

        Members of the original wait for each other in steps of their back-off (here 0.3 s).
        """
        return 4.0 if self.mixed else 0.0

    def rules(self, **more: Any) -> Rules:
        """Return the rules for a row of this lab."""
        base: dict[str, Any] = {"commit": self.timing.commit, "bound": self.timing.bound + self.patience}
        if self.mixed:
            base["bounds"] = {kind: seconds + self.patience for kind, seconds in more.pop("bounds", {}).items()}
        return Rules(**(base | more))


@dataclass(slots=True)
class Report:
    """The report of one run of one row."""

    row: str
    title: str
    verdict: Verdict = field(default_factory=Verdict)
    seconds: float = 0.0
    load: float = 0.0
    figures: list[str] = field(default_factory=list)
    failure: str = ""

    def judged(self, group: RecordedGroup, rules: Rules) -> History:
        """Add the verdict about a group's logs. A row may have several groups."""
        verdict, found = group.judge(rules)
        into = self.verdict
        for name in ("violations", "lost", "absent", "late", "past_gate", "recoveries", "slow", "closes"):
            getattr(into, name).extend(getattr(verdict, name))
        into.duplicates.update(verdict.duplicates)
        for name in ("handed_out", "acked", "overlaps", "frozen_runs", "unseen"):
            setattr(into, name, getattr(into, name) + getattr(verdict, name))
        into.rounds = max(into.rounds, verdict.rounds)
        return found

    def tell(self, figure: str) -> None:
        """Add a figure to the table's last column."""
        self.figures.append(figure)

    def require(self, holds: bool, text: str) -> None:
        """Add a violation unless the condition holds."""
        if not holds:
            self.verdict.violations.append(text)

    @property
    def sound(self) -> bool:
        """Whether there is no violation except slow recoveries. Callers check these by :meth:`within`."""
        return not self.verdict.violations and not self.failure

    @property
    def ok(self) -> bool:
        """Whether there is no violation and each recovery kept to its bound."""
        return self.sound and not self.verdict.slow

    def within(self, factor: float, more: float) -> bool:
        """Return whether each recovery kept to its bound, multiplied by a factor for a busy machine."""
        return all(seconds <= factor * bound + more for _, seconds, bound in self.verdict.slow)


Run = Callable[[Lab, Report], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the matrix. ``quick``: pytest runs it. ``mixed``: it also runs with a member of the original."""

    name: str
    title: str
    run: Run
    quick: bool = False
    mixed: bool = False
    harsh: bool = False
    """It leaves servers behind that the next row must not have."""

    def perform(self, lab: Lab, *, alone: bool = True) -> Report:
        """Run the row once. ``alone``: the row may replace the lab's servers, because no other row uses them."""
        report = Report(self.name, self.title)
        begin = monotonic()
        directories: list[Path] = []
        token = _directories.set(directories)
        try:
            self.run(lab, report)
        except Exception:
            report.failure = traceback.format_exc()
        finally:
            _directories.reset(token)
        if lab.keep or not report.ok:
            report.tell(f"logs: {', '.join(map(str, directories))}")
        else:
            for directory in directories:
                shutil.rmtree(directory, ignore_errors=True)
        report.seconds = monotonic() - begin
        report.load = os.getloadavg()[0]
        if alone and (self.harsh or report.failure):
            lab.renew()
        return report


ROWS: dict[str, Row] = {}


def row(
    name: str, title: str, *, quick: bool = False, mixed: bool = False, harsh: bool = False
) -> Callable[[Run], Run]:
    """Add a function to the matrix."""

    def enter(run: Run) -> Run:
        ROWS[name] = Row(name, title, run, quick, mixed, harsh)
        return run

    return enter
