"""What replies to pulls mean: those of RocketMQ's ``PullMessageProcessor``, 4.9 and 5.5."""

import pytest

from reput.client.core import pull_replies
from reput.client.core.pull_replies import PulledRecords, PullOutcome, PullStatus
from reput.errors import BrokerError
from reput.format.codes import ResponseCode
from reput.format.command import Command

FOUND, NO_NEW = ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND
RETRY, MOVED = ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
RECORDS, NO_MATCH = PullOutcome.RECORDS, PullOutcome.NO_MATCH
GAP, STUCK = PullOutcome.GAP, PullOutcome.STUCK


def reply(code: int, next_offset: int, remark: str | None = None, body: bytes = b"x") -> Command:
    fields = {
        "suggestWhichBrokerId": "1",
        "nextBeginOffset": str(next_offset),
        "minOffset": "10",
        "maxOffset": "90",
    }
    return Command(code, 1, 1, remark=remark, ext_fields=fields, body=body)


def pulled(code: int, next_offset: int, remark: str | None = None) -> PulledRecords:
    return pull_replies.read(reply(code, next_offset, remark), "b")


@pytest.mark.parametrize(
    ("code", "remark", "next_offset", "is_filtered", "expected"),
    [
        (FOUND, None, 52, False, RECORDS),
        (FOUND, None, 52, True, RECORDS),
        (FOUND, None, 50, False, STUCK),
        (RETRY, "NO_MATCHED_MESSAGE", 80, True, NO_MATCH),
        # Without a filter every message matches: those are gone.
        (RETRY, "NO_MATCHED_MESSAGE", 80, False, GAP),
        (RETRY, "MESSAGE_WAS_REMOVING", 80, True, GAP),
        (RETRY, "MESSAGE_WAS_REMOVING", 80, False, GAP),
        (RETRY, "MESSAGE_WAS_REMOVING", 50, True, STUCK),
        # A slave that lacks the messages.
        (RETRY, "OFFSET_OVERFLOW_ONE", 50, True, STUCK),
        (NO_NEW, "OFFSET_FOUND_NULL", 60, False, GAP),
        (NO_NEW, "OFFSET_OVERFLOW_ONE", 50, False, GAP),
        (MOVED, "OFFSET_TOO_SMALL", 70, True, GAP),
        (MOVED, "OFFSET_OVERFLOW_BADLY", 0, False, GAP),
    ],
)
def test_the_meaning_of_a_reply_to_a_pull_from_offset_50(
    code: int, remark: str | None, next_offset: int, is_filtered: bool, expected: PullOutcome
) -> None:
    result = pulled(code, next_offset, remark)
    assert result.outcome(50, is_filtered=is_filtered) is expected


@pytest.mark.parametrize(
    ("queue_offset", "next_offset", "code", "end"),
    [
        (50, 60, NO_NEW, 60),  # a hole
        (50, 99, NO_NEW, 80),  # the hole ends after the range
        (50, 50, NO_NEW, 80),  # nothing up to the end of the queue
        (3, 10, MOVED, 10),  # expired
        (3, 0, MOVED, 10),  # expired; the broker corrects to the very first offset
        (90, 0, MOVED, 95),  # the queue is shorter
        (90, 90, NO_NEW, 95),
    ],
)
def test_a_gap_ends_where_messages_can_be_read_again(
    queue_offset: int, next_offset: int, code: int, end: int
) -> None:
    stop = 80 if queue_offset < 80 else 95
    assert pulled(code, next_offset).gap_end(queue_offset, stop) == end


def test_records_are_those_of_a_reply_that_has_some() -> None:
    result = pulled(FOUND, 52)
    assert (result.records, result.status, result.broker_id) == (b"x", PullStatus.FOUND, 1)
    assert (result.min_offset, result.max_offset) == (10, 90)
    assert pulled(NO_NEW, 52).records == b""
    assert [pulled(code, 0).status for code in (NO_NEW, RETRY, MOVED)] == [
        PullStatus.NO_NEW,
        PullStatus.NO_MATCH,
        PullStatus.ILLEGAL_OFFSET,
    ]


def test_other_codes_are_errors() -> None:
    with pytest.raises(BrokerError, match="no such topic"):
        pull_replies.read(reply(ResponseCode.TOPIC_NOT_EXIST, 0, "no such topic"), "b")
