"""Which members of a group do not use the database of the others."""

from __future__ import annotations

import pytest

from zkconsumer.core.registration import STATIC, STORE_KEY, Registration
from zkconsumer.errors import OffsetStoreConflictError
from zkconsumer.member.zookeeper.claim_plan import GroupView
from zkconsumer.model import ConsumerId, ThreadId, TopicPartition
from zkconsumer.wiring.database_member import StoreAgreement, without_store


def registered(**extra: object) -> Registration:
    return Registration(STATIC, {"t": 1}, extra=extra)


OURS = registered(**{STORE_KEY: "one"})
ME = ConsumerId("g_me")


@pytest.mark.parametrize(
    ("other", "unreadable", "strangers"),
    [
        (OURS, {}, []),
        (registered(), {}, ["g_other"]),
        (registered(**{STORE_KEY: "two"}), {}, ["g_other"]),
        (registered(**{STORE_KEY: 1}), {}, ["g_other"]),
        (OURS, {"/consumers/g/ids/g_bad": "not JSON"}, ["g_bad"]),
        (OURS, {"/consumers/other/ids/x": "not JSON", "/brokers/topics/t": "not JSON"}, []),
    ],
)
def test_strangers_are_named(other: Registration, unreadable: dict[str, str], strangers: list[str]) -> None:
    view = GroupView({ME: OURS, ConsumerId("g_other"): other}, {}, unreadable=unreadable)
    assert without_store(view, "g", "one") == strangers


def test_each_round_with_strangers_is_refused() -> None:
    told: list[OffsetStoreConflictError | None] = []
    assigned = {TopicPartition("t", 0): ThreadId("g_me-0")}
    agreement = StoreAgreement(lambda view, threads: assigned, "g", "one", told.append)
    alone = GroupView({ME: OURS}, {})
    mixed = GroupView({ME: OURS, ConsumerId("g_other"): registered()}, {})
    assert agreement(alone, {}) == assigned
    for _ in range(2):
        with pytest.raises(OffsetStoreConflictError, match="g_other"):
            agreement(mixed, {})
    assert agreement(alone, {}) == assigned
    assert agreement(alone, {}) == assigned
    assert [error is None for error in told] == [False, False, True]
