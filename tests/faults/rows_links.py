"""What befalls the links: rows 6 and 8 to 11 of the matrix."""

from __future__ import annotations

from time import monotonic_ns

from tests.faults.group import sleep
from tests.faults.history import SECOND
from tests.faults.lab import Lab, Report, row


@row("8", "a black hole to ZooKeeper, brokers fine", quick=True)
def black_hole(lab: Lab, report: Report) -> None:
    session = lab.timing.session
    with lab.group("8") as group:
        lab.populate(group, linked=("b",))
        last = []
        for _ in range(lab.timing.times(1, 4)):
            victim = group.members["b"]
            fault = group.fault("black hole", victim)
            begin = monotonic_ns()
            group.links["b"].zookeeper.swallow()
            group.abandoned(victim)
            sleep(session)
            after = [event["t"] - begin for event in victim.hand_outs(begin)]
            last.append(max(after, default=0) / SECOND)
            group.links["b"].zookeeper.carry()
            fault.healed()
            healed = group.fault("healing", victim, loses=False, moves=True)
            group.settle()
            healed.settled()
        group.finish()
        report.judged(group, lab.rules(bounds={"healing": 4.0}))
        report.tell(f"last hand-out {max(last):.2f} s after the cut ({max(last) / session:.2f} T)")
        report.require(max(last) < session, "I1: hand-outs went on for a whole session after the cut")
