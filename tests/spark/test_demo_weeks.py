"""The weeks of the demo's picture, as its Spark query counts them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.demonstration.flight_producer import flights
from scripts.demonstration.spark_process import Week, by_week
from scripts.demonstration.spark_process import flights as flights_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_weeks_that_lack_days_are_told_apart(spark: SparkSession) -> None:
    """The file begins on a Tuesday, and its first 17,000 flights end on 20 January: the weeks begin on Thursdays."""
    messages = [(flight.carrier, flight.json) for flight in flights(17_000)]
    frame = spark.createDataFrame(messages, "key string, value binary")
    weeks = {name: Week(*week) for name, *week in sorted(map(tuple, by_week(flights_of(frame)).collect()))}
    assert {name: week.complete for name, week in weeks.items()} == {
        "2012-12-27": False,
        "2013-01-03": True,
        "2013-01-10": True,
        "2013-01-17": False,
    }
    assert [week.flights for week in weeks.values()][:2] == [1639, 6125]
