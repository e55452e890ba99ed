"""Ends sessions of ZooKeeper for real, as seen by the client that has one."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from tests.timing import scaled

_TRIES = 10


def end_session(connect: str, identity: tuple[int, bytes], timeout: float = 10.0) -> None:
    """Take a session over and close it, until the session is gone. The client takes the session back from a slow twin,
    also right before the twin's close, which then does nothing.

    Arguments: ``identity`` is the session's id and password, ``timeout`` its own in seconds.
    """
    for tried in range(_TRIES):
        twin = KazooClient(connect, client_id=identity, timeout=timeout)
        try:
            twin.start(timeout=scaled(10))
            if twin.client_id is not None and twin.client_id[0] != identity[0]:
                return  # the twin got a new session: the old session is over
        except KazooTimeoutError:
            if tried == _TRIES - 1:
                raise
        finally:
            twin.stop()
            twin.close()
    raise AssertionError(f"session 0x{identity[0]:x} is still alive after {_TRIES} tries to end it")
