"""I5: the time of recovery from each fault, or from its healing, until every partition flows. Pure."""

from __future__ import annotations

from tests.faults.history import NEVER, SECOND, Fault, History
from tests.faults.verdict import Recovery, Rules, Verdict


def recovery(found: History, rules: Rules, verdict: Verdict) -> None:
    """Return the recoveries: from a fault, or its healing, until every partition has a hand-out by a live owner."""
    for index, fault in enumerate(found.faults):
        until = found.faults[index + 1].at if index + 1 < len(found.faults) else NEVER
        seconds = _moved(found, fault, until) if fault.moves else _healed(found, fault, until, verdict)
        if seconds is not None:
            verdict.recoveries.append(Recovery(fault.kind, seconds))
            bound = rules.bounds.get(fault.kind, rules.bound)
            if seconds > bound:
                verdict.slow.append((fault.kind, seconds, bound))


def _healed(found: History, fault: Fault, until: int, verdict: Verdict) -> float | None:
    """Return the seconds from a fault, or its healing, until every partition has a hand-out by a live owner."""
    begin = fault.healed if fault.heals else fault.at
    if begin == NEVER:
        return None
    first = {tp: _first_after(found, tp, fault, begin) for tp in sorted(found.ownerships)}
    # there may have been no message to hand out: only partitions with hand-outs in that time count
    absent = [tp for tp, at in first.items() if at is None]
    if absent and until == NEVER and fault.settled != NEVER:
        verdict.violations.append(f"I5: after {fault.kind} nothing more came of {', '.join(absent[:4])}")
    if absent or not first:
        return None
    return (max(at for at in first.values() if at is not None) - begin) / SECOND


def _moved(found: History, fault: Fault, until: int) -> float | None:
    """Return the seconds from the notification of a planned change until all moved partitions have a hand-out."""
    known = next((e for e in found.between(fault.at, until) if e["e"] in ("id", "id_gone")), None)
    if known is None:
        return None
    begin = fault.at
    if fault.victim is None:
        begin = max(begin, known["since"] if known["e"] == "id" else known["t"])  # it may have been seen late
    ends = []
    for tp, all_of_it in found.ownerships.items():
        for ownership in all_of_it:
            if begin <= ownership.begin < min(until, fault.settled):
                first = next(iter(found.since(tp, ownership.begin)), None)
                if first is not None and first.at < ownership.end:
                    ends.append(first.at)
    return (max(ends) - begin) / SECOND if ends else None


def _first_after(found: History, tp: str, fault: Fault, begin: int) -> int | None:
    held = found.owner(tp, fault.at)
    for hand_out in found.since(tp, begin):
        holder = found.owner(tp, hand_out.at)
        if holder is None or (not hand_out.legacy and holder.process != hand_out.process):
            continue
        was_theirs = held is not None and held.process is not None and held.process.who == fault.victim
        if fault.loses and was_theirs and held is not None and holder.czxid == held.czxid:
            continue
        return hand_out.at
    return None
