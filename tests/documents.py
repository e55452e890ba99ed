"""The documents of the project: README, the pages of ``zkconsumer/docs``, DESIGN and CONTRIBUTING.

``python -m tests.documents`` writes the generated parts anew: the tables of properties, the state diagrams, and the
doctor's checks. Run it after a change of a property, a state table or a check.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from zkconsumer.config import ConsumerConfig
from zkconsumer.config.config_definition import ConfigKey, keys_of
from zkconsumer.config.consumer_config import OriginalConfig
from zkconsumer.config.coordination_properties import CoordinationConfig
from zkconsumer.config.security_properties import SecurityConfig
from zkconsumer.member.brokers import state_machine as brokers
from zkconsumer.member.zookeeper import state_machine as zookeeper
from zkconsumer.operations.doctor import CHECKS
from zkconsumer.operations.doctor.findings import DOCS_PAGE
from zkconsumer.spark.kafka_source_options import markdown_table

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
DESIGN = ROOT / "zkconsumer" / "DESIGN.md"
DOCS = ROOT / "zkconsumer" / "docs"
DECISIONS = sorted((ROOT / "zkconsumer").glob("*/DECISIONS.md"))
PAGES = [
    README,
    *sorted((ROOT / "zkconsumer").glob("*.md")),
    *DECISIONS,
    ROOT / "zkconsumer/member/STATES.md",
    ROOT / "tests/simulation/README.md",
    *sorted((ROOT / "scripts/measurements/figures").glob("*.md")),
    *sorted(DOCS.glob("*.md")),
]
"""The pages whose links, file names, imports and generated parts are checked."""

EXAMPLES = {
    "produce": "NewTopic(",
    "first read": "for message in stream:\n            print(message.topic",
    "dataframe": 'master("local[2]")',
    "tutorial's member": 'group_id="tutorial",',
    "tutorial's worker": "an unlucky number",
    "many streams": "workers=4",
    "balance": "concurrency=64",
    "columns": "stream.batches()",
    "topics": "connector.read(",
    "asyncio": "asyncio.run(main())",
    "shutdown": "shutdown_on_signal",
    "commit": "connector.commit_offsets()",
    "service": "report_health(connector, os",
    "strategy": "OnlyAssignor",
    "placement": '"billing-0"',
    "sqlite": "store.record(database, message)",
    "postgres": "store.record(database, *messages)",
    "brokers": 'group_coordination="kafka"',
    "test kit": "FakeCluster",
    "health": "Collector(connector)",
    "snapshot": "spark.snapshot(",
    "query": "spark-live",
    "reports": "spark.source_reports(",
    "pipeline": "def write(batch",
    "cluster": "cluster-readers",
    "explain": "explained_partitions(",
}
"""A text by which to find each Python example in README and the docs. Tests run every one of them."""

SERVICES = DOCS / "services.md"


class Question(NamedTuple):
    """What a newcomer asks, and where the documents answer it.

    ``who`` is a Python developer, an operator, a user of Spark, or an owner of members on the JVM. ``typed`` are words
    for the search of the site, which finds what has them. ``answer`` is a text of the section ``place``.
    """

    who: str
    question: str
    typed: str
    place: str
    answer: str


QUESTIONS = [
    Question(
        "Python",
        "In place of kafka-python's loop, what is the smallest program?",
        "kafka-python",
        "coming-from.md#kafka-python",
        "`for message in stream`",
    ),
    Question(
        "JVM",
        "A Scala member of my group uses range: what do I set, and what if we differ?",
        "Scala strategy",
        "README.md#joining-a-group-of-scala-consumers",
        "nobody reads some of the partitions",
    ),
    Question(
        "operator",
        "Which member holds partition 3 of orders?",
        "who owns partition",
        "operating.md#who-owns-a-partition-and-its-lag",
        "explain payments orders:3",
    ),
    Question(
        "Python",
        "What happens to the message in hand on SIGTERM?",
        "SIGTERM",
        "services.md#shutdown",
        "SIGTERM without `stop_on`",
    ),
    Question(
        "Python",
        "How do I commit by hand, after my database has the row?",
        "commit by hand",
        "offsets.md#commits-automatic-or-by-hand",
        "`auto.commit.enable=false` only your own calls commit",
    ),
    Question(
        "Python",
        "My handler raises for one message: does everything stop?",
        "poison pill",
        "dead-letters.md#retry-parked-messages-and-dead-letters",
        "catch the exception",
    ),
    Question(
        "operator",
        "How do I get an alert when the lag grows?",
        "lag alert",
        "metrics.md#the-alerts",
        "`ConsumerGroupFallsBehind`",
    ),
    Question(
        "operator",
        "How does a group read again from yesterday, 9:00? Must its members be stopped?",
        "reset offsets datetime",
        "resets.md#where-to",
        "Without a zone at its end it is UTC",
    ),
    Question(
        "Python",
        "Where does a new group begin?",
        "auto.offset.reset",
        "README.md#a-first-read",
        "a new group begins at the end",
    ),
    Question(
        "Spark",
        "Which format and options read a topic as a stream?",
        "Spark options",
        "spark-options.md#sparks-options",
        'format("zkconsumer")',
    ),
    Question(
        "Spark",
        "Is a query exactly once, and where are its offsets?",
        "Spark guarantees checkpoint",
        "spark-guarantees.md#start-and-restart",
        "the larger of checkpoint and group's offset",
    ),
    Question(
        "JVM",
        "Our offsets are in Kafka, or in both stores: what do I set?",
        "dual.commit.enabled",
        "offsets.md#where-offsets-are-kept",
        "`offsets.storage=kafka`",
    ),
    Question(
        "operator",
        "The log says: can't rebalance after 4 retries. What now?",
        "rebalance failed",
        "groups.md#what-scala-members-log-when-a-rebalance-failed",
        "`can't rebalance after 4 retries`",
    ),
    Question(
        "operator",
        "ZooKeeper is down for five minutes: do we get duplicates, must we restart?",
        "ZooKeeper down",
        "groups.md#when-zookeeper-is-down-or-a-session-expires",
        "needs no restart",
    ),
    Question(
        "Python",
        "How do I use several cores, in spite of the GIL?",
        "GIL cores parallel",
        "message-balance.md#sizing-threads-processes-and-cores",
        '`executor="processes"`',
    ),
    Question(
        "operator",
        "Where do I set passwords and TLS?",
        "SASL password TLS SSL",
        "security.md#security-tls-passwords-kerberos-and-acls",
        "sasl.password=",
    ),
    Question(
        "Python",
        "How do I test my handler with pytest, without Kafka?",
        "pytest mock",
        "testing.md#testing-without-a-cluster-the-test-kit",
        "@pytest.fixture",
    ),
    Question(
        "Python",
        "How do I decode Avro, and is zstd read?",
        "deserializer Avro JSON compression zstd",
        "reading.md#decoders-json-avro-protobuf-and-compression",
        "`AvroDeserializer",
    ),
    Question(
        "operator",
        "How many messages a second does a member read?",
        "performance throughput",
        "speed.md#speed-throughput-latency-and-other-figures",
        "million messages a second",
    ),
    Question(
        "JVM",
        "How does a live group get ready for Kafka 4, and back?",
        "migration KRaft Kafka 4",
        "migration.md#the-steps",
        "To go back",
    ),
]
"""Questions of the first hour and the first week. Each is answered within two clicks from README."""

_EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)
_GENERATED = re.compile(r"(<!-- (properties|states|checks|kafka)(?:: (\w+))? -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def examples(page: Path) -> list[str]:
    """Return the Python examples of one page."""
    return _EXAMPLE.findall(page.read_text(encoding="utf-8"))


def fenced(page: Path, language: str) -> str:
    """Return the one block of a page in this language: ``ini``, ``yaml``."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    return str(found)


def example(name: str) -> str:
    """Return the one example of this name, a key of ``EXAMPLES``."""
    (found,) = [text for page in PAGES for text in examples(page) if EXAMPLES[name] in text]
    return found


def regenerated(text: str) -> str:
    """Return a page's text with its generated parts written anew."""
    return _GENERATED.sub(lambda match: match[1] + _generate(match[2], match[3]) + match[4], text)


def _generate(kind: str, part: str) -> str:
    if kind == "checks":
        places = {check: "" if check.page == DOCS_PAGE else check.page.removeprefix("docs/") for check in CHECKS}
        rows = [f"| [{check.name}]({place}#{check.name}) | {check.purpose} |" for check, place in places.items()]
        return "\n" + "\n".join(["| check | finds |", "|---|---|", *rows]) + "\n\n"
    if kind == "kafka":
        return f"\n{markdown_table()}\n\n"
    if kind == "properties":
        return f"\n{property_tables()[part]}\n"
    diagram = {"zookeeper": zookeeper.diagram, "brokers": brokers.diagram}[part]
    return f"```mermaid\n{diagram()}\n```\n"


def property_tables() -> dict[str, str]:
    """Return the properties as Markdown tables, one for each part: original, own, coordination and security."""
    rows = keys_of(ConsumerConfig)
    parts = {
        "original": keys_of(OriginalConfig),
        "coordination": keys_of(CoordinationConfig),
        "security": keys_of(SecurityConfig),
    }
    parts["own"] = {name: key for name, key in rows.items() if not any(name in part for part in parts.values())}
    head = "| key | type | default | note |\n|---|---|---|---|\n"
    return {part: head + "".join(_property_row(name, rows[name]) for name in names) for part, names in parts.items()}


def _property_row(name: str, key: ConfigKey) -> str:
    return f"| `{name}` | {key.kind} | {_default(key)} | {key.note.replace('|', '&#124;')} |\n"


def _default(key: ConfigKey) -> str:
    if key.required:
        return "required"
    if key.default_text:
        return key.default_text
    return f"`{str(key.default).lower() if isinstance(key.default, bool) else key.default}`"


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(regenerated(text), encoding="utf-8")
