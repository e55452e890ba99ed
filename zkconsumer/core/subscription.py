"""What a member asked for, and the threads it brings to each topic. Pure; any thread.

Mirrors ``TopicCount`` of the original: a static subscription names its topics and the streams for each; a wildcard one
holds exactly one entry, the expression and the number of streams, which then serve every topic that it allows. The
*reader* of a registration evaluates the filter, with its own idea of internal topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from zkconsumer.core.node_names import name_problem
from zkconsumer.core.registration import BLACK_LIST, STATIC, WHITE_LIST, Registration
from zkconsumer.core.sized_cache import SizedCache
from zkconsumer.core.topic_filter import InvalidTopicFilterError, TopicFilter, TopicFilterTimeoutError
from zkconsumer.model import ConsumerId, ThreadId, thread_id

__all__ = [
    "BLACK_LIST",
    "STATIC",
    "WHITE_LIST",
    "Registration",
    "subscribed_topics",
    "thread_ids",
    "topic_filter",
    "undecided",
]


REMEMBERED_TOPICS = 2 * 1024 * 1024
"""Topics that expressions allow, and characters of these, that are remembered."""


def topic_filter(registration: Registration) -> TopicFilter | None:
    """The filter of a wildcard subscription, None for a static one.

    Raises InvalidTopicFilterError where the expression cannot be compiled.
    """
    if not registration.is_wildcard:
        return None
    return TopicFilter.from_registration(registration.pattern, registration.wildcard[0])


_ALLOWED: SizedCache[tuple[str, ...]] = SizedCache(REMEMBERED_TOPICS)


def _allowed(registration: Registration, all_topics: tuple[str, ...], exclude_internal: bool) -> tuple[str, ...]:
    """Remembered, because the members of a group mostly use one expression, and all are asked at each change. What is
    remembered needs no compiled expression.
    """
    text = registration.wildcard[0]

    def make() -> tuple[str, ...]:
        wanted = TopicFilter.from_registration(registration.pattern, text)
        return tuple(topic for topic in all_topics if wanted.allows(topic, exclude_internal))

    key = registration.pattern, text, all_topics, exclude_internal
    return _ALLOWED.get(key, make, lambda allowed: len(allowed) + len(text))


def subscribed_topics(
    registration: Registration, all_topics: Collection[str], exclude_internal: bool
) -> dict[str, int]:
    """The topics a member takes part in, with its number of streams for each.

    ``all_topics`` are those that exist; only a wildcard looks at them. A static subscription keeps topics that do not
    exist (yet), but not texts that no topic can be called: the original looks such a node up and finds nothing. Raises
    InvalidTopicFilterError and TopicFilterTimeoutError of a wildcard.
    """
    if not registration.is_wildcard:
        return {topic: streams for topic, streams in registration.subscription.items() if name_problem(topic) is None}
    return dict.fromkeys(_allowed(registration, tuple(all_topics), exclude_internal), registration.wildcard[1])


def undecided(
    registrations: Mapping[ConsumerId, Registration],
    all_topics: Collection[str],
    exclude_internal: bool,
    given_up: dict[tuple[str, str], str] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[ConsumerId, str]:
    """The members whose expression does not decide about these topics in time, and the reason in words.

    Leave them out of the group as if their nodes could not be read: one expression must not stop everybody.
    ``given_up`` are the expressions (kind and text) known not to decide about these topics, and is added to: their time
    limit is spent once, not for each member and not at each look at the group. ``meanwhile`` is called before each.
    """
    found: dict[ConsumerId, str] = {}
    given_up = {} if given_up is None else given_up
    for consumer, registration in registrations.items():
        if not registration.is_wildcard:
            continue
        meanwhile()
        key = (registration.pattern, registration.wildcard[0])
        try:
            if key not in given_up:
                subscribed_topics(registration, all_topics, exclude_internal)
                continue
        except (InvalidTopicFilterError, TopicFilterTimeoutError) as error:
            given_up[key] = str(error)
        found[consumer] = given_up[key]
    return found


def thread_ids(
    consumer_id: ConsumerId, registration: Registration, all_topics: Collection[str], exclude_internal: bool
) -> dict[str, tuple[ThreadId, ...]]:
    """The threads that one member brings to each topic it takes part in, in the order of their numbers.

    Arguments and errors are those of :func:`subscribed_topics`. Threads are numbered from 0 for each topic alike, so
    that one thread id may serve several topics. Topics that share a count share the tuple: a registration that claims a
    hundred thousand streams for each of thousand topics costs its memory once.
    """
    made: dict[int, tuple[ThreadId, ...]] = {}

    def threads(count: int) -> tuple[ThreadId, ...]:
        if count not in made:
            made[count] = tuple(thread_id(consumer_id, number) for number in range(count))
        return made[count]

    wanted = subscribed_topics(registration, all_topics, exclude_internal)
    return {topic: threads(count) for topic, count in wanted.items()}
