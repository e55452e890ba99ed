"""The topics and threads of each member's subscription. Pure; any thread.

Mirrors ``TopicCount`` of the original. A static subscription names its topics, each with a number of streams. A
wildcard subscription has one entry: an expression, and a number of streams that then serve every allowed topic. The
member that reads a registration evaluates its expression, with its own set of internal topics.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from zkconsumer.core.names import name_problem
from zkconsumer.core.registration import Registration
from zkconsumer.core.topic_filter import InvalidTopicFilterError, SizedCache, TopicFilter, TopicFilterTimeoutError
from zkconsumer.model import ConsumerId, ThreadId, thread_id

CACHED_TOPICS = 2 * 1024 * 1024
"""The size of the cache of allowed topics, in topics and characters of their expressions."""


def topic_filter(registration: Registration) -> TopicFilter | None:
    """Return the filter of a wildcard subscription, None for a static one.

    Raises InvalidTopicFilterError for an expression that cannot be compiled.
    """
    if not registration.is_wildcard:
        return None
    return TopicFilter.from_registration(registration.pattern, registration.wildcard[0])


# The members of a group mostly share one expression, and each change evaluates it for all members. A cached result
# needs no compiled expression.
_ALLOWED: SizedCache[tuple[str, ...]] = SizedCache(CACHED_TOPICS)


def _allowed(registration: Registration, all_topics: tuple[str, ...], exclude_internal: bool) -> tuple[str, ...]:
    text = registration.wildcard[0]

    def make() -> tuple[str, ...]:
        wanted = TopicFilter.from_registration(registration.pattern, text)
        return tuple(topic for topic in all_topics if wanted.allows(topic, exclude_internal))

    key = registration.pattern, text, all_topics, exclude_internal
    return _ALLOWED.get(key, make, lambda allowed: len(allowed) + len(text))


def subscribed_topics(
    registration: Registration, all_topics: Collection[str], exclude_internal: bool
) -> dict[str, int]:
    """Return the topics of a subscription, each with the member's number of streams.

    ``all_topics`` are the existing topics; only a wildcard needs them. A static subscription keeps topics that do not
    exist yet. It loses names that no topic can have: the original looks up their nodes and finds nothing. Raises
    InvalidTopicFilterError and TopicFilterTimeoutError for a wildcard.
    """
    if not registration.is_wildcard:
        return {topic: streams for topic, streams in registration.subscription.items() if name_problem(topic) is None}
    return dict.fromkeys(_allowed(registration, tuple(all_topics), exclude_internal), registration.wildcard[1])


def failing_filters(
    registrations: Mapping[ConsumerId, Registration],
    all_topics: Collection[str],
    exclude_internal: bool,
    known: dict[tuple[str, str], str] | None = None,
    before_each: Callable[[], None] = lambda: None,
) -> dict[ConsumerId, str]:
    """Return the members whose expression fails for these topics, mostly by its time limit, each with the reason.

    Treat them as members with unreadable nodes. Otherwise one expression would stop the whole group.

    Arguments: ``known`` are the failures of earlier calls by pattern and expression, and receives new ones. So an
    expression spends its time limit once, not for each member and each rebalance. ``before_each`` is called before each
    evaluation.
    """
    found: dict[ConsumerId, str] = {}
    known = {} if known is None else known
    for consumer, registration in registrations.items():
        if not registration.is_wildcard:
            continue
        before_each()
        key = (registration.pattern, registration.wildcard[0])
        try:
            if key not in known:
                subscribed_topics(registration, all_topics, exclude_internal)
                continue
        except (InvalidTopicFilterError, TopicFilterTimeoutError) as error:
            known[key] = str(error)
        found[consumer] = known[key]
    return found


def thread_ids(
    consumer_id: ConsumerId, registration: Registration, all_topics: Collection[str], exclude_internal: bool
) -> dict[str, tuple[ThreadId, ...]]:
    """Return the threads of one member for each topic of its subscription, in the order of their numbers.

    Arguments and errors are those of :func:`subscribed_topics`. Each topic's threads count from 0, so that one thread
    id may serve several topics. Topics with equal counts share one tuple. Otherwise a registration with a hundred
    thousand streams for each of a thousand topics would take that memory a thousand times.
    """
    made: dict[int, tuple[ThreadId, ...]] = {}

    def threads(count: int) -> tuple[ThreadId, ...]:
        if count not in made:
            made[count] = tuple(thread_id(consumer_id, number) for number in range(count))
        return made[count]

    wanted = subscribed_topics(registration, all_topics, exclude_internal)
    return {topic: threads(count) for topic, count in wanted.items()}
