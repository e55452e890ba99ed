"""The configuration of a command, from its options and the file of ``--command-config``. Any thread."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import closest_name, keys_of
from zkconsumer.config.java_properties import parse_properties
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.errors import ConfigException

_CLIENT_ID = "zkconsumer-operations"
_TAKEN = (
    *("client.id", "broker.address.map", "zookeeper.session.timeout.ms", "zookeeper.connect", "bootstrap.servers"),
    *keys_of(SecurityConfig),
)
"""The properties of a command's configuration file that have an effect."""


def command_config(
    zookeeper: str | None, bootstrap: str | None, properties: Mapping[str, str] = {}
) -> tuple[ConsumerConfig, tuple[str, ...]]:
    """Return the configuration of a command's connections, and warnings for misspelt properties.

    Arguments: ``zookeeper`` and ``bootstrap`` are the command's own options, or None; ``properties`` are those of
    ``--command-config``, which may be a file for a member or for a Java tool. Its addresses count if the command names
    none. Raises ConfigException.
    """
    taken = {name: properties[name] for name in _TAKEN if properties.get(name)}
    if zookeeper or bootstrap:
        taken.pop("zookeeper.connect", None)
        taken.pop("bootstrap.servers", None)
    taken |= {name: text for name, text in (("zookeeper.connect", zookeeper), ("bootstrap.servers", bootstrap)) if text}
    if "zookeeper.connect" not in taken and "bootstrap.servers" not in taken:
        raise ConfigException("--zookeeper", "is missing: name ZooKeeper, or brokers with --bootstrap-server, or both")
    by_brokers = {"group.coordination": "kafka"} if "bootstrap.servers" in taken else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some texts name a member's properties that do not matter here
        config = ConsumerConfig({"client.id": _CLIENT_ID, **taken, **by_brokers, "group.id": _CLIENT_ID})
    return config, tuple(_misspelt(properties))


def read_properties(path: str) -> dict[str, str]:
    """Return the properties in a Java properties file. Raises ConfigException that names the file."""
    try:
        return parse_properties(Path(path).read_bytes().decode("iso-8859-1"))
    except (OSError, ValueError) as error:
        raise ConfigException(path, str(error)) from None


def _misspelt(properties: Mapping[str, str]) -> list[str]:
    """Return warnings for unknown properties that look like one of security. Values are not shown."""
    known, security = keys_of(ConsumerConfig), keys_of(SecurityConfig)
    found = []
    for name in properties:
        meant = closest_name(name, known) if name not in known else None
        if meant in security:
            found.append(f"unknown property {name!r} has no effect; did you mean {meant!r}?")
    return found
