"""Handles of popped messages. tests/interop/test_pop_codec.py compares the codec with Java's."""

import pytest

from reput.client.core import pop_handles
from reput.client.core.pop_handles import ReplyHandles
from reput.errors import InvalidHeader
from reput.format import pop_codec
from reput.format.headers import ChangeInvisibleTimeReplyHeader, PopMessageReplyHeader
from reput.format.pop_codec import Handle

RETRY = "%RETRY%G_T"


def reply(**infos: str) -> PopMessageReplyHeader:
    return PopMessageReplyHeader(
        pop_time=1000, invisible_time=60, revive_qid=3, rest_num=0, **infos
    )


def test_a_handle_holds_the_start_offset_of_its_queue() -> None:
    starts = [pop_codec.start_info("T", 0, 5), pop_codec.start_info(RETRY, 0, 9)]
    handles = ReplyHandles(reply(start_offset_info=";".join(starts)), "b")
    assert handles.kinds == {"0", "1"}
    assert str(handles.of("0", 0, 7, None)) == "5 1000 60 3 0 b 0 7"
    assert str(handles.of("1", 0, 9, None)) == "9 1000 60 3 1 b 0 9"
    assert (
        str(handles.of("0", 1, 4, None)) == "4 1000 60 3 0 b 1 4"
    )  # Java's value if the info is missing


def test_a_retried_record_keeps_its_original_handle() -> None:
    text = "5 1000 60 3 1 b 2 7"
    handle = ReplyHandles(reply(), "b").of("0", 0, 99, text)
    assert (str(handle), handle.queue_id, handle.queue_offset) == (text, 2, 7)


def test_delivery_counts_of_ordered_messages() -> None:
    text = pop_codec.order_info("T", 1, [(5, 2)], 1)
    handles = ReplyHandles(reply(order_count_info=text), "b")
    counts = [
        handles.taken_count(handles.of("0", *place, None)) for place in ((1, 5), (1, 6), (0, 5))
    ]
    assert counts == [2, 1, 0]


@pytest.mark.parametrize("info", ["0 1", "0 1 x", "0 1 2 3"])
def test_invalid_infos_are_rejected(info: str) -> None:
    with pytest.raises(InvalidHeader, match=info.replace(" ", ".")):
        ReplyHandles(reply(start_offset_info=info), "b")


@pytest.mark.parametrize("text", ["5 1000 60 3 1 b", "5 1000 60 3 1 b x 7"])
def test_an_invalid_handle_is_rejected(text: str) -> None:
    with pytest.raises(InvalidHeader, match=r"5 1000"):
        ReplyHandles(reply(), "b").of("0", 0, 0, text)


def test_the_handle_after_a_change_starts_at_its_message() -> None:
    handle = Handle(5, 1000, 60, 3, "0", "b", 1, 7)
    answer = ChangeInvisibleTimeReplyHeader(pop_time=2000, invisible_time=90, revive_qid=4)
    assert str(pop_handles.changed(handle, answer)) == "7 2000 90 4 0 b 1 7"


def test_acknowledgements_of_a_checkpoint_are_batched() -> None:
    here = [Handle(5, 1000, 60, 3, "0", "b", 1, offset) for offset in (5, 7, 20)]
    there = Handle(5, 1000, 60, 3, "1", "b", 1, 6)
    first, second = pop_handles.batch_acks("G", [("T", handle) for handle in (*here, there)])
    assert (first.distances, second.distances) == (1 | 1 << 2 | 1 << 15, 1 << 1)
    assert (first.topic, first.kind, first.group, second.kind) == ("T", "0", "G", "1")
    assert (first.start_offset, first.queue_id, first.revive_queue_id) == (5, 1, 3)
    assert (first.pop_ms, first.invisible_ms) == (1000, 60)


def test_delays_before_a_message_is_delivered_again() -> None:
    seconds = [pop_handles.retry_delay_ms(times) // 1000 for times in (0, 1, 2, 15, 16, 99)]
    assert seconds == [10, 30, 60, 7200, 7200, 7200]
