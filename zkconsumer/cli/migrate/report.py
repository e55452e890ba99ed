"""What ``zkconsumer migrate`` says: tables for people on standard output. Pure but for :func:`say`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from zkconsumer.core.migration.planning import Compared, Step, Store, Verdict, shown
from zkconsumer.model import TopicPartition


def say(text: str = "") -> None:
    """A line for the user, at once: a run that hangs has said what it did before."""
    print(text, flush=True)


def complain(text: str) -> None:
    """A line on standard error."""
    print(f"zkconsumer migrate: {text}", file=sys.stderr, flush=True)


def table(rows: Iterable[Sequence[str]]) -> str:
    """Rows as text with aligned columns."""
    lines = [tuple(row) for row in rows]
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in lines
    )


def plan_table(steps: Sequence[Step], source: str, target: Store) -> str:
    """A plan, partition by partition."""
    rows = [("partition", source, str(target), "log", "what")]
    rows += [
        (str(s.partition), shown(s.source), shown(s.before), "-" if s.log is None else str(s.log), _what(s))
        for s in steps
    ]
    return table(rows)


def _what(step: Step) -> str:
    words = {
        Verdict.SAME: "the same already",
        Verdict.WRITE: f"write {shown(step.after)}",
        Verdict.REMOVE: "remove",
        Verdict.LEFT: "left as it is",
        Verdict.UNDECIDED: "UNDECIDED",
    }
    return f"{words[step.verdict]}: {step.reason}" if step.reason else words[step.verdict]


def outcome_table(outcomes: Mapping[TopicPartition, str]) -> str:
    """What became of each partition that was to be written."""
    return table([("partition", "outcome"), *((str(tp), outcomes[tp]) for tp in sorted(outcomes))])


def comparison_table(compared: Sequence[Compared]) -> str:
    """The two stores side by side."""
    rows = [("partition", str(Store.ZOOKEEPER), str(Store.KAFKA), "log", "")]
    rows += [
        (
            str(one.partition),
            shown(one.zookeeper),
            shown(one.kafka),
            "-" if one.log is None else str(one.log),
            "; ".join(filter(None, (one.agreement.value, one.note))),
        )
        for one in compared
    ]
    return table(rows)
