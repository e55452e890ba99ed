"""ConsumerConfig: accepted values, refused values and their errors, and the values in effect."""

from __future__ import annotations

import inspect
import logging
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.documents import property_tables
from zkconsumer.config import ConsumerConfig, SuspectConfigWarning, UnknownPropertyWarning
from zkconsumer.config.config_definition import ConfigKey, keys_of
from zkconsumer.config.consumer_config import OriginalConfig
from zkconsumer.config.coordination_properties import CoordinationConfig
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.connector.async_connector import AsyncZookeeperConsumerConnector
from zkconsumer.connector.zookeeper_connector import ZookeeperConsumerConnector
from zkconsumer.errors import ConfigException, UnknownKeywordError, ZkConsumerError

LEAST = {"zookeeper.connect": "zk:2181", "group.id": "g"}
KEYS = keys_of(ConsumerConfig)

# Section by section what kafka.consumer.ConsumerConfig of 1.1.1 has, written out a second time on purpose.
LEGACY_DEFAULTS = {
    "zookeeper.session.timeout.ms": 6000,
    "zookeeper.connection.timeout.ms": 6000,
    "zookeeper.sync.time.ms": 2000,
    "consumer.id": None,
    "client.id": "g",
    "socket.timeout.ms": 30000,
    "socket.receive.buffer.bytes": 65536,
    "fetch.message.max.bytes": 1048576,
    "num.consumer.fetchers": 1,
    "fetch.min.bytes": 1,
    "fetch.max.bytes": 52428800,
    "fetch.wait.max.ms": 100,
    "queued.max.message.chunks": 2,
    "auto.commit.enable": True,
    "auto.commit.interval.ms": 60000,
    "auto.offset.reset": "largest",
    "consumer.timeout.ms": -1,
    "rebalance.max.retries": 4,
    "rebalance.backoff.ms": 2000,
    "refresh.leader.backoff.ms": 200,
    "partition.assignment.strategy": "range",
    "exclude.internal.topics": True,
    "offsets.storage": "zookeeper",
    "dual.commit.enabled": False,
    "offsets.channel.backoff.ms": 1000,
    "offsets.channel.socket.timeout.ms": 10000,
    "offsets.commit.max.retries": 5,
}
OTHER_DEFAULTS = {"socket.receive.buffer.bytes": 262144}


def config(**keywords: Any) -> ConsumerConfig:
    return ConsumerConfig(LEAST, **keywords)


def keyword(name: str) -> str:
    return name.replace(".", "_")


def refusal(mapping: dict[str, Any]) -> ConfigException:
    with pytest.raises(ConfigException) as caught:
        ConsumerConfig({**LEAST, **mapping})
    return caught.value


# ---- defaults ----


@pytest.mark.parametrize("name", LEGACY_DEFAULTS)
def test_defaults_are_the_originals_but_for_one(name: str) -> None:
    assert getattr(config(), keyword(name)) == {**LEGACY_DEFAULTS, **OTHER_DEFAULTS}[name]


def test_the_originals_properties_are_known() -> None:
    """And no other property is declared as the original's."""
    assert set(keys_of(OriginalConfig)) == {*LEGACY_DEFAULTS, *LEAST}


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"zookeeper.session.timeout.ms": "7000"}, "zookeeper.connection.timeout.ms", 7000),
        ({"zookeeper.sync.time.ms": "2500"}, "rebalance.backoff.ms", 2500),
        ({"client.id": "c"}, "client.id", "c"),
        ({"offsets.storage": "Kafka"}, "offsets.storage", "kafka"),
        ({"offsets.storage": "kafka"}, "dual.commit.enabled", True),
        ({"offsets.storage": "kafka", "dual.commit.enabled": "false"}, "dual.commit.enabled", False),
    ],
)
def test_a_default_can_follow_another_property(given: dict[str, str], name: str, value: object) -> None:
    assert getattr(ConsumerConfig({**LEAST, **given}), keyword(name)) == value


def test_attributes_have_the_type_the_table_says() -> None:
    types = {"string": str, "int": int, "bool": bool}
    hints = get_type_hints(ConsumerConfig)
    for name, key in KEYS.items():
        expected: Any = types[key.kind]
        unset = key.default is None and (not key.derive or name == "zookeeper.sasl.mechanism") and not key.required
        assert hints[keyword(name)] == (expected | None if unset else expected), name


# ---- values ----


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        *(("fetch.min.bytes", text, 5) for text in (" 5 ", "+5", "5", "0005", 5)),
        ("check.crcs", "true", True),
        ("check.crcs", " false ", False),
        ("check.crcs", True, True),
        ("auto.offset.reset", "smallest", "smallest"),
        ("auto.offset.reset", "earliest", "smallest"),
        ("auto.offset.reset", " latest ", "largest"),
        ("consumed.on", "return", "return"),
        ("isolation.level", "read_committed", "read_committed"),
        ("offsets.storage", "ZOOKEEPER", "zookeeper"),
        ("security.protocol", "plaintext", "PLAINTEXT"),
        ("security.protocol", "ssl", "SSL"),
        ("scala.compat.version", "0.8.2", "0.8.2"),
        ("partition.assignment.strategy", "my-plug-in", "my-plug-in"),
        ("client.id", "", ""),
        ("consumer.timeout.ms", "-7", -7),
    ],
)
def test_values_are_taken_in_their_normal_form(name: str, given: Any, value: object) -> None:
    assert getattr(ConsumerConfig({**LEAST, name: given}), keyword(name)) == value


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        *(("fetch.min.bytes", text, "whole number") for text in ("5.0", "", "1_000", "٥", "0x10", "- 5")),
        *(("fetch.min.bytes", value, type(value).__name__) for value in (5.0, True, b"5")),
        *(("fetch.min.bytes", value, "2147483647") for value in ("2147483648", 2**31)),
        *(("fetch.min.bytes", text, "32 bits") for text in ("-2147483649", "9" * 5000)),
        ("fetch.min.bytes", "-1", "at least 0"),
        *(("auto.commit.enable", value, "true") for value in ("True", "FALSE", "yes", "1", "", 1, 0)),
        ("auto.offset.reset", "Smallest", "'smallest' or 'largest'"),
        ("auto.offset.reset", "none", "'smallest' or 'largest'"),
        ("consumed.on", "previous", "'next' or 'return'"),
        ("offsets.storage", "disk", "'zookeeper' or 'kafka'"),
        ("security.protocol", "TLS", "'SASL_SSL'"),
        ("message.model", "broadcast", "'clustering' or 'broadcasting'"),
        ("scala.compat.version", "2.0", "'1.1'"),
        ("group.id", "", "must not be empty"),
        ("group.id", "  ", "must not be empty"),
        ("group.id", "a/b", "'/'"),
        ("group.id", "größe", "'ö'"),
        ("group.id", "..", "node"),
        ("group.id", 7, "text"),
        ("group.id", "a b", "' '"),
        ("group.id", "g@host", "g@host"),
        ("client.id", "a b", "' '"),
        ("consumer.id", "a:b", "':'"),
        ("consumer.id", "", "must not be empty"),
        ("partition.assignment.strategy", "", "must not be empty"),
        ("queued.max.message.chunks", "0", "at least 1"),
        ("rebalance.max.retries", 0, "counts all attempts"),
        ("zookeeper.session.timeout.ms", 0, "at least 1"),
        ("socket.timeout.ms", "99", "fetch.wait.max.ms"),
        *(("zookeeper.connect", text, "a server is missing") for text in ("", "a:1,", "/kafka")),
        *(("zookeeper.connect", text, f"port in '{text}'") for text in ("a:", "a:0", "a:65536", "a:x", "a:-1")),
        *(("zookeeper.connect", text, "not host:port") for text in (":2181", "a b:1")),
        ("zookeeper.connect", "::1:2181", "IPv6 address needs brackets"),
        ("zookeeper.connect", "a:1/k,b:2/k", "chroot stands once"),
        ("zookeeper.connect", "a:1/k/", "write '/k'"),
        ("zookeeper.connect", "a:1/./k", "element '.'"),
        ("zookeeper.connect", "a:1//k", "element ''"),
        ("zookeeper.connect", "a:1/k/..", "element '..'"),
        ("zookeeper.connect", "a:1/k\x00x", "control character"),
    ],
)
def test_a_bad_value_is_refused_with_its_key_and_advice(name: str, given: object, words: str) -> None:
    error = refusal({name: given})

    assert error.key == name
    assert words in error.reason
    assert isinstance(error, ValueError)
    assert isinstance(error, ZkConsumerError)


@pytest.mark.parametrize("missing", LEAST)
def test_a_missing_required_property_is_named(missing: str) -> None:
    with pytest.raises(ConfigException, match=f"^{missing}: is missing"):
        ConsumerConfig({name: value for name, value in LEAST.items() if name != missing})


def test_none_means_not_given() -> None:
    assert config(consumer_id=None, fetch_min_bytes=None) == config()
    with pytest.raises(ConfigException, match="group.id: is missing"):
        ConsumerConfig(zookeeper_connect="zk", group_id=None)


def test_broadcasting_needs_a_name_that_stays() -> None:
    error = refusal({"message.model": "BROADCASTING"})
    assert (error.key, "after a restart" in error.reason) == ("consumer.id", True)
    config = ConsumerConfig({**LEAST, "message.model": "BROADCASTING", "consumer.id": "host-1"})
    assert config.message_model == "broadcasting"


# ---- mapping, keywords, file ----


def test_keywords_and_dotted_names_are_the_same() -> None:
    assert ConsumerConfig(zookeeper_connect="zk:2181", group_id="g", num_consumer_fetchers="2") == ConsumerConfig(
        {**LEAST, "num.consumer.fetchers": 2}
    )


def test_two_values_of_one_property_are_an_error() -> None:
    with pytest.raises(ConfigException, match=r"^fetch.min.bytes: given twice.*fetch_min_bytes="):
        ConsumerConfig({**LEAST, "fetch.min.bytes": "1"}, fetch_min_bytes=2)
    assert ConsumerConfig({**LEAST, "fetch.min.bytes": " 2 "}, fetch_min_bytes=2).fetch_min_bytes == 2
    assert ConsumerConfig({**LEAST, "fetch.min.bytes": "2"}, fetch_min_bytes=None).fetch_min_bytes == 2


def test_what_is_no_mapping_or_no_name_is_refused() -> None:
    with pytest.raises(TypeError, match="must be a mapping, not str"):
        ConsumerConfig("group.id=g")  # type: ignore[arg-type]
    with pytest.raises(ConfigException, match="must be a text"):
        ConsumerConfig({**LEAST, 3: "x"})  # type: ignore[dict-item]


def test_reads_a_properties_file(tmp_path: Path) -> None:
    path = tmp_path / "consumer.properties"
    path.write_bytes(
        b"# comment \xe9\n"
        b"zookeeper.connect = zk1:2181,\\\n    zk2:2182/kafka\n"
        b"group.id: g\n"
        b"auto.offset.reset smallest  \n"
        b"kafka.metrics.reporters=some.Class\n"
    )

    made = ConsumerConfig.from_file(path)

    assert made.zookeeper_hosts == (("zk1", 2181), ("zk2", 2182))
    assert made.zookeeper_chroot == "/kafka"
    assert made.group_id == "g"
    assert made.auto_offset_reset == "smallest"
    assert made.unused == {"kafka.metrics.reporters": "some.Class"}


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "consumer.properties"
    path.write_text("group.id=\\u12\n")

    with pytest.raises(ConfigException, match="consumer.properties: line 1"):
        ConsumerConfig.from_file(str(path))
    with pytest.raises(FileNotFoundError):
        ConsumerConfig.from_file(tmp_path / "none")


# ---- warnings ----


@pytest.mark.parametrize(
    ("unknown", "meant"),
    [
        ("group.idd", "group.id"),
        ("auto.ofset.reset", "auto.offset.reset"),
        ("Fetch.Min.Bytes", "fetch.min.bytes"),
        ("fetch_min_bytes", "fetch.min.bytes"),
        ("metadata.broker.list", "zookeeper.connect"),
        ("zk.connect", "zookeeper.connect"),
        ("zk.sessiontimeout.ms", "zookeeper.session.timeout.ms"),
        ("qqq", None),
    ],
)
def test_an_unknown_name_warns_and_names_the_one_that_was_meant(unknown: str, meant: str | None) -> None:
    guess = rf"; did you mean '{meant}'\?" if meant else "$"
    with pytest.warns(UnknownPropertyWarning, match=f"'{unknown}' has no effect{guess}"):
        made = ConsumerConfig({**LEAST, unknown: "x"})
    assert made.unused == {unknown: "x"}


def test_the_newer_name_of_auto_commit_is_taken() -> None:
    made = ConsumerConfig({**LEAST, "enable.auto.commit": "false"})
    assert not made.auto_commit_enable
    assert not made.unused
    assert made.replace(enable_auto_commit=True).auto_commit_enable
    assert made.replace(enable_auto_commit=None).auto_commit_enable
    with pytest.raises(ConfigException, match=r"auto\.commit\.enable.*given twice"):
        ConsumerConfig({**LEAST, "enable.auto.commit": "false", "auto.commit.enable": "true"})


def test_what_is_said_elsewhere_here_says_where() -> None:
    with pytest.warns(
        UnknownPropertyWarning, match=r"'value\.deserializer' has no effect: give value_decoder=\.\.\. to"
    ):
        ConsumerConfig({**LEAST, "value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer"})


def test_brokers_in_place_of_zookeeper_say_when_they_are_enough() -> None:
    with pytest.raises(ConfigException, match=r"zookeeper\.connect: is missing.*only with group\.coordination=kafka"):
        ConsumerConfig({"group.id": "g", "bootstrap.servers": "h:9092"})


@pytest.mark.parametrize(
    ("keyword", "advice"),
    [
        ("auto_ofset_reset", "; did you mean 'auto_offset_reset'?"),
        ("zk_connect", "; did you mean 'zookeeper_connect'?"),
        ("value_deserializer", ": give value_decoder=... to the method that creates streams"),
        ("qqq", ""),
    ],
)
@pytest.mark.parametrize("value", ["smallest", None])
@pytest.mark.parametrize(
    "take", [ConsumerConfig, ConsumerConfig(LEAST).replace, ZookeeperConsumerConnector, AsyncZookeeperConsumerConnector]
)
def test_an_unknown_keyword_is_an_error(
    take: Callable[..., object], value: str | None, keyword: str, advice: str
) -> None:
    """Bug: ``ConsumerConfig(auto_ofset_reset="smallest")`` only warned, and the group began at its topics' end."""
    given: dict[str, Any] = {keyword: value}
    if inspect.isclass(take):
        given.update({name.replace(".", "_"): text for name, text in LEAST.items()})
    with pytest.raises(UnknownKeywordError) as caught:
        take(**given)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ConfigException)
    assert str(caught.value) == f"{keyword}: no property has this name{advice}"


def test_names_of_the_original_without_a_use_here_are_silent() -> None:
    names = [
        "kafka.metrics.reporters",
        "kafka.csv.metrics.dir",
        "mirror.topics.whitelist",
        "mirror.consumer.numthreads",
    ]
    assert list(ConsumerConfig({**LEAST, **dict.fromkeys(names, "x")}).unused) == names
    assert config(kafka_metrics_reporters="x").unused == {"kafka.metrics.reporters": "x"}


@pytest.mark.parametrize(
    "values", [{"rebalance_max_retries": 3}, {"rebalance_backoff_ms": 100}, {"zookeeper_session_timeout_ms": 8000}]
)
def test_attempts_that_end_before_a_session_does_are_suspect(values: dict[str, int]) -> None:
    with pytest.warns(SuspectConfigWarning, match="rebalance.max.retries x rebalance.backoff.ms"):
        config(**values)


def test_a_warning_points_at_the_users_line(tmp_path: Path) -> None:
    path = tmp_path / "p"
    path.write_text("".join(f"{name}={value}\n" for name, value in {**LEAST, "qqq": "1"}.items()))
    silent = config()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ConsumerConfig({**LEAST, "qqq": 1})
        ConsumerConfig.from_file(path)
        silent.replace({"qqq": 1})
        ZookeeperConsumerConnector({**LEAST, "qqq": 1})
    assert [warning.filename for warning in caught] == [__file__] * 4


# ---- zookeeper.connect ----


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("zk", (("zk", 2181),), ""),
        ("zk:1", (("zk", 1),), ""),
        (" a:1 , b:2 ", (("a", 1), ("b", 2)), ""),
        ("a:1,b/kafka/x", (("a", 1), ("b", 2181)), "/kafka/x"),
        ("a:1/", (("a", 1),), ""),
        ("[::1]:2182,[fe80::1]/c", (("::1", 2182), ("fe80::1", 2181)), "/c"),
        ("10.0.0.1:65535/a:b", (("10.0.0.1", 65535),), "/a:b"),
        ("host:2181/kafka@dc1", (("host", 2181),), "/kafka@dc1"),
    ],
)
def test_servers_and_chroot(text: str, hosts: tuple[tuple[str, int], ...], chroot: str) -> None:
    made = ConsumerConfig(zookeeper_connect=text, group_id="g")

    assert (made.zookeeper_hosts, made.zookeeper_chroot) == (hosts, chroot)
    again = made.replace(zookeeper_connect=made.zookeeper_connect)
    assert (again.zookeeper_hosts, again.zookeeper_chroot) == (hosts, chroot)


@given(st.text(st.sampled_from("ab1:,/[] .x%\x00é")))
def test_any_connect_text_is_read_or_refused_by_name(text: str) -> None:
    try:
        made = ConsumerConfig(zookeeper_connect=text, group_id="g")
    except ConfigException as error:
        assert error.key == "zookeeper.connect"  # noqa: PT017
    else:
        assert made.replace(zookeeper_connect=made.zookeeper_connect) == made


# ---- the object ----


def test_pickling_keeps_everything_and_does_not_warn_again() -> None:
    with pytest.warns(UnknownPropertyWarning):
        made = ConsumerConfig({**LEAST, "qqq": 1}, num_consumer_fetchers=3)

    again = pickle.loads(pickle.dumps(made))

    assert again == made
    assert repr(again) == repr(made)
    assert again.unused == {"qqq": 1}
    assert again.replace({"qqq": None}).num_consumer_fetchers == 3


def test_replace_derives_defaults_again() -> None:
    """None restores the default."""
    made = config(zookeeper_session_timeout_ms=7000, consumer_id="c")

    assert made.replace(zookeeper_session_timeout_ms=5000).zookeeper_connection_timeout_ms == 5000
    assert made.replace(group_id="h").client_id == "h"
    assert made.replace({"consumer.id": None}).consumer_id is None
    assert made.consumer_id == "c"
    with pytest.raises(ConfigException, match="^group.id"):
        made.replace(group_id="")


def test_as_dict_is_what_is_in_effect_and_makes_an_equal_config() -> None:
    made = config(offsets_storage="kafka")

    values = made.as_dict()

    assert values["dual.commit.enabled"] is True
    assert values["client.id"] == "g"
    assert "consumer.id" not in values
    assert ConsumerConfig(values) == made


def test_repr_shows_what_was_given_but_no_secret() -> None:
    with pytest.warns(UnknownPropertyWarning):
        made = ConsumerConfig({**LEAST, "ssl.keystore.password": "hunter2", "sasl.password": "hunter2"})

    assert repr(made) == (
        "ConsumerConfig({'zookeeper.connect': 'zk:2181', 'group.id': 'g', "
        "'ssl.keystore.password': '***', 'sasl.password': '***'})"
    )


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("db.pwd", "hunter2", True),
        ("my.passphrase", "hunter2", True),
        ("sasl.pasword", "hunter2", True),
        ("zookeeper.digest.passwrd", "hunter2", True),
        ("api_key", "hunter2", True),
        ("aws.access.id", "hunter2", True),
        ("basic.auth.user.info", "hunter2", True),
        ("connection.url", "https://ann:hunter2@host/", True),
        ("jdbc", "url?user=ann&password=hunter2", True),
        ("pem", "-----BEGIN PRIVATE KEY----- hunter2", True),
        ("header", "Bearer hunter2", True),
        ("x", "hunter2XuwqeMNBqweoi12398", True),
        ("pin", 4711, True),
        ("auto.offset.rest", "smallest", False),
        ("group.name", "g", False),
        ("partition.asignment.strategy", "range", False),
        ("fetch.sise", 7, False),
        ("metrics", True, False),
        ("dir", "/var/lib/x", False),
    ],
)
def test_repr_hides_an_unknown_value_that_looks_secret(name: str, value: str | int, secret: bool) -> None:
    """The value of a misspelt or foreign property may be a secret, by its name or by itself."""
    with pytest.warns(UnknownPropertyWarning):
        made = ConsumerConfig({**LEAST, name: value})
    assert repr(made).endswith(f"{name!r}: '***'}})" if secret else f"{name!r}: {value!r}}})")
    assert made.unused[name] == value


@pytest.mark.parametrize("key", ["zookeeper.connect", "bootstrap.servers", "broker.address.map"])
@pytest.mark.parametrize(
    "value",
    [
        "ann:hunter2@host:2181",
        "zk://ann:hunter2@host:2181/a",
        "ann:hun/ter2@host:2181",
        "ann:hun,ter2@host:2181/a",
        "hunter2@host:2181",
        "hunter2@host:2181,host2/a//b",
        "host:2181:x,b?password=hunter2",
        "host:2181/a?password=hunter2",
        b"ann:hunter2@host",
    ],
)
def test_credentials_in_an_address_are_refused_unseen(
    key: str, value: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """No connect string takes credentials; the refusal and its context must not spread them."""
    caplog.set_level(logging.DEBUG)
    given: dict[str, Any] = {**LEAST, "group.coordination": "kafka", "bootstrap.servers": "h:1", key: value}
    with pytest.raises(ConfigException) as caught:
        ConsumerConfig(given)
    assert caught.value.key == key
    assert "sasl.username" in caught.value.reason
    error: BaseException | None = caught.value
    while error is not None:
        assert "hun" not in repr(error)
        error = error.__context__
    assert "hun" not in caplog.text


def test_no_warning_shows_a_value() -> None:
    with pytest.warns(UnknownPropertyWarning) as caught:
        ConsumerConfig({**LEAST, "pass.word": "hunter2"})
    assert "hunter2" not in str(caught[0].message)
    with pytest.raises(UnknownKeywordError) as refused:
        config(pass_word="hunter2")
    assert "hunter2" not in repr(refused.value)


def _values(key: ConfigKey) -> st.SearchStrategy[Any]:
    if key.kind == "bool":
        return st.booleans()
    return st.integers(1000, 2**31 - 1)


# rights on nodes need a login: tests/unit/config/test_security_properties.py; some mean nothing by themselves:
# tests/unit/config/test_coordination_properties.py
ELSEWHERE = {"zookeeper.set.acl", *keys_of(CoordinationConfig)}
CHANGEABLE = {n: _values(key) for n, key in KEYS.items() if key.kind != "string" and n not in ELSEWHERE}


@given(st.fixed_dictionaries({}, optional=CHANGEABLE), st.booleans())
def test_a_config_survives_the_way_through_a_properties_file(values: dict[str, Any], spelled: bool) -> None:
    values["socket.timeout.ms"] = 2**31 - 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SuspectConfigWarning)
        made = ConsumerConfig({**LEAST, **values})
        texts = {name: str(v).lower() if isinstance(v, bool) else str(v) for name, v in made.as_dict().items()}
        assert ConsumerConfig({**texts} if spelled else made.as_dict()) == made


# ---- documentation ----


def test_the_table_has_a_row_for_every_property() -> None:
    rows = [line for table in property_tables().values() for line in table.splitlines() if line.startswith("| `")]

    parts = [*keys_of(OriginalConfig), *keys_of(CoordinationConfig), *keys_of(SecurityConfig)]
    assert [row.split("`")[1] for row in rows] == [*parts, *(name for name in KEYS if name not in parts)]
    assert all(row.count(" | ") == 3 for row in rows)
    assert "| `auto.commit.enable` | bool | `true` |" in property_tables()["original"]
    assert "| `group.id` | string | required |" in property_tables()["original"]
    assert "| `client.id` | string | `group.id` |" in property_tables()["original"]
