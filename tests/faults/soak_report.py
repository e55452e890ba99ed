"""The final report of a soak."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tests.faults.history import SECOND, History, Process
from tests.faults.report import some_of_each
from tests.faults.verdict import Recovery, Verdict

SERVERS = {"zookeeper crash", "broker bounce"}
"""Faults that last as long as a JVM takes to start again."""


def report(verdict: Verdict, found: History, done: Mapping[str, int], rests: int, where: str, bound: float) -> str:
    """Return the report. ``done`` counts the faults by kind, ``rests`` the pauses; ``where`` are the logs.

    ``bound`` is the limit in seconds for a recovery that no other fault overlaps.
    """
    lines = ["", "what befell it:"]
    lines += [f"  {name:<16} {count}" for name, count in sorted(done.items())]
    lines.append(f"  {sum(done.values())} events, {rests} rests")
    lines += _recoveries(verdict, found, bound)
    lines += [
        f"acknowledged {verdict.acked}, handed out {verdict.handed_out}, lost {len(verdict.lost)}",
        "duplicates by cause: "
        + (", ".join(f"{kind} {count}" for kind, count in sorted(verdict.duplicates.items())) or "none"),
        f"late hand-outs {len(verdict.late)}, past the gate {len(verdict.past_gate)} of {verdict.frozen_runs} freezes, "
        f"messages in hand at another's claim {verdict.overlaps}",
        f"closes {len(verdict.closes)}, slowest {max(verdict.closes, default=0.0):.2f} s",
        *leaks(found),
    ]
    lines += [f"WRONG: {text}" for text in some_of_each(verdict.violations)]
    if verdict.absent:
        lines.append(f"acknowledged without an offset, and not in the log {len(verdict.absent)}")
    if verdict.unseen:
        lines.append(f"ownerships that the watcher missed {verdict.unseen}")
    if verdict.violations:
        lines.append(f"{len(verdict.violations)} violations; the logs are in {where}")
    lines.append("verdict: " + ("FAILED" if verdict.violations else "ok"))
    return "\n".join(lines)


def slow_alone(verdict: Verdict, bound: float) -> list[Recovery]:
    """Return the slow recoveries that no other fault overlapped. A soak must have none."""
    return [one for one in verdict.recoveries if not one.beside and one.seconds > bound]


def _recoveries(verdict: Verdict, found: History, bound: float) -> list[str]:
    """Return the times of recovery: without overlapping faults, the slow ones of these, and all others."""
    lines = ["recovery, from the event (or its healing) until every partition flows, in s (median, slowest):"]
    alone = [one for one in verdict.recoveries if not one.beside]
    among = [one for one in verdict.recoveries if one.beside]
    for name, recoveries in (("nothing else at the time", alone), ("others overlap", among)):
        lines.append(f"  {name}:")
        by_kind: dict[str, list[float]] = defaultdict(list)
        for one in recoveries:
            by_kind[one.kind].append(one.seconds)
        for kind, times in sorted(by_kind.items()):
            times.sort()
            lines.append(f"    {kind:<16} {len(times):4d} times {times[len(times) // 2]:6.2f} {times[-1]:6.2f}")
    start = found.events[0]["t"] if found.events else 0
    slow = slow_alone(verdict, bound)
    lines.append(f"  beyond {bound:g} s though nothing else befell the group: {len(slow)} of {len(alone)}")
    lines += [
        f"    {one.kind} of {one.victim or 'a server'}: {one.seconds:.2f} s, {(one.begin - start) / SECOND:.0f} s in"
        for one in slow
    ]
    unexplained = [one for one in among if one.seconds > bound and not SERVERS & {one.kind, *one.beside}]
    lines.append(
        f"  beyond {bound:g} s beside other faults, none of them a server's: {len(unexplained)} of {len(among)}"
    )
    lines += [
        f"    {one.kind} of {one.victim}: {one.seconds:.2f} s, {(one.begin - start) / SECOND:.0f} s in, beside "
        + ", ".join(one.beside)
        for one in unexplained
    ]
    return lines


def leaks(found: History) -> list[str]:
    """Return the resources of live members, and those left at their end."""
    left = [event for event in found.of("leftover") if event["threads"] or event["fds"] or event["stuck"]]
    lines = [f"members that ended cleanly {len(found.of('leftover'))}, of them left threads or descriptors {len(left)}"]
    by_process: dict[Process, list[dict[str, float]]] = defaultdict(list)
    for event in found.of("usage"):
        by_process[Process(event["who"], event["pid"])].append(event)
    oldest = max(by_process.items(), key=lambda item: item[1][-1]["t"] - item[1][0]["t"], default=None)
    if oldest is not None:
        process, all_of_it = oldest
        age = (all_of_it[-1]["t"] - all_of_it[0]["t"]) / SECOND
        first, last = all_of_it[min(5, len(all_of_it) - 1)], all_of_it[-1]
        lines.append(
            f"the longest life, {process.who} of {age:.0f} s: threads {first['threads']} -> {last['threads']}, "
            f"descriptors {first['fds']} -> {last['fds']}, "
            f"memory {first['rss'] / 1e6:.1f} -> {last['rss'] / 1e6:.1f} MB"
        )
    most = [max(e[key] for all_of_it in by_process.values() for e in all_of_it) for key in ("threads", "fds", "rss")]
    lines.append(f"most in any member: {most[0]} threads, {most[1]} descriptors, {most[2] / 1e6:.1f} MB")
    return lines
