"""Reads and writes the nodes of loans, and reads what the plan of slots needs: members and owners.

Nodes are watched, so that nothing is asked while nothing changes. A lender's transaction checks that the partition is
still ours and that the borrower is registered; a borrower's checks that the loan is the one that it has seen.

Threads: one, the sharing thread's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from zkconsumer.balance.sharing.lender_rules import DeleteLoan, SeenLoan, WriteLoan
from zkconsumer.balance.sharing.loan_format import LoanReport, decode_loan, decode_report, encode_loan, encode_report
from zkconsumer.core.finished_note import FinishedNote
from zkconsumer.core.registration import Registration
from zkconsumer.errors import MalformedNodeError, NotPermittedError
from zkconsumer.model import TopicPartition
from zkconsumer.ownership.partition_position import PartitionPosition
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.zookeeper import node_codecs, paths
from zkconsumer.zookeeper.node_cache import NodeCache
from zkconsumer.zookeeper.node_requests import NodeFailure, Transaction
from zkconsumer.zookeeper.node_values import Look, Node
from zkconsumer.zookeeper.ownership_transactions import OWNER_VERSION
from zkconsumer.zookeeper.session import Session


@dataclass(frozen=True, slots=True)
class Owner:
    """An owner node: the consumer that it names, and its session. ``ours``: it is no Scala member's."""

    consumer: str
    session: int
    ours: bool


@dataclass(frozen=True, slots=True)
class GroupSight:
    """The nodes of the group as they are now.

    * ``sessions`` and ``registrations`` by consumer; ``owners`` by partition
    * ``loans``: of the partitions that were asked for, by borrower; ``mine``: our own loans by partition
    """

    sessions: Mapping[str, int] = field(default_factory=dict)
    registrations: Mapping[str, Registration] = field(default_factory=dict)
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)
    loans: Mapping[TopicPartition, Mapping[str, SeenLoan]] = field(default_factory=dict)
    mine: Mapping[TopicPartition, SeenLoan] = field(default_factory=dict)


class LoanStore:
    """The nodes of one group, for one member.

    Arguments: ``notify`` is called from kazoo's thread when something changed; ``timeout`` of a request in seconds.
    """

    def __init__(
        self, session: Session, group: str, consumer: str, notify: Callable[[], None], timeout: float = 5.0
    ) -> None:
        self._session = session
        self._group = group
        self._consumer = consumer
        self._timeout = timeout
        self._cache = NodeCache(session, lambda _: notify())
        self._decoded: dict[str, tuple[bytes, Registration | None]] = {}

    def refresh(self) -> None:
        """Read everything again: the connection was away."""
        self._cache.refresh()

    def forget(self, partition: TopicPartition) -> None:
        """Read the loans of a partition again."""
        group = self._group
        parent = paths.partition_loans(group, partition)
        names = self._cache.look(Look(children=[parent]), self._deadline()).children[parent] or ()
        loans = [paths.loan(group, partition, name) for name in (*names, self._consumer)]
        self._cache.forget([parent, *loans, *(f"{path}/report" for path in loans), paths.owner(group, partition)])

    def _deadline(self) -> Deadline:
        return Deadline(self._timeout)

    def owned_topics(self) -> Collection[str]:
        """Return the topics with owners, for a member whose subscription is a filter. Raises RegistryError."""
        return self._cache.children(paths.owners(self._group), self._deadline()) or ()

    def with_loans(self, positions: Collection[PartitionPosition]) -> set[PartitionPosition]:
        """Return those of these positions whose partitions have loans. Raises RegistryError."""
        asked = list(positions)
        parents = [paths.partition_loans(self._group, position.tp) for position in asked]
        nodes = self._session.stat(parents, self._deadline()) if parents else []
        return {p for p, node in zip(asked, nodes, strict=True) if node is not None and node.children}

    def look(
        self, topics: Collection[str], lent: Collection[TopicPartition], borrowed: Collection[TopicPartition] = ()
    ) -> GroupSight:
        """Return the group. Raises RegistryError.

        Arguments: ``topics`` whose owners are wanted; ``lent`` are the partitions whose loans are wanted; ``borrowed``
        are those whose loans to us are wanted even while nobody owns them.
        """
        group, cache = self._group, self._cache
        ids, of_topics = paths.ids(group), {topic: paths.owner_topic(group, topic) for topic in topics}
        of_loans = {tp: paths.partition_loans(group, tp) for tp in lent}
        lists = cache.look(Look(children=[ids, *of_topics.values(), *of_loans.values()]), self._deadline()).children
        members = {name: paths.member(group, name) for name in lists[ids] or ()}
        owned = {
            TopicPartition(topic, int(name)): f"{path}/{name}"
            for topic, path in of_topics.items()
            for name in lists[path] or ()
            if name.isascii() and name.isdigit() and len(name) < 10
        }
        loans = {(tp, name): f"{path}/{name}" for tp, path in of_loans.items() for name in lists[path] or ()}
        mine = {tp: paths.loan(group, tp, self._consumer) for tp in {*owned, *borrowed}}
        reports = {path: f"{path}/report" for path in (*loans.values(), *mine.values())}
        present = [*members.values(), *owned.values()]
        nodes = cache.look(Look(nodes=[*reports, *loans.values()], existing=present), self._deadline()).nodes
        standing = [reports[path] for path in reports if nodes[path] is not None]
        nodes = {**nodes, **cache.look(Look(nodes=standing), self._deadline()).nodes}
        seen: dict[TopicPartition, dict[str, SeenLoan]] = {tp: {} for tp in lent}
        for (tp, name), path in loans.items():
            if (found := _seen(nodes, path)) is not None:
                seen[tp][name] = found
        own = {tp: found for tp, path in mine.items() if (found := _seen(nodes, path)) is not None}
        return GroupSight(
            {name: node.ephemeral_owner for name, path in members.items() if (node := nodes[path]) is not None},
            self._registrations(members, nodes),
            {tp: owner for tp, path in owned.items() if (owner := _owner(nodes[path], path)) is not None},
            seen,
            own,
        )

    def _registrations(self, members: Mapping[str, str], nodes: Mapping[str, Node | None]) -> dict[str, Registration]:
        found: dict[str, tuple[bytes, Registration | None]] = {}
        for name, path in members.items():
            node = nodes[path]
            if node is None:
                continue
            known = self._decoded.get(name)
            if known is None or known[0] != node.data:
                try:
                    known = node.data, node_codecs.decode_registration(node.data, path)
                except MalformedNodeError:
                    known = node.data, None
            found[name] = known
        self._decoded = found
        return {name: registration for name, (_, registration) in found.items() if registration is not None}

    # ---- the lender

    def write(self, partition: TopicPartition, order: WriteLoan, note: FinishedNote) -> bool:
        """Write a loan of a partition of ours; returns whether it was written. Raises RegistryError."""
        path = paths.loan(self._group, partition, order.borrower)
        data = encode_loan(replace(order.loan, note=note))
        if order.version is None:
            self._session.ensure([paths.partition_loans(self._group, partition)], self._deadline())

        def build(transaction: Transaction) -> None:
            transaction.check(paths.owner(self._group, partition), OWNER_VERSION)
            transaction.check(paths.member(self._group, order.borrower), -1)
            if order.version is None:
                transaction.create(path, data)
            else:
                transaction.write(path, data, order.version)

        return self._transact(build, path)

    def delete(self, partition: TopicPartition, order: DeleteLoan, *, reported: bool) -> bool:
        """Delete a loan of a partition of ours, and its report. Raises RegistryError."""
        path = paths.loan(self._group, partition, order.borrower)

        def build(transaction: Transaction) -> None:
            transaction.check(paths.owner(self._group, partition), OWNER_VERSION)
            if reported:
                transaction.delete(f"{path}/report")
            transaction.delete(path, order.version)

        return self._transact(build, path)

    # ---- the borrower

    def report(self, partition: TopicPartition, loan_version: int, report: LoanReport, *, exists: bool) -> bool:
        """Write our report, if the loan is still the one that was seen. Raises RegistryError."""
        path = paths.loan(self._group, partition, self._consumer)
        data = encode_report(report)

        def build(transaction: Transaction) -> None:
            transaction.check(path, loan_version)
            if exists:
                transaction.write(f"{path}/report", data)
            else:
                transaction.create(f"{path}/report", data)

        return self._transact(build, path)

    def _transact(self, build: Callable[[Transaction], None], path: str) -> bool:
        try:
            failures = self._session.transact(build, self._deadline())
        finally:
            self._cache.forget([path, f"{path}/report"])
        if NodeFailure.NO_AUTH in failures:
            raise NotPermittedError(f"{path}: this member may not write the loan or its report (an ACL forbids it)")
        return not any(failures)


def _seen(nodes: Mapping[str, Node | None], path: str) -> SeenLoan | None:
    node, told = nodes[path], nodes.get(f"{path}/report")
    if node is None:
        return None
    try:
        loan = decode_loan(node.data)
    except ValueError:
        loan = None
    try:
        report = None if told is None else decode_report(told.data)
    except ValueError:
        report = None
    return SeenLoan(loan, node.version, report, told is not None)


def _owner(node: Node | None, path: str) -> Owner | None:
    if node is None:
        return None
    try:
        thread = node_codecs.decode_owner(node.data, path)
    except MalformedNodeError:
        return None
    return Owner(thread.rpartition("-")[0], node.ephemeral_owner, node.version == OWNER_VERSION)
