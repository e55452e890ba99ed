"""The definition of a property: its type, default, limits and note, and the conversion of its values. Pure; any thread.

Conversions are those of the original (1.x): blanks around a value do not count, integers fit 32 bits, booleans are
exactly ``true`` or ``false``. Values may also be Python's int and bool. Values that the original accepts, and then
fails with later or never, are refused here with the name of the property.

The module also knows the names and values of properties that may hold secrets, which logs and errors must not show.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.errors import ConfigException

HIDDEN = "***"

OWN_PROPERTIES = "credentials have properties of their own, such as zookeeper.digest.username or sasl.username"
"""Advice for credentials in the wrong place."""
NOT_SHOWN = (
    "has a value of the wrong form, not shown because it may hold a password; an address is host:port, and "
    + OWN_PROPERTIES
)
"""The reason for refusing a value that must not be quoted."""

_SECRET = re.compile(r"password|passwd|secret|token|credential|jaas|\.key$|private", re.IGNORECASE)
_SUSPECT = re.compile(
    r"pass|pas+w|pwd|pw$|secret|token|cred|jaas|auth|(^|[._-])(api|access)|key$|private|\bpin$|signature", re.I
)
_CREDENTIALS = re.compile(r":[^@]*@|(pass|pwd|secret|token|cred)\w*\s*=|-----BEGIN [A-Z ]*PRIVATE KEY", re.IGNORECASE)
_ENCODED = re.compile(r"-----BEGIN|\b(Basic|Bearer)\s|\b(AKIA|ASIA|ghp_|eyJ)\w{8}")
_RANDOM = re.compile(r"(?=\S*[0-9])(?=\S*[a-z])(?=\S*[A-Z])[A-Za-z0-9+/=_-]{20,}")
_MEASURE = re.compile(r"[._-](ms|seconds|bytes|records)$")
_ALIKE = 0.75


def is_secret(name: str) -> bool:
    """Return whether a property of this name holds a secret."""
    return _SECRET.search(name) is not None


def holds_credentials(value: object) -> bool:
    """Return whether a value may hold credentials: ``user:password@``, an assignment such as ``password=``, a key."""
    text = value if isinstance(value, str) else str(value)
    return _CREDENTIALS.search(text) is not None


def address_may_hold_credentials(text: str) -> bool:
    """Return whether a text that should be addresses may hold credentials; addresses have no ``@``."""
    return "@" in text or holds_credentials(text)


def looks_secret(name: str, value: object, known: Iterable[str]) -> bool:
    """Return whether a property that is not in the table looks like a secret, by its name or its value.

    ``known`` names the properties of the table: a misspelt name of a secret one is a secret too.
    """
    if isinstance(value, bool) or value is None:
        return False
    if _MEASURE.search(name) and str(value).strip().isdecimal() and not is_secret(name):
        return False  # default.api.timeout.ms is no key of an API
    if _SUSPECT.search(name) or holds_credentials(value):
        return True
    if isinstance(value, str) and (_ENCODED.search(value) or _RANDOM.fullmatch(value)):
        return True
    secret = [one for one in known if is_secret(one)]
    return bool(difflib.get_close_matches(name.lower().replace("_", "."), secret, n=1, cutoff=_ALIKE))


Value = str | int | bool | None
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_LEGAL_NAME = re.compile("[a-zA-Z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class ConfigKey:
    """One property.

    ``read`` converts a given value to the value in effect, or raises ValueError with the reason. The default is
    ``default``, or the result of ``derive`` for the values of the properties before it; ``default_text`` describes it.
    """

    kind: str
    read: Callable[[object], Value]
    note: str
    default: Value = None
    default_text: str = ""
    derive: Callable[[Mapping[str, Value]], Value] | None = None
    required: bool = False

    def convert(self, name: str, value: object) -> Value:
        """Return the value in effect for ``value``. Raises :class:`ConfigException` that names the property."""
        try:
            return self.read(value.strip() if isinstance(value, str) else value)
        except ValueError as error:
            reason = str(error)  # may quote the value
        if is_secret(name):
            reason = "has a value of the wrong type or form"
        elif holds_credentials(value):
            reason = NOT_SHOWN
        raise ConfigException(name, reason)  # not inside the handler: the quoting error would be its context


def text(note: str, *, check: Callable[[str], str] | None = None, **details: Any) -> Any:
    """Declare a property with a text. ``check`` returns its normal form or raises ValueError."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be a text, not {value!r} ({type(value).__name__})")
        return check(value) if check else value

    return _field(ConfigKey(kind="string", read=read, note=note, **details))


def choice(note: str, choices: Mapping[str, str], *, any_case: bool = False, **details: Any) -> Any:
    """Declare a property with one of a few words. ``choices`` maps each accepted word to its normal form."""
    listed = " or ".join(repr(word) for word in dict.fromkeys(choices.values()))

    def check(value: str) -> str:
        word = value.lower() if any_case else value
        if word not in choices:
            raise ValueError(f"must be {listed}, not {value!r}")
        return choices[word]

    return text(note, check=check, **details)


def integer(note: str, *, least: int = _INT32_MIN, advice: str = "", **details: Any) -> Any:
    """Declare a property with a 32-bit integer of at least ``least``. The error for a smaller one gives ``advice``."""

    def read(value: object) -> int:
        if isinstance(value, str):
            if not re.fullmatch("[+-]?[0-9]+", value):
                raise ValueError(f"must be a whole number, not {value!r}")
            value = int(value) if len(value) <= 20 else _INT32_MAX + 1
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"must be a whole number, not {value!r} ({type(value).__name__})")
        if not _INT32_MIN <= value <= _INT32_MAX:
            raise ValueError(f"must fit 32 bits, that is be at most {_INT32_MAX}")
        if value < least:
            raise ValueError(f"must be at least {least}, not {value}{'; ' + advice if advice else ''}")
        return value

    return _field(ConfigKey(kind="int", read=read, note=note, **details))


def boolean(note: str, **details: Any) -> Any:
    """Declare a property that is true or false."""

    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if value not in ("true", "false"):
            raise ValueError(f"must be 'true' or 'false', in lower case, not {value!r}")
        return value == "true"

    return _field(ConfigKey(kind="bool", read=read, note=note, **details))


def same_as(name: str) -> dict[str, Any]:
    """Return the details of a property whose default is the value of an earlier property."""
    return {"derive": lambda values: values[name], "default_text": f"`{name}`"}


def legal_name(value: str) -> str:
    """Check that the original accepts this group, client or consumer id. Raises ValueError."""
    if not _LEGAL_NAME.fullmatch(value):
        bad = next(c for c in value if not _LEGAL_NAME.fullmatch(c))
        raise ValueError(f"{value!r} contains {bad!r}; legal are ASCII letters, digits, '.', '_' and '-'")
    return value


def node_name(value: str) -> str:
    """Check a legal name that is also a node's name in ZooKeeper. Raises ValueError."""
    if not value:
        raise ValueError("must not be empty")
    if value in (".", ".."):
        raise ValueError(f"{value!r} cannot be the name of a node in ZooKeeper")
    return legal_name(value)


def not_empty(value: str) -> str:
    """Check that a text is not empty. Raises ValueError."""
    if not value:
        raise ValueError("must not be empty")
    return value


def keys_of(config: type) -> dict[str, ConfigKey]:
    """Return the properties that the fields of ``config`` declare, by dotted name, in order."""
    return {field.name.replace("_", "."): field.metadata["key"] for field in dataclasses.fields(config)}


def _field(key: ConfigKey) -> Any:
    return dataclasses.field(metadata={"key": key})
