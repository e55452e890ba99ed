"""The package beside other Kafka clients: any release of theirs, a broken one, or none."""

from __future__ import annotations

import os
import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.programs import run_python
from tests.timing import scaled

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ("aiokafka", "kafka", "confluent_kafka")

PROGRAM = """
import sys
from tests.unit.kafka.sets import CODECS, WHERE, Batch, MessageSet, Written, read_columns
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.kafka import batches
from zkconsumer.testing import FakeCluster

two = [Written(value=b"a"), Written(value=b"b")]
contents = [Batch(two, magic, codec) for magic in CODECS for codec in CODECS[magic]]
for content in contents:
    written = MessageSet([content])
    found = list(batches(written.data, check_crc=True, where=WHERE, fetch_offset=0))
    assert [record.value for batch in found for record in batch] == [b"a", b"b"], content
    (values,) = read_columns(found, ["value"])
    assert values.to_pylist() == [b"a", b"b"], content

with FakeCluster(zookeeper=True) as cluster:
    cluster.create_topic("t", 1)
    log = cluster.log("t", 0)
    for content in contents:
        if content.magic == 2:
            log.append(content.encode(log.end)[0])
    settings = {"auto_offset_reset": "smallest", "consumer_timeout_ms": TIMEOUT}
    with ZookeeperConsumerConnector(zookeeper_connect=cluster.zookeeper_connect, group_id="g", **settings) as connector:
        (stream,) = connector.create_message_streams({"t": 1})["t"]
        assert [next(stream).value for _ in range(2 * len(CODECS[2]))] == [b"a", b"b"] * len(CODECS[2])
        connector.commit_offsets()
print("consumed")
"""


def test_no_other_client_is_required() -> None:
    """A requirement, with or without a release, would forbid users other releases."""
    settings = ConfigParser()
    settings.read(ROOT / "setup.cfg")
    required = {
        re.split(r"[^a-z0-9-]", line)[0] for line in settings["options"]["install_requires"].splitlines() if line
    }
    assert "kazoo" in required
    assert not required & {"aiokafka", "kafka-python", "confluent-kafka"}


@pytest.mark.parametrize("kind", ["absent", "foreign"])
def test_it_consumes_beside_any_other_client(kind: str, tmp_path: Path) -> None:
    """A foreign client fails at each import. An absent client raises ImportError, which the package could catch."""
    program = PROGRAM.replace("TIMEOUT", str(round(scaled(60) * 1000)))
    if kind == "absent":
        program = f"import sys\nsys.modules.update(dict.fromkeys({CLIENTS}))\n{program}"
    else:
        for name in CLIENTS:
            (tmp_path / name).mkdir()
            (tmp_path / name / "__init__.py").write_text("raise RuntimeError('this client is imported')\n")
    path = f"{tmp_path}{os.pathsep}{ROOT}"
    done = run_python("-W", "error", "-c", program, folder=ROOT, seconds=120, variables={"PYTHONPATH": path})
    assert done.stdout.strip() == "consumed", done.stderr
