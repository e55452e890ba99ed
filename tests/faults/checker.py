"""The checks of the invariants on a history. Pure: the driver, the clock and the servers are elsewhere.

I1 one live owner, I2 nothing lost, I3 order, I4 bounded duplicates, I5 recovery, I6 never hangs, I7 all leaves,
I8 no storm, I9 reports the problem. Each function returns the violations of its invariant as text with the place.
``check`` adds the figures of the report.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from tests.faults.history import NEVER, SECOND, Fault, HandOut, History, Ownership, Process
from tests.faults.recoveries import recovery
from tests.faults.verdict import Rules, Verdict

ROUNDING_NS = 1_500_000
"""ZooKeeper tells the making of a node in whole milliseconds."""
SEEN_NS = SECOND // 4
"""How late the watcher may see that a node is gone."""
LEFT_NS = SECOND
"""The same of a node whose member has closed. It is below every session timeout, after which any node is gone."""
SETTLING_NS = 6 * SECOND
CALL_SLACK_S = 1.0
CLEAN = "clean"
FREEZE = "freeze"
SCALA = "scala"


def check(found: History, rules: Rules) -> Verdict:
    """Check a run."""
    verdict = Verdict()
    verdict.handed_out = sum(len(all_of_it) for all_of_it in found.hand_outs.values())
    verdict.acked = len(found.acked)
    verdict.unseen = sum(not one.seen for all_of_it in found.ownerships.values() for one in all_of_it)
    one_owner(found, rules, verdict)
    nothing_lost(found, rules, verdict)
    if rules.ordered:
        verdict.violations += order(found)
    duplicates(found, rules, verdict)
    recovery(found, rules, verdict)
    never_hangs(found, rules, verdict)
    verdict.violations += all_leaves(found)
    storms(found, rules, verdict)
    return verdict


# ---- I1 ----


def one_owner(found: History, rules: Rules, verdict: Verdict) -> None:
    """I1: a process hands out no message after the claim of another process, and none without an owner node."""
    for hand_out in _all(found):
        if hand_out.legacy:
            continue
        holder = found.owner(hand_out.tp, hand_out.at - ROUNDING_NS)
        if holder is None:
            holder = found.owner(hand_out.tp, hand_out.at + ROUNDING_NS)
        where = _place(hand_out)
        if holder is None:
            verdict.violations.append(f"I1: {where} was handed out before anybody owned it")
        elif holder.process != hand_out.process:
            after = (hand_out.at - holder.begin) / SECOND
            text = f"{where}, {after:.3f} s after {holder.thread} claimed it"
            if _past_the_gate(found, hand_out):
                verdict.past_gate.append(text)
            else:
                verdict.late.append(text)
        elif hand_out.at > holder.end + SEEN_NS:
            after = (hand_out.at - holder.end) / SECOND
            text = f"{where}, {after:.3f} s after its owner node was gone"
            (verdict.past_gate if _past_the_gate(found, hand_out) else verdict.late).append(text)
        if holder is not None and holder.process == hand_out.process:
            following = _next(found, holder)
            if following is not None and following.process != holder.process and hand_out.done > following.begin:
                verdict.overlaps += 1
    verdict.violations += [f"I1: late: {text}" for text in verdict.late]
    verdict.frozen_runs = sum(len(times) for times in found.resumed.values())


def _next(found: History, ownership: Ownership) -> Ownership | None:
    all_of_it = found.ownerships[ownership.tp]
    index = bisect_right(all_of_it, ownership.begin, key=lambda one: one.begin)
    return all_of_it[index] if index < len(all_of_it) else None


def _past_the_gate(found: History, hand_out: HandOut) -> bool:
    """Whether the process was frozen between its gate and the line that wrote this down: then it is the first thing
    that the thread does when it goes on.
    """
    thawed = max((at for at in found.resumed.get(hand_out.process, ()) if at <= hand_out.at), default=None)
    if thawed is None:
        return False
    return not any(
        other.process == hand_out.process and other.thread == hand_out.thread and thawed <= other.at < hand_out.at
        for other in _all(found)
    )


# ---- I2 ----


def nothing_lost(found: History, rules: Rules, verdict: Verdict) -> None:
    """I2: all acknowledged messages are handed out, and no commit passes the finished messages."""
    verdict.lost, verdict.absent = _never_handed_out(found)
    if verdict.lost:
        verdict.violations.append(f"I2: {len(verdict.lost)} lost, such as {', '.join(verdict.lost[:5])}")
    finished = {tp: _Finished(all_of_it) for tp, all_of_it in found.hand_outs.items()}
    for write in found.writes:
        if write.failed:
            continue
        for tp, offset in write.offsets.items():
            if offset is None or tp in write.refused or not rules.ordered:
                continue
            most = max(finished[tp].until(write.at) if tp in finished else 0, _first_offset(found, tp))
            if offset > most:
                verdict.violations.append(
                    f"I2: {write.process.who} committed {tp} at {offset}, but only {most} was finished"
                )
    if rules.ordered:
        for tp, all_of_it in found.offsets.items():
            for before, after in pairwise(all_of_it):
                if _number(after.value) < _number(before.value):
                    verdict.violations.append(f"I2: the offset of {tp} went back from {before.value} to {after.value}")


def _never_handed_out(found: History) -> tuple[list[str], list[str]]:
    """Return the acknowledged messages that were never handed out, and apart from them those missing in the log.

    An idempotent producer accepts an answer without an offset as an acknowledgement. Then the message may be missing in
    the log itself, which shows no gap.
    """
    handed_out = {(hand_out.tp, hand_out.offset) for hand_out in _all(found)}
    missing = [place for place in found.acked if place not in handed_out]
    lost = [f"{tp} {offset}" for tp, offset in sorted(missing)]
    absent: list[str] = []
    for tp, values in found.somewhere.items():
        came = {hand_out.value for hand_out in found.hand_outs.get(tp, ())}
        offsets = {hand_out.offset for hand_out in found.hand_outs.get(tp, ())}
        whole = bool(offsets) and offsets == set(range(max(offsets) + 1))
        for value, at in sorted(values.items()):
            if value not in came:
                # whatever was acknowledged later stands behind it
                not_there = whole and at <= found.acked_until.get(tp, -1)
                (absent if not_there else lost).append(f"{tp} {value!r}")
    return lost, absent


class _Finished:
    """Return the highest offset after a finished message, at any time."""

    def __init__(self, hand_outs: list[HandOut]) -> None:
        self._times: list[int] = []
        self._most: list[int] = []
        most = 0
        for hand_out in sorted(hand_outs, key=lambda one: one.at if one.legacy else one.done):
            at = hand_out.at if hand_out.legacy else hand_out.done
            if hand_out.offset + 1 > most:
                most = hand_out.offset + 1
                self._times.append(at)
                self._most.append(most)

    def until(self, at: int) -> int:
        index = bisect_right(self._times, at)
        return self._most[index - 1] if index else 0


def _first_offset(found: History, tp: str) -> int:
    all_of_it = found.offsets.get(tp)
    return max(0, _number(all_of_it[0].value)) if all_of_it else 0


def _number(text: str) -> int:
    return int(text) if re.fullmatch(r"-?\d+", text) else -1


# ---- I3 ----


def order(found: History) -> list[str]:
    """I3: one ownership skips and repeats no offset, and it begins at the committed offset."""
    wrong: list[str] = []
    for tp, all_of_it in found.hand_outs.items():
        stays: dict[tuple[Process, int, int], list[HandOut]] = defaultdict(list)
        for hand_out in all_of_it:
            holder = found.owner(tp, hand_out.at)
            if hand_out.legacy or holder is None or holder.process != hand_out.process:
                continue
            interruptions = sum(at <= hand_out.at for at in found.lost.get((hand_out.process, tp), ()))
            stays[hand_out.process, holder.czxid, interruptions].append(hand_out)
        for (process, czxid, _), stay in stays.items():
            for before, after in pairwise(stay):
                if after.offset != before.offset + 1:
                    wrong.append(f"I3: {process.who} got {tp} {before.offset} and then {after.offset}")
            begin = next(one.begin for one in found.ownerships[tp] if one.czxid == czxid)
            places = _committed(found, tp, begin, stay[0].at)
            if places and stay[0].offset not in places:
                wrong.append(f"I3: {process.who} began {tp} at {stay[0].offset}, but committed was {sorted(places)}")
    return wrong


def _committed(found: History, tp: str, begin: int, end: int) -> set[int]:
    """Return the possible contents of the offset node when an ownership began: the last one before, and later ones."""
    seen = found.offsets.get(tp, [])
    before = [offset for offset in seen if offset.at <= begin]
    since = [offset for offset in seen if begin < offset.at <= end + SEEN_NS]
    places = {_number(offset.value) for offset in (*before[-1:], *since)}
    # values that the watcher missed are known from their writers
    all_of_it = found.written.get(tp, [])
    last = bisect_left(all_of_it, begin, key=lambda write: write[0])
    first = bisect_left(all_of_it, begin - 2 * SECOND, key=lambda write: write[0])  # for answers that took their time
    while last > 0 and not all_of_it[last - 1][2]:
        last -= 1  # the outcome of that write is unknown, so the value before it is possible
    for at, offset, _ in all_of_it[min(max(0, last - 1), first) :]:
        if at > end:
            break
        places.add(offset)
    return places


# ---- I4 ----


def duplicates(found: History, rules: Rules, verdict: Verdict) -> None:
    """I4: a message is handed out again only after a fault, and only if it was not committed before it."""
    for all_of_it in found.hand_outs.values():
        by_offset: dict[int, list[HandOut]] = defaultdict(list)
        for hand_out in all_of_it:
            by_offset[hand_out.offset].append(hand_out)
        for hand_outs in by_offset.values():
            for before, again in pairwise(hand_outs):
                if before.legacy or again.legacy:
                    verdict.duplicates[SCALA] += 1
                    continue
                fault = _cause(found, before, again, rules.anew)
                if fault is None and _past_the_gate(found, again):
                    verdict.duplicates[FREEZE] += 1  # of the process that hands it out again; I1 counts it apart
                    continue
                verdict.duplicates[CLEAN if fault is None else fault.kind] += 1
                if fault is None:
                    verdict.violations.append(
                        f"I4: {_place(again)} was handed out before by {before.process.who} and nothing had happened"
                    )
                elif fault.kind not in rules.anew and fault.at - before.at > int((rules.commit * 1.5 + 1.0) * SECOND):
                    age = (fault.at - before.at) / SECOND
                    verdict.violations.append(
                        f"I4: {_place(again)} was handed out {age:.1f} s before the fault ({fault.kind}) already"
                    )


def _cause(found: History, before: HandOut, again: HandOut, anew: frozenset[str]) -> Fault | None:
    """Return the first fault between two hand-outs of a message that affects the first one's member.

    A fault lasts until it is healed. A fault that ends an ownership lasts until the owner node is gone.
    """
    holder = found.owner(before.tp, before.at)
    late = holder is not None and (holder.process != before.process or before.at > holder.end)  # told elsewhere

    def end(fault: Fault) -> int:
        healed = fault.healed if fault.healed != NEVER else fault.at
        if late:
            return max(healed, before.at)
        hit = holder is not None and fault.loses and holder.begin <= fault.at <= holder.end != NEVER
        return max(healed, holder.end) if hit and holder is not None else healed

    concerned = [
        fault
        for fault in found.faults
        if not fault.moves
        and fault.at <= again.at
        and fault.victim in (None, before.process.who)
        and before.at <= (again.at if fault.kind in anew else end(fault))
    ]
    return next((fault for fault in concerned if fault.kind in anew), concerned[0] if concerned else None)


# ---- I6, I7 ----


def never_hangs(found: History, rules: Rules, verdict: Verdict) -> None:
    """I6: each call ends within its limit."""
    begun: dict[Process, int] = defaultdict(int)
    for event in found.events:
        process = Process(event["who"], event["pid"])
        if event["e"] == "close_begin":
            begun[process] += 1
        elif event["e"] == "close_end":
            begun[process] -= 1
            verdict.closes.append(event["seconds"])
            if event["seconds"] > rules.close + 0.25:
                verdict.violations.append(
                    f"I6: {process.who} took {event['seconds']:.2f} s to close ({event['where']})"
                )
        elif event["e"] == "call" and event["seconds"] > event["limit"] + CALL_SLACK_S:
            verdict.violations.append(
                f"I6: {process.who}: {event['name']} took {event['seconds']:.2f} s, its limit is {event['limit']:g} s"
            )
    killed = {(fault.victim, fault.pid) for fault in found.faults if fault.kind in KILLS}
    spoke = {Process(event["who"], event["pid"]) for event in found.of("leftover")}
    for event in found.of("start"):
        process = Process(event["who"], event["pid"])
        if event.get("role") == "member" and process not in spoke and process not in killed:
            verdict.violations.append(f"I6: {process.who} (process {process.pid}) ended without a word")
    for process, count in begun.items():
        if count > 0 and process not in killed:
            verdict.violations.append(f"I6: {process.who} did not come back from closing")


KILLS = ("kill", "kill while joining")


def all_leaves(found: History) -> list[str]:
    """I7: a closed member leaves no thread, descriptor or node behind."""
    wrong = []
    for event in found.of("leftover"):
        left = [kind for kind in ("threads", "fds", "stuck") if event[kind]]
        wrong += [f"I7: {event['who']} left {kind} behind: {', '.join(event[kind][:6])}" for kind in left]
    closed = {Process(event["who"], event["pid"]): event["t"] for event in found.of("leftover")}
    phases = _last_phases(found)
    for all_of_it in found.ownerships.values():
        for ownership in all_of_it:
            at = closed.get(ownership.process) if ownership.process is not None else None
            connected = phases.get(ownership.process) in ("owning", "waiting") if ownership.process else False
            if at is not None and connected and ownership.end > at + LEFT_NS and not _disturbed(found, ownership, at):
                wrong.append(f"I7: {ownership.thread} left its owner node of {ownership.tp} behind")
    return wrong


def _last_phases(found: History) -> dict[Process, str]:
    """Return the last phase of each process before its close."""
    phases = {}
    for event in found.of("state"):
        if event["phase"] != "closed":
            phases[Process(event["who"], event["pid"])] = event["phase"]
    return phases


def _disturbed(found: History, ownership: Ownership, at: int) -> bool:
    """Whether a process that closed by then may have been without ZooKeeper, though it had not noticed yet: then its
    nodes end with its session.
    """
    assert ownership.process is not None
    return any(
        not fault.moves
        and fault.victim in (None, ownership.process.who)
        and fault.at <= at
        and (fault.healed == NEVER or at - SETTLING_NS <= fault.healed)
        for fault in found.faults
        if fault.heals or fault.healed != NEVER
    )


# ---- I8, I9 ----


def storms(found: History, rules: Rules, verdict: Verdict) -> None:
    """I8: a fault costs a bounded number of rebalances."""
    times = [fault.at for fault in found.faults] + [NEVER]
    by_process: dict[Process, list[tuple[int, int]]] = defaultdict(list)
    for event in found.of("state"):
        by_process[Process(event["who"], event["pid"])].append((event["t"], event["rounds"]))
    for begin, end in pairwise(times):
        for process, rounds in by_process.items():
            first, last = bisect_right(rounds, (begin, NEVER)), bisect_right(rounds, (end, NEVER))
            if 0 < first < last:
                count = rounds[last - 1][1] - rounds[first - 1][1]
                verdict.rounds = max(verdict.rounds, count)
                if rules.rounds is not None and count > rules.rounds:
                    verdict.violations.append(f"I8: {process.who} rebalanced {count} times after one fault")


def said(found: History, pattern: str, begin: int = 0, end: int = NEVER, who: str | None = None) -> bool:
    """I9: return whether a member's state matched the pattern (a regular expression) in that time."""
    expression = re.compile(pattern)
    return any(expression.search(event["text"]) for event in found.of("state", who) if begin <= event["t"] <= end)


# ---- common ----


def _all(found: History) -> Iterator[HandOut]:
    for all_of_it in found.hand_outs.values():
        yield from all_of_it


def _place(hand_out: HandOut) -> str:
    return f"{hand_out.tp} {hand_out.offset} by {hand_out.process.who}"
