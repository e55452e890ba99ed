"""The alerting rules and the dashboard: their metrics exist, and promtool runs the tests of the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.operations.serving.test_metrics_text import everything
from zkconsumer.cli.serve import page_files

FOLDER = Path(str(resources.files("zkconsumer.operations.serving"))) / "monitoring"
TESTS = Path(__file__).parent / "prometheus_alerts_test.yml"
ALERTS = yaml.safe_load((FOLDER / "prometheus-alerts.yml").read_text())
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
PROMTOOL = shutil.which("promtool")


def rules() -> list[dict[str, Any]]:
    return [rule for group in ALERTS["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    """The expressions of all panels."""
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def test_rules_and_panels_name_metrics_that_exist() -> None:
    known = {name for name, _ in everything()}
    wanted = " ".join([*(rule["expr"] for rule in rules()), *expressions()])
    assert sorted(set(re.findall(r"\b(?:zkconsumer|kafka)_\w+", wanted)) - known) == []
    below = re.compile(r"kafka_consumergroup_(?!members)|zkconsumer_(partition|topic)_")
    assert [rule["alert"] for rule in rules() if below.search(rule["expr"])] == [], "rules hold at every level"


def test_each_alert_says_what_to_do_and_is_tested() -> None:
    tested = TESTS.read_text()
    for rule in rules():
        assert rule["alert"] in tested
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) >= {"summary", "description"}, rule["alert"]


def test_both_files_are_served() -> None:
    files = page_files()
    assert files["prometheus-alerts.yml"][1].startswith("application/yaml")
    assert json.loads(files["grafana-dashboard.json"][0]) == DASHBOARD


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool on this machine (Debian: apt install prometheus)")
def test_promtool_accepts_the_rules_and_their_tests_pass(tmp_path: Path) -> None:
    for file in (FOLDER / "prometheus-alerts.yml", TESTS):
        shutil.copy(file, tmp_path)
    for command in (["check", "rules", "prometheus-alerts.yml"], ["test", "rules", TESTS.name]):
        done = subprocess.run(
            [str(PROMTOOL), *command], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
