"""Notes in the metadata of Kafka's offsets, and how long they may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.values import present
from zkconsumer.core.finished_note import FinishedNote, encode_note, note_as_text
from zkconsumer.core.unfinished_offsets import Finished
from zkconsumer.errors import BrokerResponseError
from zkconsumer.kafka import error_codes
from zkconsumer.kafka.group_channel import OffsetAndMetadata
from zkconsumer.model import TopicPartition
from zkconsumer.offsets.kafka_store import MOST_CHARACTERS, MetadataNotes, SentOffsets, note_in

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
SMALL = FinishedNote(5, (Finished(5, 9, (5, 7)),))
LARGE = FinishedNote(5, (Finished(5, 50_000_000, tuple(n * n for n in range(3, 7000))),))


def broker(
    limit: int, sent: list[SentOffsets]
) -> Callable[[SentOffsets], Mapping[TopicPartition, BrokerResponseError]]:
    """A broker that refuses longer metadata."""

    def send(offsets: SentOffsets) -> Mapping[TopicPartition, BrokerResponseError]:
        sent.append(offsets)
        return {
            tp: error_codes.error(error_codes.OFFSET_METADATA_TOO_LARGE, "a commit")
            for tp, one in offsets.items()
            if isinstance(one, OffsetAndMetadata) and len(one.metadata) > limit
        }

    return send


def noted(one: int | OffsetAndMetadata) -> FinishedNote | None:
    assert isinstance(one, OffsetAndMetadata)
    assert len(one.metadata) <= MOST_CHARACTERS
    return note_in(one)


def test_a_note_stands_beside_its_offset_and_epoch() -> None:
    sent: list[SentOffsets] = []
    offsets: SentOffsets = {TP: OffsetAndMetadata(5, leader_epoch=3), OTHER: 7}
    assert MetadataNotes().commit(offsets, {TP: SMALL, OTHER: FinishedNote(7)}, broker(4096, sent)) == {}
    (one,) = sent
    assert noted(one[TP]) == SMALL
    assert isinstance(one[TP], OffsetAndMetadata)
    assert one[TP].leader_epoch == 3  # type: ignore[union-attr]
    assert one[OTHER] == 7, "nothing is finished beyond it"


@pytest.mark.parametrize(("limit", "most"), [(4096, 4096), (1000, 512), (0, 0)])
def test_a_note_is_cut_until_the_broker_takes_it(limit: int, most: int) -> None:
    notes, sent = MetadataNotes(), list[SentOffsets]()
    assert notes.commit({TP: 5, OTHER: 8}, {TP: LARGE}, broker(limit, sent)) == {}
    assert notes.characters == most
    assert [OTHER in offsets for offsets in sent] == [True, *[False] * (len(sent) - 1)], "only the refused is repeated"
    if limit:
        found = present(noted(sent[-1][TP]))
        assert found.finished[0].start == 5
    else:
        assert sent[-1][TP] == 5
    sent.clear()
    notes.commit({TP: 5}, {TP: LARGE}, broker(limit, sent))
    assert len(sent) == 1, "it is remembered"


def test_other_refusals_are_returned() -> None:
    error = error_codes.error(error_codes.TOPIC_AUTHORIZATION_FAILED, "a commit")
    assert MetadataNotes().commit({TP: 5}, {TP: SMALL}, lambda _: {TP: error}) == {TP: error}
    too_large = error_codes.error(error_codes.OFFSET_METADATA_TOO_LARGE, "a commit")
    assert MetadataNotes().commit({TP: 5}, {}, lambda _: {TP: too_large}) == {TP: too_large}, "there was no note"


@pytest.mark.parametrize(
    "stored",
    [
        OffsetAndMetadata(5),
        OffsetAndMetadata(5, metadata="of another program"),
        OffsetAndMetadata(6, metadata=note_as_text(encode_note(SMALL))),
    ],
)
def test_other_metadata_is_no_note(stored: OffsetAndMetadata) -> None:
    assert note_in(stored) is None
