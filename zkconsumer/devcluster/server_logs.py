"""Logging configuration of the servers: short lines, warnings and the milestones, into the one log file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_BACKSLASH = 92

_LOG4J_1 = """\
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %m (%c)%n
"""

_LOG4J_2 = """\
status = warn
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d{ISO8601} %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""


def log4j_options(directory: Path, levels: Mapping[str, str]) -> list[str]:
    """Writes the configuration files of log4j 1 and 2 and returns the JVM options that name them.

    Arguments: ``levels`` of single loggers, by name. The other log4j than the server's own ignores its file.
    """
    one, two = directory / "log4j.properties", directory / "log4j2.properties"
    one.write_text(_LOG4J_1 + "".join(f"log4j.logger.{name}={level}\n" for name, level in levels.items()))
    two.write_text(
        _LOG4J_2
        + "".join(
            f"logger.l{number}.name = {name}\nlogger.l{number}.level = {level.lower()}\n"
            for number, (name, level) in enumerate(levels.items())
        )
    )
    return [f"-Dlog4j.configuration={one.as_uri()}", f"-Dlog4j2.configurationFile={two.as_uri()}"]


def write_properties(path: Path, properties: Mapping[str, object]) -> None:
    """Writes a Java properties file. Values are written as ``str`` gives them, escaped where needed."""
    path.write_text("".join(f"{key}={_escaped(str(value))}\n" for key, value in properties.items()), encoding="ascii")


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2))
    return "".join(chr(code) if 32 <= code < 127 and code != _BACKSLASH else f"\\u{code:04x}" for code in codes)
