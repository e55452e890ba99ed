"""The options of the tables about groups, ``option("table", ...)``, parsed. Pure: no I/O, no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import keys_of
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.core.names import name_problem
from zkconsumer.errors import ConfigException
from zkconsumer.operations.command_config import command_config
from zkconsumer.spark.options import NAMES, as_written, refuse, refuse_all, unknown
from zkconsumer.spark.table_rows import TABLES

TABLE: Final = "table"
_CONNECT, _BOOTSTRAP = "zookeeper.connect", "bootstrap.servers"
_PROPERTIES: Final = (
    *("client.id", "broker.address.map", "zookeeper.session.timeout.ms"),
    *keys_of(SecurityConfig),
)
_TIMEOUT: Final = "socket.timeout.ms"
_OWN: Final = (TABLE, "groups", "group.id", _CONNECT, _BOOTSTRAP, _TIMEOUT, *_PROPERTIES)
DEFAULT_TIMEOUT: Final = 10.0
"""Seconds for the answers about one group."""


@dataclass(frozen=True, slots=True)
class TableOptions:
    """The options in typed form.

    ``table`` is a key of :data:`TABLES`. ``groups`` are the named groups; empty: all. ``timeout`` in seconds limits the
    reading of one group.
    """

    table: str
    config: ConsumerConfig
    groups: tuple[str, ...] = ()
    timeout: float = DEFAULT_TIMEOUT


def names_table(options: Mapping[str, str]) -> bool:
    """Return whether these are the options of a table about groups, rather than of messages."""
    return any(name.lower() == TABLE for name in options)


def parse_table(given: Mapping[str, str]) -> TableOptions:
    """Return the options in typed form. Raises ConfigException naming the option as the user wrote it."""
    return as_written(given, _parsed)


def _parsed(options: Mapping[str, str], spelled: Mapping[str, str]) -> TableOptions:
    table = options[TABLE].strip().lower()
    if table not in TABLES:
        refuse(TABLE, options[TABLE], f"there is no such table, only {', '.join(TABLES)}")
    for name, value in options.items():
        if name not in _OWN:
            if name in NAMES:
                refuse(NAMES[name], value, f"has no meaning for table={table}, which reads no messages")
            refuse_all([unknown(name, value)], spelled)
    if _CONNECT not in options and _BOOTSTRAP not in options:
        raise ConfigException(_CONNECT, "is missing; name ZooKeeper, or brokers with bootstrap.servers, or both")
    config, _warnings = command_config(
        options.get(_CONNECT), options.get(_BOOTSTRAP), {name: options[name] for name in _PROPERTIES if name in options}
    )
    return TableOptions(table, config, _groups(options), _timeout(options))


def _groups(options: Mapping[str, str]) -> tuple[str, ...]:
    if "groups" in options and "group.id" in options:
        refuse("groups", options["groups"], f"contradicts group.id={options['group.id']!r}; say one of them")
    if "group.id" in options:
        names = [options["group.id"]]
    else:
        names = [name.strip() for name in options.get("groups", "").split(",")] if "groups" in options else []
    option = "group.id" if "group.id" in options else "groups"
    for name in names:
        problem = name_problem(name) if name else "a name is empty"
        if problem is not None:
            refuse(option, options[option], problem)
    return tuple(dict.fromkeys(names))


def _timeout(options: Mapping[str, str]) -> float:
    text = options.get(_TIMEOUT)
    if text is None:
        return DEFAULT_TIMEOUT
    if not (text.strip().isascii() and text.strip().isdecimal() and 0 < int(text) <= 86_400_000):
        refuse(_TIMEOUT, text, "milliseconds from 1 to 86400000 are wanted")
    return int(text) / 1000
