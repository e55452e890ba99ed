"""The output of the demo. The main thread uses it.

In a terminal, the owners are a table that changes in place below the text. Elsewhere (a pipe, a log, a dumb terminal)
each change is a line without control codes.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scripts.demonstration.group_owners import GroupOwners
from scripts.demonstration.message_account import MessageAccount
from zkconsumer.version import COMPILED, DATA_PLANE

_INDENT = 3
_COLOURS = ("cyan", "magenta", "green", "yellow")
_QUIET_S = 5.0
_REFRESH_PER_S = 10


class Screen:
    """The screen. A context manager that removes the changing part at its end."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._lively = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live: Live | None = None
        self._shown = f"{GroupOwners()}"  # so an empty group is not shown before the first member joins
        self._last_count = self._last_progress = 0.0
        self._members: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.settle()

    def title(self, text: str) -> None:
        """Print a title."""
        self._console.print(Text(text, "bold"))

    def opening(self, text: str) -> None:
        """Print the demo's title, and whether this installation is slower than it could be."""
        self.title(text)
        if not COMPILED:
            self.say(
                f"This installation reads records several times slower than it could. It is {DATA_PLANE}.", "yellow"
            )

    def step(self, number: int, text: str) -> None:
        """Print the heading of a step."""
        self._console.print(Text.assemble("\n", (f"{number}  {text}", "bold")))

    def say(self, text: str, style: str = "") -> None:
        """Print lines of text."""
        for line in text.splitlines() or [""]:
            self._console.print(Text((" " * _INDENT + line).rstrip(), style), soft_wrap=True)

    def legend(self) -> None:
        """Explain the lines about owners. The table in a terminal has headings instead."""
        if not self._lively:
            self.say('"owners" below: each stream (member/number) and the partitions that it owns')

    def table(self, table: Table) -> None:
        """Print a table."""
        with self._console.capture() as captured:
            self._console.print(Padding(table, (0, 0, 0, _INDENT), expand=False))
        for line in captured.get().splitlines():
            self._console.out(line.rstrip(), highlight=False)  # no trailing blanks in a file

    def figures(self, rows: Iterable[tuple[str, int, str]]) -> None:
        """Print rows of a name, a number and a remark."""
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column()
        table.add_column(justify="right")
        table.add_column(overflow="fold")
        for name, number, remark in rows:
            table.add_row(name, f"{number:,}", remark)
        self.table(table)

    def waiting(self, text: str) -> None:
        """Show that a step takes a while: in place in a terminal, once elsewhere."""
        if self._lively:
            self._update(Text(f"{' ' * _INDENT}{text}", "dim"))
        elif text.split(" (")[0] != self._shown:
            self._shown = text.split(" (")[0]
            self.say(self._shown)

    def progress(self, text: str) -> None:
        """Show the progress of a download. See ``devcluster.jars.Progress``."""
        done = text.endswith("\n")
        if self._lively and not done:
            self.waiting(text)
        elif done or monotonic() - self._last_progress >= 2 * _QUIET_S:
            self._last_progress = monotonic()
            self.say(text)

    def group(self, view: GroupOwners, account: MessageAccount, partitions: int) -> None:
        """Show the present owners and the number of consumed messages."""
        if self._lively:
            self._update(Padding(self._owners(view, account, partitions), (1, 0, 0, _INDENT), expand=False))
            return
        nobody = [str(number) for number in range(partitions) if number not in view.owners]
        text = f"{view}" + (f"  nobody: {','.join(nobody)}" if nobody and view.owners else "")
        if text != self._shown:
            self._shown = text
            self.say(f"owners  {text}")
        if account.consumed_count and monotonic() - self._last_count >= _QUIET_S:
            self._last_count = monotonic()
            self.say(f"so far  {_produced(account):,} flights produced, {account.consumed_count:,} consumed")

    def count(self, text: str) -> None:
        """Show a count that grows: in place in a terminal, every few seconds elsewhere."""
        if self._lively:
            self._update(Text(f"{' ' * _INDENT}{text}", "dim"))
        elif monotonic() - self._last_count >= _QUIET_S:
            self._last_count = monotonic()
            self.say(text)

    def owners(self, view: GroupOwners) -> None:
        """Show the present owners."""
        text = str(view)
        if self._lively:
            self._update(Text(f"{' ' * _INDENT}owners  {text}", "dim"))
        elif text != self._shown:
            self._shown = text
            self.say(f"owners  {text}")

    def _owners(self, view: GroupOwners, account: MessageAccount, partitions: int) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
        table.add_column("partition", justify="right", style="dim")
        table.add_column("owner", min_width=6)
        table.add_column("stream", justify="right")
        table.add_column("consumed", justify="right", min_width=9)
        table.add_column("still to do", justify="right", min_width=11)
        ends = account.ends()
        for number in range(partitions):
            member, stream = view.owners.get(number, ("nobody", None))
            done = account.consumed_of(number)
            style = "bold red" if stream is None else self._colour(member)
            left = max(0, ends.get(number, 0) - done)
            table.add_row(
                str(number), Text(member, style), "" if stream is None else str(stream), f"{done:,}", f"{left:,}"
            )
        table.add_row("all", "", "", f"{account.consumed_count:,}", f"of {_produced(account):,}", style="bold")
        return table

    def _colour(self, member: str) -> str:
        if member not in self._members:
            self._members.append(member)
        return _COLOURS[self._members.index(member) % len(_COLOURS)]

    def _update(self, content: Text | Padding) -> None:
        if self._live is None:
            self._live = Live(
                console=self._console, refresh_per_second=_REFRESH_PER_S, transient=True, redirect_stderr=False
            )
            self._live.start()
        self._live.update(content)

    def settle(self) -> None:
        """Remove the changing part. Printed lines stay."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def _produced(account: MessageAccount) -> int:
    """Return the number of produced messages. A member may consume a message before its acknowledgement arrives."""
    consumed = account.consumed_count
    return max(account.produced_count, consumed)
