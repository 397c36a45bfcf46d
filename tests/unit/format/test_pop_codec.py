"""Handles, checkpoints and acks that are wrong, and what RocketMQ 5.5.0 wrote.

Whether all else is as Java has it: tests/interop/test_pop_codec.py.
"""

import pytest

from reput.errors import InvalidBody, InvalidHeader
from reput.format import bodies, names, pop_codec
from reput.format.pop_codec import BatchAckBody


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "1 words"),
        ("0 1 2 3 0", "5 words"),
        ("x 1 2 3 0 b", "'x'"),
        ("0 1 2 3.5 0 b 0 0", "'3.5'"),
    ],
)
def test_handles_that_are_none(text: str, wrong: str) -> None:
    with pytest.raises(InvalidHeader, match=wrong):
        pop_codec.parse_handle(text, 0, 0)


def test_a_short_handle_takes_its_message_from_the_request() -> None:
    handle = pop_codec.parse_handle("5 1700000000000 60000 999 0 broker-a", 3, 7)
    assert (handle.queue_id, handle.queue_offset) == (3, 7)
    assert handle.is_ordered
    assert str(handle) == "5 1700000000000 60000 999 0 broker-a 3 7"


@pytest.mark.parametrize("body", [b"", b"{}", b'{"so":1}', b"\xff", b"[]"])
def test_bodies_that_are_none(body: bytes) -> None:
    with pytest.raises(InvalidBody, match="no checkpoint"):
        pop_codec.decode_checkpoint(body)
    with pytest.raises(InvalidBody, match="no acknowledgement"):
        pop_codec.decode_ack(body)


def test_an_old_checkpoint_has_messages_that_follow_each_other() -> None:
    """``PopCheckPoint.ackOffsetByIndex``: 5.0 wrote no distances."""
    found = pop_codec.decode_checkpoint(
        b'{"bm":0,"c":"G","it":60000,"n":3,"pt":1,"q":0,"ro":0,"so":7,"t":"T"}'
    )
    assert found.queue_offsets == [7, 8, 9]


def test_a_batch_of_acks_that_is_wrong() -> None:
    ack = {"c": "G", "t": "T", "r": "0", "so": 0, "q": 0, "rq": 0, "pt": 1, "it": 1, "b": "?"}
    (one,) = bodies.decode(BatchAckBody, bodies.encode({"acks": [ack]})).acks
    with pytest.raises(InvalidBody, match=r"b is '\?'"):
        _ = one.queue_offsets
    with pytest.raises(InvalidBody, match="allowed: 0, 1, 2"):
        pop_codec.topic_of("3", "T", "G")


def test_what_retry_topics_are_of() -> None:
    assert names.popped_topic("%RETRY%G_T", "G") == "T"
    assert names.popped_topic("%RETRY%G+T", "G") == "T"
    assert names.popped_topic("T", "G") == "T"
    assert names.popped_topic("%RETRY%Gx_T", "G") == "%RETRY%Gx_T"
