"""A member's topics in a brokers' group: the subscribed and existing ones, and their changes since the last join. Pure.

Owned by the group thread. As in the Java consumer, a member evaluates its own pattern. Only the leader watches the
numbers of partitions, for all topics of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from zkconsumer.core.registration import Registration
from zkconsumer.core.subscription import subscribed_topics
from zkconsumer.core.topic_filter import InvalidTopicFilterError, TopicFilterTimeoutError
from zkconsumer.member.brokers.state_machine import Trigger

_MOST_NAMED = 8


class TopicInterest:
    """A member's subscription and the existing topics.

    ``trouble`` is text for the user about a failing pattern, empty if there is none.
    """

    def __init__(self, registration: Registration, *, exclude_internal: bool) -> None:
        self._registration = registration
        self._exclude_internal = exclude_internal
        self._known: dict[str, int] = {}
        self._matched: dict[str, int] = {}
        self._joined: frozenset[str] = frozenset()
        self._led: Mapping[str, int] | None = None
        self._group: frozenset[str] = frozenset()
        self.trouble = ""

    def join_with(self, registration: Registration) -> None:
        """Subscribe as this registration says."""
        self._registration = registration
        self._match()

    def subscribe(self, revise: Callable[[Mapping[str, int]], Mapping[str, int]]) -> None:
        """Replace the subscription by the one that ``revise`` makes of it."""
        self.join_with(replace(self._registration, subscription=revise(self._registration.subscription)))

    @property
    def empty(self) -> bool:
        """Whether the subscription is empty."""
        return not self._registration.subscription

    @property
    def wildcard(self) -> bool:
        """Whether the subscription is an expression, so that the member needs the names of all topics."""
        return self._registration.is_wildcard

    @property
    def streams(self) -> Mapping[str, int]:
        """The subscribed topics, each with its number of streams."""
        return self._matched if self.wildcard else self._registration.subscription

    # ---- metadata

    @property
    def metadata_topics(self) -> Collection[str] | None:
        """The topics whose metadata the member needs; None: all topics."""
        return None if self.wildcard else self._group if self._led is not None else ()

    @property
    def incomplete(self) -> bool:
        """Whether this member leads, and a member waits for a topic that does not exist yet."""
        return self._led is not None and any(not self._led.get(topic) for topic in self._group)

    @property
    def waiting(self) -> str:
        """Text for the user: subscribed topics that do not exist yet. Only the leader knows of them."""
        if self.wildcard or self._led is None:
            return ""
        missing = [f"topic {topic} to exist" for topic in sorted(self.streams) if not self._known.get(topic)]
        if len(missing) > _MOST_NAMED:
            missing[_MOST_NAMED:] = [f"{len(missing) - _MOST_NAMED} more topics"]
        return "waiting for " + ", ".join(missing) if missing else ""

    def take_metadata(
        self, asked: Collection[str] | None, partitions: Mapping[str, int], unsure: Collection[str]
    ) -> None:
        """Take in metadata: the number of partitions of each existing topic.

        Arguments: ``asked`` are the requested topics (None: all). ``unsure`` are topics without an answer.
        """
        known = self._known
        kept = {} if asked is None else {topic: count for topic, count in known.items() if topic not in asked}
        self._known = kept | {topic: known[topic] for topic in unsure if topic in known} | dict(partitions)
        self._match()

    def _match(self) -> None:
        if not self.wildcard:
            self.trouble = ""
            return
        try:
            self._matched = subscribed_topics(self._registration, sorted(self._known), self._exclude_internal)
            self.trouble = ""
        except (InvalidTopicFilterError, TopicFilterTimeoutError) as e:
            self.trouble = str(e)

    # ---- the last join

    def begin_join(self) -> None:
        """Remember the topics of this join, as a follower."""
        self._joined = frozenset(self.streams)
        self._led = None

    def begin_leading(self, topics: Collection[str]) -> Mapping[str, int]:
        """Become the leader of a group with these topics. Return the number of partitions of those that exist."""
        self._group = frozenset(topics)
        self._led = self._existing()
        return self._led

    def _existing(self) -> Mapping[str, int]:
        return {topic: self._known[topic] for topic in self._group if self._known.get(topic)}

    def rejoin_trigger(self) -> Trigger | None:
        """Return the reason for a rebalance, or None."""
        now = frozenset(self.streams)
        if now - self._joined:
            return Trigger.TOPICS_MATCHED
        if self._joined - now:
            return Trigger.TOPICS_VANISHED
        if self._led is None:
            return None
        existing = self._existing()
        if existing == self._led:
            return None
        return Trigger.TOPICS_VANISHED if self._led.keys() - existing.keys() else Trigger.PARTITIONS_CHANGED
