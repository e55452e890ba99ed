"""What a task is told: its ranges, and where to read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from zkconsumer.model import Endpoint, OffsetRange, TopicPartition
from zkconsumer.spark import range_reader
from zkconsumer.spark.options import ReadOptions
from zkconsumer.spark.schema import arrow_schema


class RangePartition(InputPartition):
    """One task's part: ranges that are read one after the other, and the leaders as the planner saw them."""

    def __init__(self, ranges: Sequence[OffsetRange], leaders: Mapping[TopicPartition, Endpoint]) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        wanted = {TopicPartition(range_.topic, range_.partition) for range_ in self.ranges}
        self.leaders = {tp: endpoint for tp, endpoint in leaders.items() if tp in wanted}

    def __repr__(self) -> str:
        return f"<RangePartition {', '.join(f'{t}-{p} [{a}, {b})' for t, p, a, b in self.ranges)}>"


def read_partition(options: ReadOptions, schema: StructType, partition: InputPartition) -> Iterator[Any]:
    """What ``read`` of both readers does. Spark makes an empty partition of its own where there is nothing to read."""
    if not isinstance(partition, RangePartition):
        return iter(())
    return range_reader.read(options, partition.ranges, partition.leaders, arrow_schema(schema))
