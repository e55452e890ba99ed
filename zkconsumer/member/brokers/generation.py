"""The member's place in a generation of the group: member id, offer to the leader, and assignment.

Called by the group thread. The committer's thread reads :attr:`Generation.who` for every commit: the generation and the
member id fence it. Then it reads :attr:`Generation.held`, since a partition of one generation may be another member's
in the next. So ``held`` changes before ``who``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from zkconsumer.assignors.java_consumer_assignors import GroupAssignor
from zkconsumer.core.consumer_protocol import JoinedMember, MemberAssignment, RebalanceProtocol, decode_assignment
from zkconsumer.core.generation_fence import GenerationEpochs, OwnershipEpochs
from zkconsumer.errors import InconsistentGroupProtocolError
from zkconsumer.kafka.group_channel import Joined, Membership
from zkconsumer.member.brokers.leader_assignment import (
    assign_group,
    common_protocol,
    protocol_offers,
    topics_of_members,
)
from zkconsumer.member.brokers.topic_interest import TopicInterest
from zkconsumer.model import TopicPartition

log = logging.getLogger(__name__)


class Generation:
    """The membership of one member, from one join to the next.

    Arguments: ``instance`` is ``group.instance.id``; ``assignors`` are the strategies that we offer, the most wanted
    first; ``interest`` is our subscription.
    """

    def __init__(
        self, group: str, instance: str | None, assignors: Sequence[GroupAssignor], interest: TopicInterest
    ) -> None:
        self.who = Membership(group, instance_id=instance)
        self._assignors = {one.name: one for one in assignors}
        self._interest = interest
        self._protocol = common_protocol(assignors)
        self._previous: tuple[TopicPartition, ...] = ()
        self._previous_generation = -1
        self._members: tuple[JoinedMember, ...] = ()
        self._skip = False
        self._kept: tuple[TopicPartition, ...] = ()
        self._epochs = OwnershipEpochs()
        self.settled = False
        """Whether no next generation is under way."""
        self.chosen = ""
        """The strategy that the coordinator picked."""

    @property
    def held(self) -> GenerationEpochs:
        """Our ownerships of partitions that no other member has in this generation. Any thread."""
        return self._epochs.current

    @property
    def incremental(self) -> bool:
        """Whether partitions that stay flow on while the group rebalances."""
        return self._protocol is RebalanceProtocol.COOPERATIVE

    @property
    def protocols(self) -> Sequence[str]:
        """The names of the strategies that we offer."""
        return list(self._assignors)

    # ---- joining

    def offer(self, owned: Collection[TopicPartition]) -> list[tuple[str, bytes]]:
        """Return the content of a join, of a member that keeps ``owned`` meanwhile."""
        self.settled = False
        self._interest.begin_join()
        self._kept = tuple(sorted(owned)) if self.incremental else ()
        return protocol_offers(
            list(self._assignors.values()),
            sorted(self._interest.streams),
            owned=self._kept,
            previous=self._previous,
            generation=self._previous_generation,
        )

    def named(self, member_id: str) -> None:
        """Join under this id, which the coordinator gave us."""
        self.who = self.who._replace(member_id=member_id)

    def joined(self, answer: Joined) -> bool:
        """Enter a generation. Returns whether we lead it. Raises InconsistentGroupProtocolError."""
        if answer.protocol not in self._assignors:
            raise InconsistentGroupProtocolError(
                23, "INCONSISTENT_GROUP_PROTOCOL", f"the coordinator picked {answer.protocol!r}, which we do not offer"
            )
        self._epochs.begin_generation(answer.generation, self._kept)
        self.who = self.who._replace(generation=answer.generation, member_id=answer.member_id)
        self.chosen = answer.protocol
        self._members, self._skip = answer.members, answer.skip_assignment
        return answer.is_leader

    # ---- leading

    @property
    def group_topics(self) -> frozenset[str]:
        """The topics that any member subscribes to, for the leader to look at."""
        return topics_of_members(self._members)

    def decide(self) -> Mapping[str, bytes]:
        """Return the assignment of every member, if we lead; otherwise nothing. Raises AssignmentError."""
        if not self._members:
            return {}
        partitions = self._interest.begin_leading(self.group_topics)
        if self._skip:
            return {}  # every member keeps its assignment; we only look after the topics again
        led = assign_group(self._assignors[self.chosen], partitions, self._members)
        for member, failure in led.unreadable.items():
            log.warning("member %s gets nothing: %s", member, failure)
        log.info(
            "leading generation %d of %s by %s: %s",
            self.who.generation,
            self.who.group,
            self.chosen,
            {member: len(share.partitions) for member, share in led.decoded.items()},
        )
        return led.assignments

    # ---- the outcome

    def adopt(self, data: bytes) -> MemberAssignment:
        """Return our assignment. Raises MalformedMemberError."""
        share = decode_assignment(data, "the leader")
        self._previous, self._previous_generation = share.partitions, self.who.generation
        self._members = ()
        self._epochs.assigned(share.partitions)
        self.settled = True
        return share

    def lose(self, *, leaving: bool = False) -> None:
        """Lose all partitions; no commit of them is sent any more.

        If we are ``leaving`` by our own will, what we keep in ZooKeeper counts as none that the brokers took.
        """
        if leaving:
            self._epochs.left()
        else:
            self._epochs.lost()

    def forget(self) -> None:
        """Leave the generation; the member id stays ours."""
        self.lose()
        self.who = self.who._replace(generation=-1)
        self._previous, self._previous_generation = (), -1

    def forget_member(self) -> None:
        """Leave the generation and give up the member id."""
        self.forget()
        self.who = self.who._replace(member_id="")
