r"""Lines of traces. What Java writes and reads is compared in tests/interop/test_trace.py."""

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

LINES: dict[str, Trace] = {  # by TraceDataEncoder.encoderFromContextBean
    "Pub|1700000000000|DefaultRegion|g|T|ID|null|k1 k2|127.0.0.1:10911|5|3|3|7F|true": SENT,
    "SubBefore|1|null|g|C|ID|2|null": begun(),
    "SubAfter|C|ID|3|false|k|2|9|g": CONSUMED,
    "EndTransaction|1|R|g|T|ID|t|null|b:1|2|X|ROLLBACK_MESSAGE|true": ENDED,
    "Recall|1|R|g|T|ID|true": RECALLED,
}


def wire(line: str) -> str:
    return line.replace("|", "\x01") + "\x02"


@pytest.mark.parametrize("line", LINES)
def test_lines_both_ways(line: str) -> None:
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
def test_sends_of_older_clients(line: str, success: bool, offset_id: str | None) -> None:
    (one,) = trace_codec.decode(wire(line))
    assert isinstance(one, Sent)
    assert (one.is_success, one.offset_message_id) == (success, offset_id)


def test_consumptions_of_older_clients() -> None:
    (one, two) = trace_codec.decode(
        wire("SubAfter|C|ID|3|true|k") + wire("SubAfter|C|ID|3|true|k|1")
    )
    assert isinstance(one, Consumed)
    assert isinstance(two, Consumed)
    assert (one.outcome, one.time_ms, one.group) == (Outcome.SUCCESS, 0, None)
    assert two.outcome is Outcome.TIME_OUT


def test_other_lines_are_left_out_and_broken_ones_are_said() -> None:
    assert trace_codec.decode("") == []
    assert trace_codec.decode(wire("Other|1") + wire("SubBefore|1|null|g|C|ID|2|null")) == [begun()]
    for line in ("SubBefore|1|null|g", "SubBefore|soon|null|g|C|ID|2|null"):
        with pytest.raises(ValueError, match="trace line"):
            trace_codec.decode(wire(line))


def test_what_a_trace_is_found_by() -> None:
    assert trace_codec.keys_of(SENT) == ["ID", "k1", "k2"]
    assert trace_codec.keys_of(RECALLED) == ["ID"]
    assert trace_codec.keys_of(begun()) == ["ID"]


def test_traces_go_together_within_what_a_message_may_hold() -> None:
    traces = [begun(f"{number:032d}", keys="same") for number in range(3000)]
    packed = trace_codec.pack(traces)
    assert len(packed) > 1
    assert [one for each in packed for one in trace_codec.decode(each.body.decode())] == traces
    for each in packed:
        assert len(each.body) <= trace_codec.BODY_BYTES_MAX
        assert len(" ".join(each.keys)) <= trace_codec.KEYS_BYTES_MAX
        ids = [one.message_id for one in trace_codec.decode(each.body.decode())]
        assert set(each.keys) == {*ids, "same"}
        assert len(each.keys) == len(ids) + 1
    assert trace_codec.pack([]) == []
