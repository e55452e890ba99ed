"""``zkconsumer help`` and ``zkconsumer errors``: the installed package's own words, each from its one source.

They print pages, sections of pages and rows of tables, docstrings of errors, and the helps of commands.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterator
from functools import cache
from importlib import resources
from inspect import cleandoc

from zkconsumer import errors
from zkconsumer.cli import COMMANDS, main
from zkconsumer.errors import ConfigException
from zkconsumer.operations.doctor import CHECKS
from zkconsumer.operations.group_lookup import similar_names

DESCRIPTION = """\
Explains a command, an error, a check of the doctor, a property, or a subject: a page of
the documents. Without a topic it lists the subjects.

  zkconsumer help groups describe
  zkconsumer help standing-still
  zkconsumer help auto.offset.reset
  zkconsumer errors UnknownTopicError

"zkconsumer errors" knows errors only, and lists them without a name.
"""

_ROW = re.compile(r"^\| (.*?) \| (.*) \|$", re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]+\)")
_COMMENT = re.compile(r"<!--.*?-->\n?", re.DOTALL)
_ERRORS_PAGE = "troubleshooting"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the topic."""
    parser.add_argument("topic", nargs="*", metavar="TOPIC", help="a name, or the title of a section")


def completions(command: str) -> dict[str, list[str]]:
    """Return the words that a shell completes, by the argument."""
    return {"topic": _errors() if command == "errors" else _topics()}


def run(arguments: argparse.Namespace) -> int:
    """Run the command. Return the exit code. Raises: ConfigException for an unknown topic."""
    words, topic = arguments.topic, " ".join(arguments.topic)
    if arguments.command == "errors":
        print(_error(topic.rpartition(".")[2]) if words else (errors.__doc__ or "").partition("::")[2].strip("\n"))
    elif words and words[0] in COMMANDS:
        return main([*words, "--help"])
    else:
        print(_explained(topic) if words else _subjects())
    return 0


@cache
def pages() -> dict[str, str]:
    """Return the text of each page by its name, without the marks that only a browser needs."""
    folder = resources.files("zkconsumer") / "docs"
    files = sorted(folder.iterdir(), key=lambda file: file.name) if folder.is_dir() else []
    texts = {file.name.removesuffix(".md"): file.read_text("utf-8") for file in files if file.name.endswith(".md")}
    return {name: _LINK.sub(r"\1", _COMMENT.sub("", text)).strip() for name, text in texts.items()}


def title_of(page: str) -> str:
    """Return the title of a page."""
    found = _HEADING.search(pages()[page])
    return found[2] if found else page


def sections(title: str) -> Iterator[tuple[str, str]]:
    """Yield the sections with this title, or with this beginning of it before a colon, each with the name of its page.

    Letters may be large or small.
    """
    for page, text in pages().items():
        for heading in _HEADING.finditer(text):
            words = heading[2].strip("`").lower()
            if title.lower() in (words, words.partition(":")[0]):
                level = len(heading[1])
                ends = (one.start() for one in _HEADING.finditer(text, heading.end()) if len(one[1]) <= level)
                yield page, text[heading.start() : next(ends, len(text))].strip()


def rows(name: str, only: str = "") -> Iterator[tuple[str, str]]:
    """Yield the rest of each row of a table whose first cell has this name, with the name of its page.

    Arguments: ``only`` is the one page to look at.
    """
    wanted = re.compile(rf"(?<![\w.]){re.escape(name)}(?![\w.]\w)", re.IGNORECASE)
    for page, text in pages().items():
        for row in _ROW.finditer(text) if not only or page == only else ():
            if any(wanted.search(one) for one in re.findall("`([^`]*)`", row[1])):
                yield page, row[2].replace(" | ", "\n  ")


@cache
def error_types() -> dict[str, type[BaseException]]:
    """Return the package's errors by their names, as their module defines them."""
    return {name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, BaseException)}


def error_text(name: str) -> str:
    """Return what an error means and what to do, from its docstring and its row in a page. Raises KeyError."""
    kind = error_types()[name]
    bases = [one for one in kind.__mro__[1:] if issubclass(one, Exception) and one is not Exception]
    told = [f"{name} ({', '.join(one.__name__ for one in bases) or 'BaseException'})", "", _docstring(kind)]
    for one in (one for one in kind.__mro__ if one.__module__ == errors.__name__):
        advice = vars(one).get("advice")
        found = [f"{advice[0].upper()}{advice[1:]}."] if advice else []
        found += [f"{text}." for _, text in rows(one.__name__, _ERRORS_PAGE)]
        if found:
            told += ["", "What to do:" if one is kind else f"What to do, as for every {one.__name__}:", *found]
            break
    return "\n".join(told)


def _docstring(kind: type) -> str:
    text = cleandoc(kind.__doc__ or "")
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")


def _errors() -> list[str]:
    return list(error_types())


def _error(name: str) -> str:
    """Return the explanation of an error, whose name may have any letters. Raises: ConfigException."""
    small = {one.lower(): one for one in error_types()}
    if name.lower() not in small:
        raise _unknown(name, "error of this package", _errors())
    return error_text(small[name.lower()])


def _unknown(topic: str, kind: str, known: Collection[str]) -> ConfigException:
    similar = similar_names(topic, known)
    hint = f"; did you mean {' or '.join(similar)}?" if similar else "; see 'zkconsumer help'"
    return ConfigException("TOPIC", f"{topic!r} is no {kind}{hint}")


def _topics() -> list[str]:
    return [*COMMANDS, *(check.name for check in CHECKS), *pages(), *_errors()]


def _subjects() -> str:
    told = [f"  {name:{max(map(len, pages()), default=0)}}  {title_of(name)}" for name in pages()]
    return "\n".join(["Subjects, beside the commands, errors, checks and properties:", "", *told])


def _explained(topic: str) -> str:
    """Return the explanation of a topic. Raises: ConfigException."""
    if topic.lower() in map(str.lower, error_types()):
        return _error(topic)
    told = [f"{text}\n\n(docs/{page}.md)" for page, text in sections(topic)]
    told += [pages()[topic]] if topic in pages() else []
    told = told or [f"{topic}\n  {text}\n\n(docs/{page}.md)" for page, text in rows(topic)]
    if not told:
        raise _unknown(topic, "topic", _topics())
    return "\n\n".join(told)
