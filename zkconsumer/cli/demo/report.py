"""The final report of the demo: the table of the totals, the JSON file, and the hints for ``--keep``. Main thread."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.table import Table

from zkconsumer.cli.demo.message_account import AccountTotals, Repeat
from zkconsumer.cli.demo.screen import Screen
from zkconsumer.cli.demo.shared_group import SharedGroupResult
from zkconsumer.cli.demo.spark_process import CarrierReport

_KILLED = "ben"


def show_account(screen: Screen, totals: AccountTotals, committed: dict[int, int], total: int) -> bool:
    """Print the totals. Return whether they are good. Duplicates are no failure."""
    screen.say("")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(overflow="fold")
    shares = ", ".join(f"{name} {count:,}" for name, count in sorted(totals.by_member.items()))
    table.add_row("produced", f"{totals.produced:,}", f"of {total:,} flights in the file")
    table.add_row("consumed", f"{totals.consumed:,}", "different ones, each just as produced")
    table.add_row("lost", f"{totals.lost:,}", "")
    table.add_row("duplicates", f"{sum(totals.duplicates.values()):,}", "")
    for again, count in sorted(totals.duplicates.items()):
        table.add_row("", f"{count:,}", cause(again))
    table.add_row("committed", f"{sum(committed.values()):,}", "the offsets in ZooKeeper, summed up")
    if totals.altered or totals.unknown:
        table.add_row("ALTERED", f"{totals.altered:,}", "came otherwise than they were produced")
        table.add_row("UNKNOWN", f"{totals.unknown:,}", "nobody produced them")
    screen.table(table)
    screen.say(f"read by: {shares}")
    return is_good(totals, committed, total)


def is_good(totals: AccountTotals, committed: dict[int, int], total: int) -> bool:
    """Return whether all flights were produced, consumed and committed, and no other message."""
    wrong = totals.lost or totals.altered or totals.unknown
    return totals.produced == totals.consumed == total == sum(committed.values()) and not wrong


def cause(again: Repeat) -> str:
    """Return the cause of a repeated message as text."""
    if again.first == _KILLED:
        return f"step 4: {again.first} was killed before committing; again by {again.again}"
    if again.first == again.again:
        return f"step {again.step}: read twice by {again.first}"
    return f"step {again.step}: read by {again.first}, not committed in time; again by {again.again}"


def write(
    file: Path,
    totals: AccountTotals,
    committed: dict[int, int],
    rows: dict[str, CarrierReport] | None,
    shared: SharedGroupResult | None,
    good: bool,
) -> None:
    """Write the totals as JSON."""
    duplicates = [
        {"first": again.first, "again": again.again, "step": again.step, "count": count}
        for again, count in sorted(totals.duplicates.items())
    ]
    content = {
        "agrees": good,
        "produced": totals.produced,
        "consumed": totals.consumed,
        "lost": totals.lost,
        "altered": totals.altered,
        "unknown": totals.unknown,
        "duplicates": duplicates,
        "by_member": totals.by_member,
        "committed": committed,
        "shared": None if shared is None else shared._asdict(),
        "spark": None
        if rows is None
        else {carrier: {"flights": row.delays.flights, "mean_delay": row.mean} for carrier, row in rows.items()},
    }
    file.write_text(json.dumps(content, indent=2) + "\n")


def what_next(screen: Screen, step: int, zookeeper: str, topic: str) -> None:
    """Print the hints for ``--keep``: the cluster is up, with a topic full of flights."""
    folder = Path(sys.executable).parent
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    screen.step(step, "The cluster stays up. What to try next")
    screen.say(
        f"""\
Read the flights in Python: {folder}/python, and there

  from zkconsumer import ZookeeperConsumerConnector
  with ZookeeperConsumerConnector({{
      "zookeeper.connect": "{zookeeper}",
      "group.id": "me",
      "auto.offset.reset": "smallest",
  }}) as connector:
      for message in connector.create_message_streams({{"{topic}": 1}})["{topic}"][0]:
          print(message.partition, message.offset, message.key, message.value)

Start it twice, and both share the topic. See where the cluster is, and end it:

  {folder}/zkconsumer dev status
  {folder}/zkconsumer dev down"""
    )
