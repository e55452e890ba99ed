"""The properties of TLS and logins: what fits together, what is missing, and that no secret is shown."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import is_secret, keys_of
from zkconsumer.config.security_properties import Credentials, SecurityConfig, parse_jaas
from zkconsumer.errors import ConfigException

LEAST = {"zookeeper.connect": "zk:2181", "group.id": "g"}
PLAIN = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
OAUTH = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="ann" password="hunter2";'


def config(given: dict[str, Any]) -> ConsumerConfig:
    return ConsumerConfig({**LEAST, **given})


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (JAAS, {"username": "ann", "password": "hunter2"}),
        ("a.B required;", {}),
        ("a.B required ;", {}),
        ("a.B REQUIRED a=b c = 'd e' ;", {"a": "b", "c": "d e"}),
        (r'a.B optional p="x\"y\\z; =";', {"p": r'x"y\z; ='}),
        ('a.B\n required\n user_x=""\n;\n', {"user_x": ""}),
    ],
)
def test_a_jaas_entry_is_read(text: str, options: dict[str, str]) -> None:
    assert parse_jaas(text).options == options


@pytest.mark.parametrize(
    "text", ["", ";", "a.B;", "a.B required", 'a.B required p="x;', "a.B required p;", "a.B required; b.C required;"]
)
def test_what_is_no_jaas_entry_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        config({"sasl.jaas.config": text + " hunter2"})
    assert caught.value.key == "sasl.jaas.config"
    assert "hunter2" not in str(caught.value)


@given(st.text())
def test_reading_jaas_fails_in_one_way_only(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_jaas(text)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"sasl.username": "ann", "sasl.password": "hunter2"}, Credentials("ann", "hunter2")),
        ({"sasl.jaas.config": JAAS}, Credentials("ann", "hunter2")),
        ({"sasl.jaas.config": JAAS, "sasl.password": "other"}, Credentials("ann", "other")),
        ({"sasl.username": "ann", "sasl.password": ""}, Credentials("ann", "")),
    ],
)
def test_name_and_password_come_from_either_place(given: dict[str, Any], expected: Credentials) -> None:
    assert config({**PLAIN, **given}).sasl_credentials == expected


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (PLAIN, "sasl.username"),
        ({**PLAIN, "sasl.username": "ann"}, "sasl.password"),
        ({**PLAIN, "sasl.jaas.config": "a.B required username=x;"}, "sasl.username"),
        (OAUTH, "sasl.oauthbearer.token.provider"),
        ({**OAUTH, "sasl.oauthbearer.token.endpoint.url": "https://idp/token"}, "sasl.oauthbearer.token.endpoint.url"),
        ({"ssl.ca.location": "a", "ssl.truststore.location": "b"}, "ssl.truststore.location"),
        ({"ssl.certificate.location": "a", "ssl.keystore.location": "b"}, "ssl.keystore.location"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "ssl.endpoint.identification.algorithm"),
        ({"zookeeper.digest.username": "ann"}, "zookeeper.digest.password"),
        ({"zookeeper.sasl.password": "hunter2"}, "zookeeper.sasl.username"),
        ({"zookeeper.sasl.mechanism": "DIGEST-MD5"}, "zookeeper.sasl.username"),
        ({"zookeeper.set.acl": True}, "zookeeper.set.acl"),
        ({"zookeeper.set.acl": True, "zookeeper.ssl.client.enable": True}, "zookeeper.set.acl"),
    ],
)
def test_what_does_not_fit_together_is_refused(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigException) as caught:
        config(given)
    assert caught.value.key == key


@pytest.mark.parametrize(
    "login",
    [
        {"zookeeper.digest.username": "ann", "zookeeper.digest.password": "hunter2"},
        {"zookeeper.sasl.username": "ann", "zookeeper.sasl.password": "hunter2"},
        {"zookeeper.sasl.mechanism": "gssapi"},
        {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": "me.pem"},
    ],
)
def test_rights_on_nodes_need_some_login(login: dict[str, Any]) -> None:
    assert config({**login, "zookeeper.set.acl": "true"}).zookeeper_set_acl


def test_a_name_for_sasl_means_digest_md5() -> None:
    made = config({"zookeeper.sasl.username": "ann", "zookeeper.sasl.password": "hunter2"})
    assert made.zookeeper_sasl_mechanism == "DIGEST-MD5"
    assert config({}).zookeeper_sasl_mechanism is None


def test_no_secret_is_shown_anywhere(caplog: pytest.LogCaptureFixture) -> None:
    secrets = {
        "ssl.key.password": "hunter2",
        "sasl.jaas.config": JAAS,
        "sasl.username": "ann",
        "sasl.password": "hunter2",
        "zookeeper.ssl.keystore.password": "hunter2",
        "zookeeper.digest.username": "ann",
        "zookeeper.digest.password": "hunter2",
        "zookeeper.sasl.username": "ann",
        "zookeeper.sasl.password": "hunter2",
    }
    made = config({**PLAIN, **secrets})
    logging.getLogger("zkconsumer.test").warning("%s %r %s", made, made.sasl_credentials, made.masked())
    assert "hunter2" not in caplog.text
    assert made.masked()["sasl.password"] == "***"
    assert made.as_dict()["sasl.password"] == "hunter2"


def test_every_property_that_holds_a_secret_is_known_as_one() -> None:
    secret = {name for name in keys_of(SecurityConfig) if is_secret(name)}
    assert secret >= {name for name in keys_of(SecurityConfig) if "password" in name or "jaas" in name}


def test_a_secret_of_the_wrong_type_is_not_quoted() -> None:
    with pytest.raises(ConfigException) as caught:
        config({"sasl.password": 4711})
    assert "4711" not in str(caught.value)
