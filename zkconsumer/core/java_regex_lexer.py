r"""Characters, escapes and character classes of Java's expressions. Pure; any thread.

The lower half of :mod:`zkconsumer.core.java_regex`. The lexer reads the expression token by token, under the flags in
force there. It turns each text that stands for one character, or for a set, into a set for the ``regex`` package.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import NamedTuple, NoReturn

from zkconsumer.core import java_character_classes as classes
from zkconsumer.core.java_character_classes import UnknownProperty, UntranslatableProperty
from zkconsumer.errors import ConfigException

MAX_NESTING = 100
MOST_SHOWN = 200
"""The number of characters of an expression that an error shows."""
_SPACES = frozenset(" \t\n\x0b\f\r")
_HEXADECIMAL = "0123456789abcdefABCDEF"
_CONTROL = {"t": 9, "n": 10, "f": 12, "r": 13, "a": 7, "e": 27}


class InvalidTopicFilterError(ConfigException):
    """Java refuses an ``expression`` at ``position`` (from 0); the message says why."""

    def __init__(self, expression: str, position: int, reason: str) -> None:
        shown = expression if len(expression) <= MOST_SHOWN else f"{expression[:MOST_SHOWN]}..."
        super().__init__("topic filter", f"{shown!r} at position {position}: {reason}")
        self.expression = expression
        self.position = position


class UntranslatableTopicFilterError(InvalidTopicFilterError):
    """An expression that Java accepts, but that cannot be translated."""


class Token(NamedTuple):
    r"""One character of the expression. A ``quoted`` one, between \Q and \E, always means itself."""

    char: str
    quoted: bool
    position: int


END = Token("", True, -1)


Flags = frozenset[str]
"""The flags in force at one place, by Java's letters: i, d, m, s, u, x and U."""


def _tokens(expression: str) -> list[Token]:
    found: list[Token] = []
    index, quoted = 0, False
    while index < len(expression):
        pair = expression[index : index + 2]
        if quoted and pair == "\\E":
            quoted, index = False, index + 2
        elif quoted:
            found.append(Token(expression[index], True, index))
            index += 1
        elif pair == "\\Q":
            quoted, index = True, index + 2
        else:
            step = 2 if pair[0] == "\\" else 1
            found += [Token(c, False, index + n) for n, c in enumerate(pair[:step])]
            index += step
    return found


class RegexLexer:
    """Reads characters, escapes and classes. One object reads one expression once."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = _tokens(expression)
        self._at = 0
        self._flags: Flags = frozenset()
        self._nesting = 0

    # --- reading ---

    def _position(self) -> int:
        return self._tokens[self._at].position if self._at < len(self._tokens) else len(self._expression)

    def _fail(self, reason: str, position: int | None = None) -> NoReturn:
        raise InvalidTopicFilterError(self._expression, self._position() if position is None else position, reason)

    def _cannot(self, reason: str, position: int) -> NoReturn:
        raise UntranslatableTopicFilterError(self._expression, position, reason)

    def _raw(self, ahead: int = 0) -> Token:
        index = self._at + ahead
        return self._tokens[index] if index < len(self._tokens) else END

    def _skip_comments(self) -> None:
        """Skip blanks and comments under (?x), wherever a character may stand, also in classes."""
        while "x" in self._flags and not self._raw().quoted:
            if self._raw().char in _SPACES:
                self._at += 1
            elif self._raw().char == "#":
                while self._raw() is not END and self._raw().char not in "\n\r\x85\u2028\u2029":
                    self._at += 1
                if self._raw().char in _SPACES:  # a quoted line end ends the comment too, and vanishes with it
                    self._at += 1
            else:
                return

    def _peek(self) -> str:
        """Return the next character if it may have a meaning; "" for a quoted one and at the end."""
        self._skip_comments()
        token = self._raw()
        return "" if token.quoted else token.char

    def _take(self, char: str) -> bool:
        if self._peek() == char:
            self._at += 1
            return True
        return False

    def _single(self, code: int) -> str:
        return self._range(code, code)

    def _range(self, first: int, last: int) -> str:
        return classes.char_range(first, last, fold="i" in self._flags, fold_unicode="u" in self._flags)

    def _until_brace(self, start: int, unclosed: str) -> str:
        """Read past the next closing brace. Return the text before it."""
        name = ""
        while self._raw().char != "}":
            if self._raw() is END:
                self._fail(unclosed, start)
            name += self._raw().char
            self._at += 1
        self._at += 1
        return name

    # --- escapes ---

    def _class_escape(self, *, in_range: bool) -> str | int:
        """Read an escape, from its backslash on. Return a set (text) or one character (code)."""
        start = self._position()
        self._at += 1
        token = self._raw()
        char = token.char
        if not char:
            self._fail("a backslash ends the expression", start)
        self._at += 1
        shorthand = classes.UNICODE_SHORTHAND if "U" in self._flags else classes.ASCII_SHORTHAND
        if char.lower() in shorthand:
            found = shorthand[char.lower()]
            return found if char.islower() else classes.complement(found)
        if char == "v" and in_range:
            return 0x0B
        if char in "hHvV":
            found = classes.HORIZONTAL if char in "hH" else classes.VERTICAL
            return found if char.islower() else classes.complement(found)
        if char in "pP":
            return self._property(start, negated=char == "P")
        if char in _CONTROL:
            return _CONTROL[char]
        numeric: dict[str, Callable[[int], int]] = {
            "0": self._octal,
            "x": self._hex,
            "u": self._utf16,
            "c": self._control,
            "N": self._named_character,
        }
        if char in numeric:
            return numeric[char](start)
        if char.isascii() and (char.isalpha() or char.isdigit()):
            self._fail("illegal or unsupported escape sequence", start)
        return ord(char)

    def _property(self, start: int, *, negated: bool) -> str:
        if self._peek() == "{":
            self._at += 1
            name = self._until_brace(start, "unclosed character family")
        else:
            name = self._raw().char
            self._at += 1
        try:
            found = classes.java_property(name, unicode_classes="U" in self._flags, fold="i" in self._flags)
        except UnknownProperty as error:
            self._fail(str(error), start)
        except UntranslatableProperty as error:
            self._cannot(str(error), start)
        return classes.complement(found) if negated else found

    def _digits(self, allowed: str, most: int) -> str:
        found = ""
        while len(found) < most and self._raw().char and self._raw().char in allowed and not self._raw().quoted:
            found += self._raw().char
            self._at += 1
        return found

    def _octal(self, start: int) -> int:
        first = self._raw().char
        digits = self._digits("01234567", 3 if first and first in "0123" else 2)
        if not digits:
            self._fail("illegal octal escape sequence", start)
        return int(digits, 8)

    def _hex(self, start: int) -> int:
        if self._raw().char == "{":
            self._at += 1
            digits = self._digits(_HEXADECIMAL, 10)
            if not digits or int(digits, 16) > 0x10FFFF or self._raw().char != "}":
                self._fail("illegal hexadecimal escape sequence", start)
            self._at += 1
            return int(digits, 16)
        return self._hexadecimal(2, "illegal hexadecimal escape sequence", start)

    def _utf16(self, start: int) -> int:
        illegal = "illegal Unicode escape sequence"
        unit = self._hexadecimal(4, illegal, start)
        if 0xD800 <= unit < 0xDC00 and self._raw().char == "\\" and self._raw(1).char == "u":
            mark = self._at
            self._at += 2
            low = self._hexadecimal(4, illegal, start)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
            self._at = mark
        return unit

    def _hexadecimal(self, count: int, illegal: str, start: int) -> int:
        digits = self._digits(_HEXADECIMAL, count)
        if len(digits) != count:
            self._fail(illegal, start)
        return int(digits, 16)

    def _control(self, start: int) -> int:
        char = self._raw().char
        if not char:
            self._fail("illegal control escape sequence", start)
        self._at += 1
        return ord(char) ^ 64

    def _named_character(self, start: int) -> int:
        if self._raw().char != "{":
            self._fail("illegal character name escape sequence", start)
        self._at += 1
        name = self._until_brace(start, "unclosed character name escape sequence")
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            self._fail(f"unknown character name [{name}]", start)

    # --- classes ---

    def _class(self, *, consume: bool = True) -> str:
        """Read a class from its bracket on. With ``consume`` false, read the right side of && up to the bracket."""
        start = self._position()
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self._cannot(f"nested deeper than {MAX_NESTING} levels", start)
        negated = False
        if consume:
            self._at += 1
            if not self._raw().quoted and self._raw().char == "^":
                self._at += 1
                negated = True
        members = _Members()
        while True:
            char = self._peek()
            if self._raw() is END:
                self._fail("unclosed character class", start)
            if char == "]" and members.any:
                if consume:
                    self._at += 1
                self._nesting -= 1
                found = members.text()
                return classes.complement(found) if negated else found
            if char == "[":
                members.add(self._class())
            elif char == "&" and self._second_ampersand():
                self._intersect(members)
            else:
                self._class_item(members)

    def _second_ampersand(self) -> bool:
        """Return whether a second & follows, and move on to it. Under (?x) blanks may stand between them.

        Java drops a single & before such blanks, and goes on with the character after them.
        """
        start = self._at
        self._at += 1
        found = self._peek() == "&"
        if not found and self._at == start + 1:
            self._at = start
        if self._raw() is END:
            self._fail("unclosed character class")
        return found

    def _intersect(self, members: _Members) -> None:
        """Read the right side of && from its second & on, up to the next bracket or &."""
        start = self._position()
        self._at += 1
        right: list[str] = []
        while self._peek() not in ("]", "&"):
            if self._raw() is END:
                self._fail("unclosed character class")
            right.append(self._class() if self._peek() == "[" else self._class(consume=False))
        if not right and not members.any:
            self._fail("bad class syntax")
        if members.intersections == MAX_NESTING:
            self._cannot(f"more than {MAX_NESTING} intersections in one class", start)
        if not members.intersect(right):
            self._cannot("&& without a right side: Java to 18 fails with it, and later ones refuse it", start)

    def _class_item(self, members: _Members) -> None:
        """Read one character, range or escape inside a class."""
        start = self._position()
        first = self._class_character(start=True)
        if isinstance(first, str):
            members.add(first)
            return
        if self._peek() == "-" and not (not self._raw(1).quoted and self._raw(1).char in ("[", "]")):
            self._at += 1
            if self._peek() == "" and self._raw() is END:
                self._fail("illegal character range", start)
            last = self._class_character(start=False)
            if isinstance(last, str) or last < first:
                self._fail("illegal character range", start)
            members.add(self._range(first, last))
        elif classes.is_table_entry(first, fold_unicode=self._flags >= {"i", "u"}):
            members.add_to_table(self._single(first))
        else:
            members.add(self._single(first))

    def _class_character(self, *, start: bool) -> str | int:
        self._skip_comments()
        token = self._raw()
        if not token.quoted and token.char == "\\":
            followed = self._raw(2)
            return self._class_escape(in_range=not start or (followed.char == "-" and not followed.quoted))
        self._at += 1
        return ord(token.char)


class _Members:
    """The members of one character class, combined as java.util.regex does it.

    Java has a table for each class, with the single characters below 256, and a predicate for all other members. An
    intersection takes in the table. A later union adds the whole table again, with the characters from before. An
    intersection without a right side uses the last member outside the table.
    """

    _TABLE = "\0"  # placeholder of the table, which may still grow; no set contains this character

    def __init__(self) -> None:
        self._table: list[str] = []
        self._table_waits = False
        self._sets: list[str] = []
        self._last: str | None = None
        self.intersections = 0

    @property
    def any(self) -> bool:
        """Whether the class has a member. Without one, a closing bracket is a member itself."""
        return self._table_waits or bool(self._sets)

    def add(self, one: str) -> None:
        """Add a set."""
        self._sets.append(one)
        self._last = one

    def add_to_table(self, one: str) -> None:
        """Add a character of Java's table."""
        self._table.append(one)
        self._table_waits = True
        self._last = None

    def intersect(self, right: list[str]) -> bool:
        """Intersect with the union of ``right``. Return False if Java finds nothing to intersect with."""
        if self._table_waits:
            if not self._sets:
                self._last = self._TABLE
            self._sets.append(self._TABLE)
            self._table_waits = False
        if right:
            self._last = classes.union(right)
        if self._last is None:
            return False
        self._sets = [classes.intersection(classes.union(self._sets), self._last)] if self._sets else [self._last]
        self.intersections += 1
        return True

    def text(self) -> str:
        """Return the set of the class, which has at least one member."""
        if self._table_waits:
            self._sets.append(self._TABLE)
        found = classes.union(self._sets)
        return found.replace(self._TABLE, classes.union(self._table)) if self._table else found


def is_digit(token: Token) -> bool:
    """Return whether the token is a decimal digit that may have a meaning."""
    return not token.quoted and token.char.isascii() and token.char.isdigit()
