"""What ``.option(...)`` means. Pure: no I/O, no Spark.

The names are those of Spark's Kafka source where it has the same thing, and those of the connector's properties for the
rest. Spark hands the names over in lower case, so they are compared without case; values keep theirs. Whatever is
unknown, wrong, or contradicts another is refused with its name and value before anything runs.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.keys import is_secret, keys_of
from zkconsumer.config.security import SecurityConfig
from zkconsumer.core.names import name_problem
from zkconsumer.core.topic_filter import TopicFilter, Whitelist
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.spark.ranges import EARLIEST, GROUP, LATEST, Offsets

PROPERTIES: Final = (
    "zookeeper.connect",
    "group.id",
    "zookeeper.session.timeout.ms",
    "zookeeper.connection.timeout.ms",
    "client.id",
    "socket.timeout.ms",
    "socket.receive.buffer.bytes",
    "fetch.message.max.bytes",
    "fetch.max.bytes",
    "fetch.wait.max.ms",
    "refresh.leader.backoff.ms",
    "exclude.internal.topics",
    "check.crcs",
    "isolation.level",
    "broker.address.map",
    *keys_of(SecurityConfig),
)
"""The connector's properties that reading by ranges has a use for."""

DEFAULTS: Final[Mapping[str, str]] = {"fetch.message.max.bytes": str(4 * 1024 * 1024)}
"""Where ours differ from the connector's: one partition at a time is read to its end, so larger fetches pay."""

_OURS: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
    "membership",
    "allowLiveMembers",
)
NAMES: Final[Mapping[str, str]] = {name.lower(): name for name in (*PROPERTIES, *_OURS)}
"""Every option by its name in lower case."""

_ELSEWHERE: Final[Mapping[str, str]] = {
    "kafka.bootstrap.servers": "brokers are found through zookeeper.connect",
    "bootstrap.servers": "brokers are found through zookeeper.connect",
    "kafka.group.id": "the group is named by group.id",
    "groupidprefix": "the group is named by group.id",
    "path": "load() takes no path; name the topics with subscribe",
}
"""Options of Spark's Kafka source that others take the place of."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to read: topics by name, or those a filter allows, or single partitions. Exactly one is given."""

    topics: tuple[str, ...] = ()
    allowed: TopicFilter | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options in typed form. ``starting`` and ``ending`` are None where nothing was said."""

    config: ConsumerConfig
    selection: Selection
    starting: Offsets | None = None
    ending: Offsets | None = None
    max_offsets: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    membership: str | None = None
    allow_live_members: bool = False

    @property
    def group(self) -> str:
        """The group's name."""
        return self.config.group_id

    @property
    def isolation_level(self) -> int:
        """As the protocol has it: 1 for read_committed."""
        return 1 if self.config.isolation_level == "read_committed" else 0

    def check_batch(self) -> None:
        """Raises ConfigException for what a batch cannot do."""
        if self.max_offsets is not None:
            _refuse("maxOffsetsPerTrigger", str(self.max_offsets), "a batch has no triggers; limit it by endingOffsets")
        if self.starting == LATEST:
            _refuse("startingOffsets", "latest", "a batch that starts at the end reads nothing")
        if self.membership not in (None, "none"):
            _refuse("membership", self.membership, "a batch never joins the group; leave it out or say none")
        if self.allow_live_members:
            _refuse("allowLiveMembers", "true", "it is for streams; a batch commits nothing and disturbs nobody")

    def check_stream(self) -> None:
        """Raises ConfigException for what a stream cannot do."""
        if self.membership != "none":
            reason = "a stream cannot join the group yet: say membership=none, which reads all partitions"
            _refuse("membership", "(not given)" if self.membership is None else self.membership, reason)
        if self.ending is not None:
            _refuse("endingOffsets", _shown(self.ending), "a stream has no end; use the trigger availableNow")


def parse(given: Mapping[str, str]) -> ReadOptions:
    """The options in typed form.

    Raises ConfigException naming option and value.
    """
    options = {name.lower(): value for name, value in given.items()}
    for name, value in options.items():
        if name not in NAMES:
            _refuse_unknown(name, value)
    config = ConsumerConfig({**DEFAULTS, **{name: options[name] for name in PROPERTIES if name in options}})
    return ReadOptions(
        config=config,
        selection=_selection(options),
        starting=_read(options, "startingOffsets", lambda text: _offsets(text, {-1, -2})),
        ending=_read(options, "endingOffsets", lambda text: _offsets(text, {-1}, "earliest")),
        max_offsets=_read(options, "maxOffsetsPerTrigger", _positive),
        min_partitions=_read(options, "minPartitions", _positive),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        include_headers=_flag(options, "includeHeaders", default=False),
        membership=_read(options, "membership", _membership),
        allow_live_members=_flag(options, "allowLiveMembers", default=False),
    )


def _refuse(name: str, value: str, reason: str) -> NoReturn:
    raise ConfigException(name, f"{'***' if is_secret(name) else repr(value)}: {reason}")


def _refuse_unknown(name: str, value: str) -> NoReturn:
    if name in _ELSEWHERE:
        _refuse(name, value, f"unknown option; {_ELSEWHERE[name]}")
    if name.startswith("kafka.") and name[len("kafka.") :] in NAMES:
        _refuse(name, value, f"unknown option; write {name[len('kafka.') :]!r}")
    close = difflib.get_close_matches(name.replace("_", "."), NAMES, n=1, cutoff=0.6)
    if close and is_secret(close[0]):
        value = "***"  # a password under a misspelt name is one too
    _refuse(name, value, "unknown option" + (f"; did you mean {NAMES[close[0]]!r}?" if close else ""))


def _read(options: Mapping[str, str], name: str, convert: Callable[[str], Any]) -> Any:
    text = options.get(name.lower())
    if text is None:
        return None
    try:
        return convert(text.strip())
    except ValueError as error:
        raise ConfigException(name, f"{text!r}: {error}") from None


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    def convert(text: str) -> bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false")
        return text.lower() == "true"

    value = _read(options, name, convert)
    return default if value is None else bool(value)


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) > 0):
        raise ValueError("must be a whole number of at least 1")
    return int(text)


def _membership(text: str) -> str:
    if text not in ("none", "member"):
        raise ValueError("must be none, or (not yet) member")
    return text


# ---- what to read ----


def _selection(options: Mapping[str, str]) -> Selection:
    ways = {
        "subscribe": lambda text: Selection(topics=_topics(text)),
        "subscribePattern": lambda text: Selection(allowed=Whitelist(_not_empty(text))),
        "assign": lambda text: Selection(partitions=_assigned(text)),
    }
    said = [name for name in ways if name.lower() in options]
    if not said:
        raise ConfigException("subscribe", "is missing; say subscribe, subscribePattern or assign")
    if len(said) > 1:
        _refuse(said[1], options[said[1].lower()], f"contradicts {said[0]}={options[said[0]]!r}; say one of them")
    selection: Selection = _read(options, said[0], ways[said[0]])
    return selection


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def _topic(name: str) -> str:
    problem = name_problem(name)
    if problem is not None:
        raise ValueError(problem)
    return name


def _topics(text: str) -> tuple[str, ...]:
    return tuple(sorted({_topic(name.strip()) for name in text.split(",")}))


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    example = 'must be JSON such as {"topic":[0,1]}'
    topics = _json(text, example)
    if not all(isinstance(numbers, list) and numbers for numbers in topics.values()):
        raise ValueError(example)
    return tuple(sorted({_partition(topic, number, example) for topic, ns in topics.items() for number in ns}))


def _partition(topic: str, number: object, example: str) -> TopicPartition:
    if type(number) is not int or not 0 <= number < 2**31:
        raise ValueError(f"{number!r} is no partition; {example}")
    return TopicPartition(_topic(topic), number)


def _json(text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        raise ValueError(example)
    return found


# ---- from where to where ----


def _offsets(text: str, symbols: set[int], refused: str = "") -> Offsets:
    words = {"earliest": EARLIEST, "latest": LATEST, "group": GROUP}
    word = text.lower()
    if word == refused:
        raise ValueError("nothing lies before it")
    if word in words:
        return words[word]
    example = 'must be earliest, latest, group, or JSON such as {"topic":{"0":23,"1":-1}}'
    given: dict[TopicPartition, int] = {}
    for topic, partitions in _json(text, example).items():
        if not isinstance(partitions, dict):
            raise ValueError(example)
        for number, offset in partitions.items():
            if not (number.isascii() and number.isdigit()):
                raise ValueError(f"{number!r} is no partition; {example}")
            if type(offset) is not int or not (0 <= offset < 2**63 or offset in symbols):
                raise ValueError(f"{offset!r} is no offset here; {example}")
            given[_partition(topic, int(number), example)] = offset
    return Offsets("given", given)


def _shown(offsets: Offsets) -> str:
    return offsets.word if offsets.given is None else "JSON"
