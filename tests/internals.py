"""The internal objects of a connector that cluster tests look at or damage. No other cluster test reaches for them."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from zkconsumer import ZookeeperConsumerConnector


def member_of(connector: ZookeeperConsumerConnector) -> Any:
    """Return the connector's member."""
    assert connector._member is not None
    return connector._member


def session_of(connector: ZookeeperConsumerConnector) -> Any:
    """Return the session of the connector's member."""
    return member_of(connector).coordination.session


def kazoo_client_of(session: Any) -> KazooClient:
    """Return the ZooKeeper client of a session."""
    assert session._client is not None
    return session._client


def only_fetcher_of(connector: ZookeeperConsumerConnector) -> tuple[Any, Any]:
    """Return the connector's only fetcher and its fetch session."""
    (fetcher,) = member_of(connector).parts.fetching._fetchers.values()
    return fetcher, fetcher._broker._session
