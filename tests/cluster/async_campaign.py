"""Kills and stops members on event loops at random, beside members with threads.

The command is ``python -m tests.cluster.async_campaign``.

All are in one group, which reads a topic that grows meanwhile. A member that ended is followed by another one. At the
end each message must have been reported by some member. After a stop (SIGTERM) none is reported twice; after a kill
those are that were not committed yet. The same seed chooses the same members, signals and pauses.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from time import sleep
from typing import Literal, Self

from tests.cluster.conftest import TICK_MS, produce_to, unique
from tests.cluster.our_member import OurMember
from tests.timing import eventually, scaled
from zkconsumer.devcluster import DevCluster

_ROOT = Path(__file__).resolve().parents[2]
WAYS = ("loop", "getone", "getmany", "threads")
PARTITIONS = 4
EACH = 400
"""Messages that are produced before each end."""
PROPERTIES = {
    "zookeeper.session.timeout.ms": int(scaled(2500)),  # a member whose session ends amid its stop fails
    "auto.commit.interval.ms": 100,
    "rebalance.drain.timeout.ms": 20_000,
}
READ_WITHIN = 60.0

Place = tuple[int, int]
How = Literal["kill", "stop"]


class AsyncMember(OurMember):
    """A member on an event loop. Arguments: as for any member, and ``way`` of reading."""

    def __init__(self, zookeeper_connect: str, group: str, topic: str, way: str) -> None:
        super().__init__(zookeeper_connect, group, {topic: 2}, pause_ms=1, properties=PROPERTIES)
        self.arguments["member.way"] = way

    def command(self) -> list[str]:
        # members run in the root directory of the machine
        begin = f"import sys; sys.path.insert(0, {str(_ROOT)!r}); from tests.cluster.ours.async_member import main"
        return [sys.executable, "-c", f"{begin}; main(sys.argv[1:])"]


class Campaign:
    """One group. One thread uses it; a context manager."""

    def __init__(self, cluster: DevCluster, chance: random.Random, ways: tuple[str, ...] = WAYS) -> None:
        self.topic, self.group = unique("async"), unique("async")
        self.produced = 0
        self._cluster, self._chance = cluster, chance
        self._members: dict[str, OurMember] = {}
        self._reported: list[Place] = []
        self._ways = ways
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        self._cluster.create_topic(self.topic, PARTITIONS)
        with self._closing as opening:
            for way in self._ways:
                self._join(way)
            for member in self._members.values():
                member.wait_ready()
            self._closing = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _join(self, way: str) -> None:
        connect = self._cluster.zookeeper_connect
        member = (
            OurMember(connect, self.group, {self.topic: 2}, pause_ms=1, properties=PROPERTIES)
            if way == "threads"
            else AsyncMember(connect, self.group, self.topic, way)
        )
        self._closing.callback(member.close)
        self._members[way] = member.start()

    def end_one(self, how: How) -> str:
        """Produce messages, end a member in the middle of them, and start another one. Returns its way."""
        values = [b"%d" % number for number in range(EACH)]
        self.produced += produce_to(self._cluster.bootstrap_servers, self.topic, values, partitions=PARTITIONS)
        way = self._chance.choice(sorted(self._members))
        member = self._members[way]
        sleep(self._chance.uniform(0.0, 1.0))
        if how == "kill":
            member.kill()
        else:
            _stop(way, member)
        self._reported += _places(member)
        member.close()
        self._join(way)
        return way

    def finish(self) -> Counter[Place]:
        """Wait until all is reported, and end. Returns how often each message was reported. Raises AssertionError."""

        def found() -> list[Place]:
            return [*self._reported, *(place for member in self._members.values() for place in _places(member))]

        whole = {(number % PARTITIONS, number // PARTITIONS) for number in range(self.produced)}
        eventually(
            lambda: set(found()) >= whole, READ_WITHIN, lambda: f"{sorted(whole - set(found()))[:10]} and others"
        )
        for way, member in self._members.items():
            _stop(way, member)
        return Counter(found())


def _stop(way: str, member: OurMember) -> None:
    member.wait_ready()  # before that it takes no signal
    assert member.stop() is not None, f"{way} did not end cleanly:\n{member.log_text()}"


def _places(member: OurMember) -> list[Place]:
    return [(message.partition, message.offset) for message in member.messages]


def main() -> int:
    """Run the campaign of the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.async_campaign", description=__doc__)
    parser.add_argument("--ends", type=int, default=100, metavar="N", help="members that end (default: %(default)s)")
    parser.add_argument("--only", choices=("kill", "stop"), help="only kills, or only stops")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), metavar="N")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    hows: list[How] = [arguments.only] if arguments.only else ["kill", "stop"]
    ended: Counter[str] = Counter()
    with DevCluster(tick_ms=TICK_MS) as cluster, Campaign(cluster, chance) as campaign:
        for _ in range(arguments.ends):
            how = chance.choice(hows)
            ended[f"{how} {campaign.end_one(how)}"] += 1
        reported = campaign.finish()
    again = sum(reported.values()) - len(reported)
    print(f"seed {arguments.seed}: {arguments.ends} ends: {dict(sorted(ended.items()))}")
    print(f"{campaign.produced} messages, none lost, {again} reported again")
    return 1 if arguments.only == "stop" and again else 0


if __name__ == "__main__":
    sys.exit(main())
