"""Rights on created nodes, and TLS under kazoo; a real ZooKeeper is in tests/cluster/test_security.py."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Iterator
from threading import Thread

import pytest
import trustme
from kazoo.protocol.serialization import SASL, Auth
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE

from tests.timing import scaled
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import MissingExtraError
from zkconsumer.zookeeper.zookeeper_security import NoSecrets, ZooKeeperSecurity, acl_of, zookeeper_security

OWNED = CREATOR_ALL_ACL + READ_ACL_UNSAFE


@pytest.mark.parametrize(
    "path",
    [
        "/consumers",
        "/consumers/g",
        "/consumers/g/ids",
        "/consumers/g/ids/g_h-0",
        "/consumers/owners",
        "/consumers/owners/ids/x",
        "/brokers/topics",
        "/x/g/owners/t",
    ],
)
def test_registrations_and_their_parents_are_open(path: str) -> None:
    assert list(acl_of(path)) == OPEN_ACL_UNSAFE


@pytest.mark.parametrize("kind", ["owners", "offsets", "placement", "loads"])
@pytest.mark.parametrize("below", ["", "/t", "/t/0"])
def test_what_moves_partitions_is_its_creators(kind: str, below: str) -> None:
    assert list(acl_of(f"/consumers/g/{kind}{below}")) == OWNED


def test_rights_are_only_set_where_asked() -> None:
    assert ZooKeeperSecurity().acl("/consumers/g/owners") is None
    assert ZooKeeperSecurity(set_acl=True).acl("/consumers/g/owners") == OWNED


def config(**properties: str) -> ConsumerConfig:
    return ConsumerConfig(zookeeper_connect="zk", group_id="g", **properties)


def test_nothing_asked_for_is_nothing_given_to_kazoo() -> None:
    assert zookeeper_security(config()).options() == {}


def test_logins_are_given_to_kazoo_and_shown_without_passwords() -> None:
    made = zookeeper_security(
        config(
            zookeeper_digest_username="ann",
            zookeeper_digest_password="hunter2",
            zookeeper_sasl_username="bob",
            zookeeper_sasl_password="hunter3",
        )
    )
    options = made.options()
    assert options["auth_data"] == [("digest", "ann:hunter2")]
    assert options["sasl_options"] == {
        "mechanism": "DIGEST-MD5",
        "service": "zookeeper",
        "username": "bob",
        "password": "hunter3",
    }
    shown = f"{made!r} {made}"
    assert "hunter" not in shown
    assert "ann" in shown
    assert "bob" in shown


def test_kerberos_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("puresasl.mechanisms").mechanisms.mechanisms, "GSSAPI", raising=False)
    with pytest.raises(MissingExtraError, match=r"zkconsumer\[kerberos\].*libkrb5-dev"):
        zookeeper_security(config(zookeeper_sasl_mechanism="GSSAPI"))


def test_sasl_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "puresasl.mechanisms", None)
    with pytest.raises(MissingExtraError, match=r"zkconsumer\[sasl\]"):
        zookeeper_security(config(zookeeper_sasl_username="ann", zookeeper_sasl_password="x"))


def test_logins_stay_out_of_kazoos_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = logging.getLogger("a log with the filter")
    log.addFilter(NoSecrets())
    log.debug("Sending request(xid=%s): %s", 1, Auth(0, "digest", "ann:hunter2"))
    log.debug("Sending request(xid=%s): %s", 2, SASL(b"hunter2"))
    assert "hunter2" not in caplog.text
    assert "Auth(***)" in caplog.text


@pytest.fixture
def pair() -> Iterator[tuple[ssl.SSLSocket, ssl.SSLSocket]]:
    """Both ends of a TLS connection: the server's, ours."""
    authority = trustme.CA()
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("zk.example").configure_cert(serving)
    authority.configure_trust(asking)
    left, right = socket.socketpair()
    ends: list[ssl.SSLSocket] = []
    thread = Thread(target=lambda: ends.append(serving.wrap_socket(left, server_side=True)), name="handshake")
    thread.start()
    with asking.wrap_socket(right, server_hostname="zk.example") as ours:
        thread.join(scaled(10))
        with ends[0]:
            yield ends[0], ours


def test_an_answer_that_came_in_the_record_of_another_is_ready(pair: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    """The answer is in no socket any more, and would wait for the next heartbeat if ``select`` missed it."""
    server, client = pair
    handler = ZooKeeperSecurity(tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)).options()["handler"]
    server.sendall(b"one two ")
    assert client.recv(4) == b"one "
    assert handler.select([client], [], [], scaled(0.05))[0] == [client]
    assert client.recv(4) == b"two "
    assert handler.select([client], [], [], scaled(0.05))[0] == []
