"""The internal objects of a connector that tests look at or damage. No other test reaches for them."""

from __future__ import annotations

from typing import Any

from kazoo.client import KazooClient

from zkconsumer import AsyncZookeeperConsumerConnector, ZookeeperConsumerConnector


def find_member(connector: ZookeeperConsumerConnector | AsyncZookeeperConsumerConnector) -> Any:
    """Return the connector's member; None before the first streams and after the shutdown."""
    return connector.lifecycle.member


def member_of(connector: ZookeeperConsumerConnector | AsyncZookeeperConsumerConnector) -> Any:
    """Return the connector's member, which it must have."""
    member = find_member(connector)
    assert member is not None
    return member


def session_of(connector: ZookeeperConsumerConnector) -> Any:
    """Return the session of the connector's member."""
    return member_of(connector).coordination.session


def find_kazoo_client(session: Any) -> KazooClient | None:
    """Return the ZooKeeper client of a session; None before it is open and after its close."""
    client: KazooClient | None = session._client
    return client


def kazoo_client_of(session: Any) -> KazooClient:
    """Return the ZooKeeper client of a session, which must be open."""
    client = find_kazoo_client(session)
    assert client is not None
    return client


def only_fetcher_of(connector: ZookeeperConsumerConnector) -> tuple[Any, Any]:
    """Return the connector's only fetcher and its fetch session."""
    (fetcher,) = member_of(connector).parts.fetching.fetchers.running
    return fetcher, fetcher._broker._session
