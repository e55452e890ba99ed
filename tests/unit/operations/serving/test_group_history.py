"""The history of ``serve --history``: a day with a clock that is pushed, restarts, bounds, and files that fail."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from tests.group_snapshots import NOW, group_snapshot, stat
from tests.timing import eventually, scaled
from tests.unit.cli.command_line import Printed, printed
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.operations.doctor.findings import Finding, Level
from zkconsumer.operations.group_snapshot import GroupSnapshot, LogState, OwnerNode
from zkconsumer.operations.group_timeline import EventKind, Rebalance, TimelineEvent
from zkconsumer.operations.judgement import Judgement
from zkconsumer.operations.serving import group_history, history_file
from zkconsumer.operations.serving.api import judge_watched
from zkconsumer.operations.serving.group_history import GroupHistory
from zkconsumer.operations.serving.group_trends import GroupTrend, followed
from zkconsumer.operations.serving.history_file import DAY, HistoryFile, HistoryReader, Limits, Sample, read_history
from zkconsumer.operations.serving.observed_group import ObservedGroup, observed, unread
from zkconsumer.operations.serving.poller import Board

START = NOW // 600_000 * 600 + 600
HOSTILE = "<script>\x00\ud800'; DROP TABLE groups"


@pytest.fixture(autouse=True)
def closed_histories() -> Iterator[None]:
    """From Python 3.13 on, a connection to SQLite that is left open fails whatever test runs then."""
    yield
    while Watch.begun:
        Watch.begun.pop().close()


class Watch:
    """A server without threads: readings and clocks are pushed, and the history looks after each."""

    begun: ClassVar[list[GroupHistory]] = []

    def __init__(self, path: Path, limits: Limits | None = None, name: str = "g") -> None:
        self.path, self.limits, self.name = str(path), limits, name
        self.now, self.passed, self.board = float(START), 0.0, Board()
        self.group: ObservedGroup | None = None
        self.history = self.begin()

    def begin(self) -> GroupHistory:
        self.history = GroupHistory(
            lambda: self.board, self.path, self.limits, clock=lambda: self.now, monotonic=lambda: self.passed
        )
        self.history.open()
        self.begun.append(self.history)
        return self.history

    def read(self, offset: int, end: int, owned: bool = True, seconds: float = 60.0, failure: str = "") -> None:
        """Read the group ``seconds`` later."""
        self.now += seconds
        self.passed += seconds
        taken = int(self.now * 1000)
        if failure and self.group is not None:
            self.group = unread(self.group, failure)
        else:
            self.group = observed(self.group, self.snapshot(offset, end, owned, taken))
        judged = judge_watched(self.group) if self.board.completed is None or not owned else self.healthy(self.group)
        self.board = Board({self.name: self.group}, {self.name: judged}, self.board.polls + 1, completed=taken)
        self.history.look()

    def healthy(self, group: ObservedGroup) -> Judgement:
        known = self.board.judgements[self.name]
        return (
            known
            if known.owners == {tp: one.thread for tp, one in group.snapshot.owners.items()}
            else judge_watched(group)
        )

    def snapshot(self, offset: int, end: int, owned: bool, taken: int) -> GroupSnapshot:
        made = group_snapshot({"g_a": {"t": 1}}, {}, {"t:0": offset}, {"t:0": (0, end)}, group=self.name, taken=taken)
        if owned:
            first = taken - START * 1000 < 6 * 3_600_000
            claim = stat(110 if first else 500, 50.0 if first else (NOW / 1000 - START) - 8 * 3600, ephemeral_owner=1)
            made.owners.update(dict.fromkeys(made.offsets, OwnerNode("g_a-0", claim)))
        return replace(made, zxid=200 + (taken - START * 1000) // 3_600_000 * 50)


@contextmanager
def reading(path: Path) -> Iterator[HistoryReader]:
    with closing(read_history(str(path))) as file:
        yield file


def a_day(path: Path) -> Watch:
    """A day: an owner is missing from hour 6 to 8, the server is away for an hour at noon, and begins anew."""
    watch = Watch(path)
    offset = end = 0
    for minute in range(0, 1440, 5):
        owned = not 360 <= minute < 480
        end += 500
        offset = min(end, offset + 1500) if owned else offset
        if minute == 720:
            watch.history.close()
        if not 720 <= minute < 780:
            watch.read(offset, end, owned, 3900 if minute == 780 and watch.begin() else 300)
    watch.history.close()
    return watch


def test_a_day_is_kept_with_its_gap_and_its_illness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch = a_day(tmp_path / "history")
    with reading(tmp_path / "history") as file:
        samples = file.samples("g", START, START + DAY)
        assert len(samples) == 276
        worst = max(samples, key=lambda one: one.lag or 0)
        assert (worst.lag, round((worst.at - START) / 3600)) == (12_000, 8)
        known = [one for one in samples if one.seconds]
        assert {round(one.produced / one.seconds * 60) for one in known} == {100}
        assert not [one for one in samples if 12.1 * 3600 < one.at - START < 12.9 * 3600], "nobody watched"
        assert sum(one.consumed for one in samples) == 500 * (288 - 12 - 2), "the first reading of each start adds none"
        tens = file.samples("g", START, START + DAY, history_file.TEN_MINUTES)
        assert sum(one.consumed for one in tens) == sum(one.consumed for one in samples)
        (ill,) = [one for one in file.findings("g", START, START + DAY) if one.check == "unowned-partition"]
        assert [round((at - START) / 3600) for at in (ill.came, ill.went or 0)] == [6, 8]
        assert len(file.rebalances("g", START - DAY, START + DAY)) == 2
    assert watch.history.trends["g"].curve(int(watch.now * 1000))[-1] == 0
    timeline: Printed = partial(printed, capsys, "timeline")
    text = timeline("g", "--history", str(tmp_path / "history"))
    assert "finding came          unowned-partition: error: " in text
    assert "unowned-partition after 2 h" in text
    assert text.count("= rebalance:") == 2
    assert "(lag: at most 12000 at " in text
    assert "is not in" in timeline("none", "--history", str(tmp_path / "history"), code=1, err=True)
    assert '"type": "lag"' in timeline("g", "--history", str(tmp_path / "history"), "--format", "json")


def test_rates_tell_when_a_group_has_caught_up(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "history")
    for number in range(4):
        watch.read(1000 + 120 * number, 2000 + 60 * number)
    trend = watch.history.trends["g"]
    assert trend.rates() == (2.0, 1.0)
    assert trend.drain_seconds() == trend.lag == 820
    watch.read(0, 0, failure="away")
    assert watch.history.trends["g"].drain_seconds() is None
    watch.read(1360, 9000)
    assert watch.history.trends["g"].drain_seconds() == float("inf")
    watch.read(9000, 9000)
    assert watch.history.trends["g"].drain_seconds() == 0
    watch.history.close()
    again = Watch(tmp_path / "history")
    again.now = watch.now
    assert next(one for one in again.begin().trends["g"].curve(int(watch.now * 1000)) if one is not None) == 1000


def test_a_broker_that_is_away_is_no_progress() -> None:
    first = group_snapshot({}, {}, {"t:0": 0, "t:1": 0}, {"t:0": (0, 100), "t:1": (0, 100)}, taken=NOW)
    later = replace(first, taken=NOW + 1000, logs={**first.logs, TopicPartition("t", 1): LogState(problem="away")})
    group = observed(None, first)
    after = observed(group, later)
    trend = followed(followed(GroupTrend(), None, group, Judgement(), NOW, 0), group, after, Judgement(), NOW, 1)
    assert trend.lag == 200
    gone = observed(after, replace(later, taken=NOW + 2000, logs=dict.fromkeys(first.logs, LogState(problem="away"))))
    assert followed(trend, after, gone, Judgement(), NOW, 2).lag is None


def test_a_locked_file_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "BUSY_SECONDS", 0.01)
    watch = Watch(tmp_path / "history")
    with closing(sqlite3.connect(tmp_path / "history")) as other:
        other.execute("BEGIN EXCLUSIVE")
        for number in range(3):
            watch.read(number, 9)
        assert "locked" in watch.history.state.failure
        assert watch.history.trends["g"].lag == 7
    watch.read(3, 9)
    assert watch.history.state.failure == ""
    with reading(tmp_path / "history") as file:
        assert [one.lag for one in file.samples("g", 0, 2 * START)] == [9, 8, 7], "the present minute is not over"


@pytest.mark.parametrize("closed", [True, False])
def test_a_damaged_or_moved_file_is_made_anew(tmp_path: Path, closed: bool) -> None:
    path = tmp_path / "history"
    watch = Watch(path)
    watch.read(1, 9)
    watch.read(2, 9)
    if closed:
        watch.history.close()
    path.write_bytes(path.read_bytes()[:5000] + b"\xff" * 40_000 if closed else b"\xff" * 40_000)
    if closed:
        watch.begin()
    for offset in (3, 4, 5):
        watch.read(offset, 9)
    assert ("malformed" if closed else "not a database") in watch.history.state.failure
    path.rename(tmp_path / "damaged")
    watch.read(6, 9)
    assert watch.history.state.failure == ""
    path.unlink()
    watch.read(7, 9)
    with reading(path) as file:
        assert file.samples("g", 0, 2 * START)


def test_a_full_disk_is_a_state_and_not_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "LEAST_BYTES", 4096 * 9)
    watch = Watch(tmp_path / "history", Limits(size=1), name="g" * 60_000)
    for number in range(100):
        watch.read(number, 200)
    assert "full" in watch.history.state.failure
    assert watch.history.state.dropped == 39
    assert watch.history.trends[watch.name].lag == 101


def test_a_clock_that_is_set_deletes_nothing(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "history")
    for number in range(10):
        watch.read(number, 20)
    watch.now -= 300
    watch.read(10, 20)
    assert watch.history.state.clock == "the clock was set back by 5 min"
    watch.now += 3650 * DAY
    for number in range(12, 16):
        watch.read(number, 20)
    assert "set ahead by 3650 d" in watch.history.state.clock
    watch.history.close()
    with reading(tmp_path / "history") as file:
        samples = file.samples("g", 0, START + DAY)
        assert len(samples) == 10
        assert sum(one.consumed for one in samples) == 10
        assert len(file.samples("g", START + DAY, 2**40)) == 4


def an_hour(at: int) -> dict[str, list[Sample]]:
    """The samples of 30 groups."""
    return {f"group-{n}": [Sample(at + 60 * m, 60, n, n, n) for m in range(60)] for n in range(30)}


def test_size_and_age_are_bounded(tmp_path: Path) -> None:
    path, limits = tmp_path / "history", Limits(size=1_000_000, age=30 * DAY)
    with closing(HistoryFile(str(path), limits)) as file:
        for hour in range(30):
            at = START + hour * 3600
            file.shrink()
            with file.transaction():
                file.add_samples(an_hour(at))
                file.note_findings("group-0", [Finding(Level.WARN, f"of hour {hour}", check=f"c{hour}")], at)
                file.prune(at)
            assert path.stat().st_size <= 1_000_000
        assert START + 8 * 3600 < (file.since() or 0) < at, "the newest is kept"
        assert [one.check for one in file.findings("group-0", 0, at)][-1] == "c29"
        file.prune(START + 40 * DAY)
        assert file.groups() == []


def test_hostile_names_and_texts_come_back(tmp_path: Path) -> None:
    with closing(HistoryFile(str(tmp_path / "history"), Limits())) as file:
        file.note_findings(HOSTILE, [Finding(Level.ERROR, HOSTILE, node=HOSTILE, check="c")], START)
        file.add_samples({HOSTILE: [Sample(START, 60, 2**62)]})
        claim = TimelineEvent(EventKind.CLAIMED, 1, START * 1000, HOSTILE, TopicPartition(HOSTILE, 0))
        file.add_rebalances(HOSTILE, [Rebalance(claims=(claim,))])
        assert [one.events for one in file.rebalances(HOSTILE, 0, START)] == [(claim,)]
        assert file.groups() == [HOSTILE]
        (found,) = file.findings(HOSTILE, 0, START)
        assert found.node == HOSTILE
        assert file.samples(HOSTILE, 0, START)[0].lag == 2**62


def test_sums_beyond_64_bits_are_stored(tmp_path: Path) -> None:
    """Anybody who may write offset nodes can make sums that SQLite refuses."""
    with closing(HistoryFile(str(tmp_path / "history"), Limits())) as file:
        file.add_samples({"g": [Sample(START, 60, 2**64, 2**65, 2**64)] * 2})
        assert file.samples("g", 0, START)[0].lag == 2**63 - 1


def test_the_latest_of_many_findings_are_read(tmp_path: Path) -> None:
    with closing(HistoryFile(str(tmp_path / "history"), Limits())) as file:
        for number in range(9):
            claim = TimelineEvent(EventKind.CLAIMED, number + 1, (START + number * 3600) * 1000, "m")
            file.add_rebalances("g", [Rebalance(claims=(claim,))])
            file.note_findings("g", [Finding(Level.WARN, "text", check=f"c{number}")], START + number)
        assert [one.check for one in file.findings("g", 0, 2**40, 2)] == ["c7", "c8"]
        assert [one.claims[0].zxid for one in file.rebalances("g", 0, 2**40, 2)] == [8, 9]


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff%3f?mode=memory#")
    with closing(HistoryFile(str(path), Limits())) as file:
        file.add_samples({"g": [Sample(START)]})
    with reading(path) as again:
        assert again.groups() == ["g"]


def test_a_sample_of_a_wrong_clock_does_not_age_the_others(tmp_path: Path) -> None:
    with closing(HistoryFile(str(tmp_path / "history"), Limits(size=1_000_000))) as file:
        file.add_samples({"group-0": [Sample(START + 3650 * DAY)]})
        for hour in range(30):
            at = START + hour * 3600
            file.shrink()
            kept = file.samples("group-0", START, at)
            assert len(kept) >= 60 * min(hour, 3), "the newest"
            with file.transaction():
                file.add_samples(an_hour(at))
        assert len(kept) < 60 * hour, "the oldest have gone"


def test_a_clock_that_is_wrong_at_the_begin_deletes_nothing(tmp_path: Path) -> None:
    """A machine whose clock lost its battery starts the server ten years ago, and asks for the time later."""
    watch = Watch(tmp_path / "history")
    for number in range(5):
        watch.read(number, 20)
    watch.history.close()
    watch.now -= 3650 * DAY
    watch.group = None
    watch.begin()
    for number in range(5, 8):
        watch.read(number, 20)
    watch.history.close()
    with reading(tmp_path / "history") as file:
        assert len(file.samples("g", START, START + DAY)) == 5
        assert len(file.samples("g", 0, START)) == 3


def test_groups_that_are_gone_wait_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "BUSY_SECONDS", 0.0)
    monkeypatch.setattr(group_history, "PENDING_GONE", 5)
    watch = Watch(tmp_path / "history")
    with closing(sqlite3.connect(tmp_path / "history")) as other:
        other.execute("BEGIN EXCLUSIVE")
        for number in range(20):
            watch.name, watch.group = f"g{number}", None
            watch.read(1, 9, owned=False)
    assert watch.history.state.dropped == 14
    watch.read(1, 9, owned=False)
    with reading(tmp_path / "history") as file:
        assert file.groups() == sorted(f"g{number}" for number in range(14, 20))


def test_a_damaged_rebalance_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """SQLite does not see that the bytes of a value have changed."""
    watch = Watch(tmp_path / "history")
    watch.read(1, 9)
    watch.history.close()
    with closing(sqlite3.connect(tmp_path / "history")) as other, other:
        assert other.execute("UPDATE rebalances SET events = x'00', at = ?", (START,)).rowcount == 1
    history = GroupHistory(Board, watch.path, clock=lambda: START + 60.0)
    history.start()
    assert "a rebalance is damaged" in str(history.graph("g", "day", scaled(10)))
    assert history.stop(scaled(10))
    assert "a rebalance is damaged" in printed(capsys, "timeline", "g", "--history", watch.path, code=1, err=True)


def test_a_reading_that_fails_does_not_end_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(tmp_path / "history")
    watch.read(1, 9)
    before, wrong = watch.board, Board({"g": None}, completed=1)  # type: ignore[dict-item]
    board = [wrong]
    history = GroupHistory(lambda: board[0])
    history.start()
    eventually(lambda: "AttributeError" in history.state.failure, 10, "a failure")
    board[0] = before
    eventually(lambda: history.trends["g"].lag == 8 if history.trends else False, 10, "a trend")
    assert history.stop(scaled(10))


def test_a_file_system_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Old trends are not shown as new ones, requests are answered, and the end comes."""
    watch = Watch(tmp_path / "other")
    watch.read(1, 9)
    boards, passed = [watch.board], [0.0]
    watch.read(2, 9)
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.setattr(HistoryFile, "shrink", lambda _: begun.set() or go_on.wait(scaled(20)))
    history = GroupHistory(
        lambda: boards[-1], str(tmp_path / "f"), clock=lambda: START + passed[0], monotonic=lambda: passed[0]
    )
    history.start()
    eventually(lambda: history.trends, 10, "a trend")
    passed[0] = 60.0
    boards.append(watch.board)
    assert begun.wait(scaled(10))
    assert history.trends
    passed[0] = 121.0
    assert history.trends == {}
    assert "does not answer" in history.state.failure
    assert history.graph("g", "day", 0.01) == history.state.failure
    assert not history.stop(0.01)
    go_on.set()
    assert history.stop(scaled(10))


@pytest.mark.parametrize("kind", ["folder", "missing/file", "other.db", "newer"])
def test_a_wrong_file_is_refused_untouched(tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "folder":
        path.mkdir()
    elif path.parent.is_dir():
        with closing(sqlite3.connect(path)) as other:
            mark = history_file.APPLICATION if kind == "newer" else 0
            other.executescript(f"CREATE TABLE t (x); PRAGMA user_version = 9; PRAGMA application_id = {mark}")
    before = path.read_bytes() if path.is_file() else b""
    history = GroupHistory(Board, str(path))
    with pytest.raises(ConfigException, match="--history"):
        history.start()
    assert (path.read_bytes() if path.is_file() else b"") == before
    assert history.stop(10.0)
