"""Batches beside Spark's own Kafka source: the same rows in both, case by case.

The module is also the process with the session, which needs Spark's own source among its jars:
``python -m tests.spark.test_kafka_source <settings as JSON>``. It prints one line of JSON for each case.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.measurements.bench.spark_session import Runs, kafka_source
from tests.cluster.conftest import NewTopic
from tests.timing import scaled
from zkconsumer.devcluster import DevCluster
from zkconsumer.devcluster.cluster_errors import JarResolutionError

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value")
COMMITTED = "isolation.level"


def main() -> None:
    """Print how many rows each source has that the other one lacks."""
    settings = json.loads(sys.argv[1])
    session = Runs(settings, [Path(jar) for jar in settings["jars"]]).session
    try:
        for name, options in settings["cases"].items():
            ours = session.read.format("zkconsumer").options(**settings["ours"], **options)
            given = {f"kafka.{key}" if key == COMMITTED else key: value for key, value in options.items()}
            theirs = session.read.format("kafka").options(**settings["theirs"], **given)
            columns = (*COLUMNS, "headers") if "includeHeaders" in options else COLUMNS
            left, right = ours.load().select(*columns).cache(), theirs.load().select(*columns).cache()
            differ = left.exceptAll(right).count() + right.exceptAll(left).count()
            print(json.dumps({"case": name, "rows": right.count(), "differ": differ}), flush=True)
    finally:
        session.stop()


def _produced(cluster: DevCluster, topic: str, count: int, partitions: int, **settings: Any) -> None:
    """Produce messages with and without keys, values and headers. Times are 1,000 ms apart."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(scaled(30))
    for number in range(count):
        if "transactional.id" in settings and number % 10 == 0:
            producer.begin_transaction()
        producer.produce(
            topic,
            None if number % 7 == 0 else b"value %d " % number * (number % 5 + 1),
            None if number % 3 == 0 else b"key %d" % number,
            number % partitions,
            timestamp=1_700_000_000_000 + 1000 * number,
            headers=[("n", str(number).encode()), ("none", None)] if number % 4 == 0 else None,
        )
        if "transactional.id" in settings and number % 10 == 9:
            end = producer.abort_transaction if number % 20 == 9 else producer.commit_transaction
            end(scaled(30))
    assert producer.flush(scaled(30)) == 0


def _cases(cluster: DevCluster, new_topic: NewTopic) -> dict[str, dict[str, str]]:
    plain, other, codecs, transactions = new_topic(3), new_topic(1), new_topic(2), new_topic(2)
    broker_time, empty = new_topic(config={"message.timestamp.type": "LogAppendTime"}), new_topic(2)
    for topic, partitions in ((plain, 3), (other, 1), (broker_time, 1)):
        _produced(cluster, topic, 900, partitions)
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        _produced(cluster, codecs, 200, 2, **{"compression.type": codec})
    _produced(cluster, transactions, 200, 2, **{"transactional.id": f"{transactions}-writer"})

    def offsets(*numbers: int) -> str:
        return json.dumps({plain: {str(partition): offset for partition, offset in enumerate(numbers)}})

    since, until = (json.dumps({plain: dict.fromkeys("012", time)}) for time in (1_700_000_100_500, 1_700_000_800_000))
    return {
        "plain": {"subscribe": plain},
        "several topics": {"subscribe": f"{plain},{other},{empty}"},
        "assign": {"assign": json.dumps({plain: [0, 2]})},
        "pattern": {"subscribePattern": f"({plain}|{other})"},
        "offsets": {"subscribe": plain, "startingOffsets": offsets(17, -2, 250), "endingOffsets": offsets(18, 123, -1)},
        "times": {"subscribe": plain, "startingOffsetsByTimestamp": since, "endingOffsetsByTimestamp": until},
        "headers": {"subscribe": plain, "includeHeaders": "true"},
        "codecs": {"subscribe": codecs},
        "aborted left out": {"subscribe": transactions, COMMITTED: "read_committed"},
        "aborted read": {"subscribe": transactions, COMMITTED: "read_uncommitted"},
        "many ranges": {"subscribe": plain, "minPartitions": "17"},
        "the broker's time": {"subscribe": broker_time},
    }


@pytest.mark.timeout(scaled(300))
def test_batches_have_the_rows_of_sparks_own_source(
    cluster: DevCluster, new_topic: NewTopic, new_group: Callable[[], str]
) -> None:
    try:
        jars, _ = kafka_source()
    except JarResolutionError as missing:
        pytest.skip(f"Spark's own source is not to be had: {missing}")
    cases = _cases(cluster, new_topic)
    settings = {
        "jars": list(map(str, jars)),
        "cases": cases,
        "ours": {"zookeeper.connect": cluster.zookeeper_connect, "group.id": new_group()},
        "theirs": {"kafka.bootstrap.servers": cluster.bootstrap_servers},
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.test_kafka_source", json.dumps(settings)],
        capture_output=True,
        text=True,
        timeout=scaled(240),
        check=False,
        cwd=ROOT,
    )
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [one["case"] for one in told] == list(cases), done.stderr[-4000:]
    assert [one for one in told if one["differ"]] == []
    assert min(one["rows"] for one in told) >= 100


if __name__ == "__main__":
    main()
