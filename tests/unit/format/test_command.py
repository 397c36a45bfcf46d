"""Invalid and hostile frames: each results in a command, a refusal or ``NotAFrame``."""

import contextlib
import functools
import json
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from reput.errors import NotAFrame
from reput.format import command as commands, limits
from reput.format.command import IS_REPLY, Command, Serialization
from reput.limits import Limit


def frame(header: bytes, serialization: int = 0, body: bytes = b"") -> bytes:
    """Return a frame without its length field."""
    return struct.pack(">i", serialization << 24 | len(header)) + header + body


def json_frame(fields: bytes, flag: int = 0) -> bytes:
    """Return a frame with this JSON as its extFields."""
    return frame(b'{"code":11,"flag":%d,"opaque":7,"extFields":%b}' % (flag, fields), body=b"body")


@functools.cache  # the largest ones take a second
def object_of(count: int, value: bytes = b'"v"') -> bytes:
    return b"{" + b",".join(b'"k%d":%b' % (i, value) for i in range(count)) + b"}"


HEAD = struct.pack(">hbhii", 11, 0, 0, 7, 0)
REPLY_HEAD = struct.pack(">hbhii", 0, 0, 0, 7, IS_REPLY)


def binary_frame(fields: bytes, head: bytes = HEAD) -> bytes:
    return frame(head + struct.pack(">ii", 0, len(fields)) + fields, 1, b"body")


def binary_fields(count: int) -> bytes:
    return b"".join(
        struct.pack(">h", len(name)) + name + struct.pack(">i", 1) + b"v"
        for name in (b"k%d" % i for i in range(count))
    )


# --- bytes that are no frame --------------------------------------------------


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b'{"code":1,"extFields":' + b"[" * 100_000,
        b'{"code":1,"extFields":{"a":' + b"[" * 5_000,
        b'{"code":1,"other":' + b'{"a":' * 100_000,
        b'{"code":1,"extFields":{"a":' + b"[" * 900 + b"]" * 900 + b"}}x",
        b'{"code":' + b"1" * 5_000 + b"}",
        b'{"code":2147483648}',
        b'{"code":1,"opaque":99999999999}',
        b'{"code":1,"flag":-2147483649}',
        b'{"code":1,"version":1e30}',
        b'{"code":1,"remark":"\\ud800"}',
        b'{"code":1,"extFields":{"a":"\\ud800"}}',
        b'{"code":1,"extFields":{"\\udc00":"a"}}',
        b'{"code":1,"extFields":{"a":"\xed\xa0\x80"}}',
        b'{"code":1,"extFields":{"a":1,"b":"\\ud800"}}',
        b"\xff" * 10_000,
        b"",
    ],
    ids=lambda header: header[:40].decode("ascii", "replace"),
)
def test_an_invalid_header_is_no_frame(header: bytes) -> None:
    with pytest.raises(NotAFrame) as raised:
        commands.decode(frame(header))
    assert len(str(raised.value)) < 500


# --- names that are there twice -----------------------------------------------


@pytest.mark.parametrize(
    ("header", "has_repeats"),
    [
        (b'{"code":1,"extFields":{"a":"1","A":"1","b":"a"}}', False),
        (b'{"code":1,"extFields":{"a":"\\"a\\":\\"b\\"","b":"{\\"a\\":1,\\"a\\":1}"}}', False),
        (b'{"code":1,"extFields":{"code":"1","extFields":"2"}}', False),
        (b'{"code":1,"extFields":{"a":"1","a":"1"}}', True),
        (b'{"code":1,"extFields":{"a":"1","\\u0061":"2"}}', True),
        (b'{"code":1,"extFields":{"a":"1","b":"\\\\","a":null}}', True),
        (b'{"code":1,"extFields":{"":"1","":"2"}}', True),
        (b'{"code":1,"extFields":{"a":"1"},"extFields":{"b":"1"}}', True),
        (b'{"code":1,"extFields":{"a":"1"},"extFields":null}', True),
        (b'{"code":1,"code":2,"extFields":{"a":"1"}}', True),
        (b'{"code":1,"other":%b}' % (b"1" * 5_000), True),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_name_twice_in_json_is_found(header: bytes, has_repeats: bool) -> None:
    assert commands.decode(frame(header), finds_repeats=True).has_repeats is has_repeats
    assert not commands.decode(frame(header)).has_repeats


def test_a_name_twice_in_a_binary_header_is_found() -> None:
    fields = binary_fields(2)
    absent = struct.pack(">h", 2) + b"k1" + struct.pack(">i", 0)
    assert not commands.decode(binary_frame(fields + absent)).has_repeats
    request = commands.decode(binary_frame(fields + fields))
    assert request.has_repeats
    assert request.ext_fields == {"k0": "v", "k1": "v"}


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=9,
)


def checked(data: bytes) -> None:
    """Check that a frame is refused or decodes to a command that can be encoded."""
    try:
        command = commands.decode(data)
    except NotAFrame:
        return
    (command.remark or "").encode()
    for name, value in (command.ext_fields or {}).items():
        name.encode()
        value.encode()
    reply = commands.reply(command, remark=command.remark, ext_fields=command.ext_fields)
    assert commands.decode(commands.encode(reply)[4:]).opaque == command.opaque


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "code": JSON_VALUES, "flag": JSON_VALUES, "language": JSON_VALUES,
            "opaque": JSON_VALUES, "version": JSON_VALUES, "remark": JSON_VALUES,
            "extFields": JSON_VALUES | st.dictionaries(st.text(max_size=4), JSON_VALUES),
        },
    )
)  # fmt: skip
@example({"code": 1, "language": 10**30})
@example({"code": 1, "language": -1})
@example({"code": 1, "extFields": {"a": "\ud800"}})
@example({"code": 1, "extFields": {"a": 10**30}})
def test_any_json_is_a_command_or_no_frame(value: dict[str, Any]) -> None:
    checked(frame(json.dumps(value).encode()))


@given(st.binary(max_size=300), st.sampled_from([0, 1]))
def test_any_bytes_are_a_command_or_no_frame(header: bytes, serialization: int) -> None:
    checked(frame(header, serialization))


@given(st.binary(max_size=100))
def test_any_binary_fields_are_a_command_or_no_frame(fields: bytes) -> None:
    checked(binary_frame(fields))


# --- limits ---------------------------------------------------------------------

MANY = limits.HEADER_FIELDS.maximum
LONG = limits.HEADER_BYTES.maximum
FEW_LONG = object_of(1, b'"' + b"v" * LONG + b'"')


@pytest.mark.parametrize(
    ("data", "limit"),
    [
        (json_frame(object_of(MANY + 20)), limits.HEADER_FIELDS),
        (json_frame(object_of(300_000)), limits.HEADER_FIELDS),
        (json_frame(object_of(300_000).replace(b'":', b'" :')), limits.HEADER_FIELDS),
        (json_frame(object_of(5_000, b'"\\""')), limits.HEADER_FIELDS),
        (json_frame(object_of(5_000, b'"\\\\"')), limits.HEADER_FIELDS),
        (json_frame(FEW_LONG), limits.HEADER_BYTES),
        (json_frame(b'{"a":[' + b"1," * LONG + b"1]}"), limits.HEADER_BYTES),
        (binary_frame(binary_fields(MANY + 1)), limits.HEADER_FIELDS),
        (binary_frame(binary_fields(20_000)), limits.HEADER_FIELDS),
        (binary_frame(struct.pack(">hi", 0, LONG) + b"v" * LONG), limits.HEADER_BYTES),
    ],
    ids=[
        "fields",
        "many fields",
        "spaces",
        "quotes",
        "backslashes",
        "long",
        "list",
        "binary fields",
        "many binary fields",
        "long binary",
    ],
)
def test_a_request_over_a_limit_can_be_answered(data: bytes, limit: Limit) -> None:
    command = commands.decode(data)
    assert command.refusal is not None
    assert command.refusal.limit == limit.name
    assert (command.code, command.opaque, command.body) == (11, 7, b"body")
    assert command.ext_fields is None
    assert command.serialization == (Serialization.ROCKETMQ if data[0] else Serialization.JSON)


@pytest.mark.parametrize(
    "data",
    [json_frame(object_of(MANY)), binary_frame(binary_fields(MANY))],
    ids=["JSON", "binary"],
)
def test_as_many_fields_as_allowed(data: bytes) -> None:
    command = commands.decode(data)
    assert command.refusal is None
    assert len(command.ext_fields or {}) == MANY


@pytest.mark.parametrize("serialization", Serialization)
def test_the_longest_properties_fit(serialization: Serialization) -> None:
    """The longest properties of a send are 32,767 bytes, each of which takes six in JSON."""
    properties = "\x01\x02" * 16_383
    sent = Command(310, 7, ext_fields={"i": properties, "b": "T"}, serialization=serialization)
    command = commands.decode(commands.encode(sent)[4:])
    assert command.refusal is None
    assert command.ext_fields == sent.ext_fields


@pytest.mark.parametrize("serialization", Serialization)
def test_a_reply_to_a_large_batch_may_be_long(serialization: Serialization) -> None:
    ids = ",".join(f"{i:032X}" for i in range(20_000))
    reply = Command(0, 7, IS_REPLY, ext_fields={"msgId": ids}, serialization=serialization)
    assert len(ids) > LONG
    assert commands.decode(commands.encode(reply)[4:]).ext_fields == {"msgId": ids}


@pytest.mark.parametrize(
    "data",
    [
        json_frame(object_of(MANY + 20), IS_REPLY),
        json_frame(b'{"a":[' + b"1," * LONG + b"1]}", IS_REPLY),
        binary_frame(binary_fields(MANY + 1), REPLY_HEAD),
    ],
    ids=["fields", "list", "binary fields"],
)
def test_a_reply_over_a_limit_is_no_frame(data: bytes) -> None:
    with pytest.raises(NotAFrame):
        commands.decode(data)


@pytest.mark.parametrize(
    "header",
    [
        object_of(900_000),
        FEW_LONG * 50,
        b'{"code":1,"extFields":' + object_of(900_000) + b"}",
        b'{"code":1,"flag":1,"extFields":{"a":[' + b"1," * 6_000_000 + b"1]}}",
        b'{"code":1,"flag":1,"extFields":{"a":"' + b'\\"' * 6_000_000 + b'"}}',
    ],
    ids=["no head", "junk", "fields", "list", "escapes"],
)
def test_the_longest_headers_cost_little(header: bytes) -> None:
    """Without the limits it took seconds, and a hundred bytes of memory for each field."""
    data = frame(header)
    tracemalloc.start()
    try:
        with contextlib.suppress(NotAFrame):
            command = commands.decode(data)
            is_short_reply = command.is_reply and len(command.ext_fields or {}) == 1
            assert is_short_reply or (command.refusal is not None and not command.ext_fields)
        assert tracemalloc.get_traced_memory()[1] < 4 * len(header) + (1 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("serialization", Serialization)
def test_a_header_that_is_too_long_is_not_encoded(serialization: Serialization) -> None:
    """The length of a header has three bytes: one more would change the serialization byte."""
    sent = Command(0, 7, ext_fields={"a": "v" * (1 << 24)}, serialization=serialization)
    with pytest.raises(ValueError, match="at most 16777215 fit"):
        commands.encode(sent)


def test_a_name_that_does_not_fit_its_length_is_not_encoded() -> None:
    sent = Command(0, 7, ext_fields={"a" * 40_000: "v"}, serialization=Serialization.ROCKETMQ)
    with pytest.raises(ValueError, match="does not fit a binary header"):
        commands.encode(sent)
