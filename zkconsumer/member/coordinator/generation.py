"""Who we are in the group, and what its members say to each other through the coordinator: from one join to the next.

Called by the group's thread only, but for :attr:`Generation.who`, which the committer reads for every commit: a commit
carries the generation and the member id, and that is what fences it. It then reads :attr:`Generation.held`, since what
was to be committed in one generation may be another's in the next; so that is changed before ``who``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from zkconsumer.assignors.java_consumer import GroupAssignor
from zkconsumer.core.consumer_protocol import JoinedMember, MemberAssignment, RebalanceProtocol, decode_assignment
from zkconsumer.core.ownership_epochs import GenerationEpochs, OwnershipEpochs
from zkconsumer.errors import InconsistentGroupProtocolError
from zkconsumer.kafka.group_channel import Joined, Membership
from zkconsumer.member.coordinator.leader_assignment import (
    assign_group,
    common_protocol,
    protocol_offers,
    topics_of_members,
)
from zkconsumer.member.coordinator.topic_interest import TopicInterest
from zkconsumer.model import TopicPartition

log = logging.getLogger(__name__)


class Generation:
    """Our membership.

    Arguments: ``instance`` is ``group.instance.id``; ``assignors`` are the strategies that we offer, the most wanted
    first; ``interest`` is what we subscribe to.
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
        self._stays = OwnershipEpochs()
        self.settled = False
        """Whether no next generation is under way."""
        self.chosen = ""
        """The strategy that the coordinator picked."""

    @property
    def held(self) -> GenerationEpochs:
        """Our stays with what is nobody else's in this generation. Any thread."""
        return self._stays.current

    @property
    def incremental(self) -> bool:
        """Whether what stays with a member flows on while the group rebalances."""
        return self._protocol is RebalanceProtocol.COOPERATIVE

    @property
    def protocols(self) -> Sequence[str]:
        """The names of the strategies that we offer."""
        return list(self._assignors)

    # ---- joining

    def offer(self, owned: Collection[TopicPartition]) -> list[tuple[str, bytes]]:
        """What a join says, for what is wanted now and ``owned`` all the while."""
        self.settled = False
        self._interest.joined()
        self._kept = tuple(sorted(owned)) if self.incremental else ()
        return protocol_offers(
            list(self._assignors.values()),
            self._interest.topics,
            owned=self._kept,
            previous=self._previous,
            generation=self._previous_generation,
        )

    def named(self, member_id: str) -> None:
        """The coordinator gave us a name to join with."""
        self.who = self.who._replace(member_id=member_id)

    def joined(self, answer: Joined) -> bool:
        """The group is complete; returns whether we lead it. Raises InconsistentGroupProtocolError."""
        if answer.protocol not in self._assignors:
            raise InconsistentGroupProtocolError(
                23, "INCONSISTENT_GROUP_PROTOCOL", f"the coordinator picked {answer.protocol!r}, which we do not offer"
            )
        self._stays.begin_generation(answer.generation, self._kept)
        self.who = self.who._replace(generation=answer.generation, member_id=answer.member_id)
        self.chosen = answer.protocol
        self._members, self._skip = answer.members, answer.skip_assignment
        return answer.is_leader

    # ---- leading

    @property
    def group_topics(self) -> frozenset[str]:
        """The topics that anybody subscribes to, for the leader to look at."""
        return topics_of_members(self._members)

    def decide(self) -> Mapping[str, bytes]:
        """Everybody's share, by the leader; nothing for a follower. Raises AssignmentError."""
        if not self._members:
            return {}
        partitions = self._interest.lead(self.group_topics)
        if self._skip:
            return {}  # the group goes on with what it has; we only look after the topics again
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
        """Our share. Raises MalformedMemberError."""
        share = decode_assignment(data, "the leader")
        self._previous, self._previous_generation = share.partitions, self.who.generation
        self._members = ()
        self._stays.assigned(share.partitions)
        self.settled = True
        return share

    def lose(self) -> None:
        """All that was ours is lost: no commit outlives that."""
        self._stays.lost()

    def forget(self) -> None:
        """The generation is over for us; our member id is still ours."""
        self.lose()
        self.who = self.who._replace(generation=-1)
        self._previous, self._previous_generation = (), -1

    def forget_member(self) -> None:
        """We are nobody again."""
        self.forget()
        self.who = self.who._replace(member_id="")
