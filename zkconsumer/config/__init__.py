"""The configuration of a consumer: every property of the original connector and our own. Pure, but for reading a file.

:class:`ConsumerConfig` is immutable and may be used by any thread. It mirrors ``kafka.consumer.ConsumerConfig``: the
same names, types and defaults. On purpose different: every limit is checked at construction, a bad group is not
reported as a bad ``client.id``, and unknown names are compared with the known ones.

``keys`` knows what a property is, ``consumer`` holds the table of them, ``zookeeper`` reads ``zookeeper.connect``,
``properties`` reads Java's files, ``table`` renders the documentation.
"""

from zkconsumer.config.consumer_config import ConsumerConfig, SuspectConfigWarning, UnknownPropertyWarning
from zkconsumer.config.property_table import markdown_tables

__all__ = ["ConsumerConfig", "SuspectConfigWarning", "UnknownPropertyWarning", "markdown_tables"]
