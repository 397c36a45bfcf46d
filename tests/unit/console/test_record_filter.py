"""Leaving out messages undecoded, compared with decoding every message of the same replies."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings, strategies as st

import store_builder
from reput.client.message import ReceivedMessage, received
from reput.client.queue_ranges import PulledRange
from reput.console.record_filter import Candidates, RecordFilter
from reput.console.search import Conditions, Question, plain_body
from reput.errors import CorruptRecord
from reput.format import body as bodies, message as record, sys_flag as flags

TEXT = "needle"
QUESTIONS = (
    Question(topic="TopicA", text=TEXT),
    Question(topic="TopicA", expression=TEXT),
    Question(topic="TopicA", property_name="kind"),
    Question(topic="TopicA", property_name="kind", property_value="a"),
    Question(topic="TopicA", sql="kind = 'a' or number > 5"),
    Question(topic="TopicA", text=TEXT, property_name="kind", sql="number > 5"),
)


def encoded(body: bytes, form: str, queue_offset: int, properties: bytes = b"") -> bytes:
    """Return a record of a form: plain, compressed, of version 2, with IPv6, damaged, ..."""
    fields: dict[str, object] = {}
    if form == "zlib":
        fields["sys_flag"] = flags.COMPRESSED
        body = bodies.compress(body, flags.COMPRESSED)
    elif form == "not zlib":
        fields["sys_flag"] = flags.COMPRESSED
    elif form == "IPv6":
        fields["born_host"] = store_builder.HOST_V6
    elif form == "version 2":
        fields["version"] = 2
    message = store_builder.message(
        body=body, store_timestamp=1_000 + queue_offset, property_bytes=properties, **fields
    )
    crc = bodies.crc(body) ^ (form == "wrong checksum")
    return record.encode(replace(message, queue_offset=queue_offset, body_crc=crc))


FORMS = ("plain", "plain", "plain", "zlib", "not zlib", "IPv6", "version 2", "wrong checksum")
forms = st.tuples(
    st.sampled_from([b"", b"need le", b"a needle in it", b"x" * 300, b"\xff" + TEXT.encode()]),
    st.sampled_from(FORMS),
    st.sampled_from(
        [
            b"",
            b"kind\x01a\x02",
            b"kind\x01ab\x02number\x019",
            b"number\x013\x02kind\x01b\x02",
            b"kind\x01a\x02kind\x01\x02",
            b"mankind\x01a\x02number\x01kind",
            b"\xffkind\x01a\x02number\x01\xff7\x02",
        ]
    ),
)


def verdicts(question: Question, messages: list[ReceivedMessage]) -> tuple[set[int], set[int]]:
    """Return the queue offsets of the messages that match, and of the unreadable ones."""
    conditions, expression = Conditions(question), re.compile(question.expression.encode())
    matching, unreadable = set[int](), set[int]()
    for message in messages:
        try:
            if conditions.match(message) and expression.search(plain_body(message)):
                matching.add(message.queue_offset)
        except CorruptRecord:
            unreadable.add(message.queue_offset)
    return matching, unreadable


def decoded(ranges: list[PulledRange]) -> list[ReceivedMessage]:
    return [
        message
        for low, high, data in ranges
        for message in received(data, "broker-a")
        if low <= message.queue_offset < high
    ]


@settings(deadline=None)
@given(
    st.sampled_from(QUESTIONS),
    st.lists(forms, max_size=12),
    st.integers(0, 4),
    st.integers(0, 14),
    st.lists(st.tuples(st.integers(8, 2_000), st.integers(1, 255)), max_size=2),
    st.integers(1, 12),
)
def test_what_is_left_out_neither_matches_nor_is_damaged(
    question: Question,
    records: list[tuple[bytes, str, bytes]],
    low: int,
    high: int,
    flips: list[tuple[int, int]],
    per_reply: int,
) -> None:
    encodings = [
        encoded(body, form, number, properties)
        for number, (body, form, properties) in enumerate(records)
    ]
    for position, bits in flips:  # not in the sizes: these are the next test's
        if encodings:
            damaged = bytearray(encodings[position % len(encodings)])
            damaged[8 + position % (len(damaged) - 8)] ^= bits
            encodings[position % len(encodings)] = bytes(damaged)
    replies = [
        PulledRange(low, high, b"".join(encodings[first : first + per_reply]))
        for first in range(0, len(encodings), per_reply)
    ]
    try:
        every = decoded(replies)
    except CorruptRecord:  # a flipped bit made a batch, which cannot be expanded
        return
    filtered = filtered_by(question, replies)
    candidates = decoded(filtered.ranges)
    assert verdicts(question, candidates) == verdicts(question, every)
    kept = [message.queue_offset for message in candidates]
    assert [offset for offset in kept if low <= offset < high] == kept
    all_offsets = [message.queue_offset for message in every]
    positions = iter(all_offsets)
    assert all(offset in positions for offset in kept), "the order stays"
    assert kept[:1] + kept[-1:] == all_offsets[:1] + all_offsets[-1:]
    sizes = [sum(message.size_bytes for message in messages) for messages in (candidates, every)]
    assert sizes[0] + filtered.left_out_bytes == sizes[1]


def filtered_by(question: Question, replies: list[PulledRange]) -> Candidates:
    record_filter = RecordFilter.of(question)
    assert record_filter is not None
    return record_filter.candidates(replies)


@pytest.mark.parametrize("question", QUESTIONS)
def test_most_records_are_left_out(question: Question) -> None:
    data = b"".join(encoded(b"hay" * 300, "plain", number) for number in range(32))
    filtered = filtered_by(question, [PulledRange(0, 32, data)])
    assert [message.queue_offset for message in decoded(filtered.ranges)] == [0, 31]


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_batch_is_always_decoded(question: Question) -> None:
    records = [encoded(b"hay", "plain", number) for number in range(3)]
    batch = bytearray(records[1])
    batch[record.POSITION_SYS_FLAG + 3] |= flags.INNER_BATCH
    records[1] = bytes(batch)
    filtered = filtered_by(question, [PulledRange(0, 3, b"".join(records))])
    assert [records for _, _, records in filtered.ranges] == records


def test_other_questions_need_every_message() -> None:
    for question in (
        Question(topic="T"),
        Question(topic="T", text="x", key="k"),
        Question(topic="T", text="x", tags=("A",)),
        Question(topic="%LMQ%T", text="x"),
        Question(topic="T", expression="x|y"),
    ):
        assert RecordFilter.of(question) is None
