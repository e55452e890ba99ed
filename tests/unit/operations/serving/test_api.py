"""The documents that the page reads."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.group_snapshots import NOW
from tests.unit.operations.serving.watched import at, watched, without_logs
from zkconsumer.operations.group_snapshot import Problem
from zkconsumer.operations.serving.api import details, group_document, judge_watched

SAMPLE = Path(__file__).parent / "sample_group.json"
MINUTE = [at(second, 100 + second, 110 + 2 * second) for second in range(0, 60, 10)]


def document(*snapshots: Any, since: int = 0, now: int = NOW + 60_000) -> Any:
    """The group's document as a reader gets it."""
    group = watched(*snapshots)
    judged = judge_watched(group)
    return json.loads(json.dumps(group_document(group, judged, details(group, judged), now, since)))


def without_texts(found: Any) -> Any:
    """The document without the texts of other parts of the package, which have tests of their own."""
    findings = [sorted(finding) for finding in found["findings"]]
    plans = {name: sorted(plan) for name, plan in found["plans"].items()}
    partitions = [{**one, "explanation": bool(one["explanation"])} for one in found["partitions"]]
    rest = {**found, "findings": findings[:1], "plans": plans, "partitions": partitions}
    return {**rest, "reason": bool(found["reason"]), "strategy_why": bool(found["strategy_why"])}


def test_the_sample_for_the_page_is_up_to_date() -> None:
    """``ZKCONSUMER_REGENERATE=1`` writes the sample anew."""
    made = document(*MINUTE)
    if os.environ.get("ZKCONSUMER_REGENERATE"):
        SAMPLE.write_text(json.dumps(made, indent=1) + "\n")
    assert without_texts(made) == without_texts(json.loads(SAMPLE.read_text()))


def test_an_abandoned_topic_counts_for_no_total() -> None:
    found = document(*MINUTE)
    assert found["abandoned_topics"] == ["old"]
    assert found["lag"] == 6 * 60
    (old,) = [one for one in found["partitions"] if one["topic"] == "old"]
    assert old["abandoned"]
    assert old["lag"] == 4


def test_history_goes_on_from_a_known_time() -> None:
    history = document(*MINUTE, since=NOW + 30_000)["history"]
    assert history["times"] == [NOW + 40_000, NOW + 50_000]
    assert history["partitions"]["events:0"] == [50, 60]


def test_values_stay_with_their_age_without_brokers() -> None:
    silent = without_logs(at(60, 170, 230, problems=(Problem("broker 0", "no answer"),)))
    found = document(*MINUTE, silent, now=NOW + 61_000)
    first = found["partitions"][0]
    assert first["lag"] == 60
    assert first["lag_taken"] == first["log_taken"] == NOW + 50_000
    assert first["offset"] == 170
    assert found["history"]["partitions"]["events:0"][-1] is None
    assert found["problems"] == [{"what": "broker 0", "why": "no answer"}]
    assert found["incomplete"]


def test_nodes_stay_while_only_brokers_answer() -> None:
    """Otherwise the group would look empty. Its lag stays too: the offsets in ZooKeeper may have moved on."""
    full = at(60, 170, 999, problems=(Problem("ZooKeeper", "away"),))
    found = document(*MINUTE, replace(full, members={}, owners={}, offsets={}, group_node=None, ids_node=None))
    assert found["state"] == "Rebalancing"
    assert found["member_count"] == 3
    assert found["lag"] == 360
    assert found["zookeeper_taken"] == NOW + 50_000
    assert found["taken"] == NOW + 60_000
    assert found["partitions"][0]["offset"] == 150
