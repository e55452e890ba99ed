"""The errors of the embedded cluster. Pure.

The consumer raises none of these errors, so ``zkconsumer.errors`` does not have them. The base class is the same.
"""

from __future__ import annotations

from zkconsumer.errors import ZkConsumerError


class DevClusterError(ZkConsumerError):
    """The base of the errors of the embedded cluster."""


class JavaNotFoundError(DevClusterError):
    """No Java 17 or newer was found. The message says how to get one."""


class JarResolutionError(DevClusterError):
    """The jars could not be fetched. The message quotes the last lines of the resolver."""


class OtherClusterError(DevClusterError):
    """A background cluster is up that lacks what was asked for. The message says where it serves and how to end it."""


class ServerStartError(DevClusterError):
    """A server did not become ready. The message quotes the end of its log."""


class ServerStopError(DevClusterError):
    """A server survived SIGKILL, which no healthy process does."""
