r"""Encoding of trace lines. tests/interop/test_trace.py compares with Java's results."""

import pytest

from reput.client.core import trace_codec
from reput.client.core.trace_codec import (
    Begun,
    Consumed,
    MessageKind,
    Outcome,
    Recalled,
    Sent,
    Trace,
    TransactionEnded,
)


def begun(message_id: str = "ID", keys: str | None = None) -> Begun:
    return Begun(
        time_ms=1, region=None, group="g", call_id="C", message_id=message_id, retry_count=2,
        keys=keys,
    )  # fmt: skip


SENT = Sent(
    time_ms=1_700_000_000_000, region="DefaultRegion", group="g", topic="T", message_id="ID",
    tags=None, keys="k1 k2", broker_address="127.0.0.1:10911", body_bytes=5, cost_ms=3,
    kind=MessageKind.DELAY, offset_message_id="7F", is_success=True,
)  # fmt: skip
CONSUMED = Consumed(
    call_id="C", message_id="ID", cost_ms=3, is_success=False, keys="k", outcome=Outcome.EXCEPTION,
    time_ms=9, group="g",
)  # fmt: skip
ENDED = TransactionEnded(
    time_ms=1, region="R", group="g", topic="T", message_id="ID", tags="t", keys=None,
    broker_address="b:1", kind=MessageKind.COMMIT, transaction_id="X", state="ROLLBACK_MESSAGE",
    is_check=True,
)  # fmt: skip
RECALLED = Recalled(
    time_ms=1, region="R", group="g", topic="T", message_id="ID", is_success=True
)  # fmt: skip

LINES: dict[str, Trace] = {  # from TraceDataEncoder.encoderFromContextBean
    "Pub|1700000000000|DefaultRegion|g|T|ID|null|k1 k2|127.0.0.1:10911|5|3|3|7F|true": SENT,
    "SubBefore|1|null|g|C|ID|2|null": begun(),
    "SubAfter|C|ID|3|false|k|2|9|g": CONSUMED,
    "EndTransaction|1|R|g|T|ID|t|null|b:1|2|X|ROLLBACK_MESSAGE|true": ENDED,
    "Recall|1|R|g|T|ID|true": RECALLED,
}


def wire(line: str) -> str:
    return line.replace("|", "\x01") + "\x02"


@pytest.mark.parametrize("line", LINES)
def test_lines_are_encoded_and_decoded(line: str) -> None:
    assert trace_codec.encode(LINES[line]) == wire(line)
    assert trace_codec.decode(wire(line)) == [LINES[line]]


@pytest.mark.parametrize(
    ("line", "success", "offset_id"),
    [
        ("Pub|1|R|g|T|ID|t|k|b:1|5|3|0|true", True, None),
        ("Pub|1|R|g|T|ID|t|k|b:1|5|3|0|7F|false", False, "7F"),
        ("Pub|1|R|g|T|ID|t|k|b:1|5|3|0|7F|true|client", True, "7F"),
    ],
)
def test_send_lines_of_older_clients_are_decoded(
    line: str, success: bool, offset_id: str | None
) -> None:
    (sent,) = trace_codec.decode(wire(line))
    assert isinstance(sent, Sent)
    assert (sent.is_success, sent.offset_message_id) == (success, offset_id)


def test_consumption_lines_of_older_clients_are_decoded() -> None:
    (first, second) = trace_codec.decode(
        wire("SubAfter|C|ID|3|true|k") + wire("SubAfter|C|ID|3|true|k|1")
    )
    assert isinstance(first, Consumed)
    assert isinstance(second, Consumed)
    assert (first.outcome, first.time_ms, first.group) == (Outcome.SUCCESS, 0, None)
    assert second.outcome is Outcome.TIME_OUT


@pytest.mark.parametrize(
    ("number", "outcome"),
    [  # the order of Java's ConsumeReturnType
        (0, Outcome.SUCCESS),
        (1, Outcome.TIME_OUT),
        (2, Outcome.EXCEPTION),
        (3, Outcome.RETURNED_NULL),
        (4, Outcome.FAILED),
    ],
)
def test_the_outcome_of_a_consumption_is_that_of_java(number: int, outcome: Outcome) -> None:
    (trace,) = trace_codec.decode(wire(f"SubAfter|C|ID|3|false|k|{number}|9|g"))
    assert isinstance(trace, Consumed)
    assert trace.outcome is outcome


def test_unknown_lines_are_skipped_and_broken_lines_are_errors() -> None:
    assert trace_codec.decode("") == []
    assert trace_codec.decode(wire("Other|1") + wire("SubBefore|1|null|g|C|ID|2|null")) == [begun()]
    for line in ("SubBefore|1|null|g", "SubBefore|soon|null|g|C|ID|2|null"):
        with pytest.raises(ValueError, match="trace line"):
            trace_codec.decode(wire(line))


def test_keys_of_a_trace() -> None:
    assert trace_codec.keys_of(SENT) == ["ID", "k1", "k2"]
    assert trace_codec.keys_of(RECALLED) == ["ID"]
    assert trace_codec.keys_of(begun()) == ["ID"]


def test_traces_are_packed_into_messages_within_limits() -> None:
    traces = [begun(f"{number:032d}", keys="same") for number in range(3000)]
    packed = trace_codec.pack(traces)
    assert len(packed) > 1
    assert [
        trace for message in packed for trace in trace_codec.decode(message.body.decode())
    ] == traces
    for message in packed:
        assert len(message.body) <= trace_codec.BODY_BYTES_MAX
        assert len(" ".join(message.keys)) <= trace_codec.KEYS_BYTES_MAX
        ids = [trace.message_id for trace in trace_codec.decode(message.body.decode())]
        assert set(message.keys) == {*ids, "same"}
        assert len(message.keys) == len(ids) + 1
    assert trace_codec.pack([]) == []
