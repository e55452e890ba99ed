"""The table of the rows' results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tests.faults.lab import Report

_HEAD = ("row", "", "runs", "handed out", "lost", "duplicates by cause", "late", "recovery s", "verdict", "")


def table(reports: Iterable[Report]) -> str:
    """Return one line for each row, with the results of all its runs."""
    by_row: dict[str, list[Report]] = {}
    for report in reports:
        by_row.setdefault(report.row, []).append(report)
    lines = [_HEAD, *(_line(runs) for runs in by_row.values())]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _line(runs: Sequence[Report]) -> tuple[str, ...]:
    verdicts = [run.verdict for run in runs]
    duplicates: Counter[str] = sum((verdict.duplicates for verdict in verdicts), Counter())
    recoveries = [seconds for verdict in verdicts for seconds in (one.seconds for one in verdict.recoveries)]
    late = sum(len(verdict.late) for verdict in verdicts)
    past = sum(len(verdict.past_gate) for verdict in verdicts)
    verdict = "ok" if all(run.ok for run in runs) else "FAILED"
    if verdict != "ok" and all(run.sound for run in runs):
        verdict += f": slow (load {max(run.load for run in runs):.1f})"
    return (
        runs[0].row,
        runs[0].title,
        str(len(runs)),
        str(sum(verdict.handed_out for verdict in verdicts)),
        str(sum(len(verdict.lost) for verdict in verdicts)),
        ", ".join(f"{kind} {count}" for kind, count in sorted(duplicates.items())) or "0",
        f"{late}+{past}" if past else str(late),
        f"{max(recoveries):.2f}" if recoveries else "-",
        verdict,
        "; ".join(figure for run in runs for figure in run.figures)[:160],
    )


def some_of_each(violations: Sequence[str], most: int = 6) -> list[str]:
    """Return the first violations of each invariant and the number of the others."""
    by_kind: dict[str, list[str]] = {}
    for text in violations:
        by_kind.setdefault(text.partition(":")[0] if text[:1] == "I" else "", []).append(text)
    lines = []
    for kind, texts in by_kind.items():
        lines += texts[:most]
        if len(texts) > most:
            lines.append(f"{kind}: ... and {len(texts) - most} more")
    return lines


def details(report: Report) -> str:
    """Return all results of one run, to find the cause of a failure."""
    verdict = report.verdict
    lines = [f"row {report.row} ({report.title}): {'ok' if report.ok else 'FAILED'} in {report.seconds:.0f} s"]
    slowest: dict[str, list[float]] = {}
    for recovery in verdict.recoveries:
        slowest.setdefault(recovery.kind, []).append(recovery.seconds)
    for kind, times in slowest.items():
        lines.append(f"  recovery from {kind}: {', '.join(f'{seconds:.2f}' for seconds in times)} s")
    if verdict.closes:
        lines.append(f"  slowest close {max(verdict.closes):.2f} s of {len(verdict.closes)}")
    lines.append(
        f"  {verdict.acked} acknowledged, {verdict.handed_out} handed out, {len(verdict.lost)} lost, duplicates"
        f" {dict(verdict.duplicates)}, overlaps {verdict.overlaps}, most rebalances after one fault {verdict.rounds}"
    )
    if verdict.unseen:
        lines.append(f"  {verdict.unseen} ownerships that the watcher missed")
    if verdict.absent:
        lines.append(f"  {len(verdict.absent)} acknowledged without an offset that the log does not have")
    lines += [f"  {figure}" for figure in report.figures]
    lines += [
        f"  slow: recovery from {kind} took {seconds:.2f} s, more than {bound:.2f} s (load average {report.load:.1f})"
        for kind, seconds, bound in verdict.slow
    ]
    lines += [f"  WRONG: {text}" for text in some_of_each(verdict.violations)]
    if report.failure:
        lines.append(report.failure)
    return "\n".join(lines)
