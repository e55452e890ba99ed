"""Character sets with their meaning in java.util.regex, written for the ``regex`` package. Pure; any thread.

A set is a text in brackets, in the syntax of the package's VERSION1. Sets nest there, so that union, intersection and
complement are plain concatenation. Case is resolved here, letter by letter: Java folds only ASCII without (?u), and the
package's IGNORECASE has no such mode. Names of properties are Java's, in the case that Java wants.
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
_CASED_CATEGORIES = r"[\p{Lu}\p{Ll}\p{Lt}]"
_CASED_PROPERTIES = r"[\p{Lowercase}\p{Uppercase}\p{Lt}]"

# the POSIX classes of ASCII, Java's own categories, and the methods of java.lang.Character, by exact name
_NAMED: Mapping[str, str] = {
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
    "LC": _CASED_CATEGORIES,
    "LD": r"[\p{L}\p{Nd}]",
    "L1": r"[\x00-\xff]",
    "all": r"[\x00-\U0010ffff]",
    "javaLowerCase": r"[\p{Lowercase}]",
    "javaUpperCase": r"[\p{Uppercase}]",
    "javaAlphabetic": r"[\p{Alphabetic}]",
    "javaIdeographic": r"[\p{Ideographic}]",
    "javaTitleCase": r"[\p{Lt}]",
    "javaDigit": r"[\p{Nd}]",
    "javaDefined": r"[^\p{Cn}]",
    "javaLetter": r"[\p{L}]",
    "javaLetterOrDigit": r"[\p{L}\p{Nd}]",
    "javaSpaceChar": r"[\p{Z}]",
    "javaWhitespace": r"[[\p{Z}\t\n\x0b\f\r\x1c-\x1f]&&[^\xa0\u2007\u202f]]",
    "javaISOControl": r"[\x00-\x1f\x7f-\x9f]",
}

_UNTRANSLATABLE = frozenset(
    f"java{method}"
    for method in (
        "JavaIdentifierStart",
        "JavaIdentifierPart",
        "UnicodeIdentifierStart",
        "UnicodeIdentifierPart",
        "IdentifierIgnorable",
        "Mirrored",
    )
)

_NAMED_FOLDED: Mapping[str, str] = {
    **dict.fromkeys(("Lu", "Ll", "Lt"), _CASED_CATEGORIES),
    **dict.fromkeys(("Lower", "Upper"), _NAMED["Alpha"]),
    **dict.fromkeys(("javaLowerCase", "javaUpperCase", "javaTitleCase"), _CASED_PROPERTIES),
}
"""The same under (?i): lower, upper and title case are one set, in Java since 15."""

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

_BINARY: Mapping[str, str] = {
    "ALPHABETIC": r"[\p{Alphabetic}]",
    "ASSIGNED": r"[^\p{Cn}]",
    "CONTROL": r"[\p{Cc}]",
    "IDEOGRAPHIC": r"[\p{Ideographic}]",
    "LETTER": r"[\p{L}]",
    "LOWERCASE": r"[\p{Lowercase}]",
    "TITLECASE": r"[\p{Lt}]",
    "PUNCTUATION": r"[\p{P}]",
    "UPPERCASE": r"[\p{Uppercase}]",
    "WORD": UNICODE_SHORTHAND["w"],
    **dict.fromkeys(("HEXDIGIT", "HEX_DIGIT"), r"[\p{Nd}\p{Hex_Digit}]"),
    **dict.fromkeys(("JOINCONTROL", "JOIN_CONTROL"), r"[\p{Join_Control}]"),
    **dict.fromkeys(("NONCHARACTERCODEPOINT", "NONCHARACTER_CODE_POINT"), r"[\p{Noncharacter_Code_Point}]"),
    **dict.fromkeys(("WHITESPACE", "WHITE_SPACE"), r"[\p{White_Space}]"),
}

_CASED_NAMES = frozenset({"LOWER", "UPPER", "LOWERCASE", "UPPERCASE", "TITLECASE"})

_FOLDED_BEYOND_LATIN_1 = frozenset(map(ord, "IiSsKk\xb5\xc5\xe5\xff"))


class UnknownProperty(Exception):
    """Java has no such property; the argument is text for the user."""


class UntranslatableProperty(Exception):
    """Java has the property, but the ``regex`` package does not."""


def union(sets: Iterable[str]) -> str:
    """Return the union of at least one set."""
    listed = list(sets)
    return listed[0] if len(listed) == 1 else f"[{''.join(listed)}]"


def intersection(left: str, right: str) -> str:
    """Return the intersection of two sets."""
    return f"[{left}&&{right}]"


def complement(one: str) -> str:
    """Return the complement of a set."""
    return f"[^{one}]"


def char(code: int) -> str:
    """Return a character as text that means the character itself, inside and outside of sets."""
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def is_table_entry(code: int, *, fold_unicode: bool) -> bool:
    """Return whether Java keeps a character of a class in its table for Latin-1.

    With ``fold_unicode``, (?iu), the table has no characters whose other case is beyond Latin-1.
    """
    return code < 0x100 and not (fold_unicode and code in _FOLDED_BEYOND_LATIN_1)


def char_range(first: int, last: int, *, fold: bool, fold_unicode: bool) -> str:
    """Return the set of a range of characters, with their other case under ``fold`` (?i) and ``fold_unicode`` (?u)."""
    items = [char(first) if first == last else f"{char(first)}-{char(last)}"]
    if fold and fold_unicode:
        items += [char(code) for code in _unicode_equals(first, last)]
    elif fold:
        items += [char(ord(chr(c).swapcase())) for c in range(max(first, 65), min(last, 122) + 1) if chr(c).isalpha()]
    return f"[{''.join(items)}]"


def _simple(text: str, code: int) -> int:
    """Return one character's other case. Java keeps a character with a longer mapping, except for the dotted I."""
    return ord(text) if len(text) == 1 else ord("i") if text == "i\u0307" else code


def _unicode_equals(first: int, last: int) -> list[int]:
    if first == last:
        upper = _simple(chr(first).upper(), first)
        folded = _simple(chr(upper).lower(), upper)
        return [code for _, lower, code in _cased() if lower == folded != upper]
    return [code for upper, lower, code in _cased() if first <= upper <= last or first <= lower <= last]


@cache
def _cased() -> tuple[tuple[int, int, int], ...]:
    """Return (upper case, its lower case, code) of all cased characters. Takes a third of a second, once, for (?iu)."""
    found = []
    for code in range(0x1E944):
        upper = _simple(chr(code).upper(), code)
        lower = _simple(chr(upper).lower(), upper)
        if upper != code or lower != code:
            found.append((upper, lower, code))
    return tuple(found)


def java_property(name: str, *, unicode_classes: bool, fold: bool) -> str:
    r"""Return the set of ``\p{name}``.

    ``unicode_classes`` is the flag (?U). ``fold`` is (?i): it makes lower, upper and title case one, in Java since 15.
    Raises UnknownProperty, and UntranslatableProperty for a property that exists only in Java.
    """
    key, equals, value = name.partition("=")
    kind = key.lower()
    found: str | None = None
    if equals:
        if kind in ("sc", "script"):
            found = _known(f"sc={value}")
        elif kind in ("blk", "block"):
            found = _known(f"blk={value}")
        elif kind in ("gc", "general_category"):
            found = _by_exact_name(value, fold)
    elif name.startswith("In"):
        found = _known(f"blk={name[2:]}")
    elif name.startswith("Is"):
        name_only = name[2:]
        found = (
            _by_any_case(_BINARY, name_only, fold)
            or _by_any_case(_POSIX_UNICODE, name_only, fold)
            or _by_exact_name(name_only, fold)
            or _known(f"sc={name_only}")
        )
    else:
        found = (_by_any_case(_POSIX_UNICODE, name, fold) if unicode_classes else None) or _by_exact_name(name, fold)
    if found is None:
        raise UnknownProperty(f"unknown character property {{{name}}}")
    return found


def _known(query: str) -> str | None:
    """Return a block or script of the ``regex`` package, None if the package lacks it."""
    if not query.partition("=")[2].replace("_", "").replace("-", "").isalnum():
        return None
    try:
        regex.compile(rf"\p{{{query}}}")
    except regex.error:
        return None
    return rf"[\p{{{query}}}]"


def _by_any_case(table: Mapping[str, str], name: str, fold: bool) -> str | None:
    key = name.upper()
    return _CASED_PROPERTIES if fold and key in table and key in _CASED_NAMES else table.get(key)


def _by_exact_name(name: str, fold: bool) -> str | None:
    """Return the set of a general category, an ASCII class or one of Java's methods, by its exact name."""
    if fold and name in _NAMED_FOLDED:
        return _NAMED_FOLDED[name]
    if _CATEGORIES.fullmatch(name):
        return rf"[\p{{{name}}}]"
    if name in _UNTRANSLATABLE:
        raise UntranslatableProperty(f"the character property {{{name}}} exists in Java only")
    return _NAMED.get(name)
