"""Invalid handles, checkpoints and acks, and bytes that RocketMQ 5.5.0 wrote.

tests/interop/test_pop_codec.py compares all else with Java.
"""

import base64
from collections.abc import Sequence

import pytest

from reput.errors import InvalidBody, InvalidHeader, LimitExceeded
from reput.format import bodies, command, headers, limits, names, pop_codec, pop_reply
from reput.format.codes import RequestCode
from reput.format.command import Command
from reput.format.headers import PopMessageReplyHeader
from reput.format.pop_codec import BatchAck, BatchAckBody, CheckpointRecord
from reput.limits import Limit


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "1 words"),
        ("0 1 2 3 0", "5 words"),
        ("x 1 2 3 0 b", "'x'"),
        ("0 1 2 3.5 0 b 0 0", "'3.5'"),
    ],
)
def test_invalid_handles(text: str, wrong: str) -> None:
    with pytest.raises(InvalidHeader, match=wrong):
        pop_codec.parse_handle(text, 0, 0)


@pytest.mark.parametrize("number", ["9" * 19, "-9223372036854775809", "1" * 4000, "7" * 100_000])
def test_handles_with_numbers_that_java_cannot_read(number: str) -> None:
    with pytest.raises(InvalidHeader, match="no 64-bit number") as caught:
        pop_codec.parse_handle(f"5 {number} 60000 999 0 broker-a", 3, 7)
    assert len(str(caught.value)) < 500


def bits_of(bit_map: bytes) -> BatchAck:
    text = base64.b64encode(bit_map).decode()
    return BatchAck(
        **{"group": "G", "topic": "T", "kind": "0", "start_offset": 0, "queue_id": 0},
        **{"revive_queue_id": 0, "pop_ms": 1, "invisible_ms": 1, "bits": text},
    )


@pytest.mark.parametrize(
    ("bit_map", "limit"),
    [
        (b"\xff" * 8 + b"\1", limits.ACK_MESSAGES),
        (b"\0" * 8192 + b"\1", limits.ACK_SPAN),
        (b"\0" * 8191 + b"\1" + b"\0" * 100, limits.ACK_SPAN),
        (b"\xff" * 1_000_000, limits.ACK_SPAN),
    ],
)
def test_bits_outside_a_checkpoint(bit_map: bytes, limit: Limit) -> None:
    with pytest.raises(LimitExceeded, match=limit.name):
        _ = bits_of(bit_map).distances


@pytest.mark.parametrize("bit_map", [b"", b"\xff" * 8, b"\0" * 8191 + b"\x80", b"\1\0\0\1"])
def test_bits_of_a_checkpoint(bit_map: bytes) -> None:
    distances = bits_of(bit_map).distances
    assert distances == int.from_bytes(bit_map, "little")
    numbers = list(pop_codec.bit_numbers(distances))
    assert sum(1 << number for number in numbers) == distances
    assert numbers == sorted(numbers)


def test_a_short_handle_takes_its_message_from_the_request() -> None:
    handle = pop_codec.parse_handle("5 1700000000000 60000 999 0 broker-a", 3, 7)
    assert (handle.queue_id, handle.queue_offset) == (3, 7)
    assert handle.is_ordered
    assert str(handle) == "5 1700000000000 60000 999 0 broker-a 3 7"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"so":1}', b"\xff", b"[]"])
def test_invalid_bodies(body: bytes) -> None:
    with pytest.raises(InvalidBody, match="no checkpoint"):
        pop_codec.decode_checkpoint(body)
    with pytest.raises(InvalidBody, match="no acknowledgement"):
        pop_codec.decode_ack(body)


def test_an_old_checkpoint_has_consecutive_messages() -> None:
    """``PopCheckPoint.ackOffsetByIndex``: 5.0 wrote no distances; messages are consecutive."""
    checkpoint = pop_codec.decode_checkpoint(
        b'{"bm":0,"c":"G","it":60000,"n":3,"pt":1,"q":0,"ro":0,"so":7,"t":"T"}'
    )
    assert checkpoint.queue_offsets == [7, 8, 9]


def test_an_invalid_batch_of_acks() -> None:
    ack = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "?"}
    (decoded_ack,) = bodies.decode(BatchAckBody, bodies.encode({"acks": [ack]})).acks
    with pytest.raises(InvalidBody, match=r"b is '\?'"):
        _ = decoded_ack.distances
    with pytest.raises(InvalidBody, match="allowed: 0, 1, 2"):
        pop_codec.topic_of("3", "T", "G")


def test_topic_of_a_retry_topic() -> None:
    assert names.popped_topic("%RETRY%G_T", "G") == "T"
    assert names.popped_topic("%RETRY%G+T", "G") == "T"
    assert names.popped_topic("T", "G") == "T"
    assert names.popped_topic("%RETRY%Gx_T", "G") == "%RETRY%Gx_T"


@pytest.mark.parametrize("queue_offsets", [range(7, 39), range(8, 10), [7], [7, 9, 20]])
def test_a_checkpoint_from_the_template_equals_an_encoded_one(queue_offsets: Sequence[int]) -> None:
    """The filled template equals ``encode``; tests/interop/test_pop_codec.py has Java's bytes."""
    for group, is_suspended in (("G", False), ('100% "grün"', True)):
        made = CheckpointRecord(
            broker_name="broker-a", group=group, diffs=[number - 7 for number in queue_offsets],
            invisible_ms=60_000, message_count=len(queue_offsets), pop_ms=1_700_000_000_000,
            queue_id=3, start_offset=7, is_suspended=is_suspended, topic="%RETRY%G_T",
        )  # fmt: skip
        filled_in = pop_codec.encode_checkpoint(
            "broker-a", group, "%RETRY%G_T", 3, 7, queue_offsets, 1_700_000_000_000, 60_000,
            is_suspended=is_suspended,
        )  # fmt: skip
        assert filled_in == pop_codec.encode(made)


def test_a_reply_from_the_template_equals_an_encoded_one() -> None:
    header = PopMessageReplyHeader(
        pop_time=1_700_000_000_000, invisible_time=60_000, revive_qid=3, rest_num=12,
        start_offset_info="0 1 7", msg_offset_info="0 1 7,8,20",
    )  # fmt: skip
    request = Command(RequestCode.POP_MESSAGE, 77)
    made = command.reply(request, 0, "FOUND", headers.encode(header), b"records")
    filled_in = pop_reply.found_head(
        77, 1_700_000_000_000, 60_000, 3, 12, "0 1 7", "0 1 7,8,20", len(b"records")
    )
    assert filled_in == command.encode_head(made)
