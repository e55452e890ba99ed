"""The assignment strategy of a group in ZooKeeper: advertised by its members, or inferred from the owners.

Members of this package advertise their strategy. Scala members advertise nothing and know ``range`` and ``roundrobin``
only; ``roundrobin`` has two orders (KAFKA-5822: releases 0.x and 1.x). So this module computes the three assignments
and looks which assignment explains the partitions of each silent member. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from zkconsumer.assignors.assignor import AssignmentError, Assignor, Members, assignor, threads_by_topic
from zkconsumer.assignors.group_strategy import RELEASE_KEY, SCALA_STRATEGIES, advertised_member, advertised_strategy
from zkconsumer.assignors.lag_aware_placement import WIDE_GAP, even_load
from zkconsumer.assignors.scala_assignors import RoundRobinAssignor
from zkconsumer.assignors.sticky_placement import fewest_moves
from zkconsumer.core.names import first_of
from zkconsumer.core.registration import Registration
from zkconsumer.errors import ZkConsumerError
from zkconsumer.member.zookeeper.claim_plan import GroupView, Threads
from zkconsumer.model import PLACEMENTS, STICKY, Assignment, ConsumerId, ThreadId, TopicPartition

NEW_ORDER = "1.x"
OLD_ORDER = "0.x"
"""The two orders of ``roundrobin``, named by the Scala releases that have them."""

_RELEASES = {NEW_ORDER: "1.1", OLD_ORDER: "0.10"}
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Strategy:
    """The strategy in effect.

    ``name`` is empty if there is no member to have one. ``scala_release`` is ``0.x`` or ``1.x`` for ``roundrobin``, and
    empty if both orders make the same assignment, and for other strategies. ``sure`` is whether the members advertise
    it or their partitions prove it; ``why`` says so in words. ``by_member`` has the strategies that explain the
    partitions of each member with any, by label. An empty tuple: no strategy of Scala members explains them.
    """

    name: str
    scala_release: str = ""
    sure: bool = True
    why: str = ""
    by_member: Mapping[ConsumerId, tuple[str, ...]] = field(default_factory=dict, hash=False)

    @property
    def label(self) -> str:
        """The name, with the order of ``roundrobin``."""
        return f"{self.name} ({self.scala_release})" if self.scala_release else self.name


RANGE = Strategy("range")
ROUNDROBIN = Strategy("roundrobin", NEW_ORDER)
ROUNDROBIN_OLD = Strategy("roundrobin", OLD_ORDER)
EITHER_ROUNDROBIN = Strategy("roundrobin")
"""Where both orders of ``roundrobin`` make the same assignment, as for one topic with few partitions."""
CANDIDATES = (RANGE, ROUNDROBIN, ROUNDROBIN_OLD)
"""The strategies that a member may have which advertises none."""


def assignment_by(strategy: Strategy, view: GroupView, threads: Threads) -> Assignment:
    """Return the assignment of the whole group by a strategy, with partitions that unreadable members keep.

    Raises: AssignmentError if it cannot be computed; for example because it needs properties of the members, which
    stand in no node.
    """
    members = {consumer: advertised_member(view.members[consumer], wanted) for consumer, wanted in threads.items()}
    try:
        made = _made(strategy, view, members)
    except ZkConsumerError as error:
        raise AssignmentError(f"the strategy {strategy.label} cannot be computed from here: {error}") from error
    except Exception as error:
        raise AssignmentError(f"the strategy {strategy.label} failed: {error!r}") from error
    return {**made, **view.kept}


def _made(strategy: Strategy, view: GroupView, members: Members) -> Assignment:
    """Return what the strategy assigns. One that needs a plan goes on from the present one."""
    if strategy.name in PLACEMENTS and view.placement is not None:
        threads = threads_by_topic(members)
        if strategy.name == STICKY:
            return fewest_moves(threads, view.partitions, view.placement)
        return even_load(threads, view.partitions, view.placement, {}, gap=WIDE_GAP)
    return _assignor(strategy).assign(members, view.partitions, view.racks)


def _assignor(strategy: Strategy) -> Assignor:
    if strategy.name == "roundrobin":
        return RoundRobinAssignor(_RELEASES[strategy.scala_release or NEW_ORDER])
    return assignor(strategy.name)


def infer_strategy(
    view: GroupView, threads: Threads, owners: Assignment, by: Callable[[Strategy], Assignment] | None = None
) -> Strategy:
    """Return the strategy in effect. ``owners`` are the readable owner nodes.

    ``by`` is :func:`assignment_by` of this group, for a caller that keeps the assignments.
    """
    if not view.members and view.unreadable:
        return Strategy("", sure=False, why="no registration can be read, so the strategy in effect is unknown")
    if not view.members:
        return Strategy("", sure=False, why="no member is registered, so no strategy is in effect")
    advertised = _advertised({c: one for c, one in view.members.items() if not one.is_nudge} or view.members)
    distinct = list(dict.fromkeys(advertised.values()))
    # a member that should fall back to range may refuse instead, which stands in no node: its partitions must tell
    plain = [c for c, strategy in advertised.items() if view.members[c].extra.get("strategy") == strategy.name]
    silent = sorted(c for c, one in view.members.items() if c not in plain and not one.is_nudge)
    if not silent and len(distinct) == 1:
        count = len(plain)
        why = "its only member advertises it" if count == 1 else f"all {count} members advertise it"
        return _with_why(distinct[0], sure=True, why=why)
    evidence = _Evidence(threads, owners, by or (lambda strategy: assignment_by(strategy, view, threads)))
    if len(distinct) > 1:
        return evidence.contended(advertised)
    return evidence.judged(silent, distinct[0] if distinct else None, _said(view.members, plain))


def _said(members: Mapping[ConsumerId, Registration], plain: Sequence[ConsumerId]) -> str:
    """Say what the members of a group without agreement advertise."""
    names = {str(one.extra["strategy"]) for c, one in members.items() if c not in plain and "strategy" in one.extra}
    said = f"{len(plain)} of {len(members)} members advertise it"
    return said + (f", others {first_of(names)}, which only whole groups use" if names else "")


def _with_why(
    strategy: Strategy, *, sure: bool, why: str, by_member: Mapping[ConsumerId, tuple[str, ...]] | None = None
) -> Strategy:
    return Strategy(strategy.name, strategy.scala_release, sure, why, by_member or {})


def _advertised(members: Mapping[ConsumerId, Registration]) -> dict[ConsumerId, Strategy]:
    """Return the strategy by which each member assigns, as far as members advertise one.

    A member whose strategy is not the original's uses ``range`` unless all members advertise the same one.
    """
    said = {c: registration.extra.get("strategy") for c, registration in members.items()}
    withdrawn = any(name in PLACEMENTS and advertised_strategy(members[c]) is None for c, name in said.items())
    agreed = len(set(map(str, said.values()))) == 1 and not withdrawn
    found = {}
    for consumer, name in said.items():
        if not isinstance(name, str):
            continue
        if name == "roundrobin":
            release = members[consumer].extra.get(RELEASE_KEY)
            old = isinstance(release, str) and release.startswith("0.")
            found[consumer] = ROUNDROBIN_OLD if old else ROUNDROBIN
        else:
            found[consumer] = Strategy(name) if agreed else RANGE
    return found


class _Evidence:
    """The assignments by the strategies of Scala members, beside the partitions that registered threads own."""

    def __init__(self, threads: Threads, owners: Assignment, by: Callable[[Strategy], Assignment]) -> None:
        registered = {thread: c for c, by_topic in threads.items() for ids in by_topic.values() for thread in ids}
        self._owned: dict[ConsumerId, dict[TopicPartition, ThreadId]] = {}
        for tp, thread in owners.items():
            if thread in registered:
                self._owned.setdefault(registered[thread], {})[tp] = thread
        self._made = {one: by(one) for one in CANDIDATES}
        self._by_member = {c: tuple(one.label for one in CANDIDATES if self._explains(one, c)) for c in self._owned}

    def _explains(self, strategy: Strategy, consumer: ConsumerId) -> bool:
        """Return whether the member owns nothing that the strategy gives to another thread."""
        made = self._made[strategy]
        return all(made.get(tp) == thread for tp, thread in self._owned.get(consumer, {}).items())

    def _matches(self, strategy: Strategy) -> int:
        made = self._made[strategy]
        return sum(made.get(tp) == thread for owned in self._owned.values() for tp, thread in owned.items())

    def _best(self, among: Sequence[Strategy]) -> Strategy:
        """Return the strategy that explains most partitions; the first of equal ones."""
        return max(among, key=self._matches)

    def judged(self, silent: Sequence[ConsumerId], advertised: Strategy | None, said: str) -> Strategy:
        """Return the strategy of a group with members that advertise none."""
        telling = [consumer for consumer in silent if consumer in self._owned]
        names = first_of(silent, _NAMED)
        if not telling:
            if advertised is not None:
                why = f"{said}; nothing tells the strategy of {names}: nothing advertised, nothing owned"
                return self._answer(advertised, sure=False, why=why)
            why = "no member advertises one, and no member owns anything to tell by; range is the original's default"
            return self._answer(RANGE, sure=False, why=why)
        fitting = [one for one in CANDIDATES if all(self._explains(one, consumer) for consumer in telling)]
        if advertised is not None:
            return self._beside(advertised, said, telling, fitting)
        if not fitting:
            return self._odd(self._best(CANDIDATES), "no strategy explains who owns what")
        return self._inferred(fitting)

    def _beside(
        self, advertised: Strategy, said: str, telling: Sequence[ConsumerId], fitting: Sequence[Strategy]
    ) -> Strategy:
        if advertised not in fitting:
            return self._odd(advertised, said)
        others = [one.label for one in fitting if one != advertised]
        fits = f"it explains the partitions of {first_of(telling, _NAMED)}"
        if others:
            return self._answer(advertised, sure=False, why=f"{said}, and {fits}, as {first_of(others)} would")
        return self._answer(advertised, sure=True, why=f"{said}, and {fits}; no other does")

    def _inferred(self, fitting: Sequence[Strategy]) -> Strategy:
        best = self._best(fitting)
        others = [one.label for one in fitting if one != best]
        matched, total = self._matches(best), len(self._made[best])
        if best == ROUNDROBIN and others == [ROUNDROBIN_OLD.label] and self._made[best] == self._made[ROUNDROBIN_OLD]:
            best, others = EITHER_ROUNDROBIN, []
        fits = f"no member advertises one; {best.label} explains who owns {matched} of {total} partitions"
        if others:
            return self._answer(best, sure=False, why=f"{fits}, but {first_of(others)} would also")
        if matched < total:
            return self._answer(best, sure=False, why=f"{fits}, the others are not owned yet")
        return self._answer(best, sure=True, why=f"{fits}; no other does")

    def contended(self, advertised: Mapping[ConsumerId, Strategy]) -> Strategy:
        """Return the strategy that explains most, for members that advertise strategies that do not go together."""
        best = self._best([one for one in CANDIDATES if one in advertised.values()])
        said = "; ".join(
            f"{first_of([c for c, used in advertised.items() if used == one], _NAMED)}: {one.label}"
            for one in dict.fromkeys(advertised.values())
        )
        return self._answer(best, sure=False, why=f"members use different strategies and contend ({said})")

    def _odd(self, strategy: Strategy, said: str) -> Strategy:
        """Return the strategy, not sure, and name the members whose partitions the strategy does not explain."""
        odd = [
            f"{consumer} ({' or '.join(labels) or 'no known strategy'} would explain it)"
            for consumer, labels in sorted(self._by_member.items())
            if strategy.label not in labels
        ]
        why = f"{said}; {strategy.label} explains most, but not what is owned by {first_of(odd, _NAMED)}"
        return self._answer(strategy, sure=False, why=why)

    def _answer(self, strategy: Strategy, *, sure: bool, why: str) -> Strategy:
        return _with_why(strategy, sure=sure, why=why, by_member=self._by_member)


def is_scalas(strategy: Strategy) -> bool:
    """Return whether Scala members know this strategy."""
    return strategy.name in SCALA_STRATEGIES
