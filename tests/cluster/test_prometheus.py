"""The dashboard and the alerts in a real Prometheus, which scrapes a real ``zkconsumer serve`` beside a live group."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.cluster.conftest import NewTopic
from tests.cluster.our_member import OurMember
from tests.cluster.test_serve import serving
from tests.timing import eventually, scaled
from tests.unit.operations.serving.test_monitoring import DASHBOARD, FOLDER, expressions, rules
from zkconsumer.devcluster import DevCluster

PROGRAM = shutil.which("prometheus")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Prometheus (Debian: apt install prometheus)")

HOSTILE = '"}|.*\\+(<b>\u2028'
"""The end of a group's name. The server spells line separators out."""
ILLNESSES = ("stands_still", "dead_letters", "gone_messages", "severity")
"""Curves of these may be empty: the groups have none of it."""


class Prometheus:
    """A running Prometheus."""

    def __init__(self, port: int) -> None:
        self._base = f"http://127.0.0.1:{port}/api/v1/"

    def ask(self, path: str, **query: str) -> Any:
        address = f"{self._base}{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(address, timeout=scaled(10)) as answer:
                return json.load(answer)["data"]
        except OSError as error:  # it is not up yet, or refuses the expression
            raise AssertionError(f"{address}: {error}") from None

    def result(self, expression: str) -> list[Any]:
        return list(self.ask("query", query=expression)["result"])

    def rules(self) -> list[Any]:
        return [one for part in self.ask("rules")["groups"] for one in part["rules"]]


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Prometheus]:
    """Scrape the target each second, with the alerts loaded."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    jobs = [{"job_name": "groups", "static_configs": [{"targets": [target]}]}]
    times = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    alerts = [str(FOLDER / "prometheus-alerts.yml")]
    config = folder / "prometheus.yml"
    config.write_text(json.dumps({"global": times, "rule_files": alerts, "scrape_configs": jobs}))  # JSON is YAML
    where = [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([str(PROGRAM), f"--config.file={config}", *where], stdout=log, stderr=log)
        try:
            yield Prometheus(port)
        finally:
            process.kill()
            process.wait()


def shown(expression: str, group: str = ".*") -> str:
    """The expression as Grafana sends it for one group; its values in a regular expression are escaped twice."""
    escaped = re.sub(r'["$^*{}\[\]+?.()|\\]', lambda found: "\\\\" + re.sub(r'(["\\])', r"\\\1", found[0]), group)
    for name, value in {"$group": group if group == ".*" else escaped, "$server": ".*"}.items():
        expression = expression.replace(name, value)
    return expression.replace("$__rate_interval", "15s").replace("$__range", "1m")


def test_every_panel_and_rule_works_in_prometheus(
    cluster: DevCluster,
    zookeeper: KazooClient,
    new_topic: NewTopic,
    new_group: Callable[[], str],
    produce: Callable[..., int],
    our_member: Callable[..., OurMember],
    tmp_path: Path,
) -> None:
    """One group is healthy. Nobody consumes in the other one, whose name has the signs of PromQL and of HTML."""
    topic, group = new_topic(2), new_group()
    hostile = f"{new_group()}{HOSTILE}"
    produce(topic, (b"x" for _ in range(40)), partitions=2)
    our_member(group, {topic: 1}).wait_ready()
    zookeeper.create(f"/consumers/{hostile}/offsets/{topic}/0", b"5", makepath=True)
    name = hostile.replace("\u2028", "\\u2028")
    more = ("--group", hostile, "--history", str(tmp_path / "history"))
    where = f"127.0.0.1:{cluster.zookeeper.port}"
    with serving(where, group, *more) as server, prometheus(tmp_path, f"127.0.0.1:{server.port}") as found:

        def all_shown() -> bool:
            for one in expressions():
                assert found.result(shown(one)) or any(word in one for word in ILLNESSES), shown(one)
            return True

        eventually(all_shown, 60, "a value for each panel")
        variables = [one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
        assert variables[1] == 'label_values(zkconsumer_group_info{instance=~"$server"}, consumergroup)'
        known = found.ask("label/consumergroup/values", **{"match[]": 'zkconsumer_group_info{instance=~".*"}'})
        assert sorted(known) == sorted([group, name])
        alone = found.result(shown('zkconsumer_group_lag{consumergroup=~"$group"}', name))
        assert [(one["metric"]["consumergroup"], one["value"][1]) for one in alone] == [(name, "15")]
        assert {one["name"] for one in found.rules()} == {rule["alert"] for rule in rules()}
        eventually(lambda: {one["health"] for one in found.rules()} == {"ok"}, 30, "rules that are evaluated")
        firing = {(one["labels"]["alertname"], one["state"]) for one in found.ask("alerts")["alerts"]}
        assert ("ZkconsumerServeAway", "pending") not in firing
