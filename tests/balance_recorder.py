"""The recorder of handlers: which process had which message in hand, and when, and the checks of these records.

Each process of a group appends one line for each begin and end of a handler to a file of its own, with one system call.
So a killed process loses no line. Times are ``time.monotonic_ns()``, whose clock all processes of a machine share.

A killed process does not write the end of its handlers, and no process writes the end of its session. The
:mod:`tests.balance_witness` sees both, and writes them into the same directory. Everything here is pure, except for
:class:`Recorder` and :func:`read_records`.
"""

from __future__ import annotations

import itertools
import json
import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Any, NamedTuple

from zkconsumer.core.finished_note import FinishedNote, decode_note
from zkconsumer.core.key_slots import slot_of_key, slot_of_offset

SUFFIX = ".handlers"
NEVER = 1 << 62
DONE = "done"


class Place(NamedTuple):
    """The place of one message."""

    topic: str
    partition: int
    offset: int


class Lines:
    """A file of lines that survives the death of its writer. Any thread.

    Arguments: ``directory`` of the run; ``who`` writes it.
    """

    def __init__(self, directory: Path, who: str) -> None:
        path = directory / f"{who}-{os.getpid()}{SUFFIX}"
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **more: Any) -> None:
        """Append a line with the present time; ``t`` overrides it."""
        line = json.dumps({"t": monotonic_ns(), "e": event, **more}, separators=(",", ":"))
        os.write(self._descriptor, line.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class Recorder:
    """Writes down the handlers of one process. Any thread.

    Arguments: ``directory`` of the run; ``member``, the name of the member; ``session`` returns the id of its present
    session in ZooKeeper, 0 if there is none. A process worker passes the session that it was told.
    """

    def __init__(self, directory: Path, member: str, session: Callable[[], int] = lambda: 0) -> None:
        self._lines = Lines(directory, member)
        self._member = member
        self._session = session
        self._numbers = itertools.count()

    def begin(self, place: Place, key: bytes | None) -> int:
        """Write down that a handler begins. Returns its number, for :meth:`end`."""
        number = next(self._numbers)
        told = None if key is None else key.hex()
        about = {"m": self._member, "pid": os.getpid(), "n": number, "s": self._session()}
        self._lines.write("begin", **about, at=list(place), key=told)
        return number

    def end(self, number: int, outcome: str = DONE) -> None:
        """Write down that a handler has ended."""
        self._lines.write("end", pid=os.getpid(), n=number, outcome=outcome)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


@dataclass(slots=True)
class Handling:
    """One message in the hands of one handler. ``end`` is NEVER and ``outcome`` empty if no end was written."""

    member: str
    pid: int
    session: int
    place: Place
    key: bytes | None
    begin: int
    end: int = NEVER
    outcome: str = ""

    @property
    def done(self) -> bool:
        """Whether the handler finished the message."""
        return self.outcome == DONE


class Ended(NamedTuple):
    """The end of a process or session: it was last seen alive at ``alive``, and was gone at ``gone``."""

    alive: int
    gone: int


class Noted(NamedTuple):
    """The store's note on a partition from ``at`` on, or None without a note. ``parked`` have pointers."""

    at: int
    note: FinishedNote | None
    parked: Collection[int] = ()


@dataclass(slots=True)
class Records:
    """All that was written down in one run: handlers in the order of their beginnings, and what was witnessed.

    ``processes`` and ``sessions`` have the ended ones; ``noted`` has the notes of each topic and partition in order.
    """

    handlings: list[Handling] = field(default_factory=list)
    processes: dict[int, Ended] = field(default_factory=dict)
    sessions: dict[int, Ended] = field(default_factory=dict)
    noted: dict[tuple[str, int], list[Noted]] = field(default_factory=lambda: defaultdict(list))

    def by_place(self) -> Mapping[Place, list[Handling]]:
        """Return the handlings of each message."""
        found: dict[Place, list[Handling]] = defaultdict(list)
        for one in self.handlings:
            found[one.place].append(one)
        return found

    def done(self) -> set[Place]:
        """Return the messages that a handler has finished."""
        return {one.place for one in self.handlings if one.done}

    def in_hand(self) -> list[Handling]:
        """Return the handlings without an end whose process lives."""
        return [one for one in self.handlings if one.end == NEVER and one.pid not in self.processes]


def read_records(directory: Path) -> Records:
    """Return what all processes of a run have written so far. A line that is not whole yet is left out."""
    lines: list[dict[str, Any]] = []
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        data = path.read_bytes()
        lines += (json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines())
    found = Records()
    handlings: dict[tuple[int, int], Handling] = {}
    for line in sorted(lines, key=lambda line: line["t"]):
        match line["e"]:
            case "begin":
                key = None if line["key"] is None else bytes.fromhex(line["key"])
                one = Handling(line["m"], line["pid"], line["s"], Place(*line["at"]), key, line["t"])
                handlings[one.pid, line["n"]] = one
                found.handlings.append(one)
            case "end":
                one = handlings[line["pid"], line["n"]]
                one.end, one.outcome = line["t"], line["outcome"]
            case "process":
                found.processes[line["pid"]] = Ended(line["alive"], line["t"])
            case "session":
                found.sessions[line["s"]] = Ended(line["alive"], line["t"])
            case "note":
                found.noted[line["topic"], line["partition"]].append(
                    Noted(line["t"], _note(line), frozenset(line["parked"]))
                )
    return found


def _note(line: dict[str, Any]) -> FinishedNote | None:
    """Return what the store tells: the note with its offset, or the offset alone, or nothing."""
    if line["offset"] is None:
        return None
    note = decode_note(bytes.fromhex(line["note"])) if line["note"] else None
    return note if note is not None and note.base == line["offset"] else FinishedNote(line["offset"])


# ---- the checks ----


def lost(records: Records, produced: Iterable[Place], dead: Collection[Place] = ()) -> list[Place]:
    """Return the messages that no handler has finished and that are no dead letters. There must never be one."""
    done = records.done()
    return sorted(place for place in produced if place not in done and place not in dead)


def repeated(records: Records) -> dict[Place, int]:
    """Return how often each finished message was begun again."""
    found = {}
    for place, all_of_it in records.by_place().items():
        first = min((one.end for one in all_of_it if one.done), default=NEVER)
        again = sum(one.begin > first for one in all_of_it)
        if again:
            found[place] = again
    return found


def again_although_noted(
    records: Records, order: str = "key", anew: Mapping[tuple[str, int], int] | None = None
) -> list[str]:
    """Return the handlers that began although the message was finished and the store told so.

    Every other repetition is allowed: the message was in hand, or was not noted yet, when its handler began again. The
    offset passes a parked message that nobody has finished. A parked message is noted as finished once its pointer is
    gone.

    Arguments: ``order`` as given to ``run``; ``anew`` maps a partition to a time from which its messages may be
    repeated, because somebody else wrote its offset.
    """
    found = []
    for place, all_of_it in records.by_place().items():
        told = records.noted.get((place.topic, place.partition), [])
        excused = (anew or {}).get((place.topic, place.partition), NEVER)
        first = min((one.end for one in all_of_it if one.done), default=NEVER)
        for again in all_of_it:
            at = bisect_left(told, again.begin, key=lambda noted: noted.at) - 1
            if not first < again.begin < excused or at < 0:
                continue
            note, parked = told[at].note, told[at].parked
            if note is not None and place.offset not in parked and note.covers(place.offset, _slot(again, order)):
                found.append(f"{_name(again)} again, finished and noted")
    return found


def _slot(one: Handling, order: str) -> int:
    return slot_of_key(one.key) if order == "key" and one.key is not None else slot_of_offset(one.place.offset)


class Overlaps(NamedTuple):
    """Pairs of handlers that held one key at the same time.

    ``wrong``: both sessions lived, so there must be none. ``zombies``: the session of the first had ended before the
    second began.
    """

    wrong: list[str]
    zombies: list[str]


def _lane_of(one: Handling) -> object:
    """Return the key, or the place of a message without a key, that only one handler at a time may hold."""
    return (one.place.topic, one.place.partition, one.key) if one.key is not None else one.place


def overlaps(records: Records) -> Overlaps:
    """Return the handlers that held one key at the same time."""
    lanes: dict[object, list[Handling]] = defaultdict(list)
    for one in records.handlings:
        lanes[_lane_of(one)].append(one)
    found = Overlaps([], [])
    for all_of_it in lanes.values():
        for first, second in _side_by_side(records, all_of_it):
            ended = [records.sessions[s].alive for s in (first.session, second.session) if s in records.sessions]
            kind = found.zombies if any(end <= second.begin for end in ended) else found.wrong
            kind.append(f"{_name(first)} and {_name(second)}")
    return found


def _side_by_side(records: Records, lane: Iterable[Handling]) -> Iterator[tuple[Handling, Handling]]:
    """Yield the pairs that overlap. The handlers of a dead process end at its death."""
    still: list[tuple[int, Handling]] = []
    for one in lane:
        still = [(end, other) for end, other in still if end > one.begin]
        yield from ((other, one) for _, other in still)
        process = records.processes.get(one.pid)
        still.append((one.end if process is None else min(one.end, process.alive), one))


def late(records: Records) -> list[str]:
    """Return the handlers that began after the end of their session."""
    sessions = records.sessions
    late_ones = (one for one in records.handlings if one.session in sessions)
    return [_name(one) for one in late_ones if one.begin > sessions[one.session].gone]


def disorder(records: Records, produced: Mapping[Place, bytes | None], passed: Collection[Place] = ()) -> list[str]:
    """Return the handlers that began before all earlier messages of their key were finished.

    Arguments: ``produced`` messages and their keys; ``passed`` are dead letters, for which their key does not wait.
    """
    lanes: dict[object, list[Place]] = defaultdict(list)
    for place, key in sorted(produced.items()):
        if key is not None:
            lanes[place.topic, place.partition, key].append(place)
    by_place, found = records.by_place(), []
    for places in lanes.values():
        ready = 0  # when all earlier ones were finished
        for place in places:
            all_of_it = by_place.get(place, [])
            found += [f"{_name(one)} before an earlier one" for one in all_of_it if one.begin < ready]
            if place not in passed:
                ready = max(ready, min((one.end for one in all_of_it if one.done), default=NEVER))
    return found


def _name(one: Handling) -> str:
    return f"{one.place.topic}-{one.place.partition}@{one.place.offset} by {one.member} ({one.pid})"
