"""The command line in this process."""

from __future__ import annotations

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
