"""The final report of the demo: the table of the totals, the JSON file, and the hints for ``--keep``. Main thread."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from scripts.demonstration.message_account import AccountTotals, Repeat
from scripts.demonstration.screen import Screen
from scripts.demonstration.shared_group import SharedGroupResult
from scripts.demonstration.spark_process import CarrierReport

_KILLED = "ben"


def show_account(screen: Screen, totals: AccountTotals, committed: dict[int, int], total: int) -> bool:
    """Print the totals. Return whether they are good. Duplicates are no failure."""
    screen.say("")
    rows = [
        ("produced", totals.produced, f"of {total:,} flights in the file"),
        ("consumed", totals.consumed, "different ones, each just as produced"),
        ("lost", totals.lost, ""),
        ("duplicates", sum(totals.duplicates.values()), ""),
        *(("", count, cause(again)) for again, count in sorted(totals.duplicates.items())),
        ("committed", sum(committed.values()), "the offsets in ZooKeeper, summed up"),
    ]
    if totals.altered or totals.unknown:
        rows += [("ALTERED", totals.altered, "came otherwise than they were produced")]
        rows += [("UNKNOWN", totals.unknown, "nobody produced them")]
    screen.figures(rows)
    shares = ", ".join(f"{name} {count:,}" for name, count in sorted(totals.by_member.items()))
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
        **vars(totals),
        "duplicates": duplicates,
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
