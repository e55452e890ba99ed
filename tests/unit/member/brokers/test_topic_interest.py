"""The topics that a member wants, and the changes of topics after which the group has to decide anew."""

from __future__ import annotations

import pytest

from tests.timing import eventually
from zkconsumer import ZookeeperConsumerConnector
from zkconsumer.core.registration import STATIC, WHITE_LIST, Registration
from zkconsumer.member.brokers.state_machine import Trigger
from zkconsumer.member.brokers.topic_interest import TopicInterest
from zkconsumer.testing import FakeCluster


def static(**streams: int) -> TopicInterest:
    return TopicInterest(Registration(STATIC, streams), exclude_internal=True)


def pattern(expression: str) -> TopicInterest:
    return TopicInterest(Registration(WHITE_LIST, {expression: 2}), exclude_internal=True)


def test_a_static_subscription_includes_missing_topics() -> None:
    """The member names its topics in the group whether they exist or not."""
    interest = static(b=1, a=2)
    assert sorted(interest.streams) == ["a", "b"]
    assert interest.streams == {"a": 2, "b": 1}
    assert interest.metadata_topics == ()
    assert not interest.wildcard
    assert static().empty


def test_a_pattern_takes_the_topics_that_match_it() -> None:
    interest = pattern("a.*|__consumer_offsets")
    assert sorted(interest.streams) == []
    interest.take_metadata(None, {"a1": 3, "b1": 1, "a2": 1, "__consumer_offsets": 50}, [])
    assert interest.streams == {"a1": 2, "a2": 2}
    assert interest.metadata_topics is None


@pytest.mark.parametrize(
    ("now", "cause"),
    [({"a1": 1, "b1": 9}, None), ({"a1": 1, "a2": 1}, Trigger.TOPICS_MATCHED), ({"b1": 1}, Trigger.TOPICS_VANISHED)],
)
def test_a_pattern_follower_rejoins_when_its_topics_change(now: dict[str, int], cause: Trigger | None) -> None:
    """A new or deleted topic counts if the pattern matches it."""
    interest = pattern("a.*")
    interest.take_metadata(None, {"a1": 1, "b1": 1}, [])
    interest.begin_join()
    assert interest.rejoin_trigger() is None
    interest.take_metadata(None, now, [])
    assert interest.rejoin_trigger() is cause


@pytest.mark.parametrize(
    ("now", "cause"),
    [
        ({"mine": 2, "other": 1}, None),
        ({"mine": 2, "other": 3}, Trigger.PARTITIONS_CHANGED),
        ({"mine": 2, "other": 1, "missing": 1}, Trigger.PARTITIONS_CHANGED),
        ({"mine": 2}, Trigger.TOPICS_VANISHED),
    ],
)
def test_only_the_leader_watches_the_partitions_of_the_group(now: dict[str, int], cause: Trigger | None) -> None:
    """Partitions of another member's topics are no reason for a follower to join again."""
    interest = static(mine=1)
    group = ["mine", "other", "missing"]
    interest.begin_join()
    interest.take_metadata(group, {"mine": 2, "other": 1}, [])
    assert interest.begin_leading(group) == {"mine": 2, "other": 1}
    assert interest.incomplete
    assert set(interest.metadata_topics or ()) == set(group)
    interest.take_metadata(group, now, [])
    assert interest.rejoin_trigger() is cause
    interest.begin_join()
    assert interest.rejoin_trigger() is None
    assert not interest.incomplete


def test_the_leader_says_which_of_its_own_topics_it_waits_for() -> None:
    interest = static(here=1, gone=1, soon=1)
    interest.begin_join()
    assert interest.waiting == ""
    interest.take_metadata(["here", "gone", "soon", "other"], {"here": 2}, [])
    interest.begin_leading(["here", "gone", "soon", "other"])
    assert interest.waiting == "waiting for topic gone to exist, topic soon to exist"
    interest.take_metadata(["here", "gone", "soon", "other"], {"here": 2, "gone": 1, "soon": 1}, [])
    assert interest.waiting == ""
    many = static(**{f"t{number}": 1 for number in range(10)})
    many.begin_leading(sorted(many.streams))
    assert many.waiting.endswith("topic t7 to exist, 2 more topics")


def test_what_was_not_told_is_as_it_was() -> None:
    """A topic whose partitions a broker cannot tell for a moment has not vanished."""
    interest = static(t=1)
    interest.begin_join()
    interest.take_metadata(["t"], {"t": 2}, [])
    interest.begin_leading(["t"])
    interest.take_metadata(["t"], {}, ["t"])
    assert interest.rejoin_trigger() is None
    interest.take_metadata(["t"], {}, [])
    assert interest.rejoin_trigger() is Trigger.TOPICS_VANISHED


def test_a_pattern_that_times_out_keeps_its_last_topics() -> None:
    """The trouble names the pattern that the time limit stopped."""
    interest = pattern("(a+)+$")
    interest.take_metadata(None, {"aaa": 1}, [])
    assert sorted(interest.streams) == ["aaa"]
    interest.take_metadata(None, {"aaa": 1, "a" * 200 + "b": 1}, [])
    assert sorted(interest.streams) == ["aaa"]
    if interest.trouble:
        assert "did not finish matching" in interest.trouble


def test_a_topic_that_does_not_exist_is_named_until_it_does() -> None:
    with (
        FakeCluster() as cluster,
        ZookeeperConsumerConnector(
            group_coordination="kafka", bootstrap_servers=cluster.bootstrap_servers, group_id="g"
        ) as connector,
    ):
        connector.create_message_streams({"misspelt": 1})
        eventually(
            lambda: str(connector.state) == "owning 0 of 0 partitions; waiting for topic misspelt to exist",
            20,
            "the topic's name",
        )
        cluster.create_topic("misspelt", partitions=2)
        eventually(lambda: str(connector.state) == "owning 2 of 2 partitions", 20, "the topic")
