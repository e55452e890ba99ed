"""Ends sessions of ZooKeeper for real, as seen by the client that has one."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from tests.timing import scaled

_TRIES = 4


def end_session(connect: str, identity: tuple[int, bytes], timeout: float = 10.0) -> None:
    """Take a session over and close it. Its client takes it back where this one is slow; then once more.

    Arguments: ``identity`` is the session's id and password, ``timeout`` its own in seconds.
    """
    for tried in range(_TRIES):
        twin = KazooClient(connect, client_id=identity, timeout=timeout)
        try:
            twin.start(timeout=scaled(10))
            return
        except KazooTimeoutError:
            if tried == _TRIES - 1:
                raise
        finally:
            twin.stop()
            twin.close()
