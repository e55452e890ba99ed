"""What can go wrong with the embedded cluster. Pure.

These are not errors of the consumer, so they live here and not in ``zkconsumer.errors``; they share its root.
"""

from __future__ import annotations

from zkconsumer.errors import ZkConsumerError


class DevClusterError(ZkConsumerError):
    """Base of the errors of the embedded cluster."""


class JavaNotFoundError(DevClusterError):
    """No Java 17 or newer was found; the message says how to get one."""


class JarResolutionError(DevClusterError):
    """The jars could not be fetched; the message quotes what the resolver said last."""


class ServerStartError(DevClusterError):
    """A server did not become ready; the message quotes the tail of its log."""


class ServerStopError(DevClusterError):
    """A server outlived SIGKILL; nothing that runs normally does."""
