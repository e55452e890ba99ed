"""docs/services.md: its program, systemd unit and Kubernetes manifest agree with each other and with the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.documents import example
from tests.service_process import Service, Unit, container, manifest
from tests.timing import scaled
from tests.values import present
from zkconsumer import service

PROGRAM = example("service")
(SHUTDOWN_SECONDS,) = (float(text) for text in re.findall(r"^SHUTDOWN_SECONDS = (\d+)", PROGRAM, re.MULTILINE))
VARIABLES = set(re.findall(r"os\.environ\.get\(\"(\w+)\"", PROGRAM))


def port_of(listen: str) -> int:
    return int(listen.rpartition(":")[2])


def test_the_unit_is_valid(tmp_path: Path) -> None:
    """``systemd-analyze verify`` takes it, with a program that exists here."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = Unit()
    interpreter, *_, program = unit.command()
    file = tmp_path / "orders.service"
    file.write_text(unit.text.replace(interpreter, sys.executable).replace(program, __file__))
    command = [analyze, "verify", "--man=no", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60), check=False)
    told = [line for line in done.stderr.splitlines() if "orders.service" in line]
    assert (done.returncode, told) == (0, []), done.stderr
    file.write_text(file.read_text().replace("WatchdogSec=60", "WatchDogSecs=60"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=scaled(60), check=False)
    assert "WatchDogSecs" in done.stderr, "a wrong name is told"


def test_the_unit_fits_the_program() -> None:
    unit = Unit()
    main = unit["Service"]
    assert main["Type"] == "notify"
    assert unit.seconds("TimeoutStopSec") >= SHUTDOWN_SECONDS + 5
    assert unit.seconds("WatchdogSec") >= 4 * service.INTERVAL
    assert unit.seconds("TimeoutStartSec") >= service.START_MORE
    assert (main["Restart"], main["RestartPreventExitStatus"]) == ("always", str(os.EX_CONFIG))
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert unit.environment.keys() == VARIABLES


def test_the_manifest_fits_the_program() -> None:
    spec = manifest()[0]["spec"]["template"]["spec"]
    one = container()
    assert spec["terminationGracePeriodSeconds"] >= SHUTDOWN_SECONDS + 5
    assert "restartPolicy" not in spec
    environment = {variable["name"]: variable for variable in one["env"]}
    assert environment.keys() == VARIABLES
    assert environment["ORDERS_INSTANCE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    (port,) = one["ports"]
    assert port_of(environment["ORDERS_PROBES"]["value"]) == port["containerPort"]
    grace = present(re.search(r'"group.instance.grace.ms": ([\d_]+)', PROGRAM))
    assert int(grace[1]) > 1000 * spec["terminationGracePeriodSeconds"]
    assert [Path(word).name for word in one["command"]] == [Path(word).name for word in Unit().command()]


def test_the_probes_ask_for_what_they_should() -> None:
    """Nothing but liveness ends a process. So startup and liveness must not ask whether the member is ready."""
    one = container()
    (port,) = one["ports"]
    asked = {name: one[f"{name}Probe"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["httpGet"] for name, probe in asked.items()} == {
        "startup": {"path": "/healthz", "port": port["name"]},
        "liveness": {"path": "/healthz", "port": port["name"]},
        "readiness": {"path": "/readyz", "port": port["name"]},
    }
    for probe in asked.values():
        assert probe.keys() == {"httpGet", "periodSeconds", "timeoutSeconds", "failureThreshold"}


def test_the_parts_of_the_manifest_name_the_same_pods() -> None:
    stateful, budget = manifest()
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert stateful["spec"]["selector"]["matchLabels"] == budget["spec"]["selector"]["matchLabels"] == labels
    assert stateful["kind"] == "StatefulSet", "its pods keep their names"
    assert budget["spec"]["maxUnavailable"] == 1 < stateful["spec"]["replicas"]


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("ORDERS_ZOOKEEPER", "", "zookeeper.connect: a server is missing"),
        ("ORDERS_ZOOKEEPER", "zk1:port", "zookeeper.connect: "),
        ("ORDERS_INSTANCE", "a/b", "group.instance.id: "),
        ("ORDERS_PROBES", "8080", "listen: '8080' is no HOST:PORT"),
    ],
)
def test_a_wrong_configuration_is_not_restarted(tmp_path: Path, variable: str, value: str, named: str) -> None:
    environment: dict[str, Any] = {"ORDERS_ZOOKEEPER": "127.0.0.1:1", "ORDERS_INSTANCE": "one", variable: value}
    with Service(tmp_path, **environment) as process:
        assert str(process.exit_code()) in Unit()["Service"]["RestartPreventExitStatus"].split()
        assert f"CRITICAL root: a restart does not help: {named}" in process.log()
        assert "Traceback" not in process.log()
