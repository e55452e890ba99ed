"""The servers of a command: the options, the configuration file, and the properties that have an effect."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkconsumer.cluster.cluster_client import ClusterClient, command_config, read_properties
from zkconsumer.errors import ConfigException

SECRET = "hunter2"
SECURE = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.jaas.config": f'x.ScramLoginModule required username="ann" password="{SECRET}";',
    "zookeeper.digest.username": "ann",
    "zookeeper.digest.password": SECRET,
}


@pytest.mark.parametrize(
    ("zookeeper", "bootstrap", "properties", "found"),
    [
        ("z:1/c", None, {}, ("z:1/c", "")),
        (None, "b:1", {}, ("", "b:1")),
        ("z", "b:1", {}, ("z:2181", "b:1")),
        ("z:1", None, {"bootstrap.servers": "b:1"}, ("z:1", "")),
        (None, "b:1", {"zookeeper.connect": "z:1"}, ("", "b:1")),
        (None, None, {"zookeeper.connect": "z:1", "group.id": "g", "auto.offset.reset": "smallest"}, ("z:1", "")),
        (None, None, {"bootstrap.servers": "b:1", "request.timeout.ms": "1"}, ("", "b:1")),
    ],
)
def test_only_named_servers_are_asked(
    zookeeper: str | None, bootstrap: str | None, properties: dict[str, str], found: tuple[str, str]
) -> None:
    config, warned = command_config(zookeeper, bootstrap, properties)
    connection = ClusterClient(config)
    assert (connection.zookeeper, connection.bootstrap) == found
    assert warned == ()


def test_without_servers_there_is_an_error() -> None:
    with pytest.raises(ConfigException, match="--zookeeper.*is missing.*--bootstrap-server"):
        command_config(None, None, {"zookeeper.connect": ""})


def test_logins_of_the_file_count_for_both_sides() -> None:
    config, _ = command_config("z:1", "b:1", SECURE)
    assert config.sasl_credentials == ("ann", SECRET)
    assert config.zookeeper_digest_username == "ann"
    assert config.security_protocol == "SASL_PLAINTEXT"


def test_passwords_are_in_no_text(tmp_path: Path) -> None:
    config, warned = command_config("z:1", None, {**SECURE, "sasl.pasword": SECRET})
    assert SECRET not in repr(config)
    assert warned == ("unknown property 'sasl.pasword' has no effect; did you mean 'sasl.password'?",)
    with pytest.raises(ConfigException) as refused:
        command_config(f"zoo://ann:{SECRET}@z:1", None)
    assert SECRET not in str(refused.value)
    with pytest.raises(ConfigException) as refused:
        command_config("z:1", None, {**SECURE, "sasl.jaas.config": f"x required password={SECRET}"})
    assert SECRET not in str(refused.value)
    file = tmp_path / "command.properties"
    file.write_text(f"sasl.password={SECRET}\\u00zz\n")
    with pytest.raises(ConfigException, match="command.properties.*line 1") as refused:
        read_properties(str(file))
    assert SECRET not in str(refused.value)
