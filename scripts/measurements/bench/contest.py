"""Turns, medians, ratios, tables: what all scenarios with peers have in common.

The machine's speed varies more from minute to minute than the peers differ. So all peers run in each turn, and every
turn begins with another peer. The median of a peer's turns counts, and ratios of medians.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from scripts.measurements.bench import machine
from scripts.measurements.bench.peers import OURS, Cost

Measures = Mapping[str, float]


@dataclass(frozen=True)
class Column:
    """A measure in a table: its name in the results, the heading, the unit's factor and the digits."""

    name: str
    title: str
    factor: float = 1.0
    digits: int = 2


RATE = "messages_per_second"
RATE_COLUMNS = (
    Column(RATE, "M/s", 1e-6),
    Column("warm_messages_per_second", "2nd half", 1e-6),
    Column("cpu_seconds_per_million", "CPU s/M"),
    Column("broker_cpu_seconds_per_million", "broker"),
    Column("peak_mib", "MiB", digits=0),
)


def rated(cost: Cost) -> Measures:
    """Return the measures of bulk reading."""
    million = cost.messages / 1e6
    return {
        RATE: cost.messages / cost.seconds,
        "warm_messages_per_second": cost.later_rate,
        "cpu_seconds_per_million": cost.cpu / million,
        "broker_cpu_seconds_per_million": cost.broker_cpu / million,
        "peak_mib": cost.peak_mib,
    }


def in_turns(
    case: str,
    contestants: Mapping[str, Callable[[int], Measures]],
    turns: int,
    columns: Sequence[Column],
    *,
    more_is_better: bool = True,
    ours: str = OURS,
) -> dict[str, Any]:
    """Lets each contestant measure itself once a turn (it is given the turn), prints the table.

    Arguments: the first of ``columns`` is what is compared; ``case`` names the table. Returns: an entry of "cases" in
    the results.
    """
    found: dict[str, list[Measures]] = {name: [] for name in contestants}
    loads = []
    head = columns[0]
    for turn in range(turns):
        names = list(contestants)
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            loads.append(machine.load())
            measures = contestants[name](turn)
            found[name].append(measures)
            shown = measures[head.name] * head.factor
            print(
                f"  {case}, turn {turn + 1}  {name:<24} {shown:8.{head.digits}f} {head.title}",
                flush=True,
            )
    peers = {name: _summary(of) for name, of in found.items()}
    reference = peers[ours][head.name]["median"]
    for row in peers.values():
        other = row[head.name]["median"]
        first, second = (reference, other) if more_is_better else (other, reference)
        row["ours_to_this"] = round(first / second, 2) if second else None
    entry = {
        "case": case,
        "compared": head.name,
        "more_is_better": more_is_better,
        "ours": ours,
        "turns": turns,
    }
    result = {**entry, "load_average_before_each": loads, "peers": peers}
    _print_table(result, columns)
    return result


def _summary(turns: Sequence[Measures]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in turns[0]:
        values = [measures[name] for measures in turns]
        row[name] = {
            "median": median(values),
            "lowest": min(values),
            "highest": max(values),
            "turns": values,
        }
    return row


def _print_table(result: Mapping[str, Any], columns: Sequence[Column]) -> None:
    head, *others = columns
    better = "times as much" if result["more_is_better"] else "times better"
    print(f"\n{result['case']}: medians of {result['turns']} turns (lowest - highest); {result['ours']} is so many")
    print(f"{better}\n")
    titles = "".join(f"{column.title:>10}" for column in others)
    print(f"{'':<26}{head.title:>9}  {'range':<17}{'ours is':>8}{titles}")
    for name, row in result["peers"].items():
        low, middle, high = (row[head.name][key] * head.factor for key in ("lowest", "median", "highest"))
        spread = f"{low:.{head.digits}f} - {high:.{head.digits}f}"
        ratio = "-" if row["ours_to_this"] is None else f"{row['ours_to_this']:.2f}x"
        rest = "".join(_cell(row, column) for column in others)
        print(f"{name:<26}{middle:>9.{head.digits}f}  {spread:<17}{ratio:>8}{rest}")
    loads = result["load_average_before_each"]
    print(f"\nLoad average before each turn: {min(loads)} to {max(loads)}.\n", flush=True)


def _cell(row: Mapping[str, Any], column: Column) -> str:
    value = row.get(column.name, {}).get("median")
    return f"{'-' if not value else format(value * column.factor, f'.{column.digits}f'):>10}"
