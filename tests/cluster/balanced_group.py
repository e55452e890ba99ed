"""A group of balanced members in processes of their own, with a recorder, a witness, and all that was produced.

The values of messages stage the faults (see ``balanced_handler``), so that nothing is awaited by the clock.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Producer
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.balance_recorder import (
    Handling,
    Place,
    Records,
    again_although_noted,
    disorder,
    late,
    lost,
    overlaps,
    read_records,
)
from tests.balance_witness import Witness
from tests.cluster.balanced_handler import OVER
from tests.cluster.member_process import MemberProcess
from tests.timing import eventually, scaled
from zkconsumer.core.finished_note import FinishedNote, decode_note
from zkconsumer.core.key_slots import slot_of_key, slot_of_offset
from zkconsumer.core.message_pointers import Pointer, PointerKind, decode_pointers
from zkconsumer.model import TopicPartition
from zkconsumer.zookeeper import paths

_SCRIPT = Path(__file__).parent / "ours" / "balanced_member.py"
SESSION_MS = 2000
SETTLED_S = 20.0


class BalancedMember(MemberProcess):
    """One balanced member, in a process of its own. See ``ours/balanced_member.py`` for its arguments."""

    who = "balanced"

    def __init__(
        self,
        connect: str,
        group: str,
        topics: Iterable[str],
        name: str,
        directory: Path,
        properties: Mapping[str, object],
        own: Mapping[str, object],
    ) -> None:
        """Arguments: ``own`` arguments of the program, without their prefix."""
        told = {"member.directory": directory, "member.name": name}
        super().__init__(
            connect,
            group,
            dict.fromkeys(topics, 1),
            properties={"consumer.id": name, "zookeeper.session.timeout.ms": SESSION_MS, **properties},
            own={**told, **{f"member.{name}": value for name, value in own.items()}},
        )
        self.arguments["member.topics"] = ",".join(topics)
        self.name = name
        self._told = directory

    def command(self) -> list[str]:
        return [sys.executable, str(_SCRIPT)]

    @property
    def state(self) -> str:
        """The last text of its ``connector.state``."""
        path = self._told / f"{self.name}.state"
        return path.read_text() if path.exists() else ""


class BalancedGroup:
    """A context manager, which ends all members at its end. One thread uses it."""

    def __init__(self, connect: str, bootstrap: str, group: str, topics: Mapping[str, int]) -> None:
        self.connect, self.bootstrap, self.name = connect, bootstrap, group
        self.topics = dict(topics)
        self.topic = next(iter(topics))
        self.directory = Path(tempfile.mkdtemp(prefix="zkconsumer-balance-"))
        self.members: dict[str, BalancedMember] = {}
        self.produced: dict[Place, bytes | None] = {}
        self.zookeeper = KazooClient(connect, timeout=20.0)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 5,
                "acks": "all",
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 1000,
            }
        )
        self._ended: list[BalancedMember] = []
        self._witness = Witness(self.directory, connect, group, self.topics)

    def __enter__(self) -> Self:
        self.zookeeper.start(timeout=scaled(10))
        self._witness.__enter__()
        for (
            topic,
            count,
        ) in self.topics.items():  # else messages wait long for a partition of a topic that was just made
            eventually(lambda t=topic, n=count: self._knows(t, n), 20, topic)  # type: ignore[misc]
        return self

    def _knows(self, topic: str, count: int) -> bool:
        found = self._producer.list_topics(topic, scaled(5)).topics[topic].partitions
        return len(found) >= count and all(one.leader >= 0 for one in found.values())

    def __exit__(self, kind: object, *_: object) -> None:
        self.release(OVER)
        for member in (*self.members.values(), *self._ended):
            member.kill()  # a clean end is a step of a test, and this is none
            member.close()
        self._witness.__exit__()
        self.zookeeper.stop()
        self.zookeeper.close()
        if kind is None:
            shutil.rmtree(self.directory, ignore_errors=True)

    # ---- members and messages

    def start(
        self, name: str, *, connect: str = "", properties: Mapping[str, object] | None = None, **own: object
    ) -> BalancedMember:
        """Start a member. It is not ready yet.

        Arguments: ``connect`` is another way to ZooKeeper, for instance a proxy; ``own`` arguments of the program.
        """
        if name in self.members:
            self._ended.append(self.members[name])
        made = BalancedMember(
            connect or self.connect, self.name, self.topics, name, self.directory, properties or {}, own
        )
        self.members[name] = made
        return made.start()

    def produce(
        self,
        values: Iterable[str],
        *,
        partition: int = 0,
        topic: str = "",
        key: Callable[[int], str | None] | None = None,
    ) -> list[Place]:
        """Write messages to a partition. Return their places.

        Arguments: ``key`` of the n-th of them; by default each message has a key of its own.
        """
        first = len(self.produced)
        places: dict[int, Place] = {}
        producer = self._producer
        keys: dict[int, bytes | None] = {}

        def delivered(number: int) -> Callable[[Any, Any], None]:
            def call(error: Any, message: Any) -> None:
                assert error is None, error
                places[number] = Place(message.topic(), message.partition(), message.offset())

            return call

        for number, value in enumerate(values):
            told = key(number) if key else f"k{first + number}"
            keys[number] = None if told is None else told.encode()
            producer.produce(
                topic or self.topic, value, keys[number], partition=partition, on_delivery=delivered(number)
            )
            producer.poll(0)
        producer.flush(scaled(30))
        # another thread that produces may be about to call back
        eventually(lambda: len(places) == len(keys), 30, "the acknowledgement of all messages")
        self.produced |= {place: keys[number] for number, place in places.items()}
        return [places[number] for number in sorted(places)]

    def release(self, name: str) -> None:
        """Let handlers go on that wait for this name."""
        (self.directory / f"{name}.go").touch()

    # ---- what is seen

    @property
    def records(self) -> Records:
        """Everything that was recorded so far."""
        return read_records(self.directory)

    def in_hand(self, member: str = "") -> list[Handling]:
        """Return the handlers that run now, of one member or of all."""
        return [one for one in self.records.in_hand() if not member or one.member == member]

    def wait_in_hand(self, places: Iterable[Place], member: str = "", seconds: float = SETTLED_S) -> None:
        """Wait until handlers have all of these in hand."""
        wanted = set(places)
        eventually(
            lambda: wanted <= {one.place for one in self.in_hand(member)}, seconds, lambda: self.told("these in hand")
        )

    def wait_done(
        self, places: Iterable[Place] | None = None, *, dead: bool = False, seconds: float = SETTLED_S
    ) -> None:
        """Wait until messages, by default all, are finished. ``dead``: or are dead letters."""
        wanted = set(self.produced if places is None else places)

        def missing() -> list[Place]:
            return lost(self.records, wanted, self.dead() if dead else ())

        eventually(lambda: not missing(), seconds, lambda: self.told(f"messages to finish: {missing()[:9]}"))

    def told(self, what: str) -> str:
        """Return what members say of themselves, for the message of a failure."""
        lines = [f"{m.name}: {m.state}\n{m.log_text()[-3000:]}" for m in (*self.members.values(), *self._ended)]
        return "\n".join([f"{what} (records in {self.directory})", *lines])

    def offset(self, partition: int = 0, topic: str = "") -> int | None:
        """Return the committed offset, None if there is none."""
        found, _ = self._get(paths.offset(self.name, TopicPartition(topic or self.topic, partition)))
        return int(found) if found else None

    def note(self, partition: int = 0, topic: str = "") -> FinishedNote | None:
        """Return the note of a partition, None if there is none or it does not count."""
        of = TopicPartition(topic or self.topic, partition)
        (_, at), (note, noted_at) = (self._get(paths.offset(self.name, of)), self._get(paths.ack(self.name, of)))
        return decode_note(note) if at == noted_at and note else None

    def pointers(self, partition: int = 0, topic: str = "") -> dict[int, Pointer]:
        """Return the stored pointers of a partition."""
        return decode_pointers(self._get(paths.pointers(self.name, TopicPartition(topic or self.topic, partition)))[0])

    def is_noted(self, place: Place) -> bool:
        """Return whether the store tells that a message is finished."""
        offset, note = self.offset(place.partition, place.topic), self.note(place.partition, place.topic)
        key = self.produced[place]
        slot = slot_of_offset(place.offset) if key is None else slot_of_key(key)
        return offset is not None and (place.offset < offset or (note is not None and note.covers(place.offset, slot)))

    def wait_noted(self, places: Iterable[Place], seconds: float = SETTLED_S) -> None:
        """Wait until the store tells that all of these are finished."""
        wanted = list(places)
        eventually(
            lambda: not [place for place in wanted if not self.is_noted(place)],
            seconds,
            lambda: self.told(f"notes; missing: {[place for place in wanted if not self.is_noted(place)][:9]}"),
        )

    def dead(self) -> set[Place]:
        """Return the places of all dead letters."""
        return {
            Place(topic, number, offset)
            for topic, count in self.topics.items()
            for number in range(count)
            for offset, pointer in self.pointers(number, topic).items()
            if pointer.kind is PointerKind.DEAD
        }

    def owners(self, topic: str = "") -> dict[int, str]:
        """Return the owners' consumer ids by partition."""
        found = {}
        for number in range(self.topics[topic or self.topic]):
            owner, _ = self._get(paths.owner(self.name, TopicPartition(topic or self.topic, number)))
            if owner:
                found[number] = owner.decode().removeprefix(f"{self.name}_").rpartition("-")[0]
        return found

    def wait_owners(self, expected: Mapping[int, str], seconds: float = SETTLED_S) -> None:
        """Wait until partitions have these owners, by the members' names."""
        eventually(lambda: self.owners() == dict(expected), seconds, lambda: self.told(f"owners {expected}"))

    def _get(self, path: str) -> tuple[bytes, int | None]:
        try:
            data, stat = self.zookeeper.get(path)
        except NoNodeError:
            return b"", None
        return data, stat.mzxid

    # ---- the verdict

    def problems(
        self, order: str = "key", *, anew: Mapping[tuple[str, int], int] | None = None, others: Collection[Place] = ()
    ) -> list[str]:
        """Return everything that must never be.

        Arguments: ``anew`` as for ``again_although_noted``; ``others`` were handled by members that record nothing.
        """
        records, dead = self.records, self.dead()
        found = [f"lost: {place}" for place in lost(records, self.produced, {*dead, *others})]
        found += [f"repeated: {text}" for text in again_although_noted(records, order, anew)]
        if order != "none":
            found += [f"two at once: {text}" for text in overlaps(records).wrong]
            found += [f"out of order: {text}" for text in disorder(records, self.produced, {*dead, *others})]
        return found + [f"late: {text}" for text in late(records)]

    def check(self, order: str = "key", **more: Any) -> None:
        """Raise AssertionError if anything happened that must never be."""
        found = self.problems(order, **more)
        assert not found, self.told("\n".join([f"{len(found)} problems:", *found[:20]]))
