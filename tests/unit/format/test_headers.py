"""Header fields: each number has the range of its Java type, and errors name the field."""

import struct
import typing

import msgspec
import pytest
from hypothesis import given, strategies as st

from cases import each
from reput.errors import InvalidHeader
from reput.format import headers
from reput.format.headers import Header

KINDS = sorted(Header.__subclasses__(), key=lambda kind: kind.__name__)


def numbers_of(kind: type[Header]) -> dict[str, msgspec.Meta]:
    """Return the ranges of the numeric fields by wire name."""
    hints = typing.get_type_hints(kind, include_extras=True)
    ranges = {}
    for name, wire_name in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        is_plain = hasattr(hints[name], "__metadata__")
        for hint in (hints[name],) if is_plain else (hints[name], *typing.get_args(hints[name])):
            assert hint is not int, f"{kind.__name__}.{name} has no range"
            for meta in getattr(hint, "__metadata__", ()):
                ranges[wire_name] = meta
    return ranges


FIELDS = [(kind, name) for kind in KINDS for name in numbers_of(kind)]


def fields_of(kind: type[Header], **changes: str) -> dict[str, str]:
    """Return fields that make a valid header: "0" is a text and a number, but no boolean."""
    hints = typing.get_type_hints(kind)
    values = {
        wire_name: "false" if bool in (hints[name], *typing.get_args(hints[name])) else "0"
        for name, wire_name in zip(
            kind.__struct_fields__, kind.__struct_encode_fields__, strict=True
        )
    }
    return values | changes


@each(("kind", "name"), FIELDS)
def test_each_number_has_the_range_of_an_int_or_a_long(kind: type[Header], name: str) -> None:
    meta = numbers_of(kind)[name]
    assert meta.ge is not None
    assert meta.le is not None
    least, most = int(meta.ge), int(meta.le)
    assert (least, most) in {(-(1 << 31), (1 << 31) - 1), (-(1 << 63), (1 << 63) - 1)}
    for value in (least, -1, 0, most):
        header = headers.decode(kind, fields_of(kind, **{name: str(value)}))
        assert headers.encode(header)[name] == str(value)
        struct.pack(">i" if most < 1 << 31 else ">q", value)
    for text in (str(least - 1), str(most + 1), str(10**30), "9" * 5_000, "x" * 100_000):
        with pytest.raises(InvalidHeader) as raised:
            headers.decode(kind, fields_of(kind, **{name: text}))
        assert f"`$.{name}`; allowed: {least} to {most}" in str(raised.value)
        assert len(str(raised.value)) < 300


@each(
    ("kind", "name", "bits"),
    [
        (headers.PullMessageHeader, "queueId", 32),
        (headers.PullMessageHeader, "queueOffset", 64),
        (headers.PullMessageHeader, "maxMsgNums", 32),
        (headers.PullMessageHeader, "subVersion", 64),
        (headers.SendMessageHeader, "bornTimestamp", 64),
        (headers.SendMessageHeader, "reconsumeTimes", 32),
        (headers.EndTransactionHeader, "tranStateTableOffset", 64),
        (headers.UpdateConsumerOffsetHeader, "commitOffset", 64),
        (headers.QueryConsumeQueueHeader, "index", 64),
        (headers.QueryConsumeQueueHeader, "count", 32),
        (headers.RegisterBrokerHeader, "brokerId", 64),
        (headers.PopMessageHeader, "invisibleTime", 64),
        (headers.SendBackHeader, "delayLevel", 32),
    ],
)
def test_the_types_equal_those_of_the_java_classes(
    kind: type[Header], name: str, bits: int
) -> None:
    """The expected types are copied from ``org.apache.rocketmq.common.protocol.header``."""
    assert numbers_of(kind)[name].le == (1 << (bits - 1)) - 1


@given(
    st.sampled_from(KINDS),
    st.dictionaries(
        st.sampled_from(sorted({name for _, name in FIELDS})), st.text() | st.integers().map(str)
    ),
)
def test_any_fields_make_a_header_or_an_error(kind: type[Header], changes: dict[str, str]) -> None:
    try:
        header = headers.decode(kind, fields_of(kind) | changes)
    except InvalidHeader:
        return
    assert headers.decode(kind, headers.encode(header)) == header


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidHeader, match=r"Pull.*`consumerGroup`"):
        headers.decode(headers.PullMessageHeader, None)
    with pytest.raises(InvalidHeader, match=r"SendMessage.*`producerGroup`"):
        headers.decode_v2({"b": "T"})
