"""Contents of nodes: our own, and those of other members and brokers. ``tests/vectors`` has what 1.1.1 reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zkconsumer.core.registration import Registration
from zkconsumer.errors import MalformedNodeError
from zkconsumer.model import Endpoint, ThreadId
from zkconsumer.zookeeper import node_codecs

MEMBER = "/consumers/g/ids/g_other"
OFFSET = "/consumers/g/offsets/t/0"
BROKER = "/brokers/ids/4"
TOPIC = "/brokers/topics/t"
STATE = "/brokers/topics/t/partitions/0/state"

DECODERS: list[tuple[Callable[[bytes | None, str], object], str]] = [
    (node_codecs.decode_registration, MEMBER),
    (node_codecs.decode_offset, OFFSET),
    (node_codecs.decode_owner, "/consumers/g/owners/t/0"),
    (node_codecs.decode_broker, BROKER),
    (node_codecs.decode_topic, TOPIC),
    (node_codecs.decode_partition_state, STATE),
]


# --- registrations ----------------------------------------------------------------------------------------------------


def test_a_registration_is_byte_for_byte_the_original_s() -> None:
    registration = Registration("static", {"topicA": 2, "topicB": 1}, "1795230310008")
    assert node_codecs.encode_registration(registration) == (
        b'{"version":1,"subscription":{"topicA":2,"topicB":1},"pattern":"static","timestamp":"1795230310008"}'
    )


def test_extra_keys_come_after_the_original_s() -> None:
    registration = Registration("static", {}, "1", extra={"host": "h", "port": 9, "tags": ["a", None, True]})
    assert node_codecs.encode_registration(registration) == (
        b'{"version":1,"subscription":{},"pattern":"static","timestamp":"1","host":"h","port":9,"tags":["a",null,true]}'
    )


@pytest.mark.parametrize(
    ("expression", "key"),
    [(r"foo\.b/r", rb'"foo\\.b/r"'), ('"x"', rb'"\"x\""'), ("é", '"é"'.encode()), ("\\\\", rb'"\\\\"')],
)
def test_an_expression_is_escaped_exactly_once(expression: str, key: bytes) -> None:
    data = node_codecs.encode_registration(Registration("white_list", {expression: 1}, "1"))
    assert b'{"version":1,"subscription":{' + key + b':1},"pattern":"white_list"' in data
    assert list(node_codecs.decode_registration(data, MEMBER).subscription) == [expression]


@pytest.mark.parametrize(
    "extra",
    [
        {"n": 2**31},
        {"n": -(2**31) - 1},
        {"n": 1.0},
        {"n": float("nan")},
        {"deep": [{"n": 2**40}]},
        {"set": {1}},
        {"keys": {1: 2}},
        {"version": 1},
        {"text": "\ud800"},
    ],
)
def test_extra_keys_that_would_stop_old_members_are_refused(extra: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        node_codecs.encode_registration(Registration("static", {"t": 1}, extra=extra))


@pytest.mark.parametrize("streams", [0, -1, True, 1.0, "1", None, 2**31])
def test_a_stream_count_that_would_stop_the_group_is_refused(streams: int) -> None:
    with pytest.raises(ValueError):
        node_codecs.encode_registration(Registration("static", {"t": streams}))


def decoded(text: str | bytes) -> Registration:
    return node_codecs.decode_registration(text if isinstance(text, bytes) else text.encode(), MEMBER)


GOOD = '{"version":1,"subscription":{"t":1},"pattern":"static","timestamp":"1"}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{ "pattern":"static", "subscription":{ "t": 1 }, "timestamp":"5", "version":1 }',
            Registration("static", {"t": 1}, "5"),
        ),
        (
            '{"subscription":{"t":1},"pattern":"static","who":[1,2]}',
            Registration("static", {"t": 1}, extra={"who": [1, 2]}),
        ),
        ('{"subscription":{"t":1,"t":3},"pattern":"static"}', Registration("static", {"t": 3})),
        ("\n" + GOOD + "]", Registration("static", {"t": 1}, "1")),
        ('{"subscription":{"a":1,"b":-7},"pattern":"white_list"}', Registration("white_list", {"a": 1, "b": -7})),
        ('{"subscription":{"":1},"pattern":"black_list"}', Registration("black_list", {"": 1})),
        ('{"subscription":{"a/b":1},"pattern":"static"}', Registration("static", {"a/b": 1})),
    ],
)
def test_what_the_original_accepts_is_accepted(text: str, expected: Registration) -> None:
    assert decoded(text) == expected


def test_bytes_that_are_no_utf8_matter_only_in_names() -> None:
    assert decoded(GOOD.encode().replace(b'"1"}', b'"\xe9"}')).subscription == {"t": 1}
    with pytest.raises(MalformedNodeError, match="ufffd"):
        decoded(GOOD.encode().replace(b'{"t"', b'{"t\xe9"'))


def test_a_registration_of_more_than_a_sane_size_is_unreadable() -> None:
    """Each of its topics was read and watched by every member: 650 kB of them took 5 s, and memory that stayed."""
    topics = {f"topic-{number:06}": 1 for number in range(30_000)}
    data = json.dumps({"subscription": topics, "pattern": "static"}).encode()
    with pytest.raises(MalformedNodeError, match=f"{len(data)} bytes are more than the 131072 of a registration"):
        node_codecs.decode_registration(data, MEMBER)
    with pytest.raises(ValueError, match="more than the 131072 that other members read"):
        node_codecs.encode_registration(Registration("static", topics))
    fewer = Registration("static", dict(list(topics.items())[:6000]), "1")
    assert node_codecs.decode_registration(node_codecs.encode_registration(fewer), MEMBER) == fewer


def test_a_number_of_many_digits_costs_nothing() -> None:
    assert decoded('{"subscription":{"t":1},"pattern":"static","big":' + "9" * 100_000 + "}").subscription == {"t": 1}


BAD_COUNTS = ("1e0", "01", "[]", "1000000000")


@pytest.mark.parametrize(
    "text",
    [
        " ",
        '"x"',
        GOOD.replace("1,", "Infinity,", 1),
        '{"pattern":"static"}',
        '{"subscription":{"t":1}}',
        '{"subscription":null,"pattern":"static"}',
        '{"subscription":["t"],"pattern":"static"}',
        '{"subscription":{"":1},"pattern":"static"}',
        '{"subscription":{"..":1},"pattern":"static"}',
        '{"subscription":{"a//b":1},"pattern":"static"}',
        '{"subscription":{"a\\u0000":1},"pattern":"static"}',
        *(f'{{"subscription":{{"t":{count}}},"pattern":"static"}}' for count in BAD_COUNTS),
        *(f'{{"subscription":{{"t":{count}}},"pattern":"white_list"}}' for count in ("0", "1.5", "null", *BAD_COUNTS)),
        '{"subscription":{"t":1,"u":"x"},"pattern":"white_list"}',
        '{"subscription":{"(?i)(t)\\\\1":1},"pattern":"black_list"}',
        '{"a":' * 201 + "1" + "}" * 201,
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_nodes_that_the_original_refuses_are_refused_with_path(text: str) -> None:
    with pytest.raises(MalformedNodeError) as caught:
        decoded(text)
    assert caught.value.path == MEMBER
    assert len(str(caught.value)) < 400


def test_brackets_inside_text_are_no_nesting() -> None:
    assert decoded('{"subscription":{"t":1},"pattern":"static","x":"' + r"[{\"" * 500 + '"}').subscription == {"t": 1}


@given(
    st.dictionaries(
        st.text("abc.-_é名", min_size=1, max_size=5).filter(lambda t: t not in (".", "..")), st.integers(1, 500)
    ),
    st.sampled_from(["static", "white_list", "black_list", "odd"]),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.dictionaries(
        st.sampled_from(["host", "room", "strategy"]),
        st.one_of(st.text(st.characters(codec="utf-8")), st.integers(-(2**31), 2**31 - 1), st.none(), st.booleans()),
    ),
)
def test_a_registration_survives_the_round_trip(
    subscription: dict[str, int], pattern: str, timestamp: str, extra: dict[str, object]
) -> None:
    registration = Registration(pattern, subscription, timestamp, extra=extra)
    assert node_codecs.decode_registration(node_codecs.encode_registration(registration), MEMBER) == registration


# --- offsets and owners -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        (b"0", 0),
        (b"42", 42),
        (b"+42", 42),
        (b"-1", -1),
        (b"007", 7),
        (b"9223372036854775807", 2**63 - 1),
        (b"-9223372036854775808", -(2**63)),
        ("٣".encode(), 3),
    ],
)
def test_an_offset_is_read_as_java_reads_it(data: bytes, offset: int) -> None:
    assert node_codecs.decode_offset(data, OFFSET) == offset


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b" 1",
        b"1 ",
        b"1\n",
        b"abc",
        b"9e9",
        b"1.0",
        b"1_0",
        b"_1",
        b"--1",
        b"+-1",
        b"+",
        b"-",
        b"0x1",
        b"1L",
        b"9223372036854775808",
        b"-9223372036854775809",
        b"9" * 100_000,
        b"\xff",
        "\U0001d7cf".encode(),
    ],
)
def test_an_offset_is_never_guessed(data: bytes | None) -> None:
    with pytest.raises(MalformedNodeError, match="/consumers/g/offsets/t/0"):
        node_codecs.decode_offset(data, OFFSET)


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_offset_survives_the_round_trip(offset: int) -> None:
    assert node_codecs.decode_offset(node_codecs.encode_offset(offset), OFFSET) == offset


def test_an_offset_beyond_64_bits_is_not_written() -> None:
    with pytest.raises(ValueError):
        node_codecs.encode_offset(2**63)


def test_an_owner_is_plain_text() -> None:
    thread = ThreadId("g_host-1400000000000-1a2b3c4d-0")
    assert node_codecs.encode_owner(thread) == b"g_host-1400000000000-1a2b3c4d-0"
    assert node_codecs.decode_owner(node_codecs.encode_owner(thread), "/p") == thread


@pytest.mark.parametrize("data", [None, b"", b"\xff\xfe", b"x" * (2**20 + 1)])
def test_an_owner_that_names_nobody_is_refused(data: bytes | None) -> None:
    with pytest.raises(MalformedNodeError, match=r"^/p: "):
        node_codecs.decode_owner(data, "/p")


# --- brokers ----------------------------------------------------------------------------------------------------------

FEATURES = '"features":{"metadata.version":{"min_version":1,"max_version":2,"first_active_version":1}}'


@pytest.mark.parametrize(
    ("text", "version", "endpoints", "rack"),
    [
        (
            '{"jmx_port":-1,"timestamp":"1","host":"h","version":1,"port":9092}',
            1,
            [Endpoint(4, "h", 9092, 1)],
            None,
        ),
        (
            '{"jmx_port":-1,"timestamp":"1","endpoints":["PLAINTEXT://h:9092","SSL://h:9093"],"host":"h","version":2,"port":9092}',
            2,
            [Endpoint(4, "h", 9092, 2), Endpoint(4, "h", 9093, 2, "SSL")],
            None,
        ),
        (
            '{"endpoints":["SSL://h:9093"],"host":null,"port":-1,"version":3,"rack":"r1"}',
            3,
            [Endpoint(4, "h", 9093, 3, "SSL", "r1")],
            "r1",
        ),
        (
            '{"listener_security_protocol_map":{"INTERNAL":"SASL_PLAINTEXT","OUT":"plaintext"},'
            '"endpoints":["INTERNAL://[2001:db8::1]:9092","OUT://h-1.x_y:1"],"host":null,"port":-1,"version":4,"rack":null}',
            4,
            [Endpoint(4, "2001:db8::1", 9092, 4, "SASL_PLAINTEXT"), Endpoint(4, "h-1.x_y", 1, 4, "PLAINTEXT")],
            None,
        ),
        (
            '{"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT"},"endpoints":["PLAINTEXT://:9092"],'
            + FEATURES
            + ',"version":5}',
            5,
            [Endpoint(4, "", 9092, 5)],
            None,
        ),
        ('{"endpoints":["plaintext://h:9092","what",7,"X://h:99999","QUIC://h:1"],"version":77}', 77,
         [Endpoint(4, "h", 9092, 77), Endpoint(4, "h", 1, 77, "QUIC")], None),
    ],
)  # fmt: skip
def test_a_broker_of_any_generation_is_read(
    text: str, version: int, endpoints: list[Endpoint], rack: str | None
) -> None:
    assert node_codecs.decode_broker(text.encode(), BROKER) == node_codecs.RegisteredBroker(
        4, version, tuple(endpoints), rack
    )


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"{}",
        b"[]",
        b'{"version":0,"host":"h","port":1}',
        b'{"version":1,"host":null,"port":-1}',
        b'{"version":1,"host":"h"}',
        b'{"version":1,"host":"h","port":"1"}',
        b'{"version":2,"host":"h","port":1}',
        b'{"version":2,"endpoints":[]}',
        b'{"version":2,"endpoints":["h:1"]}',
        b'{"version":2,"endpoints":"PLAINTEXT://h:1"}',
        b'{"version":"2","endpoints":["PLAINTEXT://h:1"]}',
    ],
)
def test_a_broker_that_cannot_be_reached_by_its_node_is_refused(data: bytes | None) -> None:
    with pytest.raises(MalformedNodeError, match=r"^/brokers/ids/4: "):
        node_codecs.decode_broker(data, BROKER)


def test_a_broker_under_a_name_that_is_no_number_is_refused() -> None:
    with pytest.raises(MalformedNodeError):
        node_codecs.decode_broker(b'{"version":1,"host":"h","port":1}', "/brokers/ids/seqid")


# --- topics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "partitions"),
    [
        (b'{"version":1,"partitions":{"0":[1,2],"1":[2,3]}}', (0, 1)),
        (b'{"partitions":{"10":[],"2":[1],"9":[1]}}', (2, 9, 10)),
        (b'{"removing_replicas":{},"partitions":{"0":[0]},"topic_id":"AbC","adding_replicas":{},"version":3}', (0,)),
        (b'{"partitions":{"00":[0],"0":[0],"+1":[0]}}', (0, 1)),
        (b'{"partitions":{"-1":[0],"1":[0]}}', (-1, 1)),
        (b'{"partitions":{"0":[0]}} tail', (0,)),
    ],
)
def test_a_topic_s_partitions_are_its_keys(data: bytes, partitions: tuple[int, ...]) -> None:
    assert node_codecs.decode_topic(data, TOPIC) == partitions


@pytest.mark.parametrize(
    "data",
    [
        b"7",
        b'{"partitions":null}',
        b'{"partitions":{"":[0]}}',
        b'{"partitions":{"0":null}}',
        b'{"partitions":{"0":7}}',
    ],
)
def test_a_topic_that_the_original_cannot_read_is_refused(data: bytes | None) -> None:
    with pytest.raises(MalformedNodeError, match=r"^/brokers/topics/t: "):
        node_codecs.decode_topic(data, TOPIC)


def test_a_partition_s_state_is_read() -> None:
    data = b'{"controller_epoch":1,"leader":0,"version":1,"leader_epoch":3,"isr":[0,1],"leader_recovery_state":0}'
    assert node_codecs.decode_partition_state(data, STATE) == node_codecs.PartitionState(0, 3, (0, 1))


@pytest.mark.parametrize("data", [None, b"", b'{"leader":0}', b'{"leader":"0","leader_epoch":1,"isr":[]}'])
def test_a_partition_s_state_without_its_leader_is_refused(data: bytes | None) -> None:
    with pytest.raises(MalformedNodeError):
        node_codecs.decode_partition_state(data, STATE)


# --- anything at all --------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["pattern", "subscription", "version", "host", "port", "endpoints", "partitions", "leader", "isr", "0"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300)
@given(st.binary(max_size=64) | json_values.map(lambda value: json.dumps(value).encode()))
@example(b'{"x":' * 5000)
@example(b'"\\ud800"')
@example(b"-")
@example(b"\\")
@example(b"-" + b"9" * 5000)
def test_any_bytes_give_a_value_or_a_malformed_node(data: bytes) -> None:
    for decode, path in DECODERS:
        with suppress(MalformedNodeError):
            decode(data, path)
