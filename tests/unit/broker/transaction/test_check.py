"""The rules of a round, case by case as in Java's ``TransactionalMessageServiceImpl.check``.

Comments mark the intended differences.
"""

import dataclasses

import pytest

from reput.broker.transaction import check
from reput.broker.transaction.check import CheckAction, Rules
from reput.format.message import Host, StoredMessage

HOUR_MS = 3_600_000
BORN_MS = 1_700_000_000_000
RULES = Rules(timeout_ms=6_000, checks_max=15, age_max_ms=72 * HOUR_MS)
HALF = StoredMessage(
    "RMQ_SYS_TRANS_HALF_TOPIC", b"", 0, 7, 0, BORN_MS, Host(b"\0" * 4, 0), BORN_MS + 5,
    Host(b"\0" * 4, 0),
)  # fmt: skip
TIMES, IMMUNITY = "TRANSACTION_CHECK_TIMES", "CHECK_IMMUNITY_TIME_IN_SECONDS"


@pytest.mark.parametrize(
    ("properties", "age_ms", "verdict"),
    [
        ({}, 1_000, CheckAction.YOUNG),
        ({}, 5_999, CheckAction.YOUNG),
        ({}, 6_000, CheckAction.DUE),  # in Java: neither young nor due (rmq#9486)
        ({}, 6_001, CheckAction.DUE),
        ({}, -1, CheckAction.DUE),  # the producer's clock is fast
        ({}, 72 * HOUR_MS, CheckAction.DUE),
        ({}, 72 * HOUR_MS + 1, CheckAction.GIVEN_UP),
        ({TIMES: "1"}, 7_000, CheckAction.DUE),
        ({TIMES: "14"}, 7_000, CheckAction.DUE),
        ({TIMES: "15"}, 7_000, CheckAction.GIVEN_UP),
        ({TIMES: "16"}, 1_000, CheckAction.GIVEN_UP),
        ({TIMES: "many"}, 7_000, CheckAction.DUE),
        ({TIMES: "-3"}, 7_000, CheckAction.DUE),
        ({IMMUNITY: "10"}, 7_000, CheckAction.IMMUNE),
        ({IMMUNITY: "10"}, 9_999, CheckAction.IMMUNE),
        ({IMMUNITY: "10"}, 10_000, CheckAction.DUE),  # in Java: neither
        ({IMMUNITY: "10"}, 10_001, CheckAction.DUE),
        ({IMMUNITY: "10"}, -1, CheckAction.IMMUNE),
        ({IMMUNITY: "2"}, 3_000, CheckAction.DUE),  # shorter than the timeout
        ({IMMUNITY: "-1"}, 3_000, CheckAction.YOUNG),
        ({IMMUNITY: "ten"}, 3_000, CheckAction.YOUNG),
        ({IMMUNITY: "ten"}, 7_000, CheckAction.DUE),
        ({IMMUNITY: "100", TIMES: "15"}, 7_000, CheckAction.GIVEN_UP),
    ],
)
def test_verdicts(properties: dict[str, str], age_ms: int, verdict: CheckAction) -> None:
    half = dataclasses.replace(HALF, properties=properties)
    begun_ms = BORN_MS + 1_000_000_000
    assert check.judge(half, RULES, begun_ms, BORN_MS + age_ms) is verdict


def test_messages_put_during_a_round_are_left_for_the_next() -> None:
    half = dataclasses.replace(HALF, born_timestamp=BORN_MS - HOUR_MS)
    assert check.judge(half, RULES, HALF.store_timestamp, BORN_MS) is CheckAction.YOUNG
    assert check.judge(half, RULES, HALF.store_timestamp + 1, BORN_MS) is CheckAction.DUE


@pytest.mark.parametrize(("text", "first"), [(None, 7), ("3", 3), ("-1", 7), ("", 7), ("x", 7)])
def test_copies_are_identified_by_the_first_message(text: str | None, first: int) -> None:
    properties = {} if text is None else {"TRAN_PREPARED_QUEUE_OFFSET": text}
    assert check.first_offset(dataclasses.replace(HALF, properties=properties)) == first
