"""The machine's trusted certificates in a form that Java reads."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.timing import scaled
from zkconsumer.devcluster import maven_repository
from zkconsumer.devcluster.maven_repository import key_store, system_bundle, trust_options


def pem(der: bytes) -> str:
    return f"-----BEGIN CERTIFICATE-----\n{base64.encodebytes(der).decode()}-----END CERTIFICATE-----\n"


def test_a_key_store_holds_the_certificates_and_a_digest() -> None:
    data = key_store([b"first", b"second!"])
    assert data.startswith(bytes.fromhex("feedfeed 00000002 00000002"))
    assert b"X.509\x00\x00\x00\x05first" in data
    assert b"X.509\x00\x00\x00\x07second!" in data
    salted = "changeit".encode("utf-16-be") + b"Mighty Aphrodite" + data[:-20]
    assert data[-20:] == hashlib.sha1(salted, usedforsecurity=False).digest()


def test_the_bundle_named_in_the_environment_is_converted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_text(f"# Un nom accentu\u00e9\n{pem(b'one')}\ntext\n{pem(b'two')}")
    monkeypatch.setattr(maven_repository, "SYSTEM_KEY_STORE", tmp_path / "absent")
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    assert system_bundle() == bundle
    options = trust_options(tmp_path)
    store = tmp_path / "trusted.jks"
    assert options[0] == f"-Djavax.net.ssl.trustStore={store}"
    assert store.read_bytes() == key_store([b"one", b"two"])


def test_the_systems_own_key_store_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cacerts").write_bytes(b"")
    monkeypatch.setattr(maven_repository, "SYSTEM_KEY_STORE", tmp_path / "cacerts")
    assert trust_options(tmp_path / "nowhere")[0].endswith("/cacerts")


@pytest.mark.java
@pytest.mark.skipif(shutil.which("keytool") is None, reason="needs keytool, which comes with a JDK")
def test_java_reads_the_key_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundle = system_bundle()
    if bundle is None:
        pytest.skip("this machine has no bundle of certificates")
    monkeypatch.setattr(maven_repository, "SYSTEM_KEY_STORE", tmp_path / "absent")
    trust_options(tmp_path)
    said = subprocess.run(
        ["keytool", "-list", "-keystore", tmp_path / "trusted.jks", "-storepass", "changeit"],
        capture_output=True,
        text=True,
        timeout=scaled(60),
        env={**os.environ, "LC_ALL": "C"},
    )
    count = bundle.read_text(encoding="latin-1").count("BEGIN CERTIFICATE")
    assert f"contains {count} entr" in said.stdout, said.stdout[-500:] + said.stderr
