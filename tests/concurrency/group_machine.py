"""A state machine of a group: members join, leave, die, lose connections and sessions, and operators change nodes.

It checks the promises of a group after each step. In some runs the members follow a plan, which operators spoil.
"""

from __future__ import annotations

from time import monotonic
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.concurrency.group import GROUP, TOPIC, SteppedMember, make_topic, node_at, owners, settle
from tests.concurrency.placement import PLACED, placed_member
from zkconsumer.assignors.assignor import Member
from zkconsumer.assignors.placement import RETRY_S
from zkconsumer.assignors.range import RangeAssignor
from zkconsumer.core.partition_position import PartitionPosition
from zkconsumer.core.placement_plan import decode_plan
from zkconsumer.errors import RegistryError, RegistryUnavailableError, ZkConsumerError
from zkconsumer.member.events import LookAgain, StartsResolved
from zkconsumer.member.zookeeper import load_reports, placement_node
from zkconsumer.member.zookeeper.planner import GroupView, threads_of
from zkconsumer.model import ConsumerId, TopicPartition
from zkconsumer.testing import FakeZooKeeper
from zkconsumer.zookeeper import node_codecs, paths

MOST = 4
START = 100
PLAN = paths.placement(GROUP)
OLD_PLANS = 5
REQUESTS = ("transact", "read", "children", "create", "delete", "ensure")
picks = st.integers(min_value=0, max_value=1000)
SETTINGS = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


class GroupMachine(RuleBasedStateMachine):
    """Members of one group; what they hand out, finish and commit is checked against what ZooKeeper shows."""

    def __init__(self) -> None:
        super().__init__()
        self.server = FakeZooKeeper(session_timeout=600.0)
        self.members: list[SteppedMember] = []
        self.dead: list[SteppedMember] = []
        self.names = 0
        self.partitions = 4
        # what some application has finished, or an operator wrote: no commit may lie beyond
        self.reached: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        # where some application sent its position: a commit may go back to there once
        self.sought: dict[TopicPartition, int] = {}
        # their owner nodes were deleted by hand, which their owners learn with their next step
        self.robbed: set[TopicPartition] = set()
        # whether most members have a strategy that follows a plan
        self.placed = False
        self.plans: list[bytes] = []
        self.blind: list[SteppedMember] = []
        self.offset = 0.0
        self.patches = pytest.MonkeyPatch()
        for module in (placement_node, load_reports):
            self.patches.setattr(module, "monotonic", lambda: monotonic() + self.offset)

    @initialize(placed=st.booleans())
    def two_members_at_work(self, placed: bool) -> None:
        self.placed = placed
        make_topic(self.server, self.partitions)
        self.join(1)
        self.join(2)
        self.live_a_while(3)

    def _pick(self, number: int) -> SteppedMember:
        return self.members[number % len(self.members)]

    @precondition(lambda self: len(self.members) < MOST)
    @rule(
        streams=st.integers(1, 3),
        conflict=st.sampled_from(("adopt", "adopt", "overwrite", "raise")),
        strategy=st.sampled_from((*PLACED, "none")),
        lasts=st.booleans(),
    )
    def join(self, streams: int, conflict: str = "adopt", strategy: str = "sticky", lasts: bool = True) -> None:
        self.names += 1
        name = f"m{self.names}"
        if self.placed and strategy != "none":
            self.members.append(placed_member(self.server, name, lasts=lasts, strategy=strategy, streams=streams))
        else:
            self.members.append(SteppedMember(self.server, name, streams=streams, conflict=conflict))

    @precondition(lambda self: self.placed and len(self.members) < MOST)
    @rule(number=st.integers(1, 9))
    def return_of_a_lasting_member(self, number: int) -> None:
        name = f"m{number}"
        if number <= self.names and all(member.consumer != f"{GROUP}_{name}" for member in (*self.members, *self.dead)):
            self.members.append(placed_member(self.server, name))

    @precondition(lambda self: self.members)
    @rule(number=picks, times=st.integers(1, 4))
    def step(self, number: int, times: int) -> None:
        self._pick(number).step(times)

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def leave(self, number: int) -> None:
        member = self._pick(number)
        member.stop()
        self.members.remove(member)
        self.dead.append(member)  # where it was cut off, its session ends later

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def die(self, number: int) -> None:
        member = self._pick(number)
        member.session.suspend()
        self.members.remove(member)
        self.dead.append(member)

    @precondition(lambda self: self.dead)
    @rule()
    def dead_session_ends(self) -> None:
        session = self.dead.pop().session
        session.expire_unnoticed()
        session.expire_former()

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def lose_connection(self, number: int) -> None:
        if self._pick(number).session.connected:
            self._pick(number).session.suspend()

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def server_gives_up_a_lost_one(self, number: int) -> None:
        session = self._pick(number).session
        if not session.connected and session.session_id:
            session.expire_unnoticed()

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def reconnect(self, number: int) -> None:
        if not self._pick(number).session.connected:
            self._pick(number).session.resume()

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def lease_ends_and_the_session_lives_on(self, number: int) -> None:
        """Cut off for longer than the timeout, and the server keeps the session, for it was away itself."""
        member = self._pick(number)
        if member.session.connected:
            member.session.suspend()
        if member.session.session_id:
            member.step(2)
            member.session.lease.lapse()
            member.step(2)
            if len(self.members) < MOST:
                self.join(1)
            settle(self.members, 5)
            member.session.resume()

    @precondition(lambda self: self.members)
    @rule(number=picks, kind=st.sampled_from(REQUESTS), done=st.booleans(), skip=st.integers(0, 3))
    def lose_an_answer(self, number: int, kind: str, done: bool, skip: int) -> None:
        """The connection breaks before or after the server did a request; it is back at once."""
        session = self._pick(number).session
        original = getattr(type(session), kind)
        left = [skip]

        def lossy(*arguments: Any, **options: Any) -> Any:
            if left[0]:
                left[0] -= 1
                return original(session, *arguments, **options)
            vars(session).pop(kind, None)
            if done:
                original(session, *arguments, **options)
            if session.connected:
                session.suspend()
                session.resume()
            raise RegistryUnavailableError("the answer was lost")

        setattr(session, kind, lossy)

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def expire(self, number: int) -> None:
        if self._pick(number).session.connected:
            self._pick(number).session.expire()

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def stand_still_until_expired(self, number: int) -> None:
        session = self._pick(number).session
        if session.connected and session.session_id:
            session.freeze()

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def notice_that_it_stood_still(self, number: int) -> None:
        session = self._pick(number).session
        if session.connected and not session.session_id:
            session.suspend()

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def another_client_takes_the_session(self, number: int) -> None:
        session = self._pick(number).session
        if session.connected and session.session_id:
            session.contest()

    @precondition(lambda self: self.members)
    @rule(number=picks, which=picks)
    def resolve_a_start(self, number: int, which: int) -> None:
        member = self._pick(number)
        waiting = [position for position in member.delivery.flowing.values() if position.fetched is None]
        if waiting:
            self._resolve(member, waiting[which % len(waiting)])

    def _resolve(self, member: SteppedMember, position: PartitionPosition) -> None:
        """The broker tells where the log begins. Where nothing is stored, and the member owns the partition, that is
        where it is from now on, also where somebody who lost it meanwhile was sent elsewhere and had not committed.
        """
        tp = position.tp
        owner = self.server.node(paths.owner(GROUP, tp))
        lives = owner is not None and owner.ephemeral_owner == member.session.session_id
        if lives and self.server.node(paths.offset(GROUP, tp)) is None:
            self.reached[tp] = max(self.reached.get(tp, 0), START)
        self.reached.setdefault(tp, START)
        member.events.put(StartsResolved({position: START}))

    @precondition(lambda self: self.members)
    @rule(number=picks, which=picks, count=st.integers(1, 5))
    def consume(self, number: int, which: int, count: int) -> None:
        member = self._pick(number)
        flowing = [p for p in member.delivery.flowing.values() if p.fetched is not None and not p.revoked]
        if not flowing or not member.session.lease.valid:
            return
        position = flowing[which % len(flowing)]
        self._hand_out(member, position, count)

    def _hand_out(self, member: SteppedMember, position: PartitionPosition, count: int) -> None:
        node = self.server.node(paths.owner(GROUP, position.tp))
        if position.tp not in self.robbed:
            assert node is not None, f"{member.consumer} hands out {position.tp}, which nobody owns"
            assert node.ephemeral_owner == member.session.session_id, (
                f"{member.consumer} hands out {position.tp}, which {node.data!r} owns"
            )
        position.consumed = (position.consumed or 0) + count
        self.reached[position.tp] = max(self.reached.get(position.tp, 0), position.consumed)

    @rule(count=st.integers(1, 3))
    def live_a_while(self, count: int) -> None:
        for member in self.blind:  # only the reconciliation tells it what happened
            member.schedule.reconcile_at = 0.0
        self.blind.clear()
        settle(self.members, 10)
        # whoever lost an owner node to an operator has noticed by now
        self.robbed.clear()
        for member in self.members:
            for position in list(member.delivery.flowing.values()):
                if position.fetched is None and member.session.connected:
                    self._resolve(member, position)
        settle(self.members, 3)
        for member in self.members:
            for position in list(member.delivery.flowing.values()):
                if position.fetched is not None and member.session.lease.valid:
                    self._hand_out(member, position, count)

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def commit(self, number: int) -> None:
        try:
            self._pick(number).commit()
        except ZkConsumerError:
            pass  # refused, or not connected: both are answers

    @precondition(lambda self: self.members)
    @rule(number=picks, which=picks, offset=st.integers(0, 300))
    def seek(self, number: int, which: int, offset: int) -> None:
        member = self._pick(number)
        owned = sorted(member.owned)
        if not owned:
            return
        tp = owned[which % len(owned)]
        owner = self.server.node(paths.owner(GROUP, tp))
        lives = owner is not None and owner.ephemeral_owner == member.session.session_id
        done = member.seek({tp: offset})
        member.step(2)
        if done.done() and not done.result(0) and lives:
            # from here on the place before must not be committed any more (one that was cut off and does not know yet
            # that it lost the partition changes nothing for the next owner)
            self.reached[tp] = offset
            self.sought[tp] = min(offset, self.sought.get(tp, offset))
            node = self.server.node(paths.offset(GROUP, tp))
            if node is not None:
                self.committed[tp] = int(node.data)

    @rule(which=picks)
    def operator_deletes_an_owner_node(self, which: int) -> None:
        owned = sorted(owners(self.server))
        if owned:
            tp = TopicPartition(TOPIC, owned[which % len(owned)])
            self.robbed.add(tp)
            self.server.remove(paths.owner(GROUP, tp))

    @rule(which=picks)
    def operator_overwrites_an_owner_node(self, which: int) -> None:
        owned = sorted(owners(self.server))
        if owned:
            tp = TopicPartition(TOPIC, owned[which % len(owned)])
            self.robbed.add(tp)
            self.server.put(paths.owner(GROUP, tp), b"garbage")

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def operator_overwrites_a_registration(self, number: int) -> None:
        path = paths.member(GROUP, self._pick(number).consumer)
        if self.server.node(path) is not None:
            self.server.put(path, b"garbage")

    @rule()
    def operator_deletes_the_offsets(self) -> None:
        """Where nobody knows better they begin anew, at the start of the log."""
        self.server.remove(paths.offset_topic(GROUP, TOPIC))
        for number in range(self.partitions):
            tp = TopicPartition(TOPIC, number)
            self.reached[tp] = max(self.reached.get(tp, 0), START)
            self.committed.pop(tp, None)

    @precondition(lambda self: self.members)
    @rule(number=picks, streams=st.integers(0, 2))
    def want_something_else(self, number: int, streams: int) -> None:
        self._pick(number).subscribe({TOPIC: streams} if streams else {}, leaving=() if streams else [TOPIC])

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def look_after_everything(self, number: int) -> None:
        self._pick(number).schedule.reconcile_at = 0.0

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def operator_deletes_a_registration(self, number: int) -> None:
        self.server.remove(paths.member(GROUP, self._pick(number).consumer))

    @rule(which=picks, offset=st.integers(0, 300))
    def operator_writes_an_offset(self, which: int, offset: int) -> None:
        tp = TopicPartition(TOPIC, which % self.partitions)
        self.reached[tp] = max(self.reached.get(tp, 0), offset)
        self.committed[tp] = offset
        self.sought[tp] = 0  # with offset.conflict=overwrite its owner may go back to where it is
        self.server.put(paths.offset(GROUP, tp), str(offset).encode())

    @precondition(lambda self: self.partitions < 8)
    @rule()
    def topic_grows(self) -> None:
        self.partitions += 1
        make_topic(self.server, self.partitions)

    # ---- with a plan

    @precondition(lambda self: self.placed)
    @rule(seconds=st.sampled_from([1.0, 20.0, 70.0, RETRY_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.offset += seconds
        for _ in range(2):
            for member in self.members:
                member.events.put(LookAgain("time has passed"))
            settle(self.members, 2)

    @precondition(lambda self: self.placed and self.members)
    @rule(number=picks)
    def watches_are_lost(self, number: int) -> None:
        self._pick(number).session.lose_watches()
        self.blind.append(self._pick(number))

    @precondition(lambda self: self.server.node(PLAN) is not None)
    @rule(data=st.sampled_from([b"", b"garbage", b'{"version":2}', b"{}", None]))
    def operator_spoils_the_plan(self, data: bytes | None) -> None:
        node = node_at(self.server, PLAN)
        self.plans = [*self.plans, node.data][-OLD_PLANS:]
        if data is None:
            self.server.remove(PLAN)
        else:
            self.server.put(PLAN, data)

    @precondition(lambda self: self.plans)
    @rule(which=picks)
    def an_old_plan_comes_back(self, which: int) -> None:
        self.server.put(PLAN, self.plans[which % len(self.plans)])

    @precondition(lambda self: self.placed)
    @rule(refused=st.sampled_from([("write", "create"), ("read",), ()]))
    def rights_on_the_plan_change(self, refused: tuple[str, ...]) -> None:
        self.server.refuse(PLAN, *refused)

    # ---- what must be so

    @invariant()
    def commits_move_on_and_not_beyond_what_was_finished(self) -> None:
        below = paths.offset_topic(GROUP, TOPIC)
        for path, data in self.server.tree(below).items():
            tp = TopicPartition(TOPIC, int(path[len(below) + 1 :]))
            if int(data) == self.committed.get(tp):
                continue  # and where somebody was sent elsewhere since, it may stay
            assert int(data) <= self.reached.get(tp, START), f"{tp} is committed at {data!r}"
            least = min(self.committed.get(tp, 0), self.sought.pop(tp, START * 100))
            assert int(data) >= least, f"{tp} went back to {data!r}"
            self.committed[tp] = int(data)

    @invariant()
    def nobody_fetches_what_it_does_not_count_as_its_own(self) -> None:
        for member in self.members:
            # one that was sent elsewhere before its start was stored waits until that place is
            waiting = member.coordinator.conflicts.waiting
            started = {tp: position for tp, position in member.owned.items() if tp not in waiting}
            assert started == member.delivery.flowing

    def teardown(self) -> None:
        try:
            self.server.refuse(PLAN)
            self._bring_back()
            for _ in range(3 if self.placed else 0):
                # the reservations end, and members that withdrew come back
                self.time_passes(RETRY_S + 1)
                settle(self.members, 30)
            if self.members:
                self._check_rest()
            for member in self.members:
                try:
                    member.stop()
                except RegistryError:
                    pass
        finally:
            self.patches.undo()

    def _check_rest(self) -> None:
        """At rest everything is owned, as the plan says, or by range."""
        advertised = set()
        for path, data in self.server.tree(paths.ids(GROUP)).items():
            extra = node_codecs.decode_registration(data, path).extra
            advertised.add((extra.get("strategy"), extra.get("plan")))
        states = [(member.consumer, member.coordinator.phase, str(member.rebalancer.state)) for member in self.members]
        if len(advertised) == 1 and next(iter(advertised))[1] is not None:
            node = self.server.node(PLAN)
            assert node is not None, states
            plan = decode_plan(node.data)
            assert not plan.reserved, "the grace time is over"
            expected = {tp.partition: str(thread) for tp, thread in plan.assignment.items()}
        else:
            expected = self._range_of_all()
        assert owners(self.server) == expected, f"at rest everything is owned: {advertised} {states}"
        for member in self.members:
            assert {tp.partition for tp in member.owned} == {
                n for n, thread in expected.items() if thread.startswith(f"{member.consumer}-")
            }

    def _bring_back(self) -> None:
        """All faults are over, and everybody has time to notice."""
        for member in self.dead:
            member.session.expire_unnoticed()
        for member in self.members:
            if not member.session.session_id:
                member.session.suspend()
        settle(self.members, 2)
        for member in (*self.members, *self.dead):
            member.session.expire_former()
        for member in self.members:
            if not member.session.connected:
                member.session.resume()
        for member in self.members:
            for kind in REQUESTS:
                vars(member.session).pop(kind, None)
        settle(self.members, 40)
        for member in self.members:
            member.schedule.reconcile_at = 0.0
        settle(self.members, 20)

    def _range_of_all(self) -> dict[int, str]:
        members = {}
        for path, data in self.server.tree(paths.ids(GROUP)).items():
            members[ConsumerId(path.rsplit("/", 1)[1])] = node_codecs.decode_registration(data, path)
        view = GroupView(members, {TOPIC: tuple(range(self.partitions))})
        threads = threads_of(view, exclude_internal_topics=True)
        bringing = {consumer: Member(by_topic) for consumer, by_topic in threads.items()}
        assigned = RangeAssignor().assign(bringing, view.partitions)
        return {tp.partition: str(thread) for tp, thread in assigned.items()}
