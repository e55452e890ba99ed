"""The configuration of a consumer: all properties of the original connector and of this package.

Pure, except that it reads properties files. :class:`ConsumerConfig` is immutable, and any thread may use it. It mirrors
``kafka.consumer.ConsumerConfig``: the same names, types and defaults. It differs on purpose: the constructor checks
every limit, a bad group is not reported as a bad ``client.id``, and a warning for an unknown name suggests a known one.

``config_definition`` defines a property, and ``consumer_config`` declares them, with the ``..._properties`` of its
parts. ``addresses`` parses servers, and ``java_properties`` parses Java's files.
"""

from zkconsumer.config.consumer_config import ConsumerConfig, SuspectConfigWarning, UnknownPropertyWarning

__all__ = ["ConsumerConfig", "SuspectConfigWarning", "UnknownPropertyWarning"]
