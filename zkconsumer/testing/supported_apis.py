"""All requests that the fake brokers know, and the versions in which they answer them. Pure."""

from __future__ import annotations

from zkconsumer.testing.group_schemas import GROUP_APIS
from zkconsumer.testing.log_schemas import LOG_APIS
from zkconsumer.testing.wire_types import Api, Message

APIS: dict[str, Api] = {api.name: api for api in (*LOG_APIS, *GROUP_APIS)}
"""By name."""


def supported(modern: bool) -> list[Message]:
    """The versions that are spoken as 3.9 or as 1.1, as ApiVersions tells them."""
    found = []
    for api in sorted(APIS.values(), key=lambda api: api.key):
        versions = api.new if modern else api.old
        if versions is not None:
            found.append({"api_key": api.key, "min_version": versions[0], "max_version": versions[1]})
    return found
