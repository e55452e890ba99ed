"""Reading ``sasl.jaas.config``: the login in the one-line form that Java clients take it in. Pure; any thread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_ENTRY = re.compile(
    r"\s*(?P<module>[\w.$]+)\s+(?:required|requisite|sufficient|optional)\b(?P<options>.*)\Z", re.S | re.I
)
_OPTION = re.compile(
    r"""\s*(?P<name>[\w.\-]+)\s*=\s*(?:"(?P<text>(?:[^"\\]|\\.)*)"|'(?P<single>[^']*)'|(?P<bare>[^\s;"']+))"""
)
_ESCAPED = re.compile(r"\\(.)")


class JaasEntry(NamedTuple):
    """A login module's class name and its options."""

    module: str
    options: Mapping[str, str]


def parse_jaas(text: str) -> JaasEntry:
    """``<module> required name="value" ...;`` in parts.

    Raises ValueError, without any of the text in its message, since that holds a password.
    """
    entry = _ENTRY.match(text)
    if entry is None:
        raise ValueError('must look like: <login module> required username="..." password="...";')
    rest, position = entry["options"], 0
    options: dict[str, str] = {}
    while option := _OPTION.match(rest, position):
        quoted = option["text"]
        value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else option["single"]
        options[option["name"]] = value if value is not None else option["bare"]
        position = option.end()
    if rest[position:].strip() != ";":
        raise ValueError('must end with ";" after options of the form name="value"')
    return JaasEntry(entry["module"], MappingProxyType(options))


def checked_jaas(text: str) -> str:
    """The text as it is, if it can be read. Raises ValueError."""
    parse_jaas(text)
    return text
