"""Options of Spark's Kafka source and properties of Kafka's Java client that this source refuses. Pure.

A job that comes from Spark's Kafka source gets one error for all refused options, with the replacement of each option
here. The table of the page ``docs/coming-from.md`` is made of these rows.

Source: Spark's "Structured Streaming + Kafka Integration Guide", and Kafka's ``ConsumerConfig`` of 4.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

KAFKA: Final = "kafka."
"""Spark's prefix for properties of Kafka's client."""
READ_ONLY: Final = (
    'This source only reads. Write to topics with Spark\'s own sink: format("kafka") with the options '
    "kafka.bootstrap.servers and topic, from the package org.apache.spark:spark-sql-kafka-0-10"
)


class Row(NamedTuple):
    """Option names that have one replacement in common."""

    names: tuple[str, ...]
    instead: str


_SPARKS: Final = (
    Row(("groupIdPrefix", "kafka.group.id"), "the group is named by group.id"),
    Row(("kafkaConsumer.pollTimeoutMs",), "socket.timeout.ms limits the wait for a broker"),
    Row(
        ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
        "requests are repeated until socket.timeout.ms, with pauses of refresh.leader.backoff.ms",
    ),
)
_SECURITY: Final = (
    Row(
        ("ssl.keystore.password", "ssl.truststore.password"),
        "only PEM files are read, which have no such password; ssl.key.password is that of the private key",
    ),
    Row(
        ("ssl.keystore.key", "ssl.keystore.certificate.chain"),
        "ssl.keystore.location names a PEM file with certificate, chain and private key",
    ),
    Row(("ssl.truststore.certificates",), "ssl.truststore.location names a PEM file"),
    Row(
        (
            "ssl.protocol",
            "ssl.enabled.protocols",
            "ssl.cipher.suites",
            "ssl.provider",
            "ssl.keymanager.algorithm",
            "ssl.trustmanager.algorithm",
            "ssl.secure.random.implementation",
            "ssl.engine.factory.class",
            "security.providers",
        ),
        "leave it out; Python's ssl module chooses",
    ),
    Row(
        (
            "sasl.client.callback.handler.class",
            "sasl.login.callback.handler.class",
            "sasl.login.class",
            "sasl.login.refresh.buffer.seconds",
            "sasl.login.refresh.min.period.seconds",
            "sasl.login.refresh.window.factor",
            "sasl.login.refresh.window.jitter",
        ),
        "no Java classes are loaded; sasl.oauthbearer.token.provider is a function that is called at each login",
    ),
    Row(
        (
            "sasl.kerberos.kinit.cmd",
            "sasl.kerberos.min.time.before.relogin",
            "sasl.kerberos.ticket.renew.jitter",
            "sasl.kerberos.ticket.renew.window.factor",
        ),
        "leave it out; the source renews no Kerberos tickets",
    ),
)
_JAVA: Final = (
    Row(("max.partition.fetch.bytes",), "say fetch.message.max.bytes"),
    Row(("fetch.max.wait.ms",), "say fetch.wait.max.ms"),
    Row(("receive.buffer.bytes",), "say socket.receive.buffer.bytes"),
    Row(
        (
            "request.timeout.ms",
            "default.api.timeout.ms",
            "socket.connection.setup.timeout.ms",
            "socket.connection.setup.timeout.max.ms",
        ),
        "say socket.timeout.ms",
    ),
    Row(
        ("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms", "retry.backoff.max.ms"),
        "refresh.leader.backoff.ms is the pause before a request is repeated",
    ),
    Row(("max.poll.records",), "maxOffsetsPerTrigger limits a batch of a stream, maxRecordsPerPartition a task"),
    Row(("auto.offset.reset",), "say startingOffsets"),
    Row(
        ("enable.auto.commit", "auto.commit.enable", "auto.commit.interval.ms"),
        "a stream commits each finished batch for its group; after a batch zkconsumer.spark.snapshot commits",
    ),
    Row(
        ("key.deserializer", "value.deserializer", "key.serializer", "value.serializer"),
        "key and value are binary columns; cast or decode them in the query",
    ),
    Row(("interceptor.classes",), "no Java classes are loaded; change messages in the query"),
    Row(("allow.auto.create.topics",), "the source creates no topics; see allowMissingTopics"),
    Row(("group.protocol", "group.remote.assignor"), "group.coordination=kafka joins a group of the brokers"),
    Row(
        ("metadata.max.age.ms", "metadata.recovery.strategy", "metadata.recovery.rebootstrap.trigger.ms"),
        "leave it out; leaders are looked up for each batch, and again when one moves",
    ),
    Row(
        (
            "metric.reporters",
            "metrics.num.samples",
            "metrics.recording.level",
            "metrics.sample.window.ms",
            "auto.include.jmx.reporter",
            "enable.metrics.push",
        ),
        "zkconsumer.spark.source_reports(query.lastProgress) has the metrics",
    ),
    Row(("client.rack",), "leave it out; tasks read from leaders"),
    Row(("client.dns.lookup",), "leave it out; broker.address.map says where else brokers are reached"),
    Row(("fetch.min.bytes",), "leave it out; a task knows the end of its range, and waits for no minimum"),
    Row(("send.buffer.bytes", "connections.max.idle.ms"), "leave it out; it has no use here"),
)
_COORDINATION: Final = (
    Row(("bootstrap.servers",), "is for group.coordination=kafka; brokers are found through zookeeper.connect"),
    Row(
        ("session.timeout.ms", "heartbeat.interval.ms"),
        "is for group.coordination=kafka; a member's session has zookeeper.session.timeout.ms",
    ),
    Row(("max.poll.interval.ms",), "is for group.coordination=kafka; releaseAfter gives up partitions of a slow batch"),
    Row(("group.instance.id",), "is for group.coordination=kafka"),
)
_OTHERS: Final[Mapping[str, str]] = {
    "path": "load() takes no path; name the topics with subscribe",
    "topic": f"it names the topic of a write. {READ_ONLY}",
    "groups": "it names the groups of table=members, owners, offsets or lag",
    "pushdown": "Spark hands the filters of one query to the next query of a DataFrame, which then reads too little. "
    "Leave it out; assign, startingOffsets and endingOffsets limit what a batch fetches",
    "concurrency": "Spark's tasks share the work of a batch; minPartitions divides it further",
    "share.partitions": "a query lends nothing; its batches are offsets of whole partitions",
    "group.migration": "a query is no bridge; once all others are, restart it with group.coordination=kafka",
}

FOR_BROKERS_GROUPS: Final[Mapping[str, str]] = {name: row.instead for row in _COORDINATION for name in row.names}
"""Options that only a group of the brokers has a use for, and what takes their place in a group of ZooKeeper."""
INSTEAD: Final[Mapping[str, str]] = {
    **{name: row.instead for row in (*_SPARKS, *_JAVA, *_SECURITY) for name in row.names},
    **_OTHERS,
}
"""Options that are known elsewhere, and what takes their place here; properties of Kafka without Spark's prefix."""


def markdown_table() -> str:
    """Return the table of the page for jobs that come from Spark's Kafka source."""
    sparks = [_line(row, "") for row in _SPARKS]
    kafkas = [_line(row, KAFKA) for rows in (_COORDINATION, _JAVA, _SECURITY) for row in rows]
    return "\n".join(["| option | here |", "|---|---|", *sparks, *kafkas])


def _line(row: Row, prefix: str) -> str:
    return f"| {_listed([prefix + name for name in row.names])} | {row.instead} |"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
