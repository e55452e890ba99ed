r"""Java's .properties files, as ``java.util.Properties`` reads them. Pure; any thread.

The original connector is configured by such files, so every quirk of the format is in some user's file. There are three
separators, a backslash does not continue a comment, and a backslash vanishes before an ordinary character. As in Java,
the later one of two equal keys counts. Files are ISO-8859-1; other characters are written ``\uXXXX``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX = re.compile("[0-9A-Fa-f]{4}")


def parse_properties(text: str) -> dict[str, str]:
    r"""Parse the properties in ``text``, a file's content decoded as ISO-8859-1.

    Raises ValueError that names the line, for a ``\u`` without four hexadecimal digits.
    """
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        try:
            key, value = _split(line)
            properties[_unescape(key)] = _unescape(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each property's line with its number. Continuations are joined; comments and empty lines are left out."""
    pending, began = "", 0
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        stripped = line.lstrip(_BLANKS)
        if not pending:
            # also after an empty continuation: Java still takes the next line for a new one
            if not stripped or stripped[0] in "#!":
                continue
            began = number
        backslashes = len(stripped) - len(stripped.rstrip("\\"))
        if backslashes % 2:
            pending += stripped[:-1]
            continue
        yield began, pending + stripped
        pending = ""
    if pending:
        yield began, pending


def _split(line: str) -> tuple[str, str]:
    """Split a line into key and value, still escaped. The key ends at the first bare ``=``, ``:`` or blank."""
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    value = line[at:].lstrip(_BLANKS)
    if value[:1] in ("=", ":"):
        value = value[1:].lstrip(_BLANKS)
    return line[:at], value


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    units: list[str] = []
    at = 0
    while at < len(text):
        if text[at] != "\\":
            units.append(text[at])
            at += 1
            continue
        escaped = text[at + 1 : at + 2]
        if escaped == "u":
            digits = text[at + 2 : at + 6]
            if not _HEX.fullmatch(digits):
                raise ValueError(f"\\u must be followed by four hexadecimal digits, not {digits!r}")
            units.append(chr(int(digits, 16)))
            at += 6
        else:
            units.append(_ESCAPES.get(escaped, escaped))
            at += 2
    # Java's characters are UTF-16 units, so two escapes in a row may be one character
    return "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
