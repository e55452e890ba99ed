"""Checks of clocks: those of members, of ZooKeeper and of this machine. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterator

from zkconsumer.operations.doctor.findings import Finding, Level, Observations, not_looked_at, seconds, unknown
from zkconsumer.operations.group_snapshot import GroupSnapshot, NodeStat
from zkconsumer.zookeeper import paths

SKEW_MS = 5_000
"""A difference of clocks below this may be a delay."""
LATE_MS = 30_000
"""A member whose clock seems behind by less may have registered late: 0.8 waits for the end of its former session."""
_EFFECT = "timestamps in its messages and logs may lie"
_REMEDY = "synchronise the clock (NTP, chrony)"


def member_clocks(seen: Observations) -> Iterator[Finding]:
    """Compare the ``timestamp`` in each registration, by the member's clock, with its node's ``ctime``."""
    snapshot = seen.latest
    for consumer, node in sorted(snapshot.members.items()):
        if node.registration is None or node.registration.is_nudge or node.stat is None:
            continue
        text = node.registration.timestamp
        path = f"{paths.CONSUMERS}/{snapshot.group}/ids/{consumer}"
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            yield unknown(f"the clock of {consumer}: its registration has no time", node=path)
            continue
        ahead = int(text) - node.stat.ctime
        if -LATE_MS <= ahead <= SKEW_MS:
            continue
        if ahead > 0:
            said = f"the clock of {consumer} is {seconds(ahead)} ahead of ZooKeeper's"
        else:
            said = f"the clock of {consumer} is {seconds(-ahead)} behind ZooKeeper's, or it registered so late"
        evidence = f"timestamp {text}, ctime {node.stat.ctime}"
        yield Finding(Level.WARN, f"{said}; {_EFFECT}", evidence, path, _REMEDY)


def our_clock(seen: Observations) -> Iterator[Finding]:
    """Compare this machine's clock with ZooKeeper's: by a node that was made for it, or by the youngest node."""
    snapshot = seen.latest
    if seen.probe is not None:
        low, high = (seen.probe.ctime - seen.probe.after, seen.probe.ctime - seen.probe.before)
        behind = low if low > 0 else min(high, 0)  # what is left after the time that the creation took
        if abs(behind) > SKEW_MS:
            word = "behind" if behind > 0 else "ahead of"
            yield Finding(
                Level.WARN,
                f"this machine's clock is {seconds(abs(behind))} {word} ZooKeeper's: ages and time lags here are wrong"
                " by that",
                f"created between {seen.probe.before} and {seen.probe.after}, ctime {seen.probe.ctime}",
                remedy=_REMEDY,
            )
        return
    newest = max((max(stat.ctime, stat.mtime) for stat in _stats(snapshot)), default=0)
    if newest - snapshot.taken > SKEW_MS:
        yield Finding(
            Level.WARN,
            f"this machine's clock is at least {seconds(newest - snapshot.taken)} behind ZooKeeper's: a node is from"
            " the future",
            f"snapshot taken {snapshot.taken}, youngest node {newest}",
            remedy=_REMEDY,
        )
    elif snapshot.zookeeper:
        yield not_looked_at(
            "whether this machine's clock agrees with ZooKeeper's needs a node that is written now",
            remedy="add --write-probe: it makes one ephemeral node and deletes it",
        )


def _stats(snapshot: GroupSnapshot) -> Iterator[NodeStat]:
    for nodes in (snapshot.members, snapshot.owners, snapshot.offsets):
        for node in nodes.values():
            if node.stat is not None:
                yield node.stat
