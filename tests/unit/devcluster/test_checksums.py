"""Digests of jars, from the source, from a repository and from the cache, without fetching anything."""

from __future__ import annotations

import hashlib
import os
import re
from io import BytesIO
from pathlib import Path
from threading import Event
from time import monotonic, sleep

import pytest

from tests.timing import scaled
from zkconsumer.devcluster import JarResolutionError, cache_directory, jars, maven_repository, resolve
from zkconsumer.devcluster.jars import directory_name
from zkconsumer.devcluster.maven_repository import (
    RECORD,
    Checksum,
    expected,
    file_name,
    pinned,
    pinned_sets,
    published,
    render,
    verify,
)
from zkconsumer.runtime.deadline import Deadline

PINNED = "slf4j-api-1.7.36.jar"
PATH = "org/x/y/1/y-1.jar"


def checksum(content: bytes, algorithm: str = "sha1") -> Checksum:
    return Checksum(algorithm, hashlib.new(algorithm, content).hexdigest())


def cached(coordinate: str, **given: bytes) -> Path:
    """A directory of the cache as a download leaves it, with a record that agrees with the content."""
    directory = cache_directory() / "jars" / directory_name([coordinate], [])
    directory.mkdir(parents=True)
    contents = {name.replace("_", "-") + ".jar": content for name, content in given.items()}
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    (directory / RECORD).write_text(render({name: checksum(content) for name, content in contents.items()}))
    return directory


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    (folder / PATH).parent.mkdir(parents=True)
    monkeypatch.setenv("ZKCONSUMER_MAVEN_REPOSITORY", folder.as_uri() + "/")
    return folder


def test_pins_cover_the_versions_that_are_named() -> None:
    assert {sum_.algorithm for sum_ in pinned().values()} == {"sha256"}
    assert {"kafka_2.13-3.9.1.jar", "kafka_2.12-1.1.1.jar", "kafka_2.11-0.8.2.2.jar"} <= pinned().keys()
    assert {"zookeeper-3.4.10.jar", "snappy-java-1.1.10.5.jar", "ecj-3.33.0.jar", PINNED} <= pinned().keys()


def test_the_default_versions_are_whole_sets() -> None:
    """No Ivy, and so no Java, runs for them; Ivy is a set of one jar."""
    sets = [frozenset(map(file_name, paths)) for paths in pinned_sets().values()]
    assert any({"zookeeper-3.9.5.jar", "netty-handler-4.1.130.Final.jar"} <= names for names in sets)
    assert any({"kafka_2.13-3.9.1.jar", "scala-library-2.13.15.jar"} <= names for names in sets)
    assert frozenset({"ivy-2.5.3.jar"}) in sets


@pytest.fixture
def one_set(monkeypatch: pytest.MonkeyPatch, repository: Path) -> dict[str, Checksum]:
    """A pinned set of two jars, which a repository has."""
    other = repository / "org/x/z/1/z-1.jar"
    other.parent.mkdir(parents=True)
    pins = {}
    for path, content in ((repository / PATH, b"first"), (other, b"second")):
        path.write_bytes(content)
        pins[str(path.relative_to(repository))] = checksum(content, "sha256")
    sets = {directory_name(["org.x:y:1"], []): pins}
    monkeypatch.setattr(jars, "pinned_sets", lambda: sets)
    by_name = {file_name(path): sum_ for path, sum_ in pins.items()}
    monkeypatch.setattr(maven_repository, "pinned", lambda: by_name)
    monkeypatch.setattr(jars, "java", None)  # is not called
    return pins


def test_a_pinned_set_is_fetched_once(one_set: dict[str, Checksum], monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    names = [jar.read_bytes() for jar in resolve("org.x:y:1", progress=told.append)]
    assert names == [b"first", b"second"]
    assert told[0] == "fetching org.x:y:1 from Maven (once)"
    assert told[-1].startswith("fetched 2 jars")
    monkeypatch.setenv("ZKCONSUMER_MAVEN_REPOSITORY", "http://127.0.0.1:1/")
    assert [jar.name for jar in resolve("org.x:y:1")] == ["y-1.jar", "z-1.jar"]


def test_a_fetched_jar_with_another_digest_is_refused(one_set: dict[str, Checksum], repository: Path) -> None:
    (repository / PATH).write_bytes(b"forged")
    with pytest.raises(JarResolutionError, match=rf"{PATH} is not the published file: its sha256"):
        resolve("org.x:y:1", progress=lambda text: None)
    assert not list((cache_directory() / "jars").glob("*y-1*"))


def test_without_a_network_jars_are_put_by_hand(one_set: dict[str, Checksum], repository: Path) -> None:
    """The error names the folder and the files. A jar with another digest does not count."""
    (repository / PATH).unlink()
    folder = cache_directory() / "jars" / directory_name(["org.x:y:1"], [])
    for content in (None, b"damaged"):
        if content is not None:
            folder.mkdir(parents=True)
            (folder / "y-1.jar").write_bytes(content)
        with pytest.raises(
            JarResolutionError, match=rf"cannot fetch file:.*y-1\.jar: .* into {folder}: y-1\.jar z-1\.jar"
        ):
            resolve("org.x:y:1", progress=lambda text: None)
    (folder / "y-1.jar").write_bytes(b"first")
    assert [jar.read_bytes() for jar in resolve("org.x:y:1", progress=lambda text: None)] == [b"first", b"second"]


def test_a_mirror_that_is_no_address_is_named(one_set: dict[str, Checksum], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKCONSUMER_MAVEN_REPOSITORY", "/srv/maven")
    with pytest.raises(JarResolutionError, match="cannot fetch /srv/maven/.*: unknown url type"):
        resolve("org.x:y:1", progress=lambda text: None)


def test_a_mirrors_password_is_not_shown(one_set: dict[str, Checksum], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKCONSUMER_MAVEN_REPOSITORY", "https://me:secret@mirror:8081/maven")
    with pytest.raises(JarResolutionError, match="has a user or a password") as refused:
        resolve("org.x:y:1", progress=lambda text: None)
    assert "secret" not in str(refused.value)


def test_a_cache_that_cannot_be_written_is_named(
    one_set: dict[str, Checksum], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(JarResolutionError, match="cannot be kept in the cache: .*file.*ZKCONSUMER_CACHE names"):
        resolve("org.x:y:1", progress=lambda text: None)


def test_a_failed_file_ends_the_other_downloads(one_set: dict[str, Checksum], monkeypatch: pytest.MonkeyPatch) -> None:
    """So does Ctrl-C. Otherwise a slow download would go on for up to 15 minutes."""
    begun = Event()

    class EndlessBody(BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            sleep(0.01)
            return b"x"

    def opened(url: str, deadline: Deadline) -> BytesIO:
        if "y-1" in url:
            begun.wait(scaled(10))
            raise OSError("gone")
        begun.set()
        return EndlessBody()

    monkeypatch.setattr(maven_repository, "open_address", opened)
    began = monotonic()
    with pytest.raises(JarResolutionError, match="gone"):
        resolve("org.x:y:1", progress=lambda text: None, deadline=scaled(30))
    assert monotonic() - began < scaled(15)


@pytest.mark.parametrize("content", [b"forged, of another length", b"publishex"], ids=["another size", "same size"])
def test_a_cached_jar_that_was_changed_is_refused(content: bytes) -> None:
    """Also if its time is as before."""
    jar = cached("org.x:y:1", y_1=b"published") / "y-1.jar"
    assert resolve("org.x:y:1") == [jar]
    status = jar.stat()
    jar.write_bytes(content)
    os.utime(jar, ns=(status.st_atime_ns, status.st_mtime_ns))
    with pytest.raises(JarResolutionError, match=r"y-1\.jar is not the published file.*Remove"):
        resolve("org.x:y:1")


def test_a_pin_counts_more_than_the_record_in_the_cache() -> None:
    directory = cached("org.slf4j:slf4j-api:1.7.36")
    (directory / PINNED).write_bytes(b"forged")
    (directory / RECORD).write_text(render({PINNED: checksum(b"forged")}))
    with pytest.raises(JarResolutionError, match=rf"{PINNED} is not the published file"):
        resolve("org.slf4j:slf4j-api:1.7.36")


def test_a_directory_with_an_unknown_jar_is_fetched_again() -> None:
    directory = cached("org.x:y:1", y_1=b"published")
    assert expected(directory) == {"y-1.jar": checksum(b"published")}
    (directory / "planted.jar").write_bytes(b"x")
    assert expected(directory) is None
    (directory / "planted.jar").unlink()
    (directory / RECORD).write_text("nonsense")
    assert expected(directory) is None


@pytest.mark.parametrize("algorithm", ["sha1", "sha512"])
@pytest.mark.parametrize("form", ["{}", "{}\n", "{}  y-1.jar\n", "SHA(y-1.jar)= {}"])
def test_published_checksums_are_read(repository: Path, algorithm: str, form: str) -> None:
    wanted = checksum(b"content", algorithm)
    (repository / f"{PATH}.{algorithm}").write_text(form.format(wanted.digest.upper()))
    assert published({PATH: Path(PATH)}, Deadline(10)) == {PATH: wanted}


@pytest.mark.parametrize("content", [None, "", "not found", "a" * 39])
def test_a_jar_without_a_published_checksum_is_refused(repository: Path, content: str | None) -> None:
    if content is not None:
        (repository / f"{PATH}.sha1").write_text(content)
    with pytest.raises(JarResolutionError, match=re.escape(PATH)):
        published({PATH: Path(PATH)}, Deadline(10))


def test_a_repository_that_cannot_be_reached_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZKCONSUMER_MAVEN_REPOSITORY", "http://127.0.0.1:1/")
    with pytest.raises(JarResolutionError, match=r"cannot ask http://127\.0\.0\.1:1/org/x"):
        published({PATH: Path(PATH)}, Deadline(10))


def test_a_file_is_read_once_for_its_checksum(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a.jar").write_bytes(b"1")
    verify(tmp_path, {"a.jar": checksum(b"1")})
    monkeypatch.setattr(hashlib, "file_digest", None)
    verify(tmp_path, {"a.jar": checksum(b"1")})


def test_without_a_mirror_a_fetched_jar_is_held_to_its_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ivy has compared it with Maven Central's digest. A later change of the cache is noticed."""
    monkeypatch.delenv("ZKCONSUMER_MAVEN_REPOSITORY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "y-1.jar").write_bytes(b"fetched")
    assert published({PATH: tmp_path / "y-1.jar"}, Deadline(10)) == {PATH: checksum(b"fetched", "sha256")}
