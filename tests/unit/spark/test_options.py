"""The meaning of each option, and the refusal of a wrong one."""

from __future__ import annotations

import pickle

import pytest

from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.spark.kafka_source_options import FOR_BROKERS_GROUPS, INSTEAD
from zkconsumer.spark.offset_ranges import EARLIEST, GROUP, LATEST, OffsetChoice
from zkconsumer.spark.options import NAMES, PROPERTIES, parse
from zkconsumer.spark.query_member import longest_drain_ms

_LOGIN = {"sasl.username": "me", "sasl.password": "hidden"}
NAMED = {"zookeeper.connect": "zk:2181/kafka", "group.id": "g"}
BASE = {**NAMED, "subscribe": "t"}

CONSUMER_CONFIG = """
    allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset
    bootstrap.servers check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms
    default.api.timeout.ms enable.auto.commit enable.metrics.push exclude.internal.topics fetch.max.bytes
    fetch.max.wait.ms fetch.min.bytes group.id group.instance.id group.protocol group.remote.assignor
    heartbeat.interval.ms interceptor.classes isolation.level key.deserializer max.partition.fetch.bytes
    max.poll.interval.ms max.poll.records metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms
    metadata.recovery.strategy metric.reporters metrics.num.samples metrics.recording.level
    metrics.sample.window.ms partition.assignment.strategy receive.buffer.bytes reconnect.backoff.max.ms
    reconnect.backoff.ms request.timeout.ms retry.backoff.max.ms retry.backoff.ms
    sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
    sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.mechanism sasl.oauthbearer.token.endpoint.url security.protocol
    security.providers send.buffer.bytes session.timeout.ms socket.connection.setup.timeout.max.ms
    socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password
    ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    ssl.truststore.certificates ssl.truststore.location ssl.truststore.password ssl.truststore.type
    value.deserializer
"""
"""The properties of Kafka's Java consumer 4.0, without most of OAuth's."""


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    options = parse(BASE)
    assert options.selection.topics == ("t",)
    assert (options.starting, options.ending, options.max_offsets, options.min_partitions) == (None, None, None, None)
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.isolation_level == 0
    assert options.group == "g"
    assert options.config.fetch_message_max_bytes == 4 * 1024 * 1024
    assert options.config.socket_receive_buffer_bytes == 512 * 1024


def test_names_are_read_in_any_case() -> None:
    options = parse({**BASE, "MAXOFFSETSPERTRIGGER": "5", "includeheaders": "TRUE", "minPartitions": "7"})
    assert (options.max_offsets, options.include_headers, options.min_partitions) == (5, True, 7)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("startingOffsets", "earliest", EARLIEST),
        ("startingOffsets", " Latest ", LATEST),
        ("startingOffsets", "group", GROUP),
        ("startingOffsets", '{"t":{"0":23,"1":-2,"2":-1}}', {("t", 0): 23, ("t", 1): -2, ("t", 2): -1}),
        ("endingOffsets", "latest", LATEST),
        ("endingOffsets", '{"t":{"0":-1}}', {("t", 0): -1}),
    ],
)
def test_offsets_are_a_word_or_json(name: str, value: str, wanted: object) -> None:
    options = parse({**BASE, name: value})
    found = options.starting if name == "startingOffsets" else options.ending
    assert found == (wanted if isinstance(wanted, OffsetChoice) else OffsetChoice("given", wanted))  # type: ignore[arg-type]


def test_topics_are_named_or_matched_or_single_partitions_are() -> None:
    named = parse({**BASE, "subscribe": " b, a ,b"}).selection
    assert named.topics == ("a", "b")
    without = {key: value for key, value in BASE.items() if key != "subscribe"}
    matched = parse({**without, "subscribePattern": "fl.*"}).selection
    assert matched.allowed is not None
    assert matched.allowed.allows("flights", True)
    single = parse({**without, "assign": '{"t":[2,0]}'}).selection
    assert single.partitions == (TopicPartition("t", 0), TopicPartition("t", 2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscrib": "x"}, "subscrib: 'x': unknown option; did you mean 'subscribe'?"),
        ({"startingoffset": "x"}, "startingoffset: 'x': unknown option; did you mean 'startingOffsets'?"),
        ({"max_offsets_per_trigger": "1"}, "did you mean 'maxOffsetsPerTrigger'?"),
        (
            {"kafka.bootstrap.servers": "b:9092"},
            "kafka.bootstrap.servers: 'b:9092': is for group.coordination=kafka; brokers are found through zookeeper",
        ),
        ({"kafka.group.instance.id": "one"}, "kafka.group.instance.id: 'one': is for group.coordination=kafka"),
        ({"group.coordination": "raft"}, "group.coordination: must be"),
        (
            {"group.coordination": "kafka", "heartbeat.interval.ms": "50000"},
            "heartbeat.interval.ms: must be below session.timeout.ms",
        ),
        ({"kafka.zookeeper.connect": "x"}, "kafka.zookeeper.connect: 'x': unknown option"),
        (
            {"kafka.client.id": "a", "client.id": "b"},
            "kafka.client.id: 'a': contradicts client.id='b'; say one of them",
        ),
        ({"startingOffsetsByTimestamp": "{}"}, "startingOffsetsByTimestamp: '{}': must be JSON with milliseconds"),
        ({"startingOffsetsByTimestamp": "1700000000000"}, "'1700000000000': must be JSON with milliseconds"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "-1 is no time here; must be JSON"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":"5"}}'}, "'5' is no time here"),
        ({"endingOffsetsByTimestamp": '{"t":{"-1":5}}'}, "'-1' is no partition"),
        ({"startingTimestamp": "5", "startingOffsets": "soon"}, "startingOffsets: 'soon': must be earliest"),
        ({"topic": "t"}, "topic: 't': unknown option; it names the topic of a write. This source only reads."),
        ({"startingTimestamp": "2026-01-01"}, "startingTimestamp: '2026-01-01': must be milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "latest"}, "'latest': is of no use without startingTimestamp or"),
        ({"startingOffsetsByTimestampStrategy": "x", "startingTimestamp": "5"}, "'x': must be error or latest"),
        ({"releaseAfter": "soon"}, "releaseAfter: 'soon': must be a number of seconds"),
        ({"releaseAfter": "inf"}, "releaseAfter: 'inf': must be a number of seconds"),
        ({"pushdown": "true"}, "pushdown: 'true': unknown option; Spark hands the filters of one query to the next"),
        ({"path": "t"}, "path: 't': unknown option; load() takes no path"),
        ({"group.migration": "true"}, "group.migration: 'true': unknown option; a query is no bridge"),
        ({"zzz": "1"}, "zzz: '1': unknown option"),
        ({"auto.commit.enable": "true"}, "auto.commit.enable: 'true': unknown option"),
        ({"startingOffsets": "soon"}, "startingOffsets: 'soon': must be earliest, latest, group, or JSON"),
        ({"startingOffsets": "{}"}, "startingOffsets: '{}': must be"),
        ({"startingOffsets": '{"t":[1]}'}, "must be"),
        ({"startingOffsets": '{"t":{"x":1}}'}, "'x' is no partition"),
        ({"startingOffsets": '{"t":{"0":-3}}'}, "-3 is no offset here"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "True is no offset here"),
        ({"startingOffsets": "[" * 100_000}, "must be"),
        ({"endingOffsets": "earliest"}, "endingOffsets: 'earliest': nothing lies before it"),
        ({"endingOffsets": '{"t":{"0":-2}}'}, "-2 is no offset here"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger: '0': must be a whole number"),
        ({"minPartitions": "many"}, "minPartitions: 'many': must be a whole number"),
        ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition: '0': must be a whole number of at least 1"),
        ({"startingOffsets": '{"t":{"0":1},"t":{"1":2}}'}, "its JSON names 't' twice"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":1,"0":2}}'}, "its JSON names '0' twice"),
        ({"endingOffsetsByTimestamp": '{"t":{"0":1,"00":2}}'}, "its JSON names t-0 twice"),
        (
            {"minOffsetsPerTrigger": "11", "maxOffsetsPerTrigger": "10"},
            "minOffsetsPerTrigger: '11': is more than maxOffsetsPerTrigger=10",
        ),
        ({"maxTriggerDelay": "5m"}, "maxTriggerDelay: '5m': is of no use without minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "5 weeks"}, "'5 weeks': must be a duration such as 500ms"),
        ({"minOffsetsPerTrigger": "1", "maxTriggerDelay": "1.5s"}, "'1.5s': must be a duration"),
        ({"failOnDataLoss": "maybe"}, "failOnDataLoss: 'maybe': must be true or false"),
        ({"membership": "some"}, "membership: 'some': must be member or none"),
        ({"subscribe": "a,,b"}, "subscribe: 'a,,b': '' cannot be a name"),
        ({"subscribe": "a/b"}, "subscribe: 'a/b'"),
        ({"assign": '{"t":[0]}'}, "assign: '{\"t\":[0]}': contradicts subscribe='t'"),
        ({"group.id": "a b"}, "group.id: 'a b' contains ' '"),
        ({"isolation.level": "none"}, "isolation.level: must be 'read_uncommitted' or 'read_committed', not 'none'"),
    ],
)
def test_a_wrong_option_is_refused_with_its_name_and_value(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigException) as refused:
        parse({**BASE, **given})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("concurrency", "8", "Spark's tasks share the work"), ("share.partitions", "true", "a query lends nothing")],
)
def test_message_balance_is_no_option_of_spark(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigException, match=f"{name}: '{value}': unknown option; {reason}"):
        parse({**BASE, name: value})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"startingoffsets": "soon"}, "startingOffsets"),
        ({"startingoffsetsbytimestamp": "{}"}, "startingOffsetsByTimestamp"),
        ({"endingoffsetsbytimestamp": "{}"}, "endingOffsetsByTimestamp"),
        ({"groupidprefix": "a"}, "groupIdPrefix"),
        ({"allowmissingtopics": "perhaps"}, "allowMissingTopics"),
        ({"minoffsetspertrigger": "9", "maxoffsetspertrigger": "8"}, "minOffsetsPerTrigger"),
        ({"maxrecordsperpartition": "few"}, "maxRecordsPerPartition"),
        ({"kafka.fetch.max.bytes": "many"}, "kafka.fetch.max.bytes"),
        ({"fetch.max.bytes": "many"}, "fetch.max.bytes"),
        ({"fetch.max.bytes": "many", "kafka.fetch.max.bytes": "many"}, "fetch.max.bytes"),
        ({"kafka.isolation.level": "none"}, "kafka.isolation.level"),
        ({"kafka.session.timeout.ms": "5"}, "kafka.session.timeout.ms"),
        ({"Kafka.Fetch.Max.Bytes": "many"}, "Kafka.Fetch.Max.Bytes"),
        ({"StartingOffset": "earliest"}, "StartingOffset"),
        ({"STARTINGOFFSETS": "soon"}, "STARTINGOFFSETS"),
    ],
)
def test_an_option_is_named_as_it_was_written(given: dict[str, str], named: str) -> None:
    """Spark tells names in lower case, then they are spelled as documented; a snapshot knows how they were written."""
    with pytest.raises(ConfigException) as refused:
        parse({**BASE, **given})
    assert refused.value.key == named
    assert str(refused.value).startswith(f"{named}: ")


FROM_SPARK = {
    "kafka.bootstrap.servers": "b:9092",
    "subscribe": "t",
    "kafka.session.timeout.ms": "30000",
    "kafka.max.partition.fetch.bytes": "1048576",
    "kafka.max.poll.records": "500",
    "fetchoffset.numretries": "3",
    "fetchoffset.retryintervalms": "10",
    "kafka.metadata.max.age.ms": "60000",
    "kafkaconsumer.polltimeoutms": "512",
    "groupidprefix": "job",
    "kafka.default.api.timeout.ms": "60000",
    "kafka.reconnect.backoff.ms": "50",
    "kafka.ssl.keystore.password": "hidden",
    "kafka.isolation.level": "read_committed",
}


def test_a_job_of_sparks_kafka_source_is_refused_once() -> None:
    """Bug: each run of the job named one refused option. A value was ``***``, and a hint named another property."""
    with pytest.raises(ConfigException) as refused:
        parse(FROM_SPARK)
    lines = str(refused.value).split("\n")
    for line in (
        "kafka.session.timeout.ms: '30000': is for group.coordination=kafka; a member's session has zookeeper.session",
        "kafka.bootstrap.servers: 'b:9092': is for group.coordination=kafka; brokers are found through zookeeper",
        "kafka.max.partition.fetch.bytes: '1048576': unknown option; say fetch.message.max.bytes",
        "kafka.max.poll.records: '500': unknown option; maxOffsetsPerTrigger limits a batch",
        "fetchOffset.numRetries: '3': unknown option; requests are repeated until socket.timeout.ms",
        "fetchOffset.retryIntervalMs: '10': unknown option; requests are repeated until socket.timeout.ms",
        "kafka.metadata.max.age.ms: '60000': unknown option; leave it out",
        "kafkaConsumer.pollTimeoutMs: '512': unknown option; socket.timeout.ms limits",
        "groupIdPrefix: 'job': unknown option; the group is named by group.id",
        "kafka.default.api.timeout.ms: '60000': unknown option; say socket.timeout.ms",
        "kafka.reconnect.backoff.ms: '50': unknown option; refresh.leader.backoff.ms is the pause",
        "kafka.ssl.keystore.password: ***: unknown option; only PEM files are read",
        "zookeeper.connect: is missing",
        "group.id: is missing",
    ):
        assert [one for one in lines if one.startswith(line)], line
    assert len(lines) == 14


def test_a_missing_option_has_its_own_name() -> None:
    """Bug: ``kafka.group.id`` was refused, and in the next line it was missing."""
    with pytest.raises(ConfigException) as refused:
        parse({"kafka.group.id": "g", "zookeeper.connect": "zk", "subscribe": "t"})
    assert str(refused.value).split("\n") == [
        "kafka.group.id: 'g': unknown option; the group is named by group.id",
        "group.id: is missing",
    ]


def test_a_private_key_is_not_shown_in_any_option() -> None:
    """Bug: an option that is known from Kafka's client showed its value whatever that was."""
    pem = "-----BEGIN CERTIFICATE-----\nMII\n-----BEGIN ENCRYPTED PRIVATE KEY-----\nTOPSECRET"
    with pytest.raises(ConfigException) as refused:
        parse({**BASE, "kafka.ssl.keystore.certificate.chain": pem})
    assert "kafka.ssl.keystore.certificate.chain: ***: unknown option" in str(refused.value)
    assert "TOPSECRET" not in str(refused.value)


def test_each_property_of_kafkas_consumer_has_an_answer() -> None:
    """Those that the connector lacks are explained, and none by the guess of a similar name."""
    for name in CONSUMER_CONFIG.split():
        accepted = name in PROPERTIES and name not in FOR_BROKERS_GROUPS
        assert accepted or name in FOR_BROKERS_GROUPS or name in INSTEAD or f"kafka.{name}" in INSTEAD, name


def test_an_explained_option_is_not_one_that_is_accepted() -> None:
    assert {name.lower() for name in INSTEAD} & set(NAMES) == set()
    assert set(FOR_BROKERS_GROUPS) <= set(NAMES)


def test_a_batch_and_a_stream_refuse_all_at_once() -> None:
    wrong = {"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "4", "allowLiveMembers": "true"}
    with pytest.raises(ConfigException) as refused:
        parse({**BASE, **wrong}).check_batch()
    assert [line.split(":")[0] for line in str(refused.value).split("\n")] == list(wrong)
    with pytest.raises(ConfigException) as refused:
        parse({**BASE, "endingOffsets": "latest", "allowLiveMembers": "true"}).check_stream()
    assert [line.split(":")[0] for line in str(refused.value).split("\n")] == ["endingOffsets", "allowLiveMembers"]


@pytest.mark.parametrize("name", ["zookeeper.connect", "group.id", "subscribe"])
def test_what_must_be_said_is_asked_for(name: str) -> None:
    with pytest.raises(ConfigException, match=f"{name}: is missing"):
        parse({key: value for key, value in BASE.items() if key != name})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger: '5'"),
        ({"minOffsetsPerTrigger": "5"}, "minOffsetsPerTrigger: '5': a batch has no triggers"),
        ({"startingOffsets": "latest"}, "startingOffsets: 'latest'"),
        ({"membership": "member"}, "membership: 'member'"),
        ({"allowLiveMembers": "true"}, "allowLiveMembers: 'true'"),
        ({"releaseAfter": "2.5"}, "releaseAfter: '2.5': a batch never joins the group"),
        ({"partition.assignment.strategy": "roundrobin"}, "partition.assignment.strategy: 'roundrobin': a batch never"),
        ({"readOnDriver": "true"}, "readOnDriver"),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":5,"1":9}}', "endingOffsetsByTimestamp": '{"t":{"0":5,"1":8}}'},
            """endingOffsetsByTimestamp: '{"t":{"0":5,"1":8}}': 8 of t-1 is before 9 of startingOffsetsByTimestamp""",
        ),
        (
            {"startingOffsetsByTimestamp": '{"t":{"0":5,"1":9}}', "endingTimestamp": "8"},
            "endingTimestamp: '8': 8 of t-1 is before 9 of startingOffsetsByTimestamp",
        ),
        (
            {"startingTimestamp": "6", "endingOffsetsByTimestamp": '{"t":{"0":5,"1":8}}'},
            """endingOffsetsByTimestamp: '{"t":{"0":5,"1":8}}': 5 of t-0 is before 6 of startingTimestamp""",
        ),
        (
            {"startingOffsets": '{"t":{"0":5,"1":-1}}'},
            """startingOffsets: '{"t":{"0":5,"1":-1}}': a batch that starts""",
        ),
        (
            {"startingTimestamp": "2000", "endingTimestamp": "1999"},
            "endingTimestamp: '1999': is before startingTimestamp=2000",
        ),
    ],
)
def test_a_batch_refuses_streams_options_and_empty_ranges(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigException) as refused:
        parse({**BASE, **given}).check_batch()
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: 'latest'"),
        ({"endingTimestamp": "5"}, "endingTimestamp: '5': a stream has no end"),
        (
            {"endingOffsetsByTimestamp": '{"t":{"0":5}}'},
            """endingOffsetsByTimestamp: '{"t":{"0":5}}': a stream has no""",
        ),
        (
            {"readOnDriver": "true", "maxOffsetsPerTrigger": "9", "maxRecordsPerPartition": "3"},
            "maxRecordsPerPartition: '3': contradicts readOnDriver=true",
        ),
        ({"allowLiveMembers": "true"}, "allowLiveMembers: 'true': is for membership=none"),
        ({"readOnDriver": "true"}, "readOnDriver.*maxOffsetsPerTrigger"),
        ({"readOnDriver": "true", "maxOffsetsPerTrigger": "16385"}, "readOnDriver.*16384"),
        ({"readOnDriver": "true", "maxOffsetsPerTrigger": "9", "minPartitions": "4"}, "minPartitions"),
        ({"assign": '{"t":[0]}'}, "assign: 't-0': a member owns what the group leaves it"),
        ({"membership": "none", "releaseAfter": "3"}, "releaseAfter: '3': contradicts membership='none'"),
        (
            {"membership": "none", "group.coordination": "kafka", "session.timeout.ms": "9000"},
            "session.timeout.ms: '9000': contradicts membership='none'",
        ),
        ({"membership": "none", "rebalance.quiet.ms": "3"}, "rebalance.quiet.ms: '3': contradicts membership='none'"),
    ],
)
def test_a_stream_refuses_what_it_cannot_do(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigException, match=message):
        parse({**({} if "assign" in given else BASE), **NAMED, **given}).check_stream()


def test_security_is_the_connectors_and_secrets_are_hidden() -> None:
    options = parse({**BASE, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"} | _LOGIN)
    assert options.config.sasl_username == "me"
    assert "hidden" not in repr(options)
    with pytest.raises(ConfigException) as refused:
        parse({**BASE, "sasl.pasword": "hidden", "kafka.sasl.password": "hidden"})
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize(
    "option", [{"zookeeper.connect": "ann:hidden@h:1"}, {"db.pwd": "hidden"}, {"url": "http://ann:hidden@h/"}]
)
def test_no_refusal_quotes_credentials(option: dict[str, str]) -> None:
    with pytest.raises(ConfigException) as caught:
        parse({**BASE, **option})
    assert "hidden" not in str(caught.value)


def test_sparks_prefix_is_taken_for_the_connectors_properties() -> None:
    options = parse({**BASE, "kafka.security.protocol": "SSL", "kafka.client.id": "me", "client.id": "me"})
    assert (options.config.security_protocol, options.config.client_id) == ("SSL", "me")
    options = parse({**BASE, "kafka.isolation.level": "read_committed"})
    assert options.isolation_level == 1


def test_a_group_of_the_brokers_needs_no_zookeeper() -> None:
    options = parse(
        {
            "group.id": "g",
            "subscribe": "t",
            "group.coordination": "Kafka",
            "kafka.bootstrap.servers": "b:9092",
            "kafka.session.timeout.ms": "9000",
            "heartbeat.interval.ms": "1000",
            "max.poll.interval.ms": "60000",
            "group.instance.id": "query-1",
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )
    options.check_stream()
    config = options.config
    assert options.is_member
    assert config.coordinated_by_brokers
    assert config.bootstrap_addresses == (("b", 9092),)
    assert (config.session_timeout_ms, config.heartbeat_interval_ms, config.max_poll_interval_ms) == (9000, 1000, 60000)
    assert config.group_instance_id == "query-1"
    assert longest_drain_ms(config) == 53_000  # of 60 s, nine tenths but for a heartbeat
    with pytest.raises(ConfigException, match="a batch never joins the group"):
        options.check_batch()
    parse({**BASE, "group.coordination": "kafka"}).check_stream()  # brokers are found by ZooKeeper
    parse({**BASE, "group.coordination": "kafka", "startingOffsets": "group"}).check_batch()


def test_times_stand_for_offsets() -> None:
    options = parse({**BASE, "startingTimestamp": " 1500 ", "endingTimestamp": "0"})
    assert (options.starting, options.ending) == (
        OffsetChoice("timestamp", time=1500),
        OffsetChoice("timestamp", time=0),
    )
    assert not options.end_where_time_is_not_reached
    options = parse({**BASE, "startingTimestamp": "1", "startingOffsetsByTimestampStrategy": "latest"})
    assert options.end_where_time_is_not_reached


@pytest.mark.parametrize("edge", ["starting", "ending"])
def test_a_time_comes_before_times_and_these_before_offsets(edge: str) -> None:
    """As in Spark's Kafka source: an option that counts less is only read, to find mistakes in it."""
    given = {f"{edge}Timestamp": "5", f"{edge}OffsetsByTimestamp": '{"t":{"0":7}}', f"{edge}Offsets": "latest"}
    wanted = [OffsetChoice("timestamp", time=5), OffsetChoice("timestamp", times={TopicPartition("t", 0): 7}), LATEST]
    while given:
        options = parse({**BASE, **given})
        assert (options.starting if edge == "starting" else options.ending) == wanted.pop(0)
        del given[next(iter(given))]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, 900.0),
        ("15m", 900.0),
        (" 2MIN ", 120.0),
        ("250", 0.25),
        ("250ms", 0.25),
        ("7s", 7.0),
        ("3h", 10_800.0),
        ("1d", 86_400.0),
        ("0", 0.0),
    ],
)
def test_a_delay_is_written_as_spark_writes_durations(text: str | None, seconds: float) -> None:
    given = {} if text is None else {"maxTriggerDelay": text}
    options = parse({**BASE, "minOffsetsPerTrigger": "5", **given})
    options.check_stream()
    assert (options.min_offsets, options.max_trigger_delay) == (5, seconds)


def test_a_stream_is_a_member_unless_told_otherwise() -> None:
    for given, member in (({}, True), ({"membership": "member"}, True), ({"membership": "none"}, False)):
        options = parse({**BASE, **given})
        options.check_stream()
        assert options.is_member is member
    assert parse({**BASE, "releaseAfter": "2.5"}).release_after == 2.5


def test_options_travel_to_other_processes() -> None:
    for how in ({"subscribe": "t"}, {"subscribePattern": "a.*"}, {"assign": '{"t":[1]}'}):
        options = parse({"zookeeper.connect": "zk", "group.id": "g", **how, "startingOffsets": '{"t":{"1":4}}'})
        assert pickle.loads(pickle.dumps(options)) == options


def test_a_snapshot_of_messages_is_no_table_about_groups() -> None:
    with pytest.raises(ConfigException, match="table: 'lag': a snapshot is one of messages"):
        parse({**BASE, "table": "lag"})


def test_a_copy_that_spark_made_of_an_option_is_accepted() -> None:
    """``CREATE TABLE`` hands each option on twice."""
    assert parse({**BASE, "option.subscribe": "t", "Option.Group.Id": "g"}) == parse(BASE)


@pytest.mark.parametrize(
    ("copy", "message"),
    [
        ({"option.subscribe": "u"}, "option.subscribe: contradicts subscribe, of which it should be a copy"),
        ({"option.endingOffsets": "latest"}, "option.endingoffsets: unknown option; it is Spark's name for a copy of"),
        ({"option.sasl.password": "hidden"}, "option.sasl.password: unknown option"),
    ],
)
def test_a_copy_without_an_equal_original_is_refused(copy: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigException) as refused:
        parse({**BASE, **copy})
    assert str(refused.value).startswith(message)
    assert "hidden" not in str(refused.value)
