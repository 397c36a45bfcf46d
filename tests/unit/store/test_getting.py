"""Gets with a filter: a slow filter sees part of the messages, and the next get continues."""

import pytest

from reput.store import getting
from reput.store.getting import GetResult, GetStatus, MessageFilter
from store_fixture import Stores
from store_subject import Subject, decoded


class ByBody:
    """A filter that takes some messages, and counts its calls."""

    def __init__(self, *, uses_tags: bool) -> None:
        self.uses_tags = uses_tags
        self.count = 0

    def takes_unit(self, tags_code: int, bit_map: bytes, store_timestamp: int) -> bool:
        return True

    def takes_record(self, data: memoryview) -> bool:
        self.count += 1
        return b"yes" in bytes(data)


@pytest.fixture(params=[False, True], ids=["by record", "by unit"])
def asked(request: pytest.FixtureRequest) -> ByBody:
    return ByBody(uses_tags=request.param)


def filled(stores: Stores) -> Subject:
    subject = Subject("async", stores)
    for i in range(20):
        subject.put(body=b"%d %b" % (i, b"yes" if i in (3, 4, 17) else b"no"))
    return subject


def get(subject: Subject, queue_offset: int, message_filter: MessageFilter) -> GetResult:
    return subject.store.get("TopicA", 0, queue_offset, 32, message_filter=message_filter)


def test_a_slow_filter_gets_part_of_the_messages(
    stores: Stores, asked: ByBody, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A get evaluated several hundred messages: with a filter of 70 kB it took nine seconds."""
    subject = filled(stores)
    monkeypatch.setattr(getting, "_FILTERING_S", -1.0)
    bodies: list[bytes] = []
    queue_offset = gets = 0
    while queue_offset < 20:
        asked.count = 0
        result = get(subject, queue_offset, asked)
        assert asked.count == 1
        assert result.next_offset == queue_offset + 1
        is_taken = bool(result.records)
        assert result.status is (GetStatus.FOUND if is_taken else GetStatus.NO_MATCHED_MESSAGE)
        bodies += [message.body for message in decoded(result)]
        queue_offset = result.next_offset
        gets += 1
    assert bodies == [b"3 yes", b"4 yes", b"17 yes"]
    assert gets == 20


def test_a_fast_filter_gets_all_messages(stores: Stores, asked: ByBody) -> None:
    result = get(filled(stores), 0, asked)
    assert [message.body for message in decoded(result)] == [b"3 yes", b"4 yes", b"17 yes"]
    assert (result.next_offset, asked.count) == (20, 20)
