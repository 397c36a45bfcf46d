"""Sends have the same effect on the fast path and in the processor.

Two brokers get the same bytes, one of them without the fast path. Log, queues and replies must be
equal for all requests.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

import broker_pair
import broker_subject
from broker_pair import ADDED, NOW_MS, Both
from broker_subject import with_fields
from reput.clock import ManualClock
from reput.format import batch, command as commands, headers, names
from reput.format.codes import RequestCode
from reput.format.command import IS_ONEWAY, LENGTH, MARK, Command, Serialization
from reput.format.headers import SendMessageHeader


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    yield from broker_pair.open_both(tmp_path)


def send(
    body: bytes = b"some body",
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    serialization: Serialization = Serialization.JSON,
    properties: str | None = "UNIQ_KEY\x017F00\x02KEYS\x01a b\x02TAGS\x01TagA\x02WAIT\x01true\x02",
    extra: dict[str, str] | None = None,
    remark: str | None = None,
    flag_of_command: int = 0,
    opaque: int = 7,
    **fields: Any,
) -> bytes:
    header = with_fields(
        SendMessageHeader(
            producer_group="producers",
            topic="T",
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=1,
            sys_flag=0,
            born_timestamp=NOW_MS - 5,
            flag=3,
            properties=properties,
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        ),
        fields,
    )
    is_v1 = code == RequestCode.SEND_MESSAGE
    ext_fields = headers.encode(header) if is_v1 else headers.encode_v2(header)
    ext_fields.update(extra or {})
    return commands.encode(
        Command(
            code,
            opaque,
            flag_of_command,
            remark=remark,
            ext_fields=ext_fields,
            body=body,
            serialization=serialization,
        )
    )


PROPERTIES = "UNIQ_KEY\x01AB\x02{}\x02WAIT\x01true\x02"
PLAIN: dict[str, dict[str, Any]] = {
    "as a Java client sends it": {},
    "long names": {"code": RequestCode.SEND_MESSAGE},
    "signed": {"extra": ADDED},
    "signed, long names": {"code": RequestCode.SEND_MESSAGE, "extra": ADDED},
    "without properties": {"properties": None},
    "no last separator": {"properties": "KEYS\x01a"},
    "no WAIT": {"properties": "KEYS\x01a\x02"},
    "only WAIT": {"properties": "WAIT\x01true\x02"},
    "names of a user": {"properties": PROPERTIES.format("colour\x01red\x02Clusters\x01x")},
    "compressed": {"sys_flag": 0x301},
    "another topic": {"topic": "Narrow", "queue_id": 0},
    "opaque 0": {"opaque": 0},
    "a long body": {"body": b"x" * 4096},
    "any bytes": {"body": bytes(range(256))},
    "quotes": {"properties": PROPERTIES.format('a\x01"x\\y/z"')},
    "a delay": {"properties": PROPERTIES.format("DELAY\x011")},
    "the longest delay, first": {"properties": "DELAY\x0118\x02TAGS\x01a\x02"},
    "a delay, last": {"properties": "TAGS\x01a\x02DELAY\x012"},
    "a half message": {
        "properties": PROPERTIES.format("TRAN_MSG\x01true\x02PGROUP\x01g"),
        "sys_flag": 4,
    },
    "a half message without the flag": {"properties": PROPERTIES.format("TRAN_MSG\x01true")},
    "a compressed half message": {"properties": "TRAN_MSG\x01true", "sys_flag": 0x305},
    "a timer": {"properties": PROPERTIES.format("TIMER_DELAY_MS\x0110")},
    "a timer in seconds, first": {"properties": "TIMER_DELAY_SEC\x013\x02UNIQ_KEY\x01AB\x02"},
    "a timer at a time, last": {
        "properties": f"WAIT\x01true\x02UNIQ_KEY\x01AB\x02TIMER_DELIVER_MS\x01{NOW_MS + 1}"
    },
    "a timer in a whole second": {"properties": f"TIMER_DELIVER_MS\x01{NOW_MS + 2000}"},
    "a timer as far as can be": {"properties": PROPERTIES.format("TIMER_DELAY_SEC\x01259200")},
    "a timer of another topic": {
        "properties": PROPERTIES.format("TIMER_DELAY_MS\x0110"),
        "topic": "Narrow",
        "queue_id": 0,
    },
    "a half message of another topic": {
        "properties": "WAIT\x01true\x02TRAN_MSG\x01true\x02",
        "topic": "Narrow",
        "queue_id": 0,
    },
}
TIMER = "UNIQ_KEY\x01AD\x02TIMER_DELAY_MS\x0110\x02"
HALF = "UNIQ_KEY\x01AC\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02"
OTHERS: dict[str, dict[str, Any]] = {
    "an unknown field": {"extra": {"zz": "1"}},
    "a remark": {"remark": "hello"},
    "one-way": {"flag_of_command": IS_ONEWAY},
    "text beyond ASCII": {"properties": PROPERTIES.format("name\x01grün")},
    "WAIT=false": {"properties": "WAIT\x01false\x02"},
    "an empty value": {"properties": PROPERTIES.format("empty\x01")},
    "an empty name": {"properties": PROPERTIES.format("\x01value")},
    "no value": {"properties": PROPERTIES.format("name")},
    "a name twice": {"properties": PROPERTIES.format("KEYS\x01a\x02KEYS\x01b")},
    "a user's name twice": {"properties": PROPERTIES.format("x\x01a\x02x\x01b")},
    "reconsumed": {"reconsume_times": 1},
    "unit mode": {"unit_mode": True},
    "queue beyond the end": {"queue_id": 4},
    "queue that is not written": {"topic": "Narrow", "queue_id": 3},
    "a missing topic": {"topic": "New", "default_topic": "T"},
    "a topic that may not be written": {"topic": "ReadOnly"},
    "a retry topic": {"topic": "%RETRY%g", "queue_id": 0},
    "the schedule topic": {"topic": "SCHEDULE_TOPIC_XXXX"},
    "a long topic": {"topic": "x" * 128},
    "no topic": {"topic": ""},
    "a delay without end": {"properties": PROPERTIES.format("DELAY\x0119")},
    "no delay": {"properties": PROPERTIES.format("DELAY\x010")},
    "a delay that is no number": {"properties": PROPERTIES.format("DELAY\x01one")},
    "a delay as one would not write it": {"properties": PROPERTIES.format("DELAY\x0101")},
    "a delay twice": {"properties": PROPERTIES.format("DELAY\x011\x02DELAY\x012")},
    "a delay of a prepared one": {"properties": PROPERTIES.format("DELAY\x011"), "sys_flag": 4},
    "a half message that says it oddly": {"properties": PROPERTIES.format("TRAN_MSG\x01True")},
    "no half message": {"properties": PROPERTIES.format("TRAN_MSG\x01false")},
    "a delayed half message": {"properties": PROPERTIES.format("TRAN_MSG\x01true\x02DELAY\x011")},
    "a half message that waits for its check": {
        "properties": PROPERTIES.format("TRAN_MSG\x01true\x02CHECK_IMMUNITY_TIME_IN_SECONDS\x0130")
    },
    "a half message of a retry": {
        "properties": PROPERTIES.format("TRAN_MSG\x01true\x02DELAY\x011"),
        "reconsume_times": 1,
    },
    "a half message that does not wait": {"properties": "TRAN_MSG\x01true\x02WAIT\x01false\x02"},
    "prepared": {"sys_flag": 4},
    "committed": {"sys_flag": 8},
    "v6 bits": {"sys_flag": 0x30},
    "a timer for now": {"properties": PROPERTIES.format("TIMER_DELAY_MS\x010")},
    "a timer for a time that is past": {"properties": f"TIMER_DELIVER_MS\x01{NOW_MS}"},
    "a timer as one would not write it": {"properties": "TIMER_DELAY_MS\x0101000"},
    "a timer that is no number": {"properties": "TIMER_DELAY_MS\x01soon"},
    "a timer without end": {"properties": PROPERTIES.format("TIMER_DELAY_SEC\x01259201")},
    "a timer in two ways": {"properties": "TIMER_DELAY_SEC\x013\x02TIMER_DELAY_MS\x0110"},
    "a timer and a delay": {"properties": "DELAY\x011\x02TIMER_DELAY_MS\x0110"},
    "a timer of a prepared one": {"properties": "TIMER_DELAY_MS\x0110", "sys_flag": 4},
    "a half message with a timer": {"properties": "TIMER_DELAY_MS\x0110\x02TRAN_MSG\x01true"},
    "a timer with a long key": {"properties": f"UNIQ_KEY\x01{'k' * 200}\x02TIMER_DELAY_MS\x0110"},
    "a timer that does not wait": {"properties": "TIMER_DELAY_MS\x0110\x02WAIT\x01false\x02"},
    "a timer that has waited": {"properties": "TIMER_OUT_MS\x011\x02TIMER_DELAY_MS\x0110"},
    "a recall": {"properties": "TIMER_DEL_UNIQKEY\x01AB\x02TIMER_DELAY_MS\x0110"},
    "its own cluster": {"properties": PROPERTIES.format("CLUSTER\x01other")},
    "a real topic": {"properties": PROPERTIES.format("REAL_TOPIC\x01other\x02REAL_QID\x013")},
    "no body": {"body": b""},
    "a body too long": {"body": b"x" * 4097},
    "properties too long": {"properties": PROPERTIES.format("long\x01" + "x" * 32_740)},
    "negative flag": {"flag": -1},
    "negative time": {"born_timestamp": -5},
    "a number too long": {"extra": {"g": "1234567890123456789"}},
    "a number with a sign": {"extra": {"e": "+1"}},
    "no number": {"extra": {"e": "one"}},
    "a batch": {
        "code": RequestCode.SEND_BATCH_MESSAGE,
        "batch": True,
        "body": batch.encode([batch.InnerMessage(0, b"one", b"K\x01V\x02")]),
    },
    "a batch by its flag": {
        "batch": True,
        "body": batch.encode([batch.InnerMessage(0, b"one", b"K\x01V\x02")]),
    },
}


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.sampled(2)
def test_plain_sends_take_the_fast_path(
    both: Both, name: str, serialization: Serialization
) -> None:
    # Creates the rows of all topics.
    first = send(topic="Narrow", queue_id=0) + send() + send(properties=HALF)
    both.feed(first + send(properties=TIMER))
    frame = send(serialization=serialization, **PLAIN[name])
    assert both.feed(frame) == 1
    assert both.feed(frame * 3) == 3


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.sampled(3)
def test_other_sends_fall_back(both: Both, name: str, serialization: Serialization) -> None:
    both.feed(send())
    frame = send(serialization=serialization, **OTHERS[name])
    # Between plain requests, in one read: replies keep their order.
    both.feed(send(opaque=1) + frame + send(opaque=2))
    assert both.feed(frame) == 0


def test_the_first_send_creates_a_topic_for_the_fast_path(both: Both) -> None:
    assert both.feed(send(topic="New")) == 0
    assert both.feed(send(topic="New") * 2) == 2


def test_a_buffer_may_be_cut_anywhere(both: Both) -> None:
    both.feed(send())
    data = send(opaque=1) + send(opaque=2, flag_of_command=IS_ONEWAY) + send(opaque=3)
    for cut in range(1, len(data)):
        both.feed(data[:cut])
        both.feed(data[cut:])


def test_the_first_half_message_creates_their_topics(both: Both) -> None:
    both.feed(send())
    assert both.feed(send(properties=HALF)) == 0
    assert both.feed(send(properties=HALF) * 3) == 3


def test_half_messages_fall_back_where_they_are_rejected(both: Both) -> None:
    both.feed(send() + send(properties=HALF))
    for wire in (both.with_kernel, both.without):
        broker_subject.reconfigure(wire.broker, {"rejectTransactionMessage": "true"})
    assert both.feed(send() + send(properties=HALF) + send()) == 2
    for wire in (both.with_kernel, both.without):
        broker_subject.reconfigure(wire.broker, {"rejectTransactionMessage": "false"})
        wire.broker.parts.topics.delete(names.OP_HALF_TOPIC, NOW_MS)
    assert both.feed(send(properties=HALF)) == 0  # Creates the topic again.
    assert both.feed(send(properties=HALF)) == 1


def test_the_first_timer_creates_their_topic(both: Both) -> None:
    both.feed(send())
    assert both.feed(send(properties=TIMER)) == 0
    assert both.feed(send(properties=TIMER) * 3) == 3
    for wire in (both.with_kernel, both.without):
        wire.broker.parts.topics.delete(names.TIMER_TOPIC, NOW_MS)
    assert both.feed(send(properties=TIMER)) == 0  # Creates the topic again.
    assert both.feed(send(properties=TIMER)) == 1


def test_timers_start_at_the_time_of_the_clock(both: Both) -> None:
    """Store times do not go back with the clock."""
    both.feed(send() + send(properties=TIMER))
    for wire in (both.with_kernel, both.without):
        clock = wire.broker.clock
        assert isinstance(clock, ManualClock)
        clock.set(NOW_MS - 3_000)
    assert both.feed(send(properties=TIMER)) == 1


def test_timers_fall_back_where_their_number_is_limited(both: Both) -> None:
    for wire in (both.with_kernel, both.without):
        limited = dataclasses.replace(wire.broker.settings.store, timer_congest_num_each_slot=1)
        wire.broker.parts.timers.config = limited
    both.feed(send() + send(properties=TIMER))
    assert both.feed(send(properties=TIMER)) == 0


def test_deliver_times_are_in_the_units(both: Both) -> None:
    delayed = send(properties="DELAY\x013\x02TAGS\x01a\x02")
    both.feed(send() + delayed * 2)
    assert both.feed(delayed) == 1
    for wire in (both.with_kernel, both.without):
        queue = wire.broker.store.queues.find(names.SCHEDULE_TOPIC, 2)
        assert queue is not None
        codes = queue.units(0, 3)["tags_code"].tolist()
        assert codes == [NOW_MS + 10_000] * 3


def test_keys_in_any_order(both: Both) -> None:
    both.feed(send())
    frame = send()
    (mark,) = MARK.unpack_from(frame, 4)
    document = json.loads(frame[8 : 8 + mark])
    document["extFields"] = dict(sorted(document["extFields"].items(), reverse=True))
    header = json.dumps(dict(sorted(document.items())), separators=(",", ":")).encode()
    body = frame[8 + mark :]
    shuffled = LENGTH.pack(4 + len(header) + len(body)) + MARK.pack(len(header)) + header + body
    assert both.feed(shuffled) == 1


def test_rolls_of_files_are_in_between(both: Both) -> None:
    """Log, queue and index files end between the sends of one read."""
    both.feed(send())
    frame = send(b"x" * 4000)
    for _ in range(25):
        both.feed(frame * 200)
    assert both.with_kernel.broker.store.max_physical_offset > 16 << 20


NAMES = ["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "a", "é", "", "CLUSTER", "TRAN_MSG", "DELAY"]
NAMES += ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=5)
fields = st.fixed_dictionaries(
    {
        "queue_id": st.integers(0, 5),
        "sys_flag": st.sampled_from([0, 1, 2, 0x301, 0x700, 4, 5]),
        "born_timestamp": st.integers(-1, 1 << 62),
        "flag": st.integers(-1, 1 << 31),
        "properties": st.one_of(
            st.none(),
            st.lists(
                st.tuples(
                    st.sampled_from(NAMES),
                    st.one_of(VALUES, st.sampled_from(["true", "1", "2", "18", "19"])),
                ),
                max_size=4,
            ).map(lambda pairs: "\x02".join("\x01".join(pair) for pair in pairs)),
        ),
        "body": st.binary(max_size=40),
        "serialization": st.sampled_from(list(Serialization)),
        "opaque": st.integers(0, (1 << 31) - 1),
    }
)


def test_random_sends(tmp_path: Path) -> None:
    pairs = broker_pair.open_both(tmp_path)
    both = next(pairs)

    @hypothesis.given(st.lists(fields, min_size=1, max_size=4))
    def feed(several: list[dict[str, Any]]) -> None:
        both.feed(b"".join(send(**values) for values in several))

    try:
        feed()
    finally:
        pairs.close()
