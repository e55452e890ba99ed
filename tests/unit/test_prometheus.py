"""The collector for Prometheus: names, labels and values of a real member, and scrapes that cannot fail."""

from __future__ import annotations

import gc
import importlib
import logging
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition, parser

from tests.documents import example
from tests.programs import run_python
from tests.timing import eventually, scaled
from tests.unit.clusters import cluster_with
from zkconsumer import Health, ZookeeperConsumerConnector
from zkconsumer.errors import MissingExtraError
from zkconsumer.prometheus import Collector
from zkconsumer.runtime.metrics import Buckets, MetricName, Value
from zkconsumer.testing import FakeCluster

cluster = cluster_with({"t": [[b"%d" % number for number in range(5)], []]})


def member(cluster: FakeCluster, **properties: Any) -> ZookeeperConsumerConnector:
    base = {"zookeeper_connect": cluster.zookeeper_connect, "group_id": "g", "auto_offset_reset": "smallest"}
    return ZookeeperConsumerConnector(**{**base, **properties})


def registry_of(*connectors: Any) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Collector(*connectors))
    return registry


def scraped(registry: CollectorRegistry) -> dict[str, float]:
    """Scrape in the OpenMetrics format, whose parser is strict; returns ``name{label=value,...}`` -> value."""
    text = exposition.generate_latest(registry).decode()
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sample.labels.items())
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def of_partition(values: Mapping[str, Value], topic: str = "t") -> dict[MetricName, Value]:
    """Return metrics of partition 0."""
    tags = (("clientId", "c"), ("topic", topic), ("partition", "0"))
    return {MetricName("zkconsumer", "Member", name, tags): value for name, value in values.items()}


class Scripted:
    """A connector whose metrics are given, or an error."""

    def __init__(self, metrics: Any = None, **config: Any) -> None:
        settings = {"group_coordination": "zookeeper", "group_migration": False, "client_id": "c", "group_id": "g"}
        self.config = SimpleNamespace(**{**settings, "partition_assignment_strategy": "range", **config})
        self.consumer_id = "g_a"
        self._metrics = metrics

    def health(self) -> Health:
        return Health()

    def metrics(self) -> Any:
        if isinstance(self._metrics, Exception):
            raise self._metrics
        return self._metrics or {}


def test_a_balanced_run_is_exported_with_its_handler_times() -> None:
    times = Buckets()
    times.add(0.0001, 3)
    times.add(0.02)
    metrics = of_partition({"FinishedBeyondCount": 4, "ParkedCount": 2, "CommittedOffset": 10, "LogEndOffset": 20})
    metrics[MetricName("zkconsumer", "Member", "HandlerTime", (("clientId", "c"),))] = times.value()
    metrics[MetricName("zkconsumer", "Member", "LateResults", (("clientId", "c"),))] = 7
    made = Scripted(metrics)
    found = scraped(registry_of(made))
    of = "consumergroup=g,member=0"
    assert found[f"kafka_consumergroup_lag{{{of},partition=0,topic=t}}"] == 6
    assert found[f"zkconsumer_finished_beyond_messages{{{of},partition=0,topic=t}}"] == 4
    assert found[f"zkconsumer_parked_messages{{{of},partition=0,topic=t}}"] == 2
    assert found[f"zkconsumer_late_results_total{{{of}}}"] == 7
    buckets = [
        found[f"zkconsumer_handler_duration_seconds_bucket{{consumergroup=g,le={le},member=0}}"]
        for le in ("0.0005", "0.025", "+Inf")
    ]
    assert buckets == [3, 4, 4]
    assert found[f"zkconsumer_handler_duration_seconds_count{{{of}}}"] == 4
    assert found[f"zkconsumer_handler_duration_seconds_sum{{{of}}}"] == pytest.approx(0.0203)


def test_a_member_exports_what_it_owns(cluster: FakeCluster) -> None:
    with member(cluster) as made:
        stream = made.create_message_streams({"t": 1})["t"][0]
        registry = registry_of(made)
        for _ in range(3):
            stream.get(timeout=scaled(10))
        made.commit_offsets()
        of = "consumergroup=g,member=0,partition"

        def all_there() -> bool:
            found = scraped(registry)
            assert found[f"kafka_consumergroup_current_offset{{{of}=0,topic=t}}"] == 3
            assert found[f"kafka_consumergroup_lag{{{of}=0,topic=t}}"] == 2
            assert found[f"kafka_consumergroup_lag{{{of}=1,topic=t}}"] == 0
            assert found["zkconsumer_ready{consumergroup=g,member=0}"] == 1
            return True

        eventually(all_there, 10, "the offsets and the ends of both logs")
        found = scraped(registry)
        assert found[f"zkconsumer_partition_owned{{{of}=1,topic=t}}"] == 1
        own = "{consumergroup=g,member=0}"
        assert found[f"zkconsumer_live{own}"] == 1
        assert 0 < found[f"zkconsumer_lease_remaining_seconds{own}"] <= 6
        assert found[f"zkconsumer_last_commit_timestamp_seconds{own}"] > 1.7e9
        assert found[f"zkconsumer_rebalances_total{own}"] >= 1
        assert found[f"zkconsumer_rebalance_duration_seconds_sum{own}"] > 0
        assert found[f"zkconsumer_session_expirations_total{own}"] == 0
        assert found[f"zkconsumer_zookeeper_commits_total{own}"] >= 1
        assert any(
            name.startswith("zkconsumer_info{client_id=g,consumergroup=g,coordination=zookeeper,member=0,")
            for name in found
        )
    found = scraped(registry)
    assert (found[f"zkconsumer_live{own}"], found[f"zkconsumer_ready{own}"]) == (0, 0)
    assert not [name for name in found if "partition=" in name]


@pytest.mark.parametrize("coordination", ["zookeeper", "kafka"])
def test_sessions_and_memberships_that_end_are_counted(cluster: FakeCluster, coordination: str) -> None:
    properties = {"group_coordination": "kafka", "heartbeat_interval_ms": 50} if coordination == "kafka" else {}
    with member(cluster, **properties) as made:
        made.create_message_streams({"t": 1})
        registry = registry_of(made)
        if coordination == "kafka":
            (known,) = cluster.group("g").members
            cluster.expire_member("g", str(known))
        else:
            assert cluster.zookeeper_server is not None
            cluster.zookeeper_server.expire()
        name = "zkconsumer_session_expirations_total{consumergroup=g,member=0}"
        eventually(lambda: scraped(registry)[name] == 1, 20, "the end to be counted once")
        eventually(lambda: made.health().ready, 20, "the member to be back")
        assert scraped(registry)[name] == 1


def test_connectors_of_one_process_are_told_apart() -> None:
    one, two, three = Scripted(), Scripted(), Scripted(group_id="h")
    collector = Collector(*[one, two, one])  # type: ignore[arg-type]
    registry = CollectorRegistry()
    registry.register(collector)
    ready = [name for name in scraped(registry) if name.startswith("zkconsumer_ready")]
    assert ready == ["zkconsumer_ready{consumergroup=g,member=0}", "zkconsumer_ready{consumergroup=g,member=1}"]
    del one
    gc.collect()
    collector.add(three)  # type: ignore[arg-type]
    ready = [name for name in scraped(registry) if name.startswith("zkconsumer_ready")]
    assert ready == ["zkconsumer_ready{consumergroup=h,member=0}", "zkconsumer_ready{consumergroup=g,member=1}"]
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(Collector(two))  # type: ignore[arg-type]


def test_what_is_unknown_has_no_sample() -> None:
    tags = (("clientId", "c"), ("topic", "t"), ("partition", "0"))
    scripted = Scripted(
        {
            MetricName("kafka.server", "FetcherLagMetrics", "ConsumerLag", tags): -1,
            MetricName("zkconsumer", "Member", "CommittedOffset", tags): 7,
            MetricName("kafka.consumer", "ConsumerFetcherManager", "MaxLag", tags[:1]): float("inf"),
        }
    )
    found = scraped(registry_of(scripted))
    assert found["kafka_consumergroup_current_offset{consumergroup=g,member=0,partition=0,topic=t}"] == 7
    assert not [name for name in found if "_lag{" in name]


def test_a_scrape_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    """A member that cannot be read is counted. The rest of it and the other members are there."""
    broken, sound = Scripted(RuntimeError("a mistake of ours")), Scripted()
    registry = registry_of(broken, sound)
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            found = scraped(registry)
    assert found["zkconsumer_scrape_errors_total{consumergroup=g,member=0}"] == 2
    assert found["zkconsumer_scrape_errors_total{consumergroup=g,member=1}"] == 0
    assert found["zkconsumer_ready{consumergroup=g,member=1}"] == 1
    assert found["zkconsumer_ready{consumergroup=g,member=0}"] == 1
    assert [record.message for record in caplog.records] == ["the metrics of g_a could not be read: a mistake of ours"]
    assert b"zkconsumer_scrape_errors_total" in generate_latest(registry)


def test_the_example_of_the_docs_runs(cluster: FakeCluster) -> None:
    cluster.create_topic("events", 1)
    cluster.append("events", 0, [b"one"])
    code = example("health").replace("127.0.0.1:2181", cluster.zookeeper_connect).replace("9464", "0")
    assert run_python("-W", "error", "-c", code).stdout.startswith("b'one' ready")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "prometheus_client"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "zkconsumer.prometheus")
    with pytest.raises(MissingExtraError, match=r"pip install 'zkconsumer\[prometheus\]'"):
        importlib.import_module("zkconsumer.prometheus")
