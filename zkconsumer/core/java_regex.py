r"""Translator of Java's regular expressions for the ``regex`` package. Pure; any thread.

All members of a group must expand an expression to the same topics, and Scala members use java.util.regex. Python's
syntax looks alike but means other things. In Java \w, \d, \s and letter case are ASCII, "." stops at five line ends,
"$" looks past a last line end, \z is the end, (?P<n>) does not exist, and [a&&[^b]] is an intersection. So the parser
reads the expression by Java's grammar, and writes the expression anew in the few constructs that Java and the package
share. It resolves flags, letter case and character classes on the way. Nothing depends on defaults of the package.

The model is Java 9 to 18. (In 8, [^a&&b] negates only the first operand; from 19 on, \b is ASCII only.)

Refused as untranslatable:

* references to groups under (?i)
* \b{g}
* the few classes that exist only in Java
* an intersection without a right side, if Java itself fails with it, as in [\d_&&]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from zkconsumer.core import java_character_classes as classes
from zkconsumer.core.java_character_classes import LINE_ENDS
from zkconsumer.core.java_regex_lexer import (
    END,
    MAX_NESTING,
    Flags,
    InvalidTopicFilterError,
    RegexLexer,
    UntranslatableTopicFilterError,
    is_digit,
)

__all__ = ["InvalidTopicFilterError", "UntranslatableTopicFilterError", "translate", "translate_with_size"]

_MAX_REPETITIONS = (1 << 31) - 1
_MAX_NAME = 4096
"""The largest count of a repetition, which the package spells out. Topic names are shorter (249 since 0.8.1),
so all larger counts mean the same."""
MAX_EXPRESSION = 32 * 1024
"""The limit on an expression, in characters. A longer one in one registration would keep all members busy."""
MAX_SPELLED_OUT = 128 * 1024
"""The limit on a translation, in characters, repetitions spelled out: 16 kB could become gigabytes."""
_LINE_END = rf"(?:\r\n|[{LINE_ENDS}])"
_BETWEEN_CR_LF = r"(?<=\r)(?=\n)"
_WORD = r"[\p{L}\p{Nd}_]"
_MARK_OF_WORD = r"(?=\p{Mn})(?<=[\p{L}\p{Nd}]\p{Mn}*)"


@dataclass(frozen=True, slots=True)
class _Node:
    """A translated part of the expression.

    ``shortest`` and ``longest`` are the lengths of its shortest and longest match. ``longest`` is None if Java finds no
    obvious maximum, which look-behinds need. ``fixed`` is Java's "deterministic": a group that is not fixed loses its
    maximum when it is repeated. ``extra`` is the growth of ``text`` when its repetitions are spelled out.
    """

    text: str
    shortest: int
    longest: int | None
    fixed: bool = True
    extra: int = 0

    @property
    def size(self) -> int:
        """The length of the text in characters, repetitions spelled out."""
        return len(self.text) + self.extra


def translate(expression: str) -> str:
    """Return the expression as a pattern for ``regex.compile(..., regex.VERSION1)`` that matches whole names.

    Raises InvalidTopicFilterError for an expression that Java refuses, and UntranslatableTopicFilterError for one that
    the package cannot express or that is too large.
    """
    return translate_with_size(expression)[0]


def translate_with_size(expression: str) -> tuple[str, int]:
    """Translate as :func:`translate`. Also return the pattern's length in characters, repetitions spelled out."""
    if len(expression) > MAX_EXPRESSION:
        reason = f"an expression of {len(expression)} characters is larger than {MAX_EXPRESSION}"
        raise UntranslatableTopicFilterError(expression, MAX_EXPRESSION, reason)
    parser = _Parser(expression)
    return parser.whole(), parser.size


class _Parser(RegexLexer):
    """Recursive descent by the grammar of java.util.regex.Pattern. One object reads one expression once."""

    def __init__(self, expression: str) -> None:
        super().__init__(expression)
        self._groups = 0
        self._names: dict[str, int] = {}
        self._references: list[int] = []
        self.size = 0

    # --- structure ---

    def whole(self) -> str:
        node = self._alternatives()
        if self._peek() == ")":
            self._fail("unmatched closing ')'")
        self.size = node.size
        if node.size > MAX_SPELLED_OUT:
            self._cannot(f"spelled out it is larger than {MAX_SPELLED_OUT} characters", 0)
        unknown = {number for number in self._references if number > self._groups}
        text = node.text
        for number in unknown:  # a group that does not exist never matches
            text = text.replace(f"(?:\\{number})", "(?!)")
        return rf"(?:{text})\Z"

    def _alternatives(self) -> _Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self._cannot(f"nested deeper than {MAX_NESTING} levels", self._position())
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._nesting -= 1
        if len(branches) == 1:
            return branches[0]
        return _Node(
            "|".join(branch.text for branch in branches),
            min(branch.shortest for branch in branches),
            _longest(branches, max),
            fixed=False,
            extra=sum(branch.extra for branch in branches),
        )

    def _sequence(self) -> _Node:
        nodes: list[_Node] = []
        while True:
            self._skip_comments()
            char = self._peek()
            if char in ("|", ")") or self._raw() is END:
                return _joined(nodes)
            if char and char in "*+?":
                self._fail(f"dangling meta character '{char}'")
            if char == "(":
                group = self._group()
                if group is not None:
                    nodes.append(self._quantified(group, is_group=True))
                continue
            nodes.append(self._quantified(self._atom(char), is_group=False))

    def _atom(self, char: str) -> _Node:
        if char == "[":
            return _Node(self._class(), 1, 1)
        if char == "{":
            return _Node("(?:)", 0, 0)  # a repetition of the empty text; without a number it fails
        if char == "\\":
            return self._escape()
        token = self._raw()
        self._at += 1
        if char == ".":
            stops = "" if "s" in self._flags else r"\n" if "d" in self._flags else LINE_ENDS
            return _Node(f"[^{stops}]" if stops else r"[\x00-\U0010ffff]", 1, 1)
        if char == "^":
            return _Node(self._caret(), 0, 0)
        if char == "$":
            return _Node(self._dollar("m" in self._flags), 0, 0)
        return _Node(self._single(ord(token.char)), 1, 1)

    def _caret(self) -> str:
        if "m" not in self._flags:
            return r"\A"
        if "d" in self._flags:
            return r"(?:(?!\Z)(?:\A|(?<=\n)))"
        return rf"(?:(?!\Z)(?:\A|(?<=[{LINE_ENDS}])(?!{_BETWEEN_CR_LF})))"

    def _dollar(self, multiline: bool) -> str:
        if "d" in self._flags:
            return r"(?:(?=\n|\Z))" if multiline else r"(?:(?=\n?\Z))"
        after = rf"(?=[{LINE_ENDS}]|\Z)" if multiline else rf"(?={_LINE_END}?\Z)"
        return rf"(?:{after}(?!{_BETWEEN_CR_LF}))"

    # --- repetition ---

    def _quantified(self, atom: _Node, *, is_group: bool) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return atom
        low, high = bounds
        kind = "?" if self._take("?") else "+" if self._take("+") else ""
        if atom.fixed and atom.shortest != atom.longest and not (is_group and bounds == (0, 1)):
            atom = replace(atom, text=f"(?>{atom.text})")  # as in Java, a repeated line break never gives back a part
        text = _repeated(atom, low, high, kind)
        longest = None if high is None or atom.longest is None else atom.longest * high
        if longest is not None and longest > _MAX_REPETITIONS:
            longest = None
        if is_group and kind != "+" and not atom.fixed and bounds != (0, 1):
            longest = None  # Java repeats such a group in a loop without a known maximum
        times = min(_MAX_NAME, low if high is None else high)
        extra = atom.size * max(0, times - 1) + atom.extra
        return _Node(text, atom.shortest * low, longest, fixed=atom.fixed and low == high, extra=extra)

    def _bounds(self) -> tuple[int, int | None] | None:
        if self._take("?"):
            return 0, 1
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._peek() != "{":
            return None
        start = self._position()
        self._at += 1
        if not is_digit(self._raw()):
            self._fail("illegal repetition", start)
        low = self._number(start)
        high: int | None = low
        if self._take(","):
            high = None if self._peek() == "}" else self._number(start)
        if not self._take("}"):
            self._fail("unclosed counted closure")
        if high is not None and high < low:
            self._fail("illegal repetition range", start)
        return low, high

    def _number(self, start: int) -> int:
        digits = ""
        self._skip_comments()
        while is_digit(self._raw()):
            digits += self._raw().char
            self._at += 1
        value = int(digits[:12] or "0")
        if value > _MAX_REPETITIONS:
            self._fail("illegal repetition range", start)
        return value

    # --- groups ---

    def _group(self) -> _Node | None:
        """Read a group. Return None for flags that hold for the rest of the enclosing group."""
        start = self._position()
        self._at += 1
        saved = self._flags
        if not self._take("?"):
            self._groups += 1
            return self._closed("(", start, saved)
        follow = self._raw()
        if not follow.quoted and follow.char in (":", "=", "!", ">"):
            self._at += 1
            node = self._closed(f"(?{follow.char}", start, saved)
            return replace(node, shortest=0, longest=0, fixed=True) if follow.char in "=!" else node
        if not follow.quoted and follow.char == "<":
            self._at += 1
            return self._behind_or_named(start, saved)
        self._read_flags()
        if self._take(")"):
            return None
        if not self._take(":"):
            self._fail("unknown inline modifier")
        return self._closed("(?:", start, saved)

    def _closed(self, opening: str, start: int, saved: Flags) -> _Node:
        node = self._alternatives()
        if not self._take(")"):
            self._fail("unclosed group", start)
        self._flags = saved
        return replace(node, text=f"{opening}{node.text})")

    def _behind_or_named(self, start: int, saved: Flags) -> _Node:
        token = self._raw()
        if token.char in ("=", "!") and not token.quoted:
            self._at += 1
            node = self._closed(f"(?<{token.char}", start, saved)
            if node.longest is None:
                self._cannot("the look-behind group has no obvious maximum length", start)
            return replace(node, shortest=0, longest=0, fixed=True)
        name = self._name()
        if name in self._names:
            self._fail(f"the named group <{name}> is already defined", start)
        self._groups += 1
        self._names[name] = self._groups
        return self._closed("(", start, saved)

    def _name(self) -> str:
        name = ""
        while self._raw().char.isascii() and (self._raw().char.isalpha() or (name and self._raw().char.isdigit())):
            name += self._raw().char
            self._at += 1
        if not name:
            self._fail("the name of a group starts with a letter")
        if self._raw().char != ">" or self._raw().quoted:
            self._fail("the name of a group ends with '>'")
        self._at += 1
        return name

    def _read_flags(self) -> None:
        on = True
        while True:
            char = self._peek()
            if char == "-" and on:
                on = False
            elif char and char in "idmsuxU":
                changed = {"U", "u"} if char == "U" else {char}
                self._flags = self._flags | changed if on else self._flags - changed
            else:
                return
            self._at += 1

    # --- escapes ---

    def _escape(self) -> _Node:
        """Read an escape outside of a class."""
        start = self._position()
        char = self._raw(1).char
        if self._raw(1) is END:
            self._fail("a backslash ends the expression", start)
        if char == "k" or char in "123456789":
            return self._reference(start)
        if char not in "AGzZbBRX":
            found = self._class_escape(in_range=False)
            return _Node(found if isinstance(found, str) else self._single(found), 1, 1)
        self._at += 2
        if char == "R":
            return _Node(rf"(?:\r\n|{classes.VERTICAL})", 1, 2)
        if char == "X":
            return _Node(r"\X", 1, None, fixed=False)
        if char == "b" and self._raw().char == "{" and self._raw(1).char == "g":
            self._cannot("grapheme boundaries cannot be translated", start)
        if char in "bB":
            return _Node(self._boundary() if char == "b" else f"(?!{self._boundary()})", 0, 0)
        if char == "Z":
            return _Node(self._dollar(multiline=False), 0, 0)
        return _Node(r"\Z" if char == "z" else r"\A", 0, 0)

    def _boundary(self) -> str:
        if "U" in self._flags:
            word = classes.UNICODE_SHORTHAND["w"]
            return rf"(?:(?<={word})(?!{word})|(?<!{word})(?={word}))"
        left = rf"(?:(?<={_WORD})|(?<=[\p{{L}}\p{{Nd}}]\p{{Mn}}+))"
        right = rf"(?:(?={_WORD})|{_MARK_OF_WORD})"
        not_left = rf"(?<!{_WORD})(?<![\p{{L}}\p{{Nd}}]\p{{Mn}}+)"
        not_right = rf"(?!{_WORD})(?!{_MARK_OF_WORD})"
        return rf"(?:{left}{not_right}|{not_left}{right})"

    def _reference(self, start: int) -> _Node:
        self._at += 1
        if self._raw().char == "k":
            self._at += 1
            if self._raw().char != "<":
                self._fail("\\k needs the name of a group in <>")
            self._at += 1
            name = self._name()
            if name not in self._names:
                self._fail(f"the named group <{name}> does not exist", start)
            number = self._names[name]
        else:
            number = int(self._raw().char)
            self._at += 1
            while is_digit(self._raw()) and number * 10 + int(self._raw().char) <= self._groups:
                number = number * 10 + int(self._raw().char)
                self._at += 1
        if "i" in self._flags:
            self._cannot("a reference to a group without regard to case cannot be translated", start)
        self._references.append(number)
        return _Node(f"(?:\\{number})", 0, None)


def _repeated(atom: _Node, low: int, high: int | None, kind: str) -> str:
    if atom.shortest * low > _MAX_NAME:
        return "(?!)"
    low = min(low, _MAX_NAME)
    upper = "" if high is None or high > _MAX_NAME else str(high)
    return f"(?:{atom.text}){{{low},{upper}}}{kind}"


def _joined(nodes: list[_Node]) -> _Node:
    return _Node(
        "".join(node.text for node in nodes),
        sum(node.shortest for node in nodes),
        _longest(nodes, sum),
        fixed=all(node.fixed for node in nodes),
        extra=sum(node.extra for node in nodes),
    )


def _longest(nodes: list[_Node], combine: Callable[[list[int]], int]) -> int | None:
    lengths = [node.longest for node in nodes]
    known = [length for length in lengths if length is not None]
    return (combine(known) if known else 0) if len(known) == len(lengths) else None
