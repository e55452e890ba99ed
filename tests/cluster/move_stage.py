"""Has a member's process die, or freeze, at a chosen moment of a loan's move. Importable by the process itself.

A moment is ``MOVE:before:kill``, with ``after`` or ``freeze`` instead: before or after the first write to ZooKeeper of
such a move:

* ``lend``: lends slots; ``recall``: wants some back (an owner's)
* ``took``: tells that slots were taken on; ``gave``: that some are given back (a borrower's)
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from zkconsumer.balance.sharing.lender import WriteLoan
from zkconsumer.balance.sharing.loan_nodes import LoanReport
from zkconsumer.balance.sharing.loan_store import LoanStore


def stage(moment: str) -> None:
    """End or freeze this process at that moment, once."""
    wanted, when, how = moment.split(":")
    number = signal.SIGKILL if how == "kill" else signal.SIGSTOP
    held: list[int] = [0]
    done: list[bool] = []

    def move_of(order: object) -> str:
        if isinstance(order, WriteLoan):
            return "recall" if order.loan.recalled else "lend"
        if isinstance(order, LoanReport):
            before, held[0] = held[0], order.held
            return "gave" if before & ~order.held else "took"
        return ""

    def staged(write: Callable[..., bool], at: int) -> Callable[..., bool]:
        def call(*arguments: Any, **named: Any) -> bool:
            now = move_of(arguments[at]) == wanted and not done
            if now:
                done.append(True)
            if now and when == "before":
                os.kill(os.getpid(), number)
            written = write(*arguments, **named)
            if now and when == "after":
                os.kill(os.getpid(), number)
            return written

        return call

    for name, at in (("write", 2), ("report", 3)):
        setattr(LoanStore, name, staged(getattr(LoanStore, name), at))
