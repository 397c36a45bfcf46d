"""Messages that are sent back have the same effect on the fast path and in the processor.

Two brokers get the same bytes, one of them without the fast path, which puts the messages of
consecutive requests together. Log, queues, replies and statistics must be equal.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import broker_pair
from behaviour.test_both_send_paths import send
from broker_pair import NOW_MS, Both, Wire
from broker_subject import with_fields
from reput.broker.counters import stats
from reput.format import command as commands, headers
from reput.format.codes import RequestCode
from reput.format.command import IS_ONEWAY, Command, Serialization
from reput.format.headers import SendBackHeader
from reput.format.message import Host
from reput.store.writing.incoming import IncomingMessage

V6 = Host(bytes(15) + b"\1", 4711)
RETRIED = b"RETRY_TOPIC\1Orders\2REAL_TOPIC\1x\2REAL_QID\0017\2DELAY\0014\2WAIT\1true"
MESSAGES = [
    IncomingMessage("T", b"plain", 1, b"TAGS\1a\2KEYS\1k\2"),
    IncomingMessage("T", b"again", 1, RETRIED + b"\2ORIGIN_MESSAGE_ID\1AC\2", reconsume_times=3),
    IncomingMessage("T", b"fifteen times", 1, b"", reconsume_times=15),
    IncomingMessage("T", b"often enough", 1, b"", reconsume_times=16),
    IncomingMessage("T", b"six", 1, b"", born_host=V6),
    IncomingMessage("T", b"full", 1, b"a\1" + b"x" * 32_700),
]
NOWHERE = 1 << 40


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    pairs = broker_pair.open_both(tmp_path)
    both = next(pairs)
    both.feed(send())  # Creates topics and queues.
    yield both
    pairs.close()


def places(both: Both) -> list[int]:
    """Put the messages into both stores; return their physical offsets."""
    offsets = []
    for message in MESSAGES:
        results = [
            wire.broker.store.put(message, NOW_MS) for wire in (both.with_kernel, both.without)
        ]
        assert results[0] == results[1]
        assert results[0].status.is_stored, results[0]
        offsets.append(results[0].physical_offset)
    for wire in (both.with_kernel, both.without):
        wire.new_records()
    return offsets


def back(
    physical_offset: int,
    *,
    serialization: Serialization = Serialization.JSON,
    extra: dict[str, str] | None = None,
    remark: str | None = None,
    flag: int = 0,
    opaque: int = 9,
    version: int = 399,
    **fields: Any,
) -> bytes:
    header = with_fields(
        SendBackHeader(
            offset=physical_offset,
            group="g",
            delay_level=0,
            origin_msg_id="AC",
            origin_topic="T",
            unit_mode=False,
            max_reconsume_times=16,
        ),
        fields,
    )
    request = Command(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        opaque,
        flag,
        version=version,
        remark=remark,
        ext_fields=headers.encode(header) | (extra or {}),
        serialization=serialization,
    )
    return commands.encode(request)


def feed(both: Both, data: bytes) -> int:
    """Feed both brokers, and compare; return the number of messages on the fast path."""
    before = both.with_kernel.broker.parts.fast_counts.send_backs
    both.feed(data)
    assert sent_back(both.with_kernel) == sent_back(both.without)
    return both.with_kernel.broker.parts.fast_counts.send_backs - before


def sent_back(wire: Wire) -> list[object]:
    counted = wire.broker.parts.deliveries.stats
    names = stats.SNDBCK_PUT_NUMS, stats.SNDBCK2DLQ_TIMES
    topics = dict(wire.broker.parts.topics.table.all())
    return [*map(counted.values, names), topics, wire.broker.parts.pending_replies.put_count]


@pytest.mark.parametrize("serialization", Serialization)
def test_plain_requests_take_the_fast_path(both: Both, serialization: Serialization) -> None:
    plain, again, nearly, *_ = places(both)
    frames = [
        back(plain, serialization=serialization),
        back(again, delay_level=5, serialization=serialization),
        back(nearly, opaque=10, serialization=serialization, group="other"),
        back(plain, flag=IS_ONEWAY, serialization=serialization, unit_mode=True, group="unit"),
    ]
    assert feed(both, b"".join(frames)) == 4


def test_other_requests_fall_back_in_order(both: Both) -> None:
    plain, _, nearly, dead, six, full = places(both)
    others = [
        back(dead),
        back(plain, max_reconsume_times=0),
        back(nearly, max_reconsume_times=15),
        back(nearly, max_reconsume_times=15, version=100),  # Not counted: too old.
        back(plain, delay_level=-1),
        back(six),
        back(full),
        back(plain + 1),
        back(NOWHERE),
        back(plain, group="a b"),
        back(plain, remark="why"),
        back(plain, extra={"new": "1"}),
        back(plain, group="группа"),
    ]
    for other in others:
        assert feed(both, other) == 0
        assert feed(both, back(plain) + other + back(plain, opaque=10)) == 2
    assert feed(both, b"".join(others)) == 0


def test_a_broker_without_write_permission(both: Both) -> None:
    plain, *_ = places(both)
    for wire in (both.with_kernel, both.without):
        wire.broker.store.putter.refusal = "no"
    assert feed(both, back(plain) * 2) == 0


@hypothesis.given(st.data())
@hypothesis.settings(
    max_examples=max(20, hypothesis.settings.default.max_examples // 10),
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture],
)
def test_any_order(both: Both, data: st.DataObject) -> None:
    stored_places = places(both)
    frames = []
    for opaque in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.sampled_from([*stored_places, NOWHERE]))
        frames.append(
            back(
                place,
                opaque=opaque,
                serialization=data.draw(st.sampled_from(Serialization)),
                flag=data.draw(st.sampled_from([0, 0, IS_ONEWAY])),
                delay_level=data.draw(st.sampled_from([0, 0, 3, 18, 99, -1])),
                max_reconsume_times=data.draw(st.sampled_from([None, 16, 16, 4, 0])),
                group=data.draw(st.sampled_from(["g", "h"])),
            )
        )
    feed(both, b"".join(frames))
