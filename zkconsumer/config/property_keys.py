"""What a property is: its name, type, default, limits and note, and how a value given for it is read. Pure; any thread.

Conversions are those of the original (1.x): blanks around a value are dropped, integers fit 32 bits, booleans are
exactly ``true`` or ``false``. Values may also come as Python's own int and bool. What the original let pass and then
failed on later, or never, is refused here with the key named.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from zkconsumer.config.secrets import NOT_SHOWN, holds_credentials, is_secret
from zkconsumer.errors import ConfigException

Value = str | int | bool | None
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_LEGAL_NAME = re.compile("[a-zA-Z0-9._-]*")


@dataclass(frozen=True, kw_only=True)
class Key:
    """One property.

    ``read`` turns a given value into the one in effect and raises ValueError with the reason where it cannot.
    The default is ``default``, or what ``derive`` makes of the other values, described by ``default_text``.
    """

    kind: str
    read: Callable[[object], Value]
    note: str
    default: Value = None
    default_text: str = ""
    derive: Callable[[Mapping[str, Value]], Value] | None = None
    required: bool = False
    ours: bool = False

    def convert(self, name: str, value: object) -> Value:
        """The value in effect for ``value``. Raises :class:`ConfigException` naming the key."""
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
    """A field for a text; ``check`` returns its normal form or raises ValueError."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be a text, not {value!r} ({type(value).__name__})")
        return check(value) if check else value

    return _field(Key(kind="string", read=read, note=note, **details))


def choice(note: str, choices: Mapping[str, str], *, any_case: bool = False, **details: Any) -> Any:
    """A field for one of a few words; ``choices`` maps what may be written to the normal form."""
    listed = " or ".join(repr(word) for word in dict.fromkeys(choices.values()))

    def check(value: str) -> str:
        word = value.lower() if any_case else value
        if word not in choices:
            raise ValueError(f"must be {listed}, not {value!r}")
        return choices[word]

    return text(note, check=check, **details)


def integer(note: str, *, least: int = _INT32_MIN, advice: str = "", **details: Any) -> Any:
    """A field for a 32-bit integer of at least ``least``; ``advice`` says what to do instead of going below."""

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

    return _field(Key(kind="int", read=read, note=note, **details))


def boolean(note: str, **details: Any) -> Any:
    """A field for true or false."""

    def read(value: object) -> bool:
        if isinstance(value, bool):
            return value
        if value not in ("true", "false"):
            raise ValueError(f"must be 'true' or 'false', in lower case, not {value!r}")
        return value == "true"

    return _field(Key(kind="bool", read=read, note=note, **details))


def defaults_to(name: str) -> dict[str, Any]:
    """Details of a field whose default is the value of another, which stands before it."""
    return {"derive": lambda values: values[name], "default_text": f"`{name}`"}


def legal_name(value: str) -> str:
    """A text that the original takes as group, client or consumer id. Raises ValueError."""
    if not _LEGAL_NAME.fullmatch(value):
        bad = next(c for c in value if not _LEGAL_NAME.fullmatch(c))
        raise ValueError(f"{value!r} contains {bad!r}; legal are ASCII letters, digits, '.', '_' and '-'")
    return value


def node_name(value: str) -> str:
    """A legal name that can also be the name of a node in ZooKeeper by itself. Raises ValueError."""
    if not value:
        raise ValueError("must not be empty")
    if value in (".", ".."):
        raise ValueError(f"{value!r} cannot be the name of a node in ZooKeeper")
    return legal_name(value)


def not_empty(value: str) -> str:
    """A text of at least one character. Raises ValueError."""
    if not value:
        raise ValueError("must not be empty")
    return value


def keys_of(config: type) -> dict[str, Key]:
    """The properties that the fields of ``config`` declare, by dotted name, in order."""
    return {field.name.replace("_", "."): field.metadata["key"] for field in dataclasses.fields(config)}


def _field(key: Key) -> Any:
    return dataclasses.field(metadata={"key": key})
