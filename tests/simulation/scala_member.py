"""A model of the Scala connector 1.1.1, as a member of a simulated group.

The member releases all and tries again where another one still owns a partition of its share. After its retries it
gives up until the group changes. Its commits have no fence, and a message counts as consumed when it is handed out. A
request whose answer was lost is repeated, also in the next session.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.members import MemberProcess
from tests.simulation.scheduler import world
from zkconsumer.assignors.assignor import Member
from zkconsumer.assignors.scala_assignors import RangeAssignor
from zkconsumer.core.registration import Registration
from zkconsumer.errors import RegistryUnavailableError
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.node_values import Node

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

T = TypeVar("T")

RETRIES = 4
BACKOFF = 2.0
COMMITS = 2.0  # seconds: `auto.commit.interval.ms`
STREAMS = 2


class ScalaMember(MemberProcess):
    """One process."""

    kind_of_name = "s"

    def __init__(self, scenario: Scenario, number: int) -> None:
        super().__init__(scenario, number)
        self.group, self.topic, self.partitions = scenario.group, scenario.topic, scenario.partitions
        self.session: Any = None
        self._server = scenario.zookeeper
        self._stopped = False
        self._seen = -1
        self._owned: dict[TopicPartition, int] = {}  # where it reads on, by partition: the original's `topicRegistry`
        self._committed: dict[TopicPartition, int] = {}

    def _main(self) -> None:
        self.session = self._server.session(lambda _: None)
        while not self.left:
            try:
                self.session.open(Deadline(5.0))
                break
            except RegistryUnavailableError:
                world().sleep(0.5)
        for role, body in (("watcher", self._watch), ("app", self._apply), ("committer", self._commit_on_time)):
            world().spawn(f"{self.name}-{role}", partial(self._until_it_ends, body))

    def _until_it_ends(self, body: Callable[[], None]) -> None:
        with suppress(RegistryUnavailableError):  # a thread that asks after the end
            body()

    def leave(self) -> None:
        """Shut down: commit, release, and close the session."""
        if self.left:
            return
        self.left = True
        while self.session is None:
            world().sleep(0.1)
        world().sleep(0.5)  # the threads end what they have begun
        self._commit()
        self._release()
        self._stopped = True
        self.session.close(Deadline(5.0))
        world().note("has left")

    # ---- requests

    def _ask(self, act: Callable[[int], T]) -> T:
        """Do a request until it is answered, in whatever session there is then, as its client library does."""
        here, session = world(), self.session
        while True:
            here.sleep(here.random.random() * 0.003)
            number = session.session_id
            if self._stopped or not session.connected or not number:
                if self._stopped:
                    raise RegistryUnavailableError("the process ends")
                here.sleep(0.1)
                continue
            answer = act(number)
            if not session.lose_next:
                return answer
            session.lose_next = ""
            here.note(f"{self.name}: an answer is lost")
            session.cut(0.1)

    # ---- rebalances

    def _watch(self) -> None:
        """The thread of the rebalances: a change of the members, or a new session, begins one."""
        number = 0
        while not self.left:
            if self.session.session_id and self.session.session_id != number:
                number = self.session.session_id
                self._owned = {}
                self._register()
                self._seen = -1
            seen = self._ask(lambda _: self._version())
            if seen != self._seen:
                self._seen = seen
                self._rebalance_until_done()
            world().sleep(world().random.random() * 0.1)

    def _version(self) -> int:
        node = self._server.node(paths.ids(self.group))
        return -1 if node is None else node.cversion

    def _register(self) -> None:
        data = node_codecs.encode_registration(Registration("static", {self.topic: STREAMS}, "1700000000000"))
        path = paths.member(self.group, self.consumer)
        while not self.left and not self._create(path, data, lambda node, number: node.ephemeral_owner == number):
            world().sleep(1.0)  # the node of its former session is there until that ends

    def _create(self, path: str, data: bytes, is_ours: Callable[[Node, int], bool]) -> bool:
        """Create an ephemeral node. Return whether it is there, and ours for a session of this number."""

        def create(number: int) -> bool:
            node = self._server.node(path)
            if node is not None:
                return is_ours(node, number)
            self._server.put(path, data, ephemeral_owner=number)
            return True

        return self._ask(create)

    def _rebalance_until_done(self) -> None:
        for _ in range(RETRIES):
            if self.left or self._rebalance():
                return
            world().sleep(BACKOFF)
        world().note(f"{self.name} can't rebalance after {RETRIES} retries")

    def _rebalance(self) -> bool:
        self._seen = self._ask(lambda _: self._version())
        registered = self._ask(lambda _: self._server.tree(paths.ids(self.group)))
        self._commit()
        self._release()
        members = {}
        for path, data in registered.items():
            consumer = ConsumerId(path.rpartition("/")[2])
            streams = node_codecs.decode_registration(data, path).subscription.get(self.topic, 0)
            members[consumer] = Member({self.topic: [ThreadId(f"{consumer}-{n}") for n in range(streams)]})
        wanted = RangeAssignor().assign(members, {self.topic: range(self.partitions)})
        mine = {tp: thread for tp, thread in wanted.items() if thread.rpartition("-")[0] == self.consumer}
        starts = self._ask(lambda _: {tp: self._server.node(paths.offset(self.group, tp)) for tp in mine})
        claimed = [tp for tp, thread in mine.items() if self._claim(tp, thread)]
        if len(claimed) < len(mine):
            for tp in claimed:
                self._delete(paths.owner(self.group, tp))
            return False
        self._committed = {tp: int(node.data) for tp, node in starts.items() if node is not None}
        self._owned = {tp: self._committed.get(tp, 0) for tp in mine}
        return True

    def _claim(self, tp: TopicPartition, thread: ThreadId) -> bool:
        data = thread.encode()
        # it takes its own node for an answer that was lost
        return self._create(paths.owner(self.group, tp), data, lambda node, _: node.data == data)

    def _release(self) -> None:
        owned, self._owned = self._owned, {}
        for tp in owned:
            self._delete(paths.owner(self.group, tp))

    def _delete(self, path: str) -> None:
        def delete(_: int) -> None:
            if self._server.node(path) is not None:
                self._server.remove(path)

        self._ask(delete)

    # ---- messages and offsets

    def _apply(self) -> None:
        while not self.left:
            self.consume(self._owned)

    def _commit_on_time(self) -> None:
        while not self.left:
            world().sleep(COMMITS)
            if not self.left:
                self._commit()

    def _commit(self) -> None:
        """Write the offsets of what it owns or believes to own. Nothing fences the write."""
        for tp, offset in list(self._owned.items()):
            if self._committed.get(tp) != offset:

                def write(_: int, tp: TopicPartition = tp, offset: int = offset) -> None:
                    self.scenario.observer.unfenced(tp, offset)
                    self._server.put(paths.offset(self.group, tp), b"%d" % offset)

                self._ask(write)
                self._committed[tp] = offset
