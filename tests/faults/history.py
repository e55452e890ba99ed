"""The history of a run from its events: ownerships, hand-outs, commits, faults and healings. Pure.

An owner is known by its session, and a session by its member's events. A member without events (the original) is known
by its consumer id.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from tests.faults.events import Event

NEVER = 1 << 62
SECOND = 1_000_000_000
CLOCKS_NS = SECOND // 50
"""How far the time at which ZooKeeper made a node, on our clock, may be from the time of the request that did it."""


class Process(NamedTuple):
    """One process of a member. A name may have several, one after the other."""

    who: str
    pid: int


@dataclass(slots=True)
class Ownership:
    """The life of an owner node. Times are in ns; ``end`` is the time at which the watcher saw that it was gone."""

    tp: str
    thread: str
    session: int
    czxid: int
    begin: int
    end: int = NEVER
    process: Process | None = None
    seen: bool = True
    """By the watcher; one that came and went while that was away is known from the claim of who made it."""


@dataclass(slots=True)
class HandOut:
    """A hand-out: a message that a member got from its stream. It is ``done`` when the member asks for the next one."""

    at: int
    process: Process
    tp: str
    offset: int
    value: str
    thread: int
    done: int = NEVER
    legacy: bool = False


@dataclass(slots=True)
class Fault:
    """A fault. ``victim`` is a member's name, or None for all members (a server, a topic).

    ``loses``: the fault ends the victim's ownerships. ``heals``: the recovery counts from the healing.
    """

    kind: str
    at: int
    victim: str | None = None
    pid: int = 0
    healed: int = NEVER
    loses: bool = True
    heals: bool = False
    moves: bool = False
    """A planned change (a join, a clean leave): nothing may be repeated by it."""
    settled: int = NEVER
    """When the driver saw the group in order again."""


class Offset(NamedTuple):
    """The content of an offset node as the watcher saw it."""

    at: int
    value: str
    version: int
    mzxid: int


class Write(NamedTuple):
    """A commit or release by a member: partition -> offset, and the refused partitions with the reason."""

    at: int
    process: Process
    kind: str
    offsets: dict[str, int | None]
    refused: dict[str, str]
    failed: bool


@dataclass(slots=True)
class History:
    """The history, by partition and in the order of time."""

    events: Sequence[Event] = ()
    ownerships: dict[str, list[Ownership]] = field(default_factory=lambda: defaultdict(list))
    hand_outs: dict[str, list[HandOut]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[str, list[Offset]] = field(default_factory=lambda: defaultdict(list))
    writes: list[Write] = field(default_factory=list)
    written: dict[str, list[tuple[int, int, bool]]] = field(default_factory=lambda: defaultdict(list))
    """(when, offset, whether its answer came) of every write that was not refused, by partition. A claim is one."""
    acked: dict[tuple[str, int], str] = field(default_factory=dict)
    somewhere: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """The messages that were acknowledged without an offset, by partition: value -> time."""
    acked_until: dict[str, int] = field(default_factory=dict)
    """When something was last acknowledged with its offset, by partition."""
    faults: list[Fault] = field(default_factory=list)
    lost: dict[tuple[Process, str], list[int]] = field(default_factory=lambda: defaultdict(list))
    resumed: dict[Process, list[int]] = field(default_factory=lambda: defaultdict(list))

    def owner(self, tp: str, at: int) -> Ownership | None:
        """Return the last ownership that began before ``at``, even if it has ended."""
        all_of_it = self.ownerships.get(tp, [])
        index = bisect_right(all_of_it, at, key=lambda ownership: ownership.begin)
        return all_of_it[index - 1] if index else None

    def since(self, tp: str, at: int) -> Iterator[HandOut]:
        """Return the hand-outs of a partition since that time."""
        all_of_it = self.hand_outs.get(tp, [])
        for index in range(bisect_left(all_of_it, at, key=lambda hand_out: hand_out.at), len(all_of_it)):
            yield all_of_it[index]

    def between(self, begin: int, end: int) -> Iterator[Event]:
        """All events of a time."""
        for index in range(bisect_left(self.events, begin, key=lambda event: event["t"]), len(self.events)):
            if self.events[index]["t"] >= end:
                return
            yield self.events[index]

    def of(self, kind: str, who: str | None = None) -> list[Event]:
        """The events of a kind, of one process or of all."""
        return [e for e in self.events if e["e"] == kind and (who is None or e["who"] == who)]


def history(events: Iterable[Event]) -> History:
    """Return the history of the events, in the order of their times."""
    found = History(sorted(events, key=lambda event: event["t"]))
    sessions: dict[int, Process] = {}
    names: dict[str, Process] = {}
    for event in found.events:
        process = Process(event["who"], event["pid"])
        if event["e"] == "session":
            sessions[event["id"]] = process
        elif event["e"] == "ready":
            names[event["consumer"]] = process
    in_hand: dict[tuple[Process, int], HandOut] = {}
    for event in found.events:
        _take(found, event, Process(event["who"], event["pid"]), in_hand)
    for all_of_it in found.ownerships.values():
        for ownership in all_of_it:
            consumer = ownership.thread.rpartition("-")[0]
            ownership.process = sessions.get(ownership.session) or names.get(consumer)
    _add_unseen(found)
    for all_of_it in found.ownerships.values():
        all_of_it.sort(key=lambda ownership: ownership.begin)
        for one, following in pairwise(all_of_it):
            one.end = min(one.end, following.begin)
    return found


def _add_unseen(found: History) -> None:
    """Add the ownerships of successful claims whose owner nodes the watcher missed."""
    for number, event in enumerate(found.of("claim")):
        if "error" in event:
            continue
        process = Process(event["who"], event["pid"])
        for tp in event["tps"].keys() - event["refused"].keys():
            answered = event["t"] + event["took"]
            if not any(
                one.process == process and event["t"] - CLOCKS_NS < one.begin < answered + CLOCKS_NS
                for one in found.ownerships[tp]
            ):
                end = _released(found, process, tp, answered)
                found.ownerships[tp].append(
                    Ownership(tp, f"{process.who}-?", 0, -number, answered, end, process=process, seen=False)
                )


def _released(found: History, process: Process, tp: str, since: int) -> int:
    """Return the time at which the member noticed that its owner node is gone, or NEVER."""
    for event in found.of("release", process.who):
        if event["pid"] != process.pid or event["t"] < since or "error" in event:
            continue
        if tp in event["tps"].keys() - event["refused"].keys():
            return int(event["t"] + event["took"])
    return NEVER


def _take(found: History, event: Event, process: Process, in_hand: dict[tuple[Process, int], HandOut]) -> None:
    at = event["t"]
    match event["e"]:
        case "h":
            hand_out = HandOut(
                at, process, event["tp"], event["o"], event["v"], event["th"], legacy=event.get("legacy", False)
            )
            found.hand_outs[event["tp"]].append(hand_out)
            in_hand[process, event["th"]] = hand_out
        case "d":
            in_hand[process, event["th"]].done = at
        case "owner":
            _owned(found.ownerships[event["name"]], event)
        case "owner_gone":
            _gone(found.ownerships[event["name"]], event)
        case "offset":
            found.offsets[event["name"]].append(Offset(at, event["data"], event["version"], event["mzxid"]))
        case "acked":
            if event["o"] is None:  # acknowledged by a new leader, which had it from the old one and knew no offset
                found.somewhere[event["tp"]][event["v"]] = at
            else:
                found.acked_until[event["tp"]] = at
                found.acked[event["tp"], event["o"]] = event["v"]
        case "commit" | "release":
            found.writes.append(
                Write(at, process, event["e"], dict(event["tps"]), dict(event.get("refused", {})), "error" in event)
            )
            _wrote(found, event)
        case "claim":
            _wrote(found, event)
        case "lost":
            _lost(found, event, process)
        case "fault" | "healed" | "settled" | "cont":
            _broken(found, event)


def _wrote(found: History, event: Event) -> None:
    for tp, offset in event["tps"].items():
        if offset is not None and tp not in event.get("refused", {}):
            found.written[tp].append((event["t"], offset, "error" not in event))


def _lost(found: History, event: Event, process: Process) -> None:
    for tp in event["tps"]:
        found.lost[process, tp].append(event["t"])


def _gone(all_of_it: list[Ownership], event: Event) -> None:
    for ownership in all_of_it:
        if ownership.czxid == event["czxid"]:
            ownership.end = min(ownership.end, event["t"])


def _owned(all_of_it: list[Ownership], event: Event) -> None:
    if any(known.czxid == event["czxid"] for known in all_of_it):
        return  # its content was written again
    all_of_it.append(Ownership(event["name"], event["data"], event["session"], event["czxid"], event["since"]))


def _broken(found: History, event: Event) -> None:
    at = event["t"]
    if event["e"] == "fault":
        fields: dict[str, Any] = {
            key: event[key] for key in ("victim", "pid_of", "loses", "heals", "moves") if key in event
        }
        fields["pid"] = fields.pop("pid_of", 0)
        found.faults.append(Fault(event["kind"], at, **fields))
    elif event["e"] == "cont":
        found.resumed[Process(event["victim"], event["pid_of"])].append(at)
    else:
        fault = found.faults[event["number"]]
        if event["e"] == "healed":
            fault.healed = at
        else:
            fault.settled = at
