"""Chooses the address of a broker among those that it registered. Pure.

The original knows PLAINTEXT only and takes a broker's first such endpoint. It fails its whole leader search if any live
broker has none (spec: BrokerEndPointNotAvailableException). Here the choice is made for one broker at a time, so a
broker without a usable endpoint harms only its own partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from zkconsumer.errors import NoReachableEndpointError
from zkconsumer.model import Endpoint


def address(host: str, port: int) -> str:
    """Return ``host:port`` as text, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """Return (host, port) of ``host:port``, ``[v6]:port`` or, with a default port, ``host`` alone.

    Raises: ValueError for anything else.
    """
    rest = text.strip()
    if rest.startswith("["):
        host, bracket, rest = rest[1:].partition("]")
        if not bracket:
            raise ValueError(f"{text!r}: the bracket is not closed")
        colon, port = rest[:1], rest[1:]
    elif rest.count(":") > 1:
        raise ValueError(f"{text!r}: put an IPv6 host into brackets")
    else:
        host, colon, port = rest.partition(":")
    if not colon and not port and default_port is not None:
        return host, default_port
    if colon != ":" or not (port.isascii() and port.isdigit()) or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not host:port")
    return host, int(port)


def choose_endpoint(
    endpoints: Iterable[Endpoint], security_protocol: str, address_map: Mapping[str, str] | None = None
) -> Endpoint:
    """Return the address of one broker: its first endpoint of the wanted protocol, mapped by ``address_map``.

    Arguments: ``endpoints`` as the broker registered them; ``security_protocol`` as in ``security.protocol``.
    ``address_map`` (``broker.address.map``) is for brokers in containers or behind tunnels. It maps a registered
    ``host:port``, or a ``host`` alone, to ``host:port``, or to a ``host`` that keeps the port. Its keys are in lower
    case and IPv6 hosts in brackets, as ``config.broker_addresses`` has them. The longer key wins. Raises:
    NoReachableEndpointError with the broker and its endpoints; ValueError for a target that is no address.
    """
    offered = tuple(endpoints)
    wanted = security_protocol.upper()
    for endpoint in offered:
        if endpoint.protocol.upper() == wanted:
            return _mapped(endpoint, address_map or {})
    who = f"broker {offered[0].broker_id}" if offered else "the broker"
    offers = ", ".join(f"{e.protocol}://{address(e.host, e.port)}" for e in offered) or "no endpoint at all"
    raise NoReachableEndpointError(f"{who} offers {offers}; security.protocol={security_protocol} is wanted")


def _mapped(endpoint: Endpoint, address_map: Mapping[str, str]) -> Endpoint:
    registered = address(endpoint.host, endpoint.port).lower()
    target = address_map.get(registered, address_map.get(registered.rpartition(":")[0]))
    if target is None:
        return endpoint
    host, port = parse_address(target, endpoint.port)
    return replace(endpoint, host=host, port=port)
