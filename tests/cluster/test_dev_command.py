"""``zkconsumer dev``: one cluster for a person, from the command line, as a person would use it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conftest import produce_to
from tests.programs import exists
from tests.timing import eventually, scaled
from zkconsumer.devcluster import cache_directory
from zkconsumer.devcluster.server_process import free_port
from zkconsumer.zookeeper.cluster_admin import Admin


class CommandLine:
    """Runs ``zkconsumer dev ...`` with a cache folder of its own, whose jars are everybody's."""

    def __init__(self, cache: Path) -> None:
        cache.mkdir()
        (cache_directory() / "jars").mkdir(parents=True, exist_ok=True)
        (cache / "jars").symlink_to(cache_directory() / "jars")
        (cache / "ivy").symlink_to(cache_directory() / "ivy")
        self.environment = {**os.environ, "ZKCONSUMER_CACHE": str(cache)}

    def start(self, *arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "zkconsumer", "dev", *arguments],
            env=self.environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str, code: int = 0, folder: Path | None = None) -> str:
        with self.start(*arguments, folder=folder) as process:
            out, error = process.communicate(timeout=scaled(120))
        assert process.returncode == code, out + error
        return out + error

    def state(self) -> dict[str, object]:
        out = self("status", "--json")
        found = json.loads(out)
        assert isinstance(found, dict)
        return found


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[CommandLine]:
    command = CommandLine(tmp_path / "cache")
    yield command
    command("down")


def _pids(state: dict[str, object]) -> list[int]:
    servers, supervisor = state["servers"], state["pid"]
    assert isinstance(servers, dict)
    assert isinstance(supervisor, int)
    return [supervisor, *servers.values()]


def test_a_cluster_is_kept_up_until_it_is_taken_down(dev: CommandLine, tmp_path: Path) -> None:
    port = free_port()
    assert "The cluster is up." in dev("up", "--kafka-port", str(port), "--directory", str(tmp_path / "data"))
    state = dev.state()
    assert state["bootstrap_servers"] == f"127.0.0.1:{port}"
    assert all(map(exists, _pids(state)))
    assert "was up already" in dev("up")
    assert dev.state() == state
    with Admin(str(state["zookeeper_connect"])) as admin:
        admin.create_topic("mine")
    produce_to(str(state["bootstrap_servers"]), "mine", [b"1"])
    assert "The cluster is down." in dev("down")
    assert not any(map(exists, _pids(state)[1:]))
    assert "not up" in dev("status", code=3)
    assert "was not up" in dev("down")
    dev("up", "--directory", str(tmp_path / "data"))
    with Admin(str(dev.state()["zookeeper_connect"])) as admin:
        assert admin.topics() == ("mine",)  # a named directory keeps its data
    broken = dev.state()
    os.kill(_pids(broken)[2], signal.SIGKILL)
    eventually(lambda: not exists(_pids(broken)[2]), 10, "the broker's end")
    assert "broken: kafka 0 ended" in dev("status", code=1)
    assert "zkconsumer dev down" in dev("up", code=1)


def _is_up(cluster: dict[str, object]) -> bool:
    return cluster["health"] == "up" and all(map(exists, _pids(cluster)))


def test_an_up_with_options_that_the_running_one_lacks_fails(dev: CommandLine, tmp_path: Path) -> None:
    """Before, it said that the cluster was up, and clients found nothing on the ports."""
    dev("up", "--directory", "data", folder=tmp_path)
    state = dev.state()
    assert state["directory"] == str(tmp_path / "data")
    ports = {name: str(state[name]).rpartition(":")[2] for name in ("zookeeper_connect", "bootstrap_servers")}
    same = ["--zookeeper-port", ports["zookeeper_connect"], "--kafka-port", ports["bootstrap_servers"]]
    version = str(state["kafka_version"])
    assert "was up already" in dev("up", *same, "--kafka-version", version, "--directory", "data", folder=tmp_path)
    other = str(free_port())
    wrong = {"--zookeeper-port": other, "--kafka-port": other, "--kafka-version": "2.8.2", "--directory": "elsewhere"}
    for option, value in wrong.items():
        said = dev("up", option, value, code=1, folder=tmp_path)
        asked = str(tmp_path / value) if option == "--directory" else value
        assert f"another cluster is up, without {option} {asked} (it has " in said
        assert all(str(state[name]) in said for name in (*ports, "directory", "pid"))
        assert "zkconsumer dev down" in said
    assert dev.state() == state
    assert _is_up(state)


def test_an_up_on_a_port_of_another_program_fails(dev: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for option in ("--zookeeper-port", "--kafka-port"):
            assert f"cannot have port {port}, which another program uses" in dev("up", option, port, code=1)
    assert "not up" in dev("status", code=3)
    assert "cannot both have port 2181" in dev("up", "--zookeeper-port", "2181", "--kafka-port", "2181", code=2)


def test_what_it_tells_to_try_works(dev: CommandLine) -> None:
    parts = dev("up").split("\n\n")
    (write,) = (part for part in parts if part.startswith("Write something"))
    (read,) = (part for part in parts if part.startswith("Read it"))
    programs = [textwrap.dedent(part.partition("\n")[2]) for part in (write, read)]
    programs[1] += "\n        break"
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(60))
        for program in programs
    ]
    assert [(one.returncode, one.stdout) for one in said] == [(0, ""), (0, "0 0 b'hello'\n")], said


def test_two_that_start_it_at_once_get_one_cluster(dev: CommandLine) -> None:
    both = [dev.start("up") for _ in range(2)]
    said = [process.communicate(timeout=scaled(120)) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted("was up already" in out for out, _ in said) == [False, True]
    dead = dev.state()
    os.kill(_pids(dead)[0], signal.SIGKILL)  # its supervisor crashes: nothing of the cluster may stay
    eventually(lambda: not any(map(exists, _pids(dead))), 20, "the servers' end")
    assert "ended without" in dev("status", code=3)
    # its state file is there still, with ports that nobody serves
    ports = [str(dead[name]).rpartition(":")[2] for name in ("zookeeper_connect", "bootstrap_servers")]
    assert "The cluster is up." in dev("up", "--zookeeper-port", ports[0], "--kafka-port", ports[1])
    assert _is_up(dev.state())


def test_an_up_that_is_interrupted_leaves_nothing(dev: CommandLine, tmp_path: Path) -> None:
    with dev.start("up") as process:
        eventually((tmp_path / "cache" / "dev" / "supervisor.lock").exists, 20, "the start")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=scaled(60))
    assert process.returncode == 130
    assert "not up" in dev("status", code=3)
