"""Character sets with the meaning of java.util.regex, written for the ``regex`` package. Pure; any thread.

A set is a text in brackets in the syntax of the package's VERSION1, where sets nest, so that union, intersection and
complement are plain concatenation. Case is resolved here, letter by letter: Java folds ASCII only, unless told (?u),
and the package's own IGNORECASE knows no such thing. Names of properties are Java's, upper and lower case as Java wants
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType

import regex  # type: ignore[import-untyped]

LINE_ENDS = r"\n\r\x85\u2028\u2029"
HORIZONTAL = r"[ \t\xa0\u1680\u180e\u2000-\u200a\u202f\u205f\u3000]"
VERTICAL = r"[\n\x0b\f\r\x85\u2028\u2029]"

ASCII_SHORTHAND = MappingProxyType({"d": "[0-9]", "w": "[a-zA-Z_0-9]", "s": r"[ \t\n\x0b\f\r]"})
UNICODE_SHORTHAND = MappingProxyType(
    {
        "d": r"[\p{Nd}]",
        "w": r"[\p{Alphabetic}\p{Mn}\p{Me}\p{Mc}\p{Nd}\p{Pc}\p{Join_Control}]",
        "s": r"[\p{White_Space}]",
    }
)

_CATEGORIES = re.compile("C[nfocs]?|L[ulmto]?|M[nec]?|N[dlo]?|Z[slp]?|P[dsecoif]?|S[mcko]?")

_POSIX_ASCII: Mapping[str, str] = {
    "ASCII": r"[\x00-\x7f]",
    "Alnum": "[a-zA-Z0-9]",
    "Alpha": "[a-zA-Z]",
    "Blank": r"[ \t]",
    "Cntrl": r"[\x00-\x1f\x7f]",
    "Digit": "[0-9]",
    "Graph": r"[\x21-\x7e]",
    "Lower": "[a-z]",
    "Print": r"[\x20-\x7e]",
    "Punct": r"[\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e]",
    "Space": r"[ \t\n\x0b\f\r]",
    "Upper": "[A-Z]",
    "XDigit": "[0-9a-fA-F]",
}

_GRAPH = r"[^\p{White_Space}\p{Cc}\p{Cs}\p{Cn}]"
_POSIX_UNICODE: Mapping[str, str] = {
    "ALPHA": r"[\p{Alphabetic}]",
    "LOWER": r"[\p{Lowercase}]",
    "UPPER": r"[\p{Uppercase}]",
    "SPACE": r"[\p{White_Space}]",
    "PUNCT": r"[\p{P}]",
    "XDIGIT": r"[\p{Nd}\p{Hex_Digit}]",
    "ALNUM": r"[\p{Alphabetic}\p{Nd}]",
    "CNTRL": r"[\p{Cc}]",
    "DIGIT": r"[\p{Nd}]",
    "BLANK": r"[\p{Zs}\t]",
    "GRAPH": _GRAPH,
    "PRINT": rf"[[{_GRAPH}\p{{Zs}}]&&[^\p{{Cc}}]]",
}

_JAVA: Mapping[str, str] = {
    "LowerCase": r"[\p{Lowercase}]",
    "UpperCase": r"[\p{Uppercase}]",
    "Alphabetic": r"[\p{Alphabetic}]",
    "Ideographic": r"[\p{Ideographic}]",
    "TitleCase": r"[\p{Lt}]",
    "Digit": r"[\p{Nd}]",
    "Defined": r"[^\p{Cn}]",
    "Letter": r"[\p{L}]",
    "LetterOrDigit": r"[\p{L}\p{Nd}]",
    "SpaceChar": r"[\p{Z}]",
    "Whitespace": r"[[\p{Z}\t\n\x0b\f\r\x1c-\x1f]&&[^\xa0\u2007\u202f]]",
    "ISOControl": r"[\x00-\x1f\x7f-\x9f]",
}

_BINARY: Mapping[str, str] = {
    "ALPHABETIC": r"[\p{Alphabetic}]",
    "ASSIGNED": r"[^\p{Cn}]",
    "CONTROL": r"[\p{Cc}]",
    "HEXDIGIT": r"[\p{Nd}\p{Hex_Digit}]",
    "IDEOGRAPHIC": r"[\p{Ideographic}]",
    "JOINCONTROL": r"[\p{Join_Control}]",
    "LETTER": r"[\p{L}]",
    "LOWERCASE": r"[\p{Lowercase}]",
    "NONCHARACTERCODEPOINT": r"[\p{Noncharacter_Code_Point}]",
    "TITLECASE": r"[\p{Lt}]",
    "PUNCTUATION": r"[\p{P}]",
    "UPPERCASE": r"[\p{Uppercase}]",
    "WHITESPACE": r"[\p{White_Space}]",
    "WHITE_SPACE": r"[\p{White_Space}]",
    "HEX_DIGIT": r"[\p{Nd}\p{Hex_Digit}]",
    "JOIN_CONTROL": r"[\p{Join_Control}]",
    "NONCHARACTER_CODE_POINT": r"[\p{Noncharacter_Code_Point}]",
    "WORD": UNICODE_SHORTHAND["w"],
}

_CASED_CATEGORIES = r"[\p{Lu}\p{Ll}\p{Lt}]"
_CASED_PROPERTIES = r"[\p{Lowercase}\p{Uppercase}\p{Lt}]"


_FOLDED_BEYOND_LATIN_1 = frozenset(map(ord, "IiSsKk\xb5\xc5\xe5\xff"))


class UnknownProperty(Exception):
    """Java knows no such property; the argument says which."""


class UntranslatableProperty(Exception):
    """Java knows the property, the ``regex`` package does not."""


def union(sets: Iterable[str]) -> str:
    """The set of what any of ``sets`` holds; at least one is needed."""
    listed = list(sets)
    return listed[0] if len(listed) == 1 else f"[{''.join(listed)}]"


def intersection(left: str, right: str) -> str:
    """The set of what both hold."""
    return f"[{left}&&{right}]"


def complement(one: str) -> str:
    """The set of what ``one`` does not hold."""
    return f"[^{one}]"


def char(code: int) -> str:
    """One character, written so that it means itself, inside and outside of sets."""
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def single(code: int, *, fold: bool, fold_unicode: bool) -> str:
    """The set of one character and, where asked, of those that Java takes as equal without regard to case."""
    return char_range(code, code, fold=fold, fold_unicode=fold_unicode)


def is_table_entry(code: int, *, fold_unicode: bool) -> bool:
    """Return whether Java keeps a character of a class in its table for Latin-1.

    ``fold_unicode`` is (?iu): then characters whose other case lies beyond Latin-1 are not in the table.
    """
    return code < 0x100 and not (fold_unicode and code in _FOLDED_BEYOND_LATIN_1)


def char_range(first: int, last: int, *, fold: bool, fold_unicode: bool) -> str:
    """The set of a range of characters, extended by case where asked."""
    items = [char(first) if first == last else f"{char(first)}-{char(last)}"]
    if fold and fold_unicode:
        items += [char(code) for code in _unicode_equals(first, last)]
    elif fold:
        items += [char(ord(chr(c).swapcase())) for c in range(max(first, 65), min(last, 122) + 1) if chr(c).isalpha()]
    return f"[{''.join(items)}]"


def _simple(text: str, code: int) -> int:
    """Java maps character by character: one whose full mapping is longer is its own, but for the dotted I."""
    return ord(text) if len(text) == 1 else ord("i") if text == "i\u0307" else code


def _unicode_equals(first: int, last: int) -> list[int]:
    if first == last:
        upper = _simple(chr(first).upper(), first)
        folded = _simple(chr(upper).lower(), upper)
        return [code for _, lower, code in _cased() if lower == folded != upper]
    return [code for upper, lower, code in _cased() if first <= upper <= last or first <= lower <= last]


@cache
def _cased() -> tuple[tuple[int, int, int], ...]:
    """(upper case, lower case of that, code) of every character that has case; a third of a second, once, and only for
    (?iu).
    """
    found = []
    for code in range(0x1E944):
        upper = _simple(chr(code).upper(), code)
        lower = _simple(chr(upper).lower(), upper)
        if upper != code or lower != code:
            found.append((upper, lower, code))
    return tuple(found)


def java_property(name: str, *, unicode_classes: bool, fold: bool) -> str:
    r"""The set of ``\p{name}``.

    ``unicode_classes`` is the flag (?U), ``fold`` is (?i): it makes lower, upper and title case one, in Java since 15.
    Raises UnknownProperty, or UntranslatableProperty for one that is Java's own.
    """
    key, equals, value = name.partition("=")
    found: str | None = None
    if equals:
        kind = key.lower()
        if kind in ("sc", "script"):
            found = _known(f"sc={value}")
        elif kind in ("blk", "block"):
            found = _known(f"blk={value}")
        elif kind in ("gc", "general_category"):
            found = _by_name(value, fold)
    elif name.startswith("In"):
        found = _known(f"blk={name[2:]}")
    elif name.startswith("Is"):
        found = (
            _binary(name[2:], fold)
            or _posix_unicode(name[2:], fold)
            or _by_name(name[2:], fold)
            or _known(f"sc={name[2:]}")
        )
    else:
        found = (_posix_unicode(name, fold) if unicode_classes else None) or _by_name(name, fold)
    if found is None:
        raise UnknownProperty(f"unknown character property {{{name}}}")
    return found


def _known(query: str) -> str | None:
    """A property by the package's own tables, None where they have no such block or script."""
    if not query.partition("=")[2].replace("_", "").replace("-", "").isalnum():
        return None
    try:
        regex.compile(rf"\p{{{query}}}")
    except regex.error:
        return None
    return rf"[\p{{{query}}}]"


def _binary(name: str, fold: bool) -> str | None:
    key = name.upper()
    if fold and key in ("LOWERCASE", "UPPERCASE", "TITLECASE"):
        return _CASED_PROPERTIES
    return _BINARY.get(key)


def _posix_unicode(name: str, fold: bool) -> str | None:
    key = name.upper()
    if fold and key in ("LOWER", "UPPER"):
        return _CASED_PROPERTIES
    return _POSIX_UNICODE.get(key)


def _by_name(name: str, fold: bool) -> str | None:
    """General categories, ASCII classes and Java's own methods, by exact name."""
    if fold and name in ("Lu", "Ll", "Lt"):
        return _CASED_CATEGORIES
    if fold and name in ("Lower", "Upper"):
        return _POSIX_ASCII["Alpha"]
    if _CATEGORIES.fullmatch(name):
        return rf"[\p{{{name}}}]"
    special = {"LC": _CASED_CATEGORIES, "LD": r"[\p{L}\p{Nd}]", "L1": r"[\x00-\xff]", "all": r"[\x00-\U0010ffff]"}
    if name in special:
        return special[name]
    if name.startswith("java"):
        return _java_method(name[4:], fold)
    return _POSIX_ASCII.get(name)


def _java_method(name: str, fold: bool) -> str | None:
    if fold and name in ("LowerCase", "UpperCase", "TitleCase"):
        return _CASED_PROPERTIES
    if name in (
        "JavaIdentifierStart",
        "JavaIdentifierPart",
        "UnicodeIdentifierStart",
        "UnicodeIdentifierPart",
        "IdentifierIgnorable",
        "Mirrored",
    ):
        raise UntranslatableProperty(f"the character property {{java{name}}} exists in Java only")
    return _JAVA.get(name)
