"""Coordinates, mirrors, the cache folder: what can be said about jars without fetching any."""

from __future__ import annotations

from pathlib import Path

import pytest

from zkconsumer.devcluster import cache_directory, kafka_coordinates, resolve
from zkconsumer.devcluster.download_cache import locked, write_atomically
from zkconsumer.devcluster.maven_repository import proxy_options, repository_settings
from zkconsumer.devcluster.server_process import write_properties
from zkconsumer.runtime.deadline import Deadline

_SETTINGS = """<settings xmlns="http://maven.apache.org/SETTINGS/1.0.0"><mirrors>
<mirror><id>a</id><mirrorOf>snapshots</mirrorOf><url>http://a/</url></mirror>
<mirror><id>b</id><mirrorOf>{of}</mirrorOf><url>https://b/?x=1&amp;y</url></mirror>
</mirrors></settings>"""


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CACHE_HOME", "ZKCONSUMER_CACHE", "ZKCONSUMER_MAVEN_REPOSITORY", "HTTPS_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_directory() == tmp_path / ".cache" / "zkconsumer"
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_directory() == Path("/x/zkconsumer")
    monkeypatch.setenv("ZKCONSUMER_CACHE", "~/mine")
    assert cache_directory() == tmp_path / "mine"


@pytest.mark.parametrize(
    ("version", "scala"),
    [
        ("0.8.2.2", "2.11"),
        ("0.10.2.2", "2.11"),
        ("1.1.1", "2.12"),
        ("2.4.1", "2.12"),
        ("2.8.2", "2.13"),
        ("3.9.1", "2.13"),
    ],
)
def test_each_release_has_a_published_scala_version(version: str, scala: str) -> None:
    assert kafka_coordinates(version)[0] == f"org.apache.kafka:kafka_{scala}:{version}"


@pytest.mark.parametrize("version", ["4.0.0", "0.7.2", "latest", ""])
def test_what_is_no_release_in_zookeeper_mode_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="Kafka"):
        kafka_coordinates(version)


@pytest.mark.parametrize("coordinate", ["kafka", "a:b", "a:b:c:d", "a:b:../../etc", "a:b:", "a b:c:1"])
def test_malformed_coordinates_are_refused_at_once(coordinate: str) -> None:
    with pytest.raises(ValueError, match="group:artifact:version"):
        resolve(coordinate)


def test_properties_are_written_as_java_reads_them(tmp_path: Path) -> None:
    write_properties(tmp_path / "p", {"a": 1, "path": "/h\u00f6me/\U0001f600", "w": "c:\\x"})
    assert (tmp_path / "p").read_text() == "a=1\npath=/h\\u00f6me/\\ud83d\\ude00\nw=c:\\u005cx\n"


@pytest.mark.parametrize(("of", "used"), [("central", True), ("*", True), ("*,!central", False), ("other", False)])
def test_the_mirror_of_the_users_maven_settings_is_used(tmp_path: Path, of: str, used: bool) -> None:
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(_SETTINGS.format(of=of))
    settings = repository_settings()
    assert (settings is not None) == used
    if settings is not None:
        assert 'root="https://b/?x=1&amp;y"' in settings


def test_broken_maven_settings_are_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert repository_settings() is None
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text("<settings>")
    assert repository_settings() is None
    monkeypatch.setenv("ZKCONSUMER_MAVEN_REPOSITORY", "https://mine/")
    assert 'root="https://mine/"' in (repository_settings() or ""), "the environment's repository"


def test_the_environments_proxy_is_passed_on_to_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://gate:3128")
    monkeypatch.setenv("http_proxy", "gate2:81")
    assert proxy_options() == [
        "-Dhttp.proxyHost=gate2",
        "-Dhttp.proxyPort=81",
        "-Dhttps.proxyHost=gate",
        "-Dhttps.proxyPort=3128",
    ]


def test_a_lock_is_held_by_one_and_given_up_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lock"
    with locked(path, Deadline(1)), pytest.raises(TimeoutError), locked(path, Deadline(0.05)):
        pass
    with locked(path, Deadline(1)):
        pass


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    write_atomically(path, "one", mode=0o755)
    write_atomically(path, "two")
    assert path.read_text() == "two"
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "two"
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]
