"""Assignment strategies: pure functions that assign the group's partitions to threads, and their lookup by name.

You can add a strategy: a class with one method, in any package that declares it::

    [options.entry_points]
    zkconsumer.assignors =
        mine = my_package:MyAssignor

Choose it by ``partition.assignment.strategy=mine``. The names ``range`` and ``roundrobin`` always mean the original's
strategies.
"""

from __future__ import annotations

from zkconsumer.assignors.assignor import (
    ENTRY_POINT_GROUP,
    NO_RACKS,
    AssignmentError,
    Assignor,
    Member,
    Members,
    Partitions,
    Racks,
    assignor,
    java_hash,
    known_assignors,
    threads_by_topic,
)
from zkconsumer.assignors.fixed_table import OnlyAssignor, machines
from zkconsumer.assignors.group_strategy import ADVERTISED, advertisement, assignment_strategy
from zkconsumer.assignors.group_strategy import strategy_conflict as concern
from zkconsumer.assignors.scala_assignors import RangeAssignor, RoundRobinAssignor

__all__ = [
    "ADVERTISED", "ENTRY_POINT_GROUP", "NO_RACKS", "AssignmentError", "Assignor", "Member", "Members", "OnlyAssignor",
    "Partitions", "Racks", "RangeAssignor", "RoundRobinAssignor", "advertisement", "assignment_strategy", "assignor",
    "concern", "java_hash", "known_assignors", "machines", "threads_by_topic",
]  # fmt: skip
