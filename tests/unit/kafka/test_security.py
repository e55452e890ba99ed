"""TLS and logins on a channel, against brokers that follow a script."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import socket
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import trustme

from tests.timing import scaled
from tests.unit.kafka.scripted import RANGES, Peer, Script, ScriptedBroker, response
from zkconsumer.cluster.cluster_client import security_of as channel_security
from zkconsumer.config import ConsumerConfig
from zkconsumer.errors import BrokerAuthenticationError, BrokerError, ConfigException, MissingExtraError
from zkconsumer.kafka import BrokerChannel
from zkconsumer.kafka.broker_schemas import METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from zkconsumer.runtime.deadline import Deadline

MODERN = {**RANGES, 17: (0, 1), 36: (0, 2)}
OLDER: Mapping[int, tuple[int, int]] = {1: (0, 3), 2: (0, 1), 3: (0, 2), 18: (0, 0), 17: (0, 0)}


def soon() -> Deadline:
    return Deadline(scaled(10))


def channel(broker: ScriptedBroker, generation: int = 5, **properties: Any) -> BrokerChannel:
    names = {name.replace("_", "."): value for name, value in properties.items()}
    config = ConsumerConfig({"zookeeper.connect": "zk", "group.id": "g", **names})
    security = channel_security(config)
    return BrokerChannel(broker.endpoint(generation), client_id="c", socket_timeout=scaled(10), security=security)


@contextmanager
def connected(*scripts: Script, generation: int = 5, **properties: Any) -> Iterator[BrokerChannel]:
    """Yield a channel that has logged in to a broker of these scripts."""
    with ScriptedBroker(*scripts) as broker, closing(channel(broker, generation, **properties)) as one:
        one.connect(soon())
        yield one


def refused(script: Script, words: str, generation: int = 5, **properties: Any) -> str:
    """Connect to a broker that the login or TLS must fail on. Returns the text of the error."""
    with ScriptedBroker(script) as broker, closing(channel(broker, generation, **properties)) as one:
        with pytest.raises(BrokerAuthenticationError, match=words) as caught:
            one.connect(soon())
        assert "hunter2" not in str(caught.value)
        return str(caught.value)


def plain(**more: str) -> dict[str, Any]:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN"}
    return {**given, "sasl_username": "ann", "sasl_password": "hunter2", **more}


def handshake(peer: Peer, mechanism: str, *, error: int = 0, offered: tuple[str, ...] = ()) -> None:
    asked = peer.request()
    assert asked.api == 17
    assert asked.body == len(mechanism).to_bytes(2, "big") + mechanism.encode()
    peer.answer(asked.correlation_id, response(SASL_HANDSHAKE, 1, error, offered))


def greet(peer: Peer, mechanism: str, *, ranges: Mapping[int, tuple[int, int]] = MODERN, **how: Any) -> None:
    """Tell the versions, and agree on a mechanism."""
    peer.versions(ranges)
    handshake(peer, mechanism, **how)


def token(peer: Peer) -> tuple[int, bytes]:
    asked = peer.request()
    assert (asked.api, asked.version) == (36, 1)
    return asked.correlation_id, asked.body[4:]


def accept(peer: Peer, correlation_id: int, answer: bytes = b"", lifetime_ms: int = 0) -> None:
    peer.answer(correlation_id, response(SASL_AUTHENTICATE, 1, 0, None, answer, lifetime_ms))


def refuse(peer: Peer, correlation_id: int, why: str) -> None:
    peer.answer(correlation_id, response(SASL_AUTHENTICATE, 1, 58, why, b"", 0))


def serve_metadata(peer: Peer) -> None:
    asked = peer.request()
    assert asked.api == 3
    peer.answer(asked.correlation_id, response(METADATA, 5, 0, [], None, 0, []))


# ---- SASL ----


def test_plain_in_requests_of_the_protocol() -> None:
    def script(peer: Peer) -> None:
        greet(peer, "PLAIN")
        correlation_id, said = token(peer)
        assert said == b"ann\0ann\0hunter2"
        accept(peer, correlation_id)
        serve_metadata(peer)

    with connected(script, **plain()) as one:
        one.metadata(["t"], soon())


def test_plain_in_bare_tokens_on_a_broker_before_1_0() -> None:
    def script(peer: Peer) -> None:
        greet(peer, "PLAIN", ranges=OLDER)
        size = int.from_bytes(peer.exactly(4), "big")
        assert peer.exactly(size) == b"ann\0ann\0hunter2"
        peer.send(b"\0\0\0\0")
        peer.until_closed()

    with connected(script, generation=3, **plain()) as one:
        assert one.versions["SaslHandshake"] == 0


def scram_server(peer: Peer, algorithm: str, password: bytes) -> None:
    """RFC 5802 from the server's side, written out a second time."""
    name = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}[algorithm]

    def mac(key: bytes, data: bytes) -> bytes:
        return hmac.new(key, data, name).digest()

    correlation_id, first = token(peer)
    bare = first.removeprefix(b"n,,")
    user, nonce = bare.split(b",")
    assert user == b"n=a=2Cnn=3D"
    server_first = b"r=%smore,s=%s,i=4096" % (nonce[2:], base64.b64encode(b"salt"))
    accept(peer, correlation_id, server_first)
    correlation_id, final = token(peer)
    without_proof, proof = final.rsplit(b",p=", 1)
    message = b",".join([bare, server_first, without_proof])
    salted = hashlib.pbkdf2_hmac(name, password, b"salt", 4096)
    stored = hashlib.new(name, mac(salted, b"Client Key")).digest()
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), mac(stored, message), strict=True))
    if hashlib.new(name, client_key).digest() != stored:
        refuse(peer, correlation_id, "Authentication failed due to invalid credentials")
        return
    signature = mac(mac(salted, b"Server Key"), message)
    accept(peer, correlation_id, b"v=" + base64.b64encode(signature))


def scram(algorithm: str, **more: str) -> dict[str, Any]:
    return plain(sasl_mechanism=algorithm, sasl_username="a,nn=", **more)


@pytest.mark.parametrize("algorithm", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(algorithm: str) -> None:
    def script(peer: Peer) -> None:
        greet(peer, algorithm)
        scram_server(peer, algorithm, b"hunter2")
        serve_metadata(peer)

    with connected(script, **scram(algorithm)) as one:
        one.metadata(["t"], soon())


def test_a_wrong_password_is_one_error_without_the_password() -> None:
    def script(peer: Peer) -> None:
        greet(peer, "SCRAM-SHA-512")
        scram_server(peer, "SCRAM-SHA-512", b"right")

    told = refused(script, "invalid credentials", **scram("SCRAM-SHA-512"))
    assert "broker 7 at 127.0.0.1" in told
    assert "SCRAM-SHA-512, user 'a,nn='" in told


@pytest.mark.parametrize("answer", [b"", b"r=", b"nonsense", b"\xff\xff", b"r=x,s=!,i=4096", b"e=other-error"])
def test_a_broken_answer_is_a_failed_login_and_nothing_else(answer: bytes) -> None:
    def script(peer: Peer) -> None:
        greet(peer, "SCRAM-SHA-256")
        accept(peer, token(peer)[0], answer)

    refused(script, "the login failed", **scram("SCRAM-SHA-256"))


def close_on_a_bare_token(peer: Peer) -> None:
    greet(peer, "PLAIN", ranges=OLDER)
    peer.exactly(4 + 15)


@pytest.mark.parametrize(
    ("script", "generation", "words"),
    [
        (close_on_a_bare_token, 3, "wrong credentials"),
        (
            lambda peer: greet(peer, "PLAIN", error=33, offered=("SCRAM-SHA-512", "GSSAPI")),
            5,
            "offers SCRAM-SHA-512, G",
        ),
        (lambda peer: greet(peer, "PLAIN", error=34), 5, r"ILLEGAL_SASL_STATE.*security\.protocol"),
        (Peer.until_closed, 2, r"0\.10"),
    ],
    ids=["closed before 1.0", "an unknown mechanism", "a listener without logins", "0.9 knows no password"],
)
def test_a_refusal_says_what_is_wrong(script: Script, generation: int, words: str) -> None:
    refused(script, words, generation, **plain())


def test_a_login_is_renewed_before_it_is_too_old() -> None:
    """KIP-368: the broker would close the connection."""

    def script(peer: Peer) -> None:
        peer.versions(MODERN)
        for _ in range(2):
            handshake(peer, "PLAIN")
            accept(peer, token(peer)[0], lifetime_ms=1)
            serve_metadata(peer)

    with connected(script, **plain()) as one:
        assert one.login_until.at is not None
        one.login_until = Deadline(None)  # however slow this machine is
        one.metadata(["t"], soon())
        one.login_until = Deadline(0.0)
        one.metadata(["t"], soon())


_TOKENS: Iterator[str] = iter(())


def next_token() -> str:
    return next(_TOKENS)


def test_a_token_is_asked_for_at_each_login(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}._TOKENS", iter(["one", "two"]))

    def script(expected: str) -> Callable[[Peer], None]:
        def play(peer: Peer) -> None:
            greet(peer, "OAUTHBEARER")
            correlation_id, said = token(peer)
            assert said == b"n,,\x01auth=Bearer %s\x01\x01" % expected.encode()
            accept(peer, correlation_id)

        return play

    with connected(
        script("one"), script("two"), **bearer(sasl_oauthbearer_token_provider=f"{__name__}:next_token")
    ) as one:
        one.connect(soon())


def bearer(**more: str) -> dict[str, Any]:
    return {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", **more}


def test_a_token_may_lie_in_a_file_and_a_refusal_of_it_is_told(tmp_path: Path) -> None:
    """The broker answers a bad token with an answer that is no error yet, which other clients take for success."""
    (tmp_path / "a token").write_text("stale\n")

    def script(peer: Peer) -> None:
        greet(peer, "OAUTHBEARER")
        correlation_id, said = token(peer)
        assert b"Bearer stale\x01" in said
        accept(peer, correlation_id, b'{"status":"invalid_token"}')
        correlation_id, said = token(peer)
        assert said == b"\x01"
        refuse(peer, correlation_id, "{invalid_token}")

    url = (tmp_path / "a token").as_uri()
    refused(script, "invalid_token", **bearer(sasl_oauthbearer_token_endpoint_url=url))


@pytest.mark.parametrize("provider", ["absent.module:f", "os:absent", "os:sep", "os:path.absent"])
def test_a_token_provider_must_be_callable(provider: str) -> None:
    given = {"zookeeper.connect": "zk", "group.id": "g", "sasl.oauthbearer.token.provider": provider}
    config = ConsumerConfig({**given, "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"})
    with pytest.raises(ConfigException, match="provider"):
        channel_security(config)


def test_kerberos_without_its_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)  # an import of it fails
    with pytest.raises(MissingExtraError, match=r"zkconsumer\[kerberos\].*libkrb5-dev"):
        channel_security(ConsumerConfig(zookeeper_connect="zk", group_id="g", security_protocol="SASL_SSL"))


class FakeKerberos:
    """As much of the gssapi package as a login takes, with a peer that answers two tokens."""

    class NameType:
        hostbased_service = 1

    class MechType:
        kerberos = 2

    class Name:
        def __init__(self, name: str, name_type: int) -> None:
            assert name == "kafka@127.0.0.1"

        def canonicalize(self, _: int) -> FakeKerberos.Name:
            return self

    class SecurityContext:
        def __init__(self, name: object, usage: str) -> None:
            self.complete = False

        def step(self, answer: bytes | None) -> bytes | None:
            self.complete = answer is not None
            return b"ticket" if answer is None else None

        def unwrap(self, data: bytes) -> Any:
            assert data == b"layers"
            return type("Unwrapped", (), {"message": b"\x07\x00\x10\x00"})()

        def wrap(self, data: bytes, _: bool) -> Any:
            return type("WrappedMessages", (), {"message": data})()


@pytest.mark.parametrize("generation", [2, 5])
def test_kerberos(monkeypatch: pytest.MonkeyPatch, generation: int) -> None:
    """Brokers of 0.9 have no handshake before it."""
    monkeypatch.setitem(sys.modules, "gssapi", cast("Any", FakeKerberos))

    def bare(peer: Peer) -> None:
        for answer in (b"proof", b"layers", None):
            size = int.from_bytes(peer.exactly(4), "big")
            said = peer.exactly(size)
            if answer is not None:
                peer.send(len(answer).to_bytes(4, "big") + answer)
        assert said == b"\x01\x00\x10\x00kafka@127.0.0.1"
        peer.until_closed()

    def framed(peer: Peer) -> None:
        greet(peer, "GSSAPI")
        for answer in (b"proof", b"layers", b""):
            accept(peer, token(peer)[0], answer)
        peer.until_closed()

    with connected(bare if generation == 2 else framed, generation=generation, security_protocol="SASL_PLAINTEXT"):
        pass


# ---- TLS ----


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def over_tls(
    authority: trustme.CA, script: Callable[[Peer], None], host: str = "127.0.0.1", clients: bool = False
) -> Callable[[Peer], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(host).configure_cert(context)
    if clients:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED

    def play(peer: Peer) -> None:
        with context.wrap_socket(peer.sock, server_side=True, do_handshake_on_connect=False) as wrapped:
            try:
                wrapped.do_handshake()
                script(Peer(wrapped))
            except ssl.SSLError:
                # what the client makes of it is the test; an early close could swallow the alert
                with contextlib.suppress(OSError):
                    while socket.socket.recv(wrapped, 65536):
                        pass

    return play


def serve(peer: Peer) -> None:
    peer.versions()
    serve_metadata(peer)
    peer.until_closed()


@pytest.mark.parametrize(
    ("host", "more"),
    [("127.0.0.1", {}), ("other.example", {"ssl_endpoint_identification_algorithm": ""})],
    ids=["ours", "any host name, where asked"],
)
def test_tls_with_a_trusted_certificate(authority: trustme.CA, ca: str, host: str, more: dict[str, Any]) -> None:
    script = over_tls(authority, serve, host)
    with connected(script, security_protocol="SSL", ssl_ca_location=ca, **more) as one:
        one.metadata(["t"], soon())


def test_both_sides_show_a_certificate(authority: trustme.CA, ca: str, tmp_path: Path) -> None:
    keystore = str(tmp_path / "me.pem")
    authority.issue_cert("client").private_key_and_cert_chain_pem.write_to_path(keystore)
    stores: dict[str, Any] = {"ssl_truststore_location": ca, "ssl_keystore_location": keystore}
    with connected(over_tls(authority, serve, clients=True), security_protocol="SSL", **stores) as one:
        one.metadata(["t"], soon())


def test_a_certificate_of_ours_that_is_missing_is_told(authority: trustme.CA, ca: str) -> None:
    """With TLS 1.3 it is not told in the handshake but in place of the first answer."""
    script = over_tls(authority, serve, clients=True)
    refused(script, "(?i)certificate.required", security_protocol="SSL", ssl_ca_location=ca)


@pytest.mark.parametrize(
    ("host", "ours", "algorithm", "words"),
    [
        ("127.0.0.1", False, "https", "CERTIFICATE_VERIFY_FAILED"),
        ("127.0.0.1", False, "", "CERTIFICATE_VERIFY_FAILED"),
        ("other.example", True, "https", "IP address mismatch"),
    ],
)
def test_a_certificate_that_is_not_to_be_trusted(
    ca: str, authority: trustme.CA, host: str, ours: bool, algorithm: str, words: str
) -> None:
    script = over_tls(authority if ours else trustme.CA(), serve, host)
    tls: dict[str, Any] = {"security_protocol": "SSL", "ssl_ca_location": ca}
    refused(script, words, **tls, ssl_endpoint_identification_algorithm=algorithm)


def test_a_plain_listener_is_told_from_a_tls_one(ca: str) -> None:
    def script(peer: Peer) -> None:
        peer.send(b"\x00\x00\x00\x04nope")

    refused(script, "TLS failed", security_protocol="SSL", ssl_ca_location=ca)


def test_a_silent_handshake_ends(ca: str) -> None:
    with ScriptedBroker(Peer.until_closed) as broker, pytest.raises(BrokerError, match="in time"):
        channel(broker, security_protocol="SSL", ssl_ca_location=ca).connect(Deadline(scaled(0.2)))
