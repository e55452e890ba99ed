"""The command line in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from zkconsumer import cli


class CommandLine:
    """Runs commands. ``out`` and ``err`` are what the last one printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def run(self, *arguments: str) -> int:
        """Run a command, and return its exit code."""
        self._capsys.readouterr()
        try:
            return cli.main(list(arguments))
        except SystemExit as usage:
            return int(str(usage.code))
        finally:
            self.out, self.err = self._capsys.readouterr()


Printed = Callable[..., str]
"""Runs a command with these arguments and asserts its exit code, 0 or ``code``.

It returns the standard output, or with ``err`` what the command wrote to standard error.
"""


def printed(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0, err: bool = False) -> str:
    line = CommandLine(capsys)
    assert line.run(*arguments) == code, line.err
    return line.err if err else line.out
