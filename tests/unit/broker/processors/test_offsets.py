"""308 at a broker; expected values without expired messages are the answers of Java 5.5.0."""

import pytest

from reput.format import bodies
from reput.format.bodies import CorrectionOffsets
from reput.format.codes import RequestCode
from reput.format.headers import QueryCorrectionOffsetHeader
from world import Subject

LONG_MAX = (1 << 63) - 1


async def correction_offsets(
    subject: Subject, compare_group: str, filter_groups: str | None = None
) -> dict[int, int]:
    header = QueryCorrectionOffsetHeader(
        topic="T", compare_group=compare_group, filter_groups=filter_groups
    )
    reply = await subject.ask(RequestCode.QUERY_CORRECTION_OFFSET, header)
    assert reply.code == 0
    return bodies.decode(CorrectionOffsets, reply.body).correction_offsets


def put(subject: Subject, group: str, offsets: dict[int, int], topic: str = "T") -> None:
    for queue_id, consumer_offset in offsets.items():
        subject.parts.deliveries.consumer_offsets.put(topic, group, queue_id, consumer_offset)


async def test_a_group_whose_next_message_has_expired_is_ignored(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(subject, "G", {0: 1, 1: 1})
    put(subject, "H", {0: 2})
    monkeypatch.setattr(subject.broker.store, "min_offset", lambda _topic, _queue_id: 2)
    assert await correction_offsets(subject, "nobody") == {0: 2}
    assert await correction_offsets(subject, "G") == {0: LONG_MAX}
