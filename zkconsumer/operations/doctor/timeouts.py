"""Checks of times: rebalance attempts, sessions, and clocks of members, of ZooKeeper and of this machine. Pure.

Any thread. A Scala member's retries and its wanted session timeout stand in no node. So the checks use the member's
properties where given. Otherwise the findings name the original's defaults as defaults, and judge the effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from zkconsumer.operations.doctor.findings import (
    Finding,
    Level,
    Observations,
    counted,
    listed,
    not_looked_at,
    seconds,
    unknown,
)
from zkconsumer.operations.group_snapshot import GroupSnapshot, NodeStat
from zkconsumer.operations.group_view import MemberKind, member_kind

DEFAULT_SESSION_MS = 6000
DEFAULT_RETRIES = 4
DEFAULT_BACKOFF_MS = 2000
"""Defaults of the original connector."""
SERVERS_DEFAULT_MAXIMUM_MS = 40_000
"""The longest session with ZooKeeper's default tick of 2 s: twenty ticks."""
DRAIN_MS = 1000
"""How long a member of this package waits for the message in a reader's hands: ``rebalance.drain.timeout.ms``."""


def longest_session(snapshot: GroupSnapshot) -> tuple[int, bool]:
    """Return the longest session that the servers allow in ms, and whether they said so."""
    told = [bounds[1] for server in snapshot.servers if (bounds := _bounds(server.tick_time, server)) is not None]
    return (max(told), True) if told else (SERVERS_DEFAULT_MAXIMUM_MS, False)


def _bounds(tick: int | None, server: object) -> tuple[int, int] | None:
    """Return the shortest and the longest session of a server in ms: 2 and 20 ticks, unless it says otherwise."""
    low, high = (getattr(server, "min_session_timeout", None), getattr(server, "max_session_timeout", None))
    low = low if low is not None and low > 0 else (2 * tick if tick else None)
    high = high if high is not None and high > 0 else (20 * tick if tick else None)
    return None if low is None or high is None else (low, high)


def number(properties: Mapping[str, str], key: str, default: int) -> int | None:
    """Return a number of a Scala member's properties, None if its text is none or negative."""
    text = properties.get(key, "").strip()
    if not text:
        return default
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 12 else None


def _patience(properties: Mapping[str, str]) -> int | None:
    """Return the product of retries and backoff in ms, None if a number is unreadable."""
    sync = number(properties, "zookeeper.sync.time.ms", DEFAULT_BACKOFF_MS)
    retries = number(properties, "rebalance.max.retries", DEFAULT_RETRIES)
    backoff = number(properties, "rebalance.backoff.ms", DEFAULT_BACKOFF_MS if sync is None else sync)
    return None if retries is None or backoff is None else retries * backoff


def member_patience(seen: Observations) -> tuple[int, str]:
    """Return how long a Scala member tries to own its partitions in ms, and where that is known from."""
    configured = None if seen.member_config is None else _patience(seen.member_config)
    if configured is None:
        return DEFAULT_RETRIES * DEFAULT_BACKOFF_MS, "by default"
    return configured, "by its properties"


def scala_patience(seen: Observations) -> Iterator[Finding]:
    """Compare a Scala member's attempts with the times that it must outlast: a dead member's session, and drains."""
    snapshot = seen.latest
    if not any(member_kind(node) is MemberKind.SCALA for node in snapshot.members.values()):
        return
    if seen.member_config is None:
        yield not_looked_at(
            "a Scala member's rebalance.max.retries and rebalance.backoff.ms stand in no node. By default it tries for"
            f" {seconds(DEFAULT_RETRIES * DEFAULT_BACKOFF_MS)}; the check unowned-partition shows members that gave up",
            remedy="give the properties of a Scala member: --member-config consumer.properties",
        )
        return
    patience = _patience(seen.member_config)
    if patience is None:
        yield unknown("rebalance.max.retries or rebalance.backoff.ms in the member's properties is no number")
        return
    sessions = _negotiated(snapshot)
    wanted = number(seen.member_config, "zookeeper.session.timeout.ms", DEFAULT_SESSION_MS)
    session = max(sessions.values(), default=_effective(snapshot, wanted or DEFAULT_SESSION_MS))
    enough = session + DRAIN_MS
    if patience <= enough:
        yield Finding(
            Level.ERROR if patience <= session else Level.WARN,
            f"a Scala member gives up after {seconds(patience)}, but must wait for up to {seconds(enough)} when another"
            " member dies: then it stays registered and owns nothing",
            f"rebalance.max.retries x rebalance.backoff.ms = {patience} ms; longest session {session} ms, and"
            f" {DRAIN_MS} ms for a message in hand",
            f"{'/consumers'}/{snapshot.group}/ids",
            f"set rebalance.max.retries={-(-2 * enough // DEFAULT_BACKOFF_MS)} and"
            f" rebalance.backoff.ms={DEFAULT_BACKOFF_MS} for every Scala member",
        )


def _negotiated(snapshot: GroupSnapshot) -> dict[str, int]:
    """Return the session timeout of each member, as far as servers told."""
    known = {session: timeout for server in snapshot.servers for session, (_, timeout) in server.sessions.items()}
    return {
        consumer: known[node.stat.ephemeral_owner]
        for consumer, node in snapshot.members.items()
        if node.stat is not None and node.stat.ephemeral_owner in known
    }


def _effective(snapshot: GroupSnapshot, wanted: int) -> int:
    bounds = [found for server in snapshot.servers if (found := _bounds(server.tick_time, server)) is not None]
    return min(max(wanted, bounds[0][0]), bounds[0][1]) if bounds else wanted


def session_timeouts(seen: Observations) -> Iterator[Finding]:
    """Compare the members' session timeouts with the wanted ones and with the servers' bounds."""
    snapshot = seen.latest
    if not snapshot.members:
        return
    bounds = [found for server in snapshot.servers if (found := _bounds(server.tick_time, server)) is not None]
    if not bounds:
        why = "no ZooKeeper server told its tick or its bounds"
        yield not_looked_at(why, remedy="allow srvr, conf and cons in 4lw.commands.whitelist of the servers")
        return
    low, high = bounds[0]
    if seen.member_config is not None:
        yield from _wanted(snapshot, seen.member_config, low, high)
    negotiated = _negotiated(snapshot)
    if not negotiated:
        why = "no ZooKeeper server told the members' sessions"
        yield not_looked_at(why, remedy="allow cons in 4lw.commands.whitelist of the servers")
    for bound, word, effect in (
        (low, "shortest", "a member that wants less keeps its partitions for longer after its death"),
        (high, "longest", "a member that wants more loses its session sooner than it thinks"),
    ):
        at_bound = sorted(consumer for consumer, timeout in negotiated.items() if timeout == bound)
        if at_bound:
            yield Finding(
                Level.NOTE,
                f"{counted(len(at_bound), 'member')} with the {word} session that the servers allow ({bound} ms): "
                + effect,
                listed(at_bound, 3),
                snapshot.path("ids"),
                "compare with their zookeeper.session.timeout.ms, and with --member-config",
            )


def _wanted(snapshot: GroupSnapshot, properties: Mapping[str, str], low: int, high: int) -> Iterator[Finding]:
    wanted = number(properties, "zookeeper.session.timeout.ms", DEFAULT_SESSION_MS)
    if wanted is None:
        yield unknown("zookeeper.session.timeout.ms in the member's properties is no number")
    elif not low <= wanted <= high:
        effective = min(max(wanted, low), high)
        yield Finding(
            Level.WARN,
            f"the member wants sessions of {wanted} ms, but the servers allow {low} to {high} ms: it gets {effective}",
            f"tickTime {snapshot.servers[0].tick_time}, bounds {low}..{high} ms",
            snapshot.servers[0].address,
            f"set zookeeper.session.timeout.ms={effective}, or change the servers' tickTime or"
            " minSessionTimeout and maxSessionTimeout",
        )


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
        path = snapshot.path("ids", consumer)
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
