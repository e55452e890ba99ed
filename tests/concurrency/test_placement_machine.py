"""Any order of joins, leaves, deaths, lost watches and bad plans: members that follow a plan keep the group's promises.

All rules and promises of ``group_machine`` hold. At rest every partition is owned as the plan says, or by range.
"""

from __future__ import annotations

from time import monotonic

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.concurrency.group import GROUP, SteppedMember, owners, settle
from tests.concurrency.group_machine import MOST, SETTINGS, GroupMachine, picks
from tests.concurrency.placement import PLACED, placed_member
from zkconsumer.assignors.placement import RETRY_S
from zkconsumer.core.placement_plan import decode_plan
from zkconsumer.errors import RegistryError
from zkconsumer.member.events import LookAgain
from zkconsumer.member.zookeeper import load_reports, placement_node
from zkconsumer.zookeeper import node_codecs, paths

PLAN = paths.placement(GROUP)
OLD_PLANS = 5


class PlacedGroupMachine(GroupMachine):
    """Members with ``sticky``, some of them with a ``group.instance.id``, and now and then one without."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = 0.0
        self.patches = pytest.MonkeyPatch()
        for module in (placement_node, load_reports):
            self.patches.setattr(module, "monotonic", lambda: monotonic() + self.offset)
        self.plans: list[bytes] = []
        self.blind: list[SteppedMember] = []

    @precondition(lambda self: len(self.members) < MOST)
    @rule(streams=st.integers(1, 2), lasts=st.booleans(), strategy=st.sampled_from(PLACED))
    def join(self, streams: int = 1, lasts: bool = True, strategy: str = "sticky") -> None:
        self.names += 1
        self.members.append(
            placed_member(self.server, f"m{self.names}", lasts=lasts, strategy=strategy, streams=streams)
        )

    @precondition(lambda self: len(self.members) < MOST)
    @rule(number=st.integers(1, 9))
    def return_of_a_lasting_member(self, number: int) -> None:
        name = f"m{number}"
        if number <= self.names and all(member.consumer != f"{GROUP}_{name}" for member in (*self.members, *self.dead)):
            self.members.append(placed_member(self.server, name))

    @precondition(lambda self: len(self.members) < MOST)
    @rule()
    def join_without_the_strategy(self) -> None:
        self.names += 1
        self.members.append(SteppedMember(self.server, f"m{self.names}"))

    @rule(seconds=st.sampled_from([1.0, 20.0, 70.0, RETRY_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.offset += seconds
        for _ in range(2):
            for member in self.members:
                member.events.put(LookAgain("time has passed"))
            settle(self.members, 2)

    @precondition(lambda self: self.members)
    @rule(number=picks)
    def watches_are_lost(self, number: int) -> None:
        self._pick(number).session.lose_watches()
        self.blind.append(self._pick(number))

    @rule(count=st.integers(1, 3))
    def live_a_while(self, count: int) -> None:
        for member in self.blind:  # only the reconciliation tells it what happened
            member.schedule.reconcile_at = 0.0
        self.blind.clear()
        super().live_a_while(count)

    @rule(data=st.sampled_from([b"", b"garbage", b'{"version":2}', b"{}", None]))
    def operator_spoils_the_plan(self, data: bytes | None) -> None:
        node = self.server.node(PLAN)
        if node is None:
            return
        self.plans = [*self.plans, node.data][-OLD_PLANS:]
        if data is None:
            self.server.remove(PLAN)
        else:
            self.server.put(PLAN, data)

    @precondition(lambda self: self.plans)
    @rule(which=picks)
    def an_old_plan_comes_back(self, which: int) -> None:
        self.server.put(PLAN, self.plans[which % len(self.plans)])

    @rule(refused=st.sampled_from([("write", "create"), ("read",), ()]))
    def rights_on_the_plan_change(self, refused: tuple[str, ...]) -> None:
        self.server.refuse(PLAN, *refused)

    def teardown(self) -> None:
        try:
            self.server.refuse(PLAN)
            self._bring_back()
            for _ in range(3):
                # the reservations end, and members that withdrew come back
                self.time_passes(RETRY_S + 1)
                settle(self.members, 30)
            if self.members:
                self._at_rest()
            for member in self.members:
                try:
                    member.stop()
                except RegistryError:
                    pass
        finally:
            self.patches.undo()

    def _at_rest(self) -> None:
        advertised = set()
        for path, data in self.server.tree(paths.ids(GROUP)).items():
            extra = node_codecs.decode_registration(data, path).extra
            advertised.add((extra.get("strategy"), extra.get("plan")))
        states = [(member.consumer, str(member.rebalancer.state)) for member in self.members]
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


TestPlacedGroup = PlacedGroupMachine.TestCase
TestPlacedGroup.settings = SETTINGS
