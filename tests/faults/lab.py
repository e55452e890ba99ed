"""Where rows run: a real cluster that they share, and what a row tells in the end."""

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

from tests.faults.group import Group, Servers, Timing
from tests.faults.history import History
from tests.faults.verdict import Rules, Verdict
from zkconsumer.devcluster import DevCluster

PARTITIONS = 8
_numbers = itertools.count(1)
_directories: ContextVar[list[Path] | None] = ContextVar("_directories", default=None)
"""Where the groups of the row under way write, which is kept until the row is judged."""


class Lab:
    """Two brokers and a ZooKeeper for as many rows as like; a row that leaves them in a bad state costs a new pair.

    Used by one thread, but for ``group`` and the servers' addresses.
    """

    def __init__(self, timing: Timing, *, mixed: bool = False, seed: int | None = None, keep: bool = False) -> None:
        """Arguments: ``mixed`` puts a member of the original into the group of every row that can have one."""
        self.timing = timing
        self.mixed = mixed
        self.keep = keep
        self.seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
        self.random = random.Random(self.seed)
        self._cluster: DevCluster | None = None

    @property
    def cluster(self) -> DevCluster:
        """The servers, started when first asked for."""
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
        """Stop the servers; the next row has new ones."""
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
    ) -> Iterator[Group]:
        """A group of a row with a topic of its own, whose replicas are where ``assignment`` says if it is given."""
        cluster = self.cluster
        name = f"row{row}-{os.getpid()}-{next(_numbers)}"
        cluster.create_topic(name, partitions, assignment=assignment)
        servers = Servers(cluster.zookeeper_connect, cluster.bootstrap_servers)
        with Group(servers, name, timing or self.timing, {name: partitions}, **options) as group:
            group.random.seed(self.random.random())
            directories = _directories.get()
            group.keep = self.keep or directories is not None
            if directories is not None:
                directories.append(group.directory)
            yield group

    def populate(self, group: Group, count: int = 3, **options: Any) -> None:
        """The row's members: so many of ours and, in a mixed lab, one of the original in addition."""
        if self.mixed:
            group.join_legacy("scala")
        group.start(count, **options)

    @property
    def patience(self) -> float:
        """What a recovery may take beyond its bound in this lab: members of the original wait for each other in steps
        of their back-off (here 0.3 s), and look again after as many.
        """
        return 4.0 if self.mixed else 0.0

    def rules(self, **more: Any) -> Rules:
        """What a row of this lab is judged by."""
        base: dict[str, Any] = {"commit": self.timing.commit, "bound": self.timing.bound + self.patience}
        if self.mixed:
            base["bounds"] = {kind: seconds + self.patience for kind, seconds in more.pop("bounds", {}).items()}
        return Rules(**(base | more))


@dataclass(slots=True)
class Report:
    """What came of one run of one row."""

    row: str
    title: str
    verdict: Verdict = field(default_factory=Verdict)
    seconds: float = 0.0
    load: float = 0.0
    figures: list[str] = field(default_factory=list)
    failure: str = ""

    def judged(self, group: Group, rules: Rules) -> History:
        """Add what the group's logs say; a row may have several groups."""
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
        """A figure for the table's last column."""
        self.figures.append(figure)

    def require(self, holds: bool, text: str) -> None:
        """A violation unless it holds."""
        if not holds:
            self.verdict.violations.append(text)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong but that recoveries may have been slow, for who judges these by :meth:`within`."""
        return not self.verdict.violations and not self.failure

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong and each recovery kept to its bound. A row's bounds count what it does at once."""
        return self.sound and not self.verdict.slow

    def within(self, factor: float, more: float) -> bool:
        """Whether each recovery kept to its bound, stretched for a machine that is busy."""
        return all(seconds <= factor * bound + more for _, seconds, bound in self.verdict.slow)


Run = Callable[[Lab, Report], None]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the matrix. ``quick``: part of what every change runs; ``mixed``: also with the original's member."""

    name: str
    title: str
    run: Run
    quick: bool = False
    mixed: bool = False
    harsh: bool = False
    """It leaves servers behind that the next row must not have."""

    def perform(self, lab: Lab, *, alone: bool = True) -> Report:
        """Run it once. ``alone``: no other row uses the lab's servers, so they may be had anew."""
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
    """Enters a function into the matrix."""

    def enter(run: Run) -> Run:
        ROWS[name] = Row(name, title, run, quick, mixed, harsh)
        return run

    return enter
