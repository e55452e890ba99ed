"""What a member wants, what there is of it, and whether that changed since the group last decided. Pure.

Owned by the group's thread. Patterns are evaluated by the member that has them, as in the Java consumer; only the
leader looks after the numbers of partitions, of all topics that anybody in the group subscribes to.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from zkconsumer.core.registration import Registration
from zkconsumer.core.subscription import subscribed_topics
from zkconsumer.core.topic_filter import InvalidTopicFilterError, TopicFilterTimeoutError
from zkconsumer.member.coordinator.state_machine import Trigger

_MOST_NAMED = 8


class TopicInterest:
    """A member's subscription beside the topics that exist.

    ``trouble`` says in words for the user why a pattern does not decide; empty where nothing is wrong.
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

    def subscribe(self, registration: Registration) -> None:
        """Want this from now on."""
        self._registration = registration
        self._match()

    @property
    def empty(self) -> bool:
        """Whether nothing is subscribed."""
        return not self._registration.subscription

    @property
    def wildcard(self) -> bool:
        """Whether all topics have to be known to tell what is wanted."""
        return self._registration.is_wildcard

    @property
    def streams(self) -> Mapping[str, int]:
        """The topics that are wanted, and how many streams we bring to each."""
        return self._matched if self.wildcard else self._registration.subscription

    @property
    def topics(self) -> list[str]:
        """The topics that are wanted, in order."""
        return sorted(self.streams)

    # ---- looking

    @property
    def look_for(self) -> Collection[str] | None:
        """The topics to ask for, None: all; empty: there is nothing to look for."""
        return None if self.wildcard else self._group if self._led is not None else ()

    @property
    def incomplete(self) -> bool:
        """Whether we lead, and somebody waits for a topic that does not exist yet."""
        return self._led is not None and any(not self._led.get(topic) for topic in self._group)

    @property
    def waiting(self) -> str:
        """Which of our own topics do not exist yet, in words. Only the leader looks for them; others know of none."""
        if self.wildcard or self._led is None:
            return ""
        missing = [f"topic {topic} to exist" for topic in self.topics if not self._known.get(topic)]
        if len(missing) > _MOST_NAMED:
            missing[_MOST_NAMED:] = [f"{len(missing) - _MOST_NAMED} more topics"]
        return "waiting for " + ", ".join(missing) if missing else ""

    def saw(self, asked: Collection[str] | None, partitions: Mapping[str, int], unsure: Collection[str]) -> None:
        """The partitions of the topics that were asked for (None: of all); of ``unsure`` ones nothing was told."""
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

    # ---- what the group decided on

    def joined(self) -> None:
        """We join with what is wanted now, and lead nobody."""
        self._joined = frozenset(self.streams)
        self._led = None

    def lead(self, topics: Collection[str]) -> Mapping[str, int]:
        """We lead a group that subscribes to these topics; returns the partitions of those that exist, as the group's
        assignment is to be made of.
        """
        self._group = frozenset(topics)
        self._led = {topic: self._known[topic] for topic in self._group if self._known.get(topic)}
        return self._led

    def cause(self) -> Trigger | None:
        """Why the group is to decide anew, None: nothing changed."""
        now = frozenset(self.streams)
        if now - self._joined:
            return Trigger.TOPICS_MATCHED
        if self._joined - now:
            return Trigger.TOPICS_VANISHED
        if self._led is None:
            return None
        there = {topic: self._known[topic] for topic in self._group if self._known.get(topic)}
        if there == self._led:
            return None
        return Trigger.TOPICS_VANISHED if self._led.keys() - there.keys() else Trigger.PARTITIONS_CHANGED
