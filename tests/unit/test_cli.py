"""The command line's frame: help, version, usage, and how errors are shown."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import pytest

from tests.programs import run_python
from zkconsumer import cli
from zkconsumer.cli import dev
from zkconsumer.errors import MissingExtraError
from zkconsumer.version import DATA_PLANE


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "zkconsumer dev up" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["dev", "--help"], ["dev", "up", "--help"], ["--version"]])
def test_help_and_version_need_nothing_installed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 0
    assert "zkconsumer" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["nonsense"], ["dev"], ["dev", "sideways"], ["dev", "up", "--kafka-port", "0"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_the_module_is_the_command() -> None:
    said = run_python("-m", "zkconsumer", "--version").stdout
    assert re.fullmatch(rf"zkconsumer \d+\.\d+\.\d+\S* \({re.escape(DATA_PLANE)}\)\n", said)


def _fail(error: BaseException) -> object:
    def run(_: argparse.Namespace) -> int:
        raise error

    return run


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(dev, "run", _fail(MissingExtraError("this", "demo")))
    assert cli.main(["dev", "status"]) == 1
    assert capsys.readouterr().err == "zkconsumer: this needs an optional dependency: pip install 'zkconsumer[demo]'\n"


def test_an_interrupted_command_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dev, "run", _fail(KeyboardInterrupt()))
    assert cli.main(["dev", "status"]) == 130


def test_status_down_and_bad_versions_where_no_cluster_is_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path / "cache"))
    assert cli.main(["dev", "status"]) == dev.NOT_UP
    assert cli.main(["dev", "status", "--json"]) == dev.NOT_UP
    assert cli.main(["dev", "down"]) == 0
    assert cli.main(["dev", "up", "--kafka-version", "4.0.0"]) == 2
    assert "The cluster was not up." in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()


def test_the_state_a_dead_cluster_left_is_recognised_and_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ZKCONSUMER_CACHE", str(tmp_path))
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "supervisor.lock").write_text(str(os.getpid()))  # a process id that is somebody else's by now
    (tmp_path / "dev" / "state.json").write_text(
        '{"pid": 1, "zookeeper_connect": "z", "bootstrap_servers": "b", "servers": {}, "directory": "d",'
        ' "kafka_version": "3.9.1", "started": 0}'
    )
    assert cli.main(["dev", "status"]) == dev.NOT_UP
    assert "ended without" in capsys.readouterr().out
    assert cli.main(["dev", "down"]) == 0
    assert not (tmp_path / "dev" / "state.json").exists()
