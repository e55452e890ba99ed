"""The checker on hand-made logs, which tells each broken invariant, and the conditions under which rows fail."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.faults.checker import check, said
from tests.faults.events import Event, EventLog, Tail, read_all
from tests.faults.history import SECOND, History, history
from tests.faults.lab import Report
from tests.faults.report import details, table
from tests.faults.verdict import Rules, Verdict

TP = "t-0"
RULES = Rules(commit=1.0, bound=4.0)


class Log:
    """The logs of several processes, made by hand. Times are in seconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.faults = 0
        self.zxid = 100

    def add(self, who: str, at: float, kind: str, /, **fields: object) -> Log:
        pid = {"a": 1, "b": 2, "c": 3}.get(who, 9)
        self.events.append({"t": int(at * SECOND), "e": kind, "who": who, "pid": pid, **fields})
        return self

    def member(self, who: str, session: int, at: float = 0.0) -> Log:
        return self.add(who, at, "session", id=session).add(who, at, "ready", consumer=f"g_{who}", streams=[])

    def owns(self, who: str, session: int, at: float, tp: str = TP) -> int:
        self.zxid += 1
        fields = {"name": tp, "data": f"g_{who}-0", "version": 1, "mzxid": self.zxid, "czxid": self.zxid}
        self.add("watcher", at + 0.005, "owner", **fields, session=session, since=int(at * SECOND))
        return self.zxid

    def gone(self, czxid: int, at: float, tp: str = TP) -> Log:
        return self.add("watcher", at, "owner_gone", name=tp, czxid=czxid)

    def committed(self, offset: int, at: float, tp: str = TP) -> Log:
        self.zxid += 1
        fields = {"name": tp, "data": str(offset), "czxid": 1, "version": self.zxid, "since": 0, "session": 0}
        return self.add("watcher", at, "offset", **fields, mzxid=self.zxid)

    def produced(self, offsets: Iterable[int], tp: str = TP) -> Log:
        for offset in offsets:
            self.add("producer", 0.5, "acked", tp=tp, o=offset, v=str(offset))
        return self

    def got(self, who: str, at: float, offset: int, tp: str = TP, took: float = 0.001) -> Log:
        self.add(who, at, "h", tp=tp, o=offset, v=str(offset), th=0)
        return self.add(who, at + took, "d", tp=tp, o=offset, th=0)

    def fault(self, kind: str, at: float, victim: str | None = None, **fields: object) -> int:
        about = {"kind": kind, **fields} | ({"victim": victim, "pid_of": 1} if victim else {})
        self.add("driver", at, "fault", **about)
        self.faults += 1
        return self.faults - 1

    @property
    def history(self) -> History:
        return history(self.events)

    def judged(self, rules: Rules = RULES) -> Verdict:
        return check(self.history, rules)


def takeover(*, first_of_b: int = 5, late: float | None = None) -> Log:
    """Log a good run: ``a`` hands out 0 to 9, commits 5 and is killed at 2; ``b`` claims at 4 and goes on to 14."""
    log = Log().member("a", 11).member("b", 12).produced(range(15))
    log.committed(0, 0.9)
    owned = log.owns("a", 11, 1.0)
    for number in range(10):
        log.got("a", 1.1 + number / 100, number)
    log.add("a", 1.151, "commit", tps={TP: 5}, refused={}).committed(5, 1.16)
    fault = log.fault("kill", 2.0, "a")
    log.gone(owned, 3.9)
    log.owns("b", 12, 4.0)
    for number in range(first_of_b, 15):
        log.got("b", 4.1 + number / 100, number)
    if late is not None:
        log.got("a", late, 10)
    log.add("driver", 5.0, "settled", number=fault)
    return log


def only(verdict: Verdict, invariant: str) -> str:
    assert len(verdict.violations) == 1, verdict.violations
    assert verdict.violations[0].startswith(f"{invariant}: "), verdict.violations
    return verdict.violations[0]


def test_a_kill_and_a_takeover_are_in_order() -> None:
    verdict = takeover().judged()
    assert verdict.violations == []
    assert verdict.duplicates == {"kill": 5}
    assert verdict.lost == []
    (recovery,) = verdict.recoveries
    assert recovery.kind == "kill"
    assert 2.1 < recovery.seconds < 2.2
    assert verdict.slow == []


LEFT = {"threads": [], "fds": [], "stuck": [], "failed": False}


def left(**what: object) -> Log:
    """Log what a member leaves behind after its close."""
    return Log().add("a", 1.0, "leftover", **(LEFT | what))


def closing() -> Log:
    return Log().add("a", 1.0, "close_begin", where="main")


def standing_still() -> Log:
    log = takeover().produced([20], "t-1").got("a", 1.2, 20, "t-1")
    log.owns("a", 11, 1.0, "t-1")
    return log


BROKEN = {
    "I1: t-0 0 by a was handed out before anybody owned it": Log().member("a", 11).got("a", 1.0, 0),
    "I2: 1 lost, such as t-0 15": takeover().produced([15]),
    "I2: 1 lost, such as t-0 'seven'": takeover().add("producer", 0.6, "acked", tp=TP, o=None, v="seven"),
    "I2: b committed t-0 at 12": takeover().add("b", 4.1605, "commit", tps={TP: 12}, refused={}),
    "I2: the offset of t-0 went back from 5 to 3": takeover().committed(3, 4.9),
    "I3: b got t-0 14 and then 16": takeover().got("b", 4.5, 16).produced([16]),
    "I3: b began t-0 at 7, but committed was [5]": takeover(first_of_b=7),
    "I5: after kill nothing more came of t-1": standing_still(),
    "I6: a took 6.00 s to close": closing().add("a", 7.0, "close_end", where="main", seconds=6.0),
    "I6: a did not come back from closing": closing(),
    "I6: a: commit_offsets took 4.00 s": Log().add("a", 1.0, "call", name="commit_offsets", seconds=4.0, limit=2.0),
    "I6: a (process 1) ended without a word": Log().add("a", 1.0, "start", role="member"),
    "I7: a left threads behind: x": left(threads=["x"]),
    "I7: a left fds behind: x": left(fds=["x"]),
    "I7: a left stuck behind: x": left(stuck=["x"]),
}
SOUND = {
    "a refused commit": takeover().add("b", 4.16, "commit", tps={TP: 12}, refused={TP: "NOT_OURS"}),
    "a message known by its value": takeover().add("producer", 0.6, "acked", tp=TP, o=None, v="7"),
    "nothing left behind": left(),
}


@pytest.mark.parametrize("violation", BROKEN)
def test_a_log_with_one_violation(violation: str) -> None:
    (found,) = BROKEN[violation].judged().violations
    assert found.startswith(violation)


@pytest.mark.parametrize("name", SOUND)
def test_a_log_without_violations(name: str) -> None:
    assert SOUND[name].judged().violations == []


def test_rules_may_be_wider() -> None:
    assert takeover().committed(3, 4.9).judged(Rules(bound=4.0, ordered=False)).violations == []


def test_i6_a_killed_member_need_not_end_in_order() -> None:
    for log in (closing(), Log().add("a", 1.0, "start", role="member")):
        log.fault("kill", 2.0, "a")
        assert not any(text.startswith("I6") for text in log.judged().violations)


def test_i1_a_hand_out_after_another_s_claim_is_late() -> None:
    verdict = takeover(late=4.05).judged()
    assert "4.0" not in only(verdict, "I1")
    assert "after g_b-0 claimed it" in verdict.violations[0]
    assert len(verdict.late) == 1
    assert takeover(late=1.5).judged().late == []


def test_i1_counts_a_frozen_processs_last_message_apart() -> None:
    """The one message that a frozen process hands out after its gate is counted apart."""
    log = takeover(late=4.05).add("driver", 4.04, "cont", victim="a", pid_of=1)
    verdict = log.judged()
    assert verdict.violations == []
    assert len(verdict.past_gate) == 1
    assert verdict.frozen_runs == 1
    log.got("a", 4.06, 11)
    assert len(log.judged().late) == 1, "the second one is late"


def test_i4_a_frozen_processs_last_message_is_excused() -> None:
    """The next owner had handed the message out already when the frozen process went on with it."""
    log = takeover(late=4.3).add("driver", 4.29, "cont", victim="a", pid_of=1)
    verdict = log.judged()
    assert verdict.violations == []
    assert verdict.duplicates == {"kill": 5, "freeze": 1}
    log.got("a", 4.31, 11)
    assert "I4" in " ".join(log.judged().violations), "the second one is not"


def test_i1_a_hand_out_without_an_owner_node_is_late() -> None:
    verdict = takeover(late=3.99).judged(Rules(bound=4.0))
    assert verdict.violations == [], "within what the watcher may miss"
    log = takeover()
    log.events = [event for event in log.events if event["e"] != "owner_gone"]
    log.gone(102, 3.0).got("a", 3.5, 10)
    assert "after its owner node was gone" in only(log.judged(), "I1")


def test_i1_a_claim_that_the_watcher_missed_counts() -> None:
    log = takeover()
    log.events = [event for event in log.events if not (event["e"] == "owner" and event["session"] == 12)]
    assert any(text.startswith("I1") for text in log.judged().violations)
    log.add("b", 4.0, "claim", tps={TP: 5}, refused={}, took=5_000_000)
    assert log.judged().violations == []
    assert log.judged().unseen == 1
    log.got("a", 4.05, 10)
    assert len(log.judged().late) == 1


def test_i1_a_message_in_hand_at_the_claim_is_an_overlap() -> None:
    log = Log().member("a", 11).member("b", 12).committed(0, 0.9)
    log.owns("a", 11, 1.0)
    log.got("a", 1.1, 0, took=1.0)
    log.owns("b", 12, 2.0)
    verdict = log.judged()
    assert verdict.overlaps == 1
    assert verdict.violations == []


def test_i3_a_step_back_within_a_stay() -> None:
    log = takeover().got("b", 4.5, 14)
    wrong = log.judged().violations
    assert any(text.startswith("I3: b got t-0 14 and then 14") for text in wrong)
    log.add("b", 4.4, "lost", tps=[TP]).committed(14, 4.3)
    log.fault("expiry", 4.35, "b")
    assert not any("and then" in text for text in log.judged().violations), "it lost the partition in between"


def test_i4_a_repetition_without_a_fault() -> None:
    log = takeover()
    log.events = [event for event in log.events if event["e"] not in ("fault", "settled")]
    verdict = log.judged()
    assert verdict.duplicates == {"clean": 5}
    assert all(text.startswith("I4: ") for text in verdict.violations)
    assert len(verdict.violations) == 5


def test_i4_a_planned_move_excuses_no_repetition() -> None:
    log = takeover()
    for event in log.events:
        if event["e"] == "fault":
            event |= {"kind": "leave", "moves": True}
            del event["victim"]
    assert log.judged().duplicates == {"clean": 5}


def test_i4_finds_repetitions_past_the_commit_interval() -> None:
    """A repetition of a message that should have been committed long ago is a violation."""
    log = takeover()
    for event in log.events:
        if event["t"] >= 2 * SECOND:
            event["t"] += 9 * SECOND
            if "since" in event:
                event["since"] += 9 * SECOND
    verdict = log.judged(Rules(bound=4.0))
    assert all("before the fault" in text for text in verdict.violations)
    assert len(verdict.violations) == 5


def test_i5_a_slow_recovery_is_told() -> None:
    verdict = takeover().judged(Rules(bound=2.0))
    assert verdict.violations == []
    ((kind, seconds, bound),) = verdict.slow
    assert (kind, bound) == ("kill", 2.0)
    assert 2.1 < seconds < 2.2
    assert takeover().judged(Rules(bound=2.0, bounds={"kill": 3.0})).slow == []


def test_i5_times_a_planned_move_from_its_notification() -> None:
    """A planned move is timed from the moment at which the group could know of it."""
    log = Log().member("a", 11).member("b", 12).committed(0, 0.5)
    log.owns("a", 11, 1.0)
    log.got("a", 1.1, 0)
    plan = log.fault("join", 2.0, moves=True, loses=False)
    log.add("watcher", 3.01, "id", name="g_b", data="", czxid=7, mzxid=7, version=0, session=12, since=3 * SECOND)
    log.add("a", 3.05, "release", tps={TP: 1}, refused={}).committed(1, 3.06)
    log.owns("b", 12, 3.2)
    log.got("b", 3.25, 1).add("driver", 4.0, "settled", number=plan)
    verdict = log.judged()
    assert verdict.violations == []
    assert [(one.kind, one.seconds) for one in verdict.recoveries] == [("join", 0.25)]


def test_i7_an_owner_node_that_outlives_a_clean_close() -> None:
    log = Log().member("a", 11)
    owned = log.owns("a", 11, 1.0)
    log.add("a", 1.5, "state", phase="owning", owned=1, wanted=1, rounds=1, text="owning 1 of 1", session=11)
    log.add("a", 2.0, "leftover", **LEFT)
    assert "left its owner node of t-0 behind" in only(log.judged(), "I7")
    log.gone(owned, 2.1)
    assert log.judged().violations == []


def test_i8_rebalances_after_a_fault_are_counted() -> None:
    log = Log()
    for number in range(10):
        log.add("a", 1 + number, "state", phase="owning", owned=1, wanted=1, rounds=number, text="", session=1)
    log.fault("flapping", 4.5)
    assert log.judged().rounds == 6
    assert "rebalanced 6 times" in only(log.judged(Rules(rounds=5)), "I8")


def test_i9_what_a_state_said() -> None:
    log = Log().add("a", 1.0, "state", phase="waiting", owned=1, wanted=1, rounds=1, text="held by x", session=1)
    assert said(log.history, "held by [a-z]")
    assert not said(log.history, "held by [0-9]")
    assert not said(log.history, "held", begin=2 * SECOND)
    assert not said(log.history, "held", who="b")


def test_a_log_is_read_back_while_it_is_written(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "x.events", "x")
    log("h", o=1)
    tail = Tail(tmp_path / "x.events")
    assert [event["e"] for event in tail.look()] == ["start", "h"]
    with (tmp_path / "x.events").open("a") as file:
        file.write(json.dumps({"t": 1, "e": "half"})[:9])
    assert len(tail.look()) == 2, "half a line is none yet"
    with (tmp_path / "x.events").open("a") as file:
        file.write(json.dumps({"t": 1, "e": "half"})[9:] + "\n")
    assert tail.look()[-1] == {"who": "x", "pid": tail.look()[0]["pid"], "t": 1, "e": "half"}
    log.close()
    assert [event["e"] for event in read_all(tmp_path)] == ["half", "start", "h"]


def test_after_an_unanswered_commit_either_offset_is_possible() -> None:
    """The watcher was away, and the outcome of the last commit before the claim is unknown."""
    log = takeover(first_of_b=7)
    log.add("a", 1.17, "commit", tps={TP: 7}, refused={})
    log.add("a", 1.9, "commit", tps={TP: 10}, error="no answer")
    assert log.judged().violations == []
    wrong = takeover(first_of_b=6)
    wrong.add("a", 1.17, "commit", tps={TP: 7}, refused={})
    wrong.add("a", 1.9, "commit", tps={TP: 10}, error="no answer")
    assert any(text.startswith("I3: b began t-0 at 6") for text in wrong.judged().violations)


def test_a_session_that_another_client_ends_lives_until_then() -> None:
    """Its hand-outs until then are not late, and may be repeated."""
    log = Log().member("a", 11).member("b", 12).produced(range(3)).committed(0, 0.9)
    fault = log.fault("expiry", 0.95, "a")
    owned = log.owns("a", 11, 1.0)
    log.got("a", 1.1, 0).gone(owned, 1.2)
    log.add("driver", 1.2, "healed", number=fault)
    log.owns("b", 12, 1.3)
    for number in range(3):
        log.got("b", 1.4 + number / 100, number)
    verdict = log.judged()
    assert verdict.violations == []
    assert verdict.duplicates == {"expiry": 1}


def test_a_missed_claim_is_not_taken_for_the_members_next() -> None:
    """The session ended right after the claim, and the member claimed again within half a second."""
    log = Log().member("a", 11).member("b", 12).produced(range(4)).committed(0, 0.9)
    log.gone(log.owns("b", 12, 1.0), 1.5)
    log.got("b", 1.1, 0)
    log.add("a", 1.6, "claim", tps={TP: 1}, refused={}, took=5_000_000).committed(1, 1.61)
    log.got("a", 1.65, 1)
    log.fault("expiry", 1.66, "a")
    log.add("b", 1.7, "claim", tps={TP: 1}, refused={}, took=5_000_000)
    log.gone(log.owns("b", 12, 1.702), 1.8)
    log.add("a", 1.85, "claim", tps={TP: 1}, refused={}, took=5_000_000)
    log.owns("a", 11, 1.853)
    for number in range(1, 4):
        log.got("a", 1.9 + number / 100, number)
    verdict = log.judged()
    assert verdict.late == []
    assert verdict.violations == []
    assert verdict.unseen == 1


def test_i7_a_missed_claim_ends_with_its_release() -> None:
    """The member claimed, released and closed between two looks of the watcher."""

    def closing(**release: object) -> Log:
        log = Log().member("a", 11).produced(range(1)).committed(0, 0.9)
        log.add("a", 1.0, "claim", tps={TP: 0}, refused={}, took=5_000_000)
        log.add("a", 1.01, "state", phase="owning", rounds=1).got("a", 1.02, 0)
        log.add("a", 1.03, "release", **{"tps": {TP: 1}, "refused": {}, "took": 5_000_000} | release).committed(
            1, 1.035
        )
        return log.add("a", 1.04, "leftover", **LEFT)

    assert closing().judged().violations == []
    for fails in ({"error": "SessionLostError"}, {"refused": {TP: "not ours"}}, {"tps": {"t-1": 1}}):
        left = [text for text in closing(**fails).judged().violations if text.startswith("I7")]
        assert left == [f"I7: a-? left its owner node of {TP} behind"]


def test_i2_a_message_missing_in_the_log_is_no_loss() -> None:
    """A message that the log does not have was not lost by a consumer."""
    log = takeover().add("producer", 0.3, "acked", tp=TP, o=None, v="x")
    verdict = log.judged()
    assert (verdict.lost, verdict.violations) == ([], [])
    assert verdict.absent == ["t-0 'x'"]
    last = takeover().add("producer", 0.6, "acked", tp=TP, o=None, v="x")
    assert last.judged().lost == ["t-0 'x'"], "it may stand at the end of the log"
    gap = takeover().add("producer", 0.3, "acked", tp=TP, o=None, v="x")
    gap.events = [event for event in gap.events if not (event["e"] == "h" and event["o"] == 12)]
    assert "t-0 'x'" in gap.judged().lost


def test_a_row_with_a_slow_recovery_has_failed() -> None:
    """The report called it slow, but ``scripts/faults`` ended with 0."""
    report = Report("8", "a black hole", Verdict(slow=[("black hole", 9.0, 4.2)]), load=1.5)
    assert (report.ok, report.sound) == (False, True)
    assert "FAILED: slow (load 1.5)" in table([report])
    assert "slow: recovery from black hole took 9.00 s, more than 4.20 s" in details(report)
    assert "FAILED" in details(report).splitlines()[0]


def test_a_busy_machine_may_have_slower_recoveries() -> None:
    """A caller that knows that the machine is busy may accept slower recoveries."""
    report = Report("8", "a black hole", Verdict(slow=[("black hole", 9.0, 4.2)]))
    assert report.sound
    assert report.within(2.0, 1.0)
    assert not report.within(1.0, 1.0)


def test_a_row_that_went_wrong_is_not_merely_slow() -> None:
    report = Report("8", "a black hole", Verdict(violations=["I2: lost"], slow=[("black hole", 9.0, 4.2)]))
    assert (report.ok, report.sound) == (False, False)
    assert "slow (load" not in table([report])
