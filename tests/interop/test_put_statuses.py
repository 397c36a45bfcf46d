"""Answers to a put that cannot be stored: those of RocketMQ 4.9.7.

``CASES`` lists where another version or ours differs. In 5.x the broker has taken over the checks
of topics from the store, and there is no broker around Java's store here: ours keeps them. Ours
also refuses messages that Java's store accepts and then cannot read, or loses.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import pytest

from interop import same_puts
from interop.java_store import JavaStore, Put
from interop.same_puts import LIGHT, SIZES, in_batch, plain
from reput.format import batch as batches, sys_flag as flags
from reput.format.batch import InnerMessage

pytestmark = pytest.mark.interop

OK, ILLEGAL, TOO_MANY = "PUT_OK", "MESSAGE_ILLEGAL", "PROPERTIES_SIZE_EXCEEDED"
NOT_ASKED = ""
"""Status of a put that is not tried, because Java throws an exception or loops forever."""
BODY_MAX = 32768
assert SIZES["maxMessageSize"] == BODY_MAX


class Case(NamedTuple):
    """A put and its answers: 4.9.7's, and those of 5.5.0 and of our store if they differ."""

    put: Put
    status: str
    in_5: str | None = None
    ours: str | None = None


def bare(topic: str = "T", body: bytes = b"", **properties: str) -> Put:
    return Put(topic, 0, body, properties)


def with_properties(size: int, letter: str = "x") -> Put:
    """Return a message whose property string has ``size`` bytes, without a separator at its end."""
    return bare(own=letter * ((size - 4) // len(letter.encode())))


def batch_of(size: int) -> Put:
    inner = InnerMessage(0, b"x" * (size - batches.FIXED_BYTES), b"")
    return Put("T", 0, batches.encode([inner]), is_batch=True)


BATCH = in_batch("T", 0, [plain(0), plain(1)])

CASES = {
    "an empty message": Case(bare(), OK),
    # 4.9.7 counts characters; the bytes may then exceed their length field.
    "a topic of 127 bytes": Case(bare("t" * 127), OK),
    "a topic of 128 bytes": Case(bare("t" * 128), ILLEGAL, in_5=OK, ours=ILLEGAL),
    "a topic of 128 bytes and fewer characters": Case(bare("é" * 64), OK, ours=ILLEGAL),
    "a long retry topic": Case(bare("%RETRY%" + "t" * 128), ILLEGAL, in_5=OK, ours=OK),
    "a retry topic of 256 bytes": Case(bare("%RETRY%" + "t" * 249), ILLEGAL, in_5=NOT_ASKED),
    "no topic": Case(bare(""), OK, ours=ILLEGAL),
    # Java creates folders outside of the store; 5.x never dispatches again.
    "a topic that leads out of the store": Case(bare("../T"), NOT_ASKED, NOT_ASKED, ILLEGAL),
    "a light queue that leads out of the store": Case(
        bare(INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%/../../b"), NOT_ASKED, NOT_ASKED, ILLEGAL
    ),
    "a light queue without a name": Case(
        bare(INNER_MULTI_DISPATCH="%LMQ%a,"), NOT_ASKED, NOT_ASKED, ILLEGAL
    ),
    "a queue below 0": Case(Put("T", -1, b""), OK, ours=ILLEGAL),
    "the longest body": Case(bare(body=b"x" * BODY_MAX), OK),
    "a body longer by one": Case(bare(body=b"x" * (BODY_MAX + 1)), ILLEGAL),
    # 5.x reserves room for a separator.
    "the longest properties": Case(with_properties(32767), OK, in_5=TOO_MANY),
    "properties longer by one": Case(with_properties(32768), ILLEGAL, in_5=TOO_MANY),
    "long properties of fewer characters": Case(with_properties(40_000, "é"), TOO_MANY),
    "properties that a delay makes too long": Case(bare(own="x" * 32_755, DELAY="1"), TOO_MANY),
    # Java answers that it is stored, but it is not.
    "a record longer than a file": Case(
        dataclasses.replace(with_properties(32767), body=b"x" * BODY_MAX),
        OK,
        in_5=TOO_MANY,
        ours=ILLEGAL,
    ),
    "a delay that is no number": Case(bare(DELAY="abc"), NOT_ASKED, in_5=OK, ours=OK),
    "a delay below 0": Case(bare(DELAY="-1"), OK),
    "a delay far beyond the last level": Case(bare(DELAY="999"), OK),
    "a batch": Case(BATCH, OK),
    "the longest batch": Case(batch_of(BODY_MAX), OK),
    "a batch longer by one": Case(batch_of(BODY_MAX + 1), ILLEGAL, in_5=NOT_ASKED),
    "a batch that is delayed": Case(dataclasses.replace(BATCH, properties={"DELAY": "1"}), ILLEGAL),
    "a batch in a transaction": Case(
        dataclasses.replace(BATCH, sys_flag=flags.TRANSACTION_PREPARED), ILLEGAL
    ),
    "a batch of delayed messages": Case(in_batch("T", 0, [bare(DELAY="1")]), OK),
    "a batch of none": Case(in_batch("T", 0, []), NOT_ASKED, in_5=NOT_ASKED, ours=ILLEGAL),
    "a batch that is cut": Case(
        dataclasses.replace(BATCH, body=BATCH.body[:-1]),
        NOT_ASKED,
        in_5=NOT_ASKED,
        ours=ILLEGAL,
    ),
}


@pytest.mark.sampled(14)
def test_java_answers_as_listed(java_store: JavaStore, tmp_path: Path) -> None:
    if java_store.version.startswith("4.5"):
        pytest.skip("no such case: only 4.9.7 and 5.x are compared")
    is_5 = java_store.version.startswith("5")
    expected = {
        name: case.in_5 if is_5 and case.in_5 is not None else case.status
        for name, case in CASES.items()
    }
    asked = [name for name, status in expected.items() if status != NOT_ASKED]
    puts = [CASES[name].put for name in asked]
    answers = java_store.write(tmp_path, puts, SIZES).puts
    statuses = {name: answer.status for name, answer in zip(asked, answers, strict=True)}
    assert statuses == {name: expected[name] for name in asked}


@pytest.mark.parametrize("name", CASES)
def test_we_answer_as_listed(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with same_puts.open_ours(tmp_path, {**SIZES, **LIGHT}) as store:
        end = store.max_physical_offset
        result = same_puts.put(store, case.put, last_separator=False)
        assert result.status.name == (case.status if case.ours is None else case.ours)
        assert bool(result.reason) == (result.status.name != OK)
        assert store.max_physical_offset == end + (result.size if not result.reason else 0)
