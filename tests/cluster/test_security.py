"""The security of both sides: a real ZooKeeper with TLS, SASL and access lists, and a real broker with SASL_SSL."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import produce_to, unique
from tests.cluster.in_process import client_of, connectors
from tests.cluster.secured import (
    PASSWORD,
    USER,
    ZOOKEEPER_PASSWORD,
    Certificates,
    SecuredZooKeeper,
    presenting,
    sasl_ssl,
    secured_broker,
    secured_topic,
)
from tests.timing import eventually, scaled
from zkconsumer import ConsumerConfig, ZookeeperConsumerConnector, cli
from zkconsumer.devcluster import EmbeddedKafka
from zkconsumer.errors import (
    BrokerAuthenticationError,
    NotPermittedError,
    RegistryAuthenticationError,
    RegistryUnavailableError,
)
from zkconsumer.kafka import choose_endpoint
from zkconsumer.model import Endpoint, TopicPartition
from zkconsumer.operations.snapshot_file import read_snapshots
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.spark.batch_reader import BatchReader
from zkconsumer.spark.coordinator_cluster import cluster_of
from zkconsumer.spark.options import ReadOptions, parse
from zkconsumer.spark.range_reader import TaskReader
from zkconsumer.spark.schema import source_schema
from zkconsumer.spark.streaming_query import QueryRun
from zkconsumer.zookeeper.broker_directory import registered_brokers
from zkconsumer.zookeeper.session import Session
from zkconsumer.zookeeper.zookeeper_security import zookeeper_security

DIGEST = {"zookeeper.digest.username": USER, "zookeeper.digest.password": PASSWORD}
SASL = {"zookeeper.sasl.username": USER, "zookeeper.sasl.password": ZOOKEEPER_PASSWORD}
EVERYTHING, READING = 31, 1


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def zookeeper(certificates: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    with SecuredZooKeeper(tmp_path_factory.mktemp("secured"), certificates) as server:
        yield server


@pytest.fixture(scope="module")
def broker(zookeeper: SecuredZooKeeper, certificates: Certificates) -> Iterator[EmbeddedKafka]:
    with secured_broker(zookeeper, certificates) as server:
        yield server


@pytest.fixture
def admin(zookeeper: SecuredZooKeeper) -> Iterator[KazooClient]:
    """A client without a login. It shows the rights that ZooKeeper gives to everybody."""
    with client_of(zookeeper.connect) as client:
        yield client


@pytest.fixture
def topic(broker: EmbeddedKafka) -> str:
    return secured_topic(broker)


Connect = Callable[..., ZookeeperConsumerConnector]


@pytest.fixture
def connect(zookeeper: SecuredZooKeeper) -> Iterator[Connect]:
    with connectors({"zookeeper.connect": zookeeper.connect, "consumer.timeout.ms": 15000}) as make:
        yield lambda group, *properties: make({"group.id": group}, *properties)


def tls(zookeeper: SecuredZooKeeper, certificates: Certificates) -> dict[str, str]:
    return {
        "zookeeper.connect": zookeeper.secure_connect,
        "zookeeper.ssl.client.enable": "true",
        "zookeeper.ssl.truststore.location": certificates.ca,
    }


def session(zookeeper: SecuredZooKeeper, properties: Mapping[str, str]) -> Session:
    config = ConsumerConfig({"zookeeper.connect": zookeeper.connect, "group.id": "g", **properties})
    return Session(config.zookeeper_connect, timeout=4.0, on_change=lambda _: None, security=zookeeper_security(config))


@contextmanager
def opened(zookeeper: SecuredZooKeeper, properties: Mapping[str, str]) -> Iterator[Session]:
    one = session(zookeeper, properties)
    one.open(Deadline(scaled(10)))
    try:
        yield one
    finally:
        one.close(Deadline(scaled(5)))


def rights(client: KazooClient, path: str) -> list[tuple[str, str, int]]:
    return sorted((acl.id.scheme, acl.id.id.split(":")[0], acl.perms) for acl in client.get_acls(path)[0])


OPEN = [("world", "anyone", EVERYTHING)]


# ---- ZooKeeper: logins and rights ----


@pytest.mark.parametrize(
    ("login", "owner"), [(DIGEST, ("digest", USER)), (SASL, ("sasl", USER))], ids=["digest", "sasl"]
)
def test_nodes_get_the_originals_rights(
    connect: Connect, admin: KazooClient, topic: str, login: dict[str, str], owner: tuple[str, str]
) -> None:
    group = unique("rights")
    connector = connect(group, login, {"zookeeper.set.acl": "true"})
    stream = connector.create_message_streams({topic: 1})[topic][0]
    assert {next(stream).value for _ in range(20)} == {b"%d" % n for n in range(20)}
    connector.commit_offsets()

    base = f"/consumers/{group}"
    for path in ("/consumers", base, f"{base}/ids", f"{base}/ids/{connector.consumer_id}"):
        assert rights(admin, path) == OPEN, path
    for kind in ("owners", "offsets"):
        for path in (
            f"{base}/{kind}",
            f"{base}/{kind}/{topic}",
            f"{base}/{kind}/{topic}/0",
            f"{base}/{kind}/{topic}/1",
        ):
            assert rights(admin, path) == sorted([(*owner, EVERYTHING), ("world", "anyone", READING)]), path


def test_with_a_certificate_the_rights_are_its_holders(
    connect: Connect, admin: KazooClient, topic: str, zookeeper: SecuredZooKeeper, certificates: Certificates
) -> None:
    group = unique("certified")
    identity = {"zookeeper.ssl.keystore.location": certificates.client, "zookeeper.set.acl": "true"}
    connector = connect(group, tls(zookeeper, certificates), identity)
    stream = connector.create_message_streams({topic: 1})[topic][0]
    next(stream)
    schemes = {scheme for scheme, _, _ in rights(admin, f"/consumers/{group}/owners/{topic}/0")}
    assert schemes == {"x509", "world"}


@pytest.mark.parametrize("login", [{}, {**DIGEST, "zookeeper.digest.password": "wrong"}], ids=["none", "wrong"])
def test_a_member_that_may_not_own_says_so_and_the_others_go_on(
    connect: Connect, topic: str, login: dict[str, str]
) -> None:
    """ZooKeeper accepts any digest password as another identity. Only its missing rights show the mistake."""
    group = unique("intruder")
    owner = connect(group, DIGEST, {"zookeeper.set.acl": "true"})
    owner.create_message_streams({topic: 1})
    assert owner.state.owned == 2
    intruder = connect(group, login)
    intruder.create_message_streams({topic: 1})
    blocked = eventually(lambda: intruder.state.blocked, 10, "the intruder to be refused")
    assert intruder.state.owned == 0
    assert "refused" in str(blocked)
    assert eventually(lambda: owner.state.owned == 1, 10, "the owner to give up its share")
    intruder.shutdown()
    assert eventually(lambda: owner.state.owned == 2, 10, "the owner to take all again")


def test_parents_that_exist_need_no_rights_to_make_them(zookeeper: SecuredZooKeeper, admin: KazooClient) -> None:
    """KAFKA-5691: servers check the rights on the parent before they see that the node exists."""
    from kazoo.security import READ_ACL_UNSAFE, make_digest_acl

    top = f"/{unique('top')}"
    somebody = make_digest_acl("somebody", "else", all=True)
    admin.ensure_path(f"{top}/open")
    admin.set_acls(top, [somebody, *READ_ACL_UNSAFE])
    with opened(zookeeper, DIGEST) as one:
        one.ensure([f"{top}/open/a/b"], Deadline(scaled(10)))
        with pytest.raises(NotPermittedError, match=f"{top}/closed"):
            one.ensure([f"{top}/closed/a"], Deadline(scaled(10)))
        wanted = [f"{top}/closed/a", f"{top}/open/c/d", f"{top}/closed/b"]
        refused = one.ensure_each(wanted, Deadline(scaled(10)))
        assert set(refused) == {wanted[0], wanted[2]}
        assert f"{top}/closed: " in str(refused[wanted[0]])
        assert one.stat(wanted, Deadline(scaled(10)))[1] is not None


def test_a_refused_login_is_one_clear_error_and_no_storm(
    connect: Connect, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    begin = monotonic()
    connector = connect(unique("refused"), SASL, {"zookeeper.sasl.password": "wrong-password"})
    with pytest.raises(RegistryAuthenticationError, match=f"user '{USER}'"):
        connector.create_message_streams({topic: 1})
    assert monotonic() - begin < scaled(8)
    connector.shutdown()
    assert "wrong-password" not in caplog.text
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == 1
    assert caplog.text.count("Connecting to") <= 5


def test_a_session_logs_in_again_after_its_server_was_away(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With kazoo alone, one failed login ends all further attempts, whatever its cause."""
    with (
        SecuredZooKeeper(tmp_path, certificates) as server,
        opened(server, {**SASL, "zookeeper.set.acl": "true"}) as one,
    ):
        one.ensure(["/consumers/g/owners/t"], Deadline(scaled(10)))
        server.kill()
        eventually(lambda: not one.connected, 10, "the session to notice")
        server.admit("changed")
        server.start()
        eventually(lambda: USER in one.trouble, 20, "the login to be refused")
        assert not one.connected
        server.kill()
        server.admit(ZOOKEEPER_PASSWORD)
        server.start()
        eventually(lambda: one.connected, 20, "the session to come back")
        assert one.trouble == ""
        assert one.create("/consumers/g/owners/t/0", b"", Deadline(scaled(10)), ephemeral=True)
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == 1


# ---- ZooKeeper: TLS ----


def test_a_server_whose_certificate_is_not_trusted_is_refused(
    zookeeper: SecuredZooKeeper, certificates: Certificates
) -> None:
    trusting_others = {"zookeeper.ssl.truststore.location": certificates.other_ca}
    one = session(zookeeper, {**tls(zookeeper, certificates), **trusting_others})
    begin = monotonic()
    with pytest.raises(RegistryAuthenticationError, match="CERTIFICATE_VERIFY_FAILED"):
        one.open(Deadline(scaled(20)))
    assert monotonic() - begin < scaled(8)


def test_a_certificate_for_another_name_is_refused(zookeeper: SecuredZooKeeper, certificates: Certificates) -> None:
    """A server whose certificate has another name is refused, unless the check of names is off."""
    elsewhere = {**tls(zookeeper, certificates), "zookeeper.connect": f"[::ffff:127.0.0.1]:{zookeeper.secure_port}"}
    with pytest.raises(RegistryAuthenticationError, match="mismatch"):
        session(zookeeper, elsewhere).open(Deadline(scaled(20)))
    with opened(zookeeper, {**elsewhere, "zookeeper.ssl.endpoint.identification.algorithm": ""}) as one:
        assert one.connected


@pytest.mark.parametrize("which", ["stranger", "expired"])
def test_zookeeper_refuses_a_client_certificate_in_clear_words(
    which: str, zookeeper: SecuredZooKeeper, certificates: Certificates
) -> None:
    own = {"zookeeper.ssl.keystore.location": getattr(certificates, which)}
    one = session(zookeeper, {**tls(zookeeper, certificates), **own})
    with pytest.raises(RegistryAuthenticationError, match="certificate"):
        one.open(Deadline(scaled(10)))


def test_plain_speech_on_a_tls_port_ends_in_time(zookeeper: SecuredZooKeeper) -> None:
    one = session(zookeeper, {"zookeeper.connect": zookeeper.secure_connect})
    with pytest.raises(RegistryUnavailableError, match="The last try"):
        one.open(Deadline(scaled(2)))


# ---- both ----


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_consuming_with_both_securities(
    connect: Connect,
    topic: str,
    zookeeper: SecuredZooKeeper,
    broker: EmbeddedKafka,
    certificates: Certificates,
    mechanism: str,
) -> None:
    both = {**tls(zookeeper, certificates), **SASL, **sasl_ssl(certificates, mechanism), "zookeeper.set.acl": "true"}
    storage = {"offsets.storage": "kafka" if mechanism == "PLAIN" else "zookeeper"}
    group = unique("both")
    connector = connect(group, both, storage)
    stream = connector.create_message_streams({topic: 1})[topic][0]
    assert {next(stream).value for _ in range(20)} == {b"%d" % n for n in range(20)}
    connector.shutdown()
    produce_to(broker.address, topic, [b"new"])
    after = connect(group, both, storage)
    assert next(after.create_message_streams({topic: 1})[topic][0]).value == b"new"


def login_endpoint(zookeeper: SecuredZooKeeper) -> Endpoint:
    """The broker's listener with a login."""
    with opened(zookeeper, {}) as looking:
        (broker,) = registered_brokers(looking, Deadline(scaled(10)))
        return choose_endpoint(broker.endpoints, "SASL_SSL", {})


def secure_server(zookeeper: SecuredZooKeeper) -> str:
    where = login_endpoint(zookeeper)
    return f"{where.host}:{where.port}"


def test_a_member_logs_in_to_the_group_coordinator(
    connect: Connect, topic: str, zookeeper: SecuredZooKeeper, certificates: Certificates
) -> None:
    """A member of a group that the brokers coordinate logs in."""
    by_brokers = {"group.coordination": "kafka", "bootstrap.servers": secure_server(zookeeper)}
    group = unique("coordinated")
    connector = connect(group, by_brokers, sasl_ssl(certificates))
    stream = connector.create_message_streams({topic: 1})[topic][0]
    assert {next(stream).value for _ in range(20)} == {b"%d" % n for n in range(20)}
    connector.commit_offsets(timeout=scaled(10))
    other = connect(group, by_brokers, sasl_ssl(certificates))
    other.create_message_streams({topic: 1})
    eventually(lambda: len(connector.assignment()) == len(other.assignment()) == 1, 30, "both to have a half")
    with pytest.raises(BrokerAuthenticationError):
        connect(group, by_brokers, sasl_ssl(certificates, password="wrong")).create_message_streams({topic: 1})


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_the_data_source_reads_and_is_a_member_with_a_login(
    topic: str, zookeeper: SecuredZooKeeper, certificates: Certificates, coordination: str
) -> None:
    login = {f"kafka.{name}": value for name, value in sasl_ssl(certificates).items()}
    where = (
        {**tls(zookeeper, certificates), **SASL, "zookeeper.set.acl": "true"}
        if coordination == "zookeeper"
        else {"group.coordination": "kafka", "kafka.bootstrap.servers": secure_server(zookeeper)}
    )
    given = {**where, **login, "group.id": unique("source"), "subscribe": topic, "startingOffsets": "earliest"}
    options, schema = parse(given), source_schema(False)
    batch = BatchReader(options, schema)
    assert sorted(_values(options, schema, batch.partitions())) == sorted(b"%d" % n for n in range(20))
    run = QueryRun(options, cluster_of(options))
    try:
        run.open()
        end = run.latest({}, None)
        assert len(list(_values(options, schema, run.plan(end)))) == 20
        run.settle(end)
        assert run.latest(end, None) == end
    finally:
        run.close()
    with cluster_of(options) as cluster:
        partitions, _ = cluster.partitions(options.selection)
        assert cluster.committed(options.group, partitions) == dict.fromkeys(partitions, 10)


def _values(options: ReadOptions, schema: Any, tasks: Sequence[Any]) -> Iterator[bytes]:
    """Return the values that Spark tasks read. The tasks are pickled, as for another machine."""
    for task in pickle.loads(pickle.dumps(tasks)):
        for batch in TaskReader(options, schema).read(task):
            yield from batch.column("value").to_pylist()


REFUSED: dict[str, tuple[Callable[[Certificates], dict[str, str]], str]] = {
    "no certificate": (presenting, "TLS failed"),
    "a stranger's": (lambda c: presenting(c, **{"ssl.keystore.location": c.stranger}), "TLS failed"),
    "an expired one": (lambda c: presenting(c, **{"ssl.keystore.location": c.expired}), "TLS failed"),
    "a wrong password": (lambda c: sasl_ssl(c, password="wrong-password"), f"SCRAM-SHA-512, user '{USER}'"),
    "an unknown broker": (lambda c: sasl_ssl(c) | {"ssl.ca.location": c.other_ca}, "CERTIFICATE_VERIFY_FAILED"),
}
"""What a broker, or the member itself, refuses; and the words of the error."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_is_one_clear_error_and_no_storm(
    what: str, connect: Connect, topic: str, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    properties, words = REFUSED[what]
    connector = connect(unique("refused"), properties(certificates))
    stream = connector.create_message_streams({topic: 1})[topic][0]
    with pytest.raises(BrokerAuthenticationError, match=words) as caught:
        next(stream)
    assert words in str(connector.state)
    assert "wrong-password" not in str(caught.value) + caplog.text
    assert sum(record.levelno >= logging.ERROR for record in caplog.records) == 1


def test_a_command_logs_in_with_a_file_of_properties(
    zookeeper: SecuredZooKeeper,
    certificates: Certificates,
    topic: str,
    admin: KazooClient,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    group, logins, output = unique("group"), tmp_path / "command.properties", str(tmp_path / "snapshot")
    admin.create(f"/consumers/{group}/offsets/{topic}/0", b"4", makepath=True)
    command = ["snapshot", group, "--zookeeper", zookeeper.secure_connect, "--command-config", str(logins)]

    def with_password(password: str) -> int:
        given = {**tls(zookeeper, certificates), **sasl_ssl(certificates, password=password)}
        text = "".join(f"{name}={value}\n" for name, value in given.items())
        logins.write_text(text, encoding="iso-8859-1")
        return cli.main([*command, "--timeout", str(int(scaled(15) * 1000)), "--output", output])

    assert with_password(PASSWORD) == 0
    (found,) = read_snapshots(output)
    assert not found.problems
    assert found.lag(TopicPartition(topic, 0)) == 6
    assert found.servers[0].mode == "standalone"
    assert with_password("wrong-one") == 0
    (found,) = read_snapshots(output)
    assert found.offsets[TopicPartition(topic, 0)].offset == 4
    assert any("broker" in one.what for one in found.problems)
    told = capsys.readouterr()
    assert "wrong-one" not in told.out + told.err + Path(output).read_text()
