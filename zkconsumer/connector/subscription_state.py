"""What a connector subscribes to: the registration with which it joined, and the changes since.

A change counts from its request on, unless it is withdrawn: its caller left the call before the member began to tell
the group. So the subscription follows from the requests, and no caller has to take anything back.

Threads: the connector's lock guards all that adds or drops a change. Any thread may read the registration.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from zkconsumer.balance.work import Work
from zkconsumer.core.node_names import name_problem
from zkconsumer.core.partition_position import Held
from zkconsumer.core.registration import MAX_REGISTRATION_BYTES, RESERVED_BYTES, STATIC, Registration
from zkconsumer.member.events import SubscriptionChanged
from zkconsumer.runtime.deadline import Deadline
from zkconsumer.runtime.interruptible_wait import Request
from zkconsumer.streams import KafkaStream
from zkconsumer.wiring import GroupMember


class Subscription:
    """The subscription of one connector."""

    def __init__(self) -> None:
        self._joined = Registration(STATIC, {})
        self._changes: list[SubscriptionChanged] = []

    def join(self, registration: Registration) -> None:
        """Begin with this registration."""
        self._joined = registration

    def registration(self) -> Registration:
        """The registration with all changes but those that were withdrawn."""
        subscription = self._joined.subscription
        for change in self._changes:
            if not change.done.withdrawn:
                subscription = change.revise(subscription)
        return replace(self._joined, subscription=subscription)

    def add(
        self,
        member: GroupMember,
        topics: Mapping[str, int],
        streams: Callable[[], Mapping[str, Collection[KafkaStream[Any, Any]]]],
        deadline: Deadline,
        held: Held,
        works: Sequence[Work] = (),
    ) -> Request[None]:
        """Ask for further topics. Returns the request.

        Arguments: ``topics`` maps names to numbers of streams; ``streams`` makes these streams once it is clear that
        the topics are new. Raises: ValueError for a topic that is subscribed already, or if the connector follows a
        filter.
        """
        added, subscription = dict(topics), self._topics()
        known = sorted(added.keys() & subscription.keys())
        if known:
            raise ValueError(f"subscribed already: {', '.join(known)}")
        # a change that leaves them may still be withdrawn, and their former streams would stay beside the new ones
        doubtful = [change.leaving for change in self._changes if change.done.may_be_withdrawn]
        going = added.keys() & frozenset().union(*doubtful)
        if going:
            raise ValueError(f"being left by another call, wait for its end: {', '.join(sorted(going))}")
        check_topics({**subscription, **added})
        made = [stream for some in streams().values() for stream in some]
        return self._ask(
            member,
            SubscriptionChanged(
                lambda before: {**before, **added},
                Request(deadline),
                held=held,
                in_handler=[work.ledger.position for work in works],
                withdrawn=lambda: member.delivery.retire(made),
            ),
        )

    def leave(
        self,
        member: GroupMember,
        topics: Collection[str],
        deadline: Deadline,
        held: Held,
        begun: Callable[[], object],
        works: Sequence[Work] = (),
    ) -> Request[None]:
        """Ask to leave topics, which ends their streams. Returns the request.

        Arguments: the messages that the caller ``held`` count as finished; the group thread calls ``begun`` when the
        change can no longer be withdrawn; ``works`` are the messages of the calling handler, in a balanced run.
        Raises: ValueError for a topic that is not subscribed, or if the connector follows a filter.
        """
        leaving, subscription = frozenset(topics), self._topics()
        strange = sorted(leaving - subscription.keys())
        if strange:
            raise ValueError(f"not subscribed: {', '.join(strange)}")
        retired = [stream for topic in leaving for stream in member.delivery.streams_of(topic, subscription[topic])]
        return self._ask(
            member,
            SubscriptionChanged(
                lambda before: {topic: count for topic, count in before.items() if topic not in leaving},
                Request(deadline),
                leaving,
                held,
                [work.ledger.position for work in works],
                begun=begun,
                applied=lambda: member.delivery.retire(retired),
            ),
        )

    def _topics(self) -> Mapping[str, int]:
        """Return the subscribed topics with their numbers of streams. Raises ValueError for a filter."""
        if self._joined.pattern != STATIC:
            raise ValueError("this connector follows a filter: topics come and go with it, none can be added or left")
        # in place: a signal handler of this very thread may come here amid another change
        for change in [change for change in self._changes if change.done.withdrawn]:
            self._changes.remove(change)
        while self._changes and self._changes[0].done.done():
            # an interrupt between the two repeats changes in their order, which changes nothing
            self._joined = replace(self._joined, subscription=self._changes[0].revise(self._joined.subscription))
            self._changes.pop(0)
        return self.registration().subscription

    def _ask(self, member: GroupMember, change: SubscriptionChanged) -> Request[None]:
        asked = change.done  # the group thread may answer the caller and do the change later, with another request
        self._changes.append(change)
        member.events.put(change)
        return asked


def check_topics(topics: Mapping[str, int]) -> None:
    """Raise ValueError for topics that cannot be subscribed to."""
    if not isinstance(topics, Mapping):
        raise ValueError(f"topics must be a mapping from names to numbers of streams, not {topics!r}")
    for topic, count in topics.items():
        check_subscribed(topic, count)
        problem = name_problem(topic)
        if problem is not None:
            raise ValueError(f"{topic!r} cannot be a topic: {problem}")
    size = sum(len(topic.encode()) + len(f'"":{count},') for topic, count in topics.items())
    if size > (most := MAX_REGISTRATION_BYTES - RESERVED_BYTES):
        raise ValueError(
            f"{len(topics)} topics take {size} bytes in the registration, more than {most}: subscribe to fewer, or by a"
            " filter"
        )


def check_subscribed(name: str, count: int) -> None:
    """Raise ValueError for a bad name or expression, or a bad number of streams."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"a topic or expression must be a non-empty text, not {name!r}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ValueError(f"{name}: the number of streams must be a whole number of at least 1, not {count!r}")
