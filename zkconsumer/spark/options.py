"""The options of the data source, parsed. Pure: no I/O, no Spark.

Names are those of Spark's Kafka source if it has the same option. The rest are the connector's properties, which may
also be given with Spark's prefix ``kafka.``. Spark hands names over in lower case, so they are compared without case;
values keep theirs. An option that is unknown, wrong, or contradicts another is refused with its name and value before
anything runs.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import HIDDEN, holds_credentials, is_secret, keys_of, looks_secret
from zkconsumer.config.coordination_properties import BY_BROKERS
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.errors import ConfigException
from zkconsumer.model import TopicPartition
from zkconsumer.spark import option_values as values
from zkconsumer.spark.kafka_source_options import FOR_BROKERS_GROUPS, INSTEAD, KAFKA
from zkconsumer.spark.offset_ranges import LATEST, PACKED_OFFSETS, OffsetChoice
from zkconsumer.spark.schema import without_copies

if TYPE_CHECKING:
    from zkconsumer.core.topic_filter import TopicFilter

_FOR_BROKERS: Final = ("session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "group.instance.id")
_BOOTSTRAP: Final = "bootstrap.servers"

MEMBER_PROPERTIES: Final = (
    *_FOR_BROKERS,
    *("zookeeper.sync.time.ms", "rebalance.max.retries", "rebalance.backoff.ms", "rebalance.quiet.ms"),
    *("rebalance.interval.ms", "partition.assignment.strategy", "assignment.mixed.group", "assignment.rooms"),
    *("assignment.table", "machine.room", "scala.compat.version"),
)
"""The connector's properties that only a member of the group has a use for."""

PROPERTIES: Final = (
    *("group.coordination", _BOOTSTRAP, "zookeeper.connect", "group.id", "zookeeper.session.timeout.ms"),
    *("zookeeper.connection.timeout.ms", "client.id", "socket.timeout.ms", "socket.receive.buffer.bytes"),
    *("fetch.message.max.bytes", "fetch.max.bytes", "fetch.wait.max.ms", "refresh.leader.backoff.ms"),
    *("batch.expanded.max.bytes", "exclude.internal.topics", "check.crcs", "isolation.level", "broker.address.map"),
    *keys_of(SecurityConfig),
    *MEMBER_PROPERTIES,
)
"""The connector's properties that reading by ranges has a use for."""

DEFAULTS: Final[Mapping[str, str]] = {
    "fetch.message.max.bytes": str(4 * 1024 * 1024),
    "socket.receive.buffer.bytes": str(512 * 1024),
    "auto.commit.interval.ms": "5000",
}
"""Where ours differ from the connector's: one partition at a time is read to its end, so larger fetches pay, and so
does a buffer of the socket in which more of them waits than the original's 64 KB, which the broker fills and the task
empties in turns; and a commit that failed after its batch is made up for soon.
"""

READ_ON_DRIVER: Final = "readOnDriver"
TABLE: Final = "table"
"""The option that names a table about groups. The options of messages do not have it."""
MAX_TRIGGER_DELAY: Final = 15 * 60.0
"""Seconds for which a batch waits for ``minOffsetsPerTrigger`` unless ``maxTriggerDelay`` is given, as in Spark's Kafka
source.
"""
_OURS: Final = (
    *("subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
    *("startingOffsetsByTimestampStrategy", "endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "maxRecordsPerPartition"),
    *(READ_ON_DRIVER, "failOnDataLoss", "includeHeaders", "membership", "releaseAfter", "checkpointLocation"),
    *("allowLiveMembers", "allowMissingTopics", TABLE),
)
NAMES: Final[Mapping[str, str]] = {name.lower(): name for name in (*PROPERTIES, *_OURS)}
"""Every option by its name in lower case."""

Parsed = TypeVar("Parsed")
_SPELLED: Final[Mapping[str, str]] = {**{name.lower(): name for name in INSTEAD}, **NAMES}


@dataclass(frozen=True, slots=True)
class Selection:
    """The topics to read: by name, by a filter, or as single partitions. Exactly one is given."""

    topics: tuple[str, ...] = ()
    allowed: TopicFilter | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """All options in typed form.

    ``starting`` and ``ending`` are None if they were not given; ``spelled`` tells how the user wrote a name, by the
    name in lower case.
    """

    config: ConsumerConfig
    selection: Selection
    starting: OffsetChoice | None = None
    ending: OffsetChoice | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_trigger_delay: float = MAX_TRIGGER_DELAY
    min_partitions: int | None = None
    max_records: int | None = None
    read_on_driver: bool = False
    fail_on_data_loss: bool = True
    include_headers: bool = False
    membership: str | None = None
    release_after: float | None = None
    checkpoint: str | None = None
    allow_live_members: bool = False
    allow_missing_topics: bool = False
    end_where_time_is_not_reached: bool = False
    for_members: tuple[str, ...] = ()
    spelled: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        """The group's name."""
        return self.config.group_id

    @property
    def isolation_level(self) -> int:
        """As the protocol has it: 1 for read_committed."""
        return 1 if self.config.isolation_level == "read_committed" else 0

    @property
    def is_member(self) -> bool:
        """Whether a stream joins the group."""
        return self.membership != "none"

    def __str__(self) -> str:
        """Return topics and group in words: "topics orders, refunds in group 'billing'"."""
        selection = self.selection
        if selection.allowed is not None:
            what = f"topics like {selection.allowed.regex!r}"
        elif selection.partitions:
            what = f"partitions {', '.join(map(str, selection.partitions))}"
        else:
            what = f"{'topic' if len(selection.topics) == 1 else 'topics'} {', '.join(selection.topics)}"
        return f"{what} in group {self.group!r}"

    def check_batch(self) -> None:
        """Refuse options that a batch cannot have, all in one error. Raises ConfigException."""
        refuse_all(self._not_for_batches(), {})
        self._check_times()

    def check_stream(self) -> None:
        """Refuse options that a stream cannot have, all in one error. Raises ConfigException."""
        refuse_all(self._not_for_streams(), {})

    def _not_for_batches(self) -> Iterator[Refusal]:
        if self.max_offsets is not None:
            reason = "a batch has no triggers; limit it by endingOffsets"
            yield Refusal("maxOffsetsPerTrigger", str(self.max_offsets), reason)
        if self.min_offsets is not None:
            yield Refusal(
                "minOffsetsPerTrigger", str(self.min_offsets), "a batch has no triggers; it reads what there is"
            )
        if self.read_on_driver:
            yield Refusal(READ_ON_DRIVER, "true", "is for streams; tasks read a batch")
        if self.starting == LATEST:
            yield Refusal("startingOffsets", "latest", "a batch that starts at the end reads nothing")
        if self.starting is not None and -1 in (self.starting.given or {}).values():
            reason = "a batch that starts at the end (-1) reads nothing"
            yield Refusal("startingOffsets", shown(self.starting), reason)
        if self.membership not in (None, "none"):
            reason = "a batch never joins the group; leave it out or say none"
            yield Refusal("membership", self.membership, reason)
        if self.allow_live_members:
            reason = "it is for streams; a batch commits nothing and disturbs nobody"
            yield Refusal("allowLiveMembers", "true", reason)
        yield from self._for_members("a batch never joins the group")

    def _not_for_streams(self) -> Iterator[Refusal]:
        if self.ending is not None:
            reason = "a stream has no end; use availableNow"
            yield Refusal(option_of("ending", self.ending), shown(self.ending), reason)
        if self.read_on_driver and (self.max_offsets is None or self.max_offsets > PACKED_OFFSETS):
            reason = f"is for small batches; set maxOffsetsPerTrigger, to {PACKED_OFFSETS} at most"
            yield Refusal(READ_ON_DRIVER, "true", reason)
        for name, number in (("minPartitions", self.min_partitions), ("maxRecordsPerPartition", self.max_records)):
            if self.read_on_driver and number is not None:
                yield Refusal(name, str(number), "contradicts readOnDriver=true: no task reads")
        if not self.is_member:
            yield from self._for_members("contradicts membership='none'")
            return
        if self.selection.partitions:
            names = ", ".join(map(str, self.selection.partitions[:3]))
            yield Refusal("assign", names, "a member owns what the group leaves it; say subscribe, or membership=none")
        if self.allow_live_members:
            reason = "is for membership=none; a member always shares the group with others"
            yield Refusal("allowLiveMembers", "true", reason)

    def _check_times(self) -> None:
        """Refuse a batch that ends before it starts. Raises ConfigException."""
        starting, ending = self.starting, self.ending
        if starting is None or ending is None or not (starting.by_time and ending.by_time):
            return
        start, end = option_of("starting", starting), option_of("ending", ending)
        if starting.time is not None and ending.time is not None and ending.time < starting.time:
            refuse(end, str(ending.time), f"is before {start}={starting.time}")
        partitions = sorted({*(starting.times or ()), *(ending.times or ())})
        starts, ends = starting.times_of(partitions), ending.times_of(partitions)
        for tp in partitions:
            if tp in starts and tp in ends and ends[tp] < starts[tp]:
                refuse(end, shown(ending), f"{ends[tp]} of {tp} is before {starts[tp]} of {start}")

    def _for_members(self, reason: str) -> Iterator[Refusal]:
        if self.release_after is not None:
            yield Refusal("releaseAfter", f"{self.release_after:g}", reason)
        if self.checkpoint is not None:
            yield Refusal("checkpointLocation", self.checkpoint, reason)
        for name in self.for_members:
            value = str(getattr(self.config, name.replace(".", "_")))
            yield Refusal(self.spelled.get(name, name), value, reason)


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Return the options in typed form.

    Raises ConfigException naming option and value, the option as the user wrote it. Spark tells names in lower case;
    then they are spelled as in the documentation.
    """
    return as_written(given, _parsed)


def as_written(given: Mapping[str, str], read: Callable[[Mapping[str, str], Mapping[str, str]], Parsed]) -> Parsed:
    """Return what ``read`` makes of the options, given with names in lower case and without Spark's prefix.

    ``read`` is also told how the user wrote each name. Raises as :func:`parse`.
    """
    given = without_copies(given).options
    written = {name.lower(): _SPELLED.get(name, name) for name in given}
    options = {name.lower(): value for name, value in given.items()}
    plain = {name.removeprefix(KAFKA): name for name in options}  # "x" for "kafka.x"
    spelled = {short: written[short if short in written else name] for short, name in plain.items()} | written
    try:
        return read(_plain(options), spelled)
    except ConfigException as error:
        name = spelled.get(error.key.lower(), error.key)
        if name == error.key:
            raise
        raise ConfigException(name, error.reason) from error.__cause__


def _parsed(options: Mapping[str, str], spelled: Mapping[str, str]) -> ReadOptions:
    refuse_all(_problems(options), spelled)
    if TABLE in options:
        refuse(TABLE, options[TABLE], "a snapshot is one of messages; tables about groups are read by spark.read")
    _check_least(options)
    config = ConsumerConfig({**DEFAULTS, **{name: options[name] for name in PROPERTIES if name in options}})
    return ReadOptions(
        config=config,
        selection=_selection(options),
        starting=_place(options, "starting", {-1, -2}, ""),
        ending=_place(options, "ending", {-1}, "earliest"),
        max_offsets=_read(options, "maxOffsetsPerTrigger", values.positive),
        min_offsets=_read(options, "minOffsetsPerTrigger", values.positive),
        max_trigger_delay=_read(options, "maxTriggerDelay", values.duration, default=MAX_TRIGGER_DELAY),
        min_partitions=_read(options, "minPartitions", values.positive),
        max_records=_read(options, "maxRecordsPerPartition", values.positive),
        read_on_driver=_read(options, READ_ON_DRIVER, values.flag, default=False),
        fail_on_data_loss=_read(options, "failOnDataLoss", values.flag, default=True),
        include_headers=_read(options, "includeHeaders", values.flag, default=False),
        membership=_read(options, "membership", values.choice("member", "none")),
        release_after=_read(options, "releaseAfter", values.seconds),
        checkpoint=_read(options, "checkpointLocation", values.not_empty),
        allow_live_members=_read(options, "allowLiveMembers", values.flag, default=False),
        allow_missing_topics=_read(options, "allowMissingTopics", values.flag, default=False),
        end_where_time_is_not_reached=_strategy(options) == "latest",
        for_members=tuple(name for name in MEMBER_PROPERTIES if name in options),
        spelled=spelled,
    )


def _plain(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the prefix of Spark, if the connector has a property of that name."""
    plain = {}
    for name, value in options.items():
        short = name.removeprefix(KAFKA)
        if name not in INSTEAD and short in PROPERTIES and not short.startswith("zookeeper."):
            if options.get(short, value) != value:
                shown = quoted(short, options[short])
                refuse(name, value, f"contradicts {short}={shown}; say one of them")
            name = short
        plain[name] = value
    return plain


def _problems(options: Mapping[str, str]) -> list[Refusal]:
    """Return all options without a meaning here; if there are some, also those that are missing."""
    found = [unknown(name, value) for name, value in options.items() if name not in NAMES]
    by_brokers = options.get("group.coordination", "").strip().lower() == BY_BROKERS
    if not by_brokers:
        found += [Refusal(n, options[n], reason) for n, reason in FOR_BROKERS_GROUPS.items() if n in options]
    if found:
        wanted = ("group.id",) if by_brokers else ("zookeeper.connect", "group.id")
        found += [Refusal(name, None, "is missing") for name in wanted if name not in options]
    return found


class Refusal(NamedTuple):
    """An option, the value (None: not given), and the reason of the refusal."""

    name: str
    value: str | None
    reason: str


def refuse_all(refusals: Iterable[Refusal], spelled: Mapping[str, str]) -> None:
    """Raise one ConfigException for all refused options, a line each. Without any this does nothing.

    Arguments: ``spelled`` tells how the user wrote a name, by the name in lower case.
    """
    found = list(refusals)
    if not found:
        return
    # what is missing was spelt by nobody: kafka.group.id, if it was given, is another option
    names = [one.name if one.value is None else spelled.get(one.name, one.name) for one in found]
    reasons = [one.reason if one.value is None else f"{quoted(one.name, one.value)}: {one.reason}" for one in found]
    others = [f"\n{name}: {text}" for name, text in zip(names[1:], reasons[1:], strict=True)]
    raise ConfigException(names[0], reasons[0] + "".join(others))


def refuse(name: str, value: str, reason: str) -> NoReturn:
    """Raise ConfigException for an option; its value is hidden if it may be a secret."""
    raise ConfigException(name, f"{quoted(name, value)}: {reason}")


def quoted(name: str, value: str) -> str:
    """Return the value for an error, unless it is or may hold a secret."""
    known = name.lower() in NAMES or name.removeprefix(KAFKA) in INSTEAD
    hidden = is_secret(name) or holds_credentials(value) or (not known and looks_secret(name, value, NAMES))
    return HIDDEN if hidden else repr(value)


def unknown(name: str, value: str) -> Refusal:
    """Return the refusal of an option that does not exist, with its replacement or the most similar option."""
    short = name.removeprefix(KAFKA)
    instead = INSTEAD.get(_SPELLED.get(name, name)) or INSTEAD.get(short)
    if instead is not None:
        return Refusal(name, value, f"unknown option; {instead}")
    close = difflib.get_close_matches(short.replace("_", "."), NAMES, n=1, cutoff=0.6)
    return Refusal(name, value, "unknown option" + (f"; did you mean {NAMES[close[0]]!r}?" if close else ""))


def _read(options: Mapping[str, str], name: str, convert: Callable[[str], Any], *, default: Any = None) -> Any:
    text = options.get(name.lower())
    if text is None:
        return default
    try:
        return convert(text.strip())
    except ValueError as error:
        raise ConfigException(name, f"{text!r}: {error}") from None


def _contradiction(options: Mapping[str, str], one: str, other: str) -> None:
    if one.lower() in options and other.lower() in options:
        refuse(one, options[one.lower()], f"contradicts {other}={options[other.lower()]!r}; say one of them")


def _place(options: Mapping[str, str], edge: str, symbols: set[int], refused: str) -> Any:
    """Return where to start or end.

    A time comes before the times of partitions, and these come before offsets, as in Spark's Kafka source.
    """
    ways = [
        _read(options, f"{edge}Timestamp", values.timestamp),
        _read(options, f"{edge}OffsetsByTimestamp", values.timestamps),
        _read(options, f"{edge}Offsets", lambda text: values.offsets(text, symbols, refused)),
    ]
    return next((place for place in ways if place is not None), None)


def _check_least(options: Mapping[str, str]) -> None:
    """Refuse a delay without a reason to wait, and a batch that must be larger than it may be."""
    least, most = (_read(options, f"{edge}OffsetsPerTrigger", values.positive) for edge in ("min", "max"))
    if least is None and "maxtriggerdelay" in options:
        refuse("maxTriggerDelay", options["maxtriggerdelay"], "is of no use without minOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        refuse("minOffsetsPerTrigger", str(least), f"is more than maxOffsetsPerTrigger={most}")


def _strategy(options: Mapping[str, str]) -> Any:
    name = "startingOffsetsByTimestampStrategy"
    strategy = _read(options, name, lambda text: values.choice("error", "latest")(text.lower()))
    if strategy is not None and not {"startingtimestamp", "startingoffsetsbytimestamp"}.intersection(options):
        refuse(name, strategy, "is of no use without startingTimestamp or startingOffsetsByTimestamp")
    return strategy


def _selection(options: Mapping[str, str]) -> Selection:
    ways = {
        "subscribe": lambda text: Selection(topics=values.topics(text)),
        "subscribePattern": lambda text: Selection(allowed=_filter(values.not_empty(text))),
        "assign": lambda text: Selection(partitions=values.assigned(text)),
    }
    said = [name for name in ways if name.lower() in options]
    if not said:
        raise ConfigException("subscribe", "is missing; say subscribe, subscribePattern or assign")
    if len(said) > 1:
        _contradiction(options, said[1], said[0])
    selection: Selection = _read(options, said[0], ways[said[0]])
    return selection


def _filter(text: str) -> TopicFilter:
    from zkconsumer.core.topic_filter import Whitelist  # it takes as long to import as a small task

    return Whitelist(text)


def option_of(edge: str, place: OffsetChoice) -> str:
    """Return the option that named a place; ``edge`` is "starting" or "ending"."""
    if not place.by_time:
        return f"{edge}Offsets"
    return f"{edge}Timestamp" if place.times is None else f"{edge}OffsetsByTimestamp"


def shown(place: OffsetChoice) -> str:
    """Return a place as its option writes it."""
    if place.time is not None:
        return str(place.time)
    if place.named is None:
        return place.word
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(place.named.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))
