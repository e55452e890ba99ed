"""Names of other Kafka clients: the error says what to write here, and nothing else changes."""

from __future__ import annotations

import re

import pytest

import zkconsumer
from tests.programs import run_python
from zkconsumer import AsyncZookeeperConsumerConnector, ZookeeperConsumerConnector
from zkconsumer.core import foreign_names

SETTINGS = {"zookeeper.connect": "127.0.0.1:1", "group.id": "g"}
BOTH = (ZookeeperConsumerConnector, AsyncZookeeperConsumerConnector)


@pytest.mark.parametrize("connector", BOTH)
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("subscribe", "create_message_streams"),
        ("poll", "for message in stream"),
        ("close", "shutdown()"),
        ("seek_to_beginning", 'seek(partition, "earliest")'),
        ("subscription", "assignment()"),
    ],
)
def test_a_method_of_another_client_points_to_ours(connector: type, name: str, said: str) -> None:
    """Bug: ``.subscribe()`` and ``.poll()`` said only that they do not exist."""
    made = connector(SETTINGS)
    with pytest.raises(AttributeError, match=re.escape(said)):
        getattr(made, name)
    assert not hasattr(made, name)
    assert name not in dir(made)


@pytest.mark.parametrize("connector", BOTH)
def test_each_replacement_names_what_exists(connector: type) -> None:
    made = connector(SETTINGS)
    for name, row in foreign_names.METHODS.items():
        text = row.threads if connector is ZookeeperConsumerConnector else row.asyncio
        if hasattr(made, name):
            continue
        begun = [word for word in re.findall(r"(?<![\w.`])([a-z_]+)\(", text) if word not in {"await"}]
        assert [word for word in begun if not hasattr(made, word)] == [], name


def test_any_other_missing_method_keeps_pythons_text() -> None:
    made = ZookeeperConsumerConnector(SETTINGS)
    with pytest.raises(AttributeError, match="object has no attribute 'never_heard_of'"):
        made.never_heard_of  # type: ignore[attr-defined] # noqa: B018


CLASSES = {
    "KafkaConsumer": "ZookeeperConsumerConnector is the consumer",
    "AIOKafkaConsumer": "AsyncZookeeperConsumerConnector is the consumer",
    "KafkaProducer": "this package only consumes",
}


def test_a_class_of_another_client_points_to_ours() -> None:
    """Bug: ``from zkconsumer import KafkaConsumer`` said only that the name cannot be imported."""
    done = run_python("-c", "from zkconsumer import KafkaConsumer", code=1)
    assert "ImportError: cannot import name 'KafkaConsumer' from 'zkconsumer': Zookeeper" in done.stderr
    for name, said in CLASSES.items():
        with pytest.raises(ImportError, match=f"cannot import name '{name}' from 'zkconsumer': {said}"):
            exec(f"from zkconsumer import {name}")
        assert not hasattr(zkconsumer, name)
        with pytest.raises(AttributeError, match=said):
            getattr(zkconsumer, name)
