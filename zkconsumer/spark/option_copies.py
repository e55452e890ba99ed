"""The second copy of each option that Spark's catalog makes. Pure: no I/O, no Spark.

``CREATE TABLE t USING zkconsumer OPTIONS (subscribe 'x')`` gives a source the option ``subscribe``, its copy
``option.subscribe``, and all other properties of the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from zkconsumer.errors import ConfigException

_COPY: Final = "option."
_PROVIDER: Final = "provider"
"""A property that the catalog adds to each table."""


class GivenOptions(NamedTuple):
    """The options of the user, and whether they are those of a new table."""

    options: Mapping[str, str]
    creates_table: bool


def without_copies(given: Mapping[str, str]) -> GivenOptions:
    """Return the options without Spark's copies, and without the properties of a table, which are no options.

    Raises ConfigException for a copy that differs from its original, or has none.
    """
    lower = {name.lower(): value for name, value in given.items()}
    copies = {name.removeprefix(_COPY): value for name, value in lower.items() if name.startswith(_COPY)}
    for name, value in copies.items():
        if name not in lower:
            raise ConfigException(_COPY + name, f"unknown option; it is Spark's name for a copy of {name}")
        if lower[name] != value:
            raise ConfigException(_COPY + name, f"contradicts {name}, of which it should be a copy; say one of them")
    if _PROVIDER in lower:
        return GivenOptions({name: value for name, value in given.items() if name.lower() in copies}, True)
    return GivenOptions({name: value for name, value in given.items() if not name.lower().startswith(_COPY)}, False)
