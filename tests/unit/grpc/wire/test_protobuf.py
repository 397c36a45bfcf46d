"""The codec of protobuf, compared with Google's on random and damaged messages of every type."""

import itertools
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from reput.errors import InvalidProtobuf
from reput.grpc import limits
from reput.grpc.wire import grpc_messages, protobuf
from reput.grpc.wire.protobuf import MessageField, MessageTable
from scripts import grpc_messages as generator

google = pytest.importorskip(
    "google.protobuf", reason="needs grpcio-tools, which `make venv` installs"
)
from google.protobuf import (  # noqa: E402
    descriptor_pb2,
    descriptor_pool,
    message as google_message,
    message_factory,
)
from google.protobuf.internal import well_known_types  # noqa: E402

PACKAGE = "apache.rocketmq.v2"
TABLES = sorted(grpc_messages.TABLES.values(), key=lambda table: table.name)


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Any:
    # A separate pool: programs of users register the same file names in the default one.
    target = tmp_path_factory.mktemp("protoc") / "all.bin"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{generator.PROTO}"]
    subprocess.run(
        [*command, "--include_imports", f"--descriptor_set_out={target}", *generator.FILES],
        check=True,
    )
    files = descriptor_pb2.FileDescriptorSet.FromString(target.read_bytes())
    private = descriptor_pool.DescriptorPool()
    for file in files.file:
        private.Add(file)
    return private


@pytest.fixture(scope="module")
def classes(pool: Any) -> dict[str, Any]:
    return {
        table.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{PACKAGE}.{table.name}")
        )
        for table in TABLES
    }


# --- the tables -------------------------------------------------------------------


def test_module_is_made_from_the_files() -> None:
    paths = tuple(generator.PROTO / path for path in generator.FILES)
    assert generator.TARGET.read_text() == generator.module_text(paths)


@pytest.mark.parametrize("path", generator.FILES)
def test_files_keep_their_licence(path: str) -> None:
    text = (generator.PROTO / path).read_text()
    assert text.startswith("// Licensed to the Apache Software Foundation (ASF)")
    assert path.rpartition("/")[2] in (generator.ROOT / "NOTICE").read_text()


def _described(field: Any) -> tuple[int, str, str, str, str]:
    """Number, name, kind, message, label and oneof of a field of Google's."""
    kinds = {
        field.TYPE_STRING: "string", field.TYPE_BYTES: "bytes", field.TYPE_INT32: "int32",
        field.TYPE_INT64: "int64", field.TYPE_BOOL: "bool", field.TYPE_FLOAT: "float",
        field.TYPE_ENUM: "enum", field.TYPE_MESSAGE: "message",
    }  # fmt: skip
    oneof = field.containing_oneof
    is_optional = oneof is not None and oneof.name == f"_{field.name}"
    oneof_name = oneof.name if oneof is not None and not is_optional else ""
    if field.is_repeated and field.message_type and field.message_type.GetOptions().map_entry:
        assert [_described(part)[2] for part in field.message_type.fields] == ["string", "string"]
        return field.number, field.name, "string", "", "map"
    message = field.message_type.full_name.removeprefix(f"{PACKAGE}.") if field.message_type else ""
    label = "repeated" if field.is_repeated else "optional" if is_optional else oneof_name
    return field.number, field.name, kinds[field.type], message, label


@pytest.mark.parametrize("table", [*TABLES, protobuf.TIMESTAMP, protobuf.DURATION], ids=repr)
def test_fields_are_those_of_protoc(pool: Any, table: MessageTable) -> None:
    name = table.name if "." in table.name else f"{PACKAGE}.{table.name}"
    expected = [_described(field) for field in pool.FindMessageTypeByName(name).fields]
    assert [
        (
            field.number,
            field.name,
            field.kind,
            field.message.name if field.message else "",
            field.label or field.oneof,
        )
        for field in table.fields
    ] == expected


def test_all_messages_enums_and_methods_of_protoc_are_there(pool: Any) -> None:
    files = [pool.FindFileByName(path) for path in generator.FILES]
    messages = {name for file in files for name in file.message_types_by_name}
    assert set(grpc_messages.TABLES) == messages
    nested = pool.FindEnumTypeByName(f"{PACKAGE}.OffsetOption.Policy")
    enums = [enum for file in files for enum in file.enum_types_by_name.values()]
    for enum in [*enums, nested]:
        ours = getattr(grpc_messages, enum.name)
        assert {item.name: item.value for item in ours} == {
            value.name: value.number for value in enum.values
        }
    service = pool.FindServiceByName(grpc_messages.SERVICE)
    assert {
        (method.name, method.request.name, method.reply.name)
        for method in grpc_messages.METHODS.values()
    } == {
        (method.name, method.input_type.name, method.output_type.name) for method in service.methods
    }
    streams = {
        method.name: (method.is_request_stream, method.is_reply_stream)
        for method in grpc_messages.METHODS.values()
    }
    assert streams == {
        method.name: (method.client_streaming, method.server_streaming)
        for method in service.methods
    }


# --- messages ---------------------------------------------------------------------

INT32 = st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(0, 300)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 1 << 40)
TEXT = st.text(max_size=20) | st.text("ab", min_size=120, max_size=140)
SCALARS = {
    "string": TEXT,
    "bytes": st.binary(max_size=20) | st.binary(min_size=125, max_size=130),
    "int32": INT32,
    "enum": INT32,
    "int64": INT64,
    "bool": st.booleans(),
    "float": st.floats(width=32, allow_nan=False),
}


def _values(field: MessageField) -> st.SearchStrategy[Any]:
    value = _messages(field.message) if field.message else SCALARS[field.kind]
    if field.label == "repeated":
        return st.lists(value, max_size=3)
    return st.dictionaries(TEXT, TEXT, max_size=3) if field.label == "map" else value


def _messages(table: MessageTable) -> st.SearchStrategy[dict[str, Any]]:
    """Messages of a table, with at most one member of each oneof."""
    fields = {field.name: st.deferred(lambda field=field: _values(field)) for field in table.fields}
    oneofs = [
        {field.name for field in group}
        for oneof, group in itertools.groupby(table.fields, lambda field: field.oneof)
        if oneof
        for group in [list(group)]
    ]

    def one_member(values: dict[str, Any]) -> dict[str, Any]:
        for names in oneofs:
            for name in [name for name in values if name in names][1:]:
                del values[name]
        return values

    return st.fixed_dictionaries({}, optional=fields).map(one_member)


MESSAGES = st.sampled_from(TABLES).flatmap(
    lambda table: st.tuples(st.just(table), _messages(table), _messages(table))
)


def _without_zeros(table: MessageTable, values: dict[str, Any]) -> dict[str, Any]:
    """Return what protobuf keeps: no zero of a field without presence."""
    kept: dict[str, Any] = {}
    for field in table.fields:
        value = values.get(field.name)
        if value is None:
            continue
        if field.message:
            nested = field.message
            if field.label == "repeated":
                value = [_without_zeros(nested, item) for item in value]
            else:
                kept[field.name] = _without_zeros(nested, value)
                continue
        if value or field.label == "optional" or field.oneof:
            kept[field.name] = value
    return kept


def _plain(message: Any) -> dict[str, Any]:
    """Return a message of Google's as a dict."""
    values: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type is None:
            values[field.name] = list(value) if field.is_repeated else value
        elif field.message_type.GetOptions().map_entry:
            values[field.name] = dict(value)
        else:
            is_repeated = field.is_repeated
            values[field.name] = [_plain(item) for item in value] if is_repeated else _plain(value)
    return values


@given(MESSAGES)
def test_messages_are_those_of_google(
    classes: dict[str, Any], drawn: tuple[MessageTable, dict[str, Any], dict[str, Any]]
) -> None:
    table, values, _ = drawn
    expected = _without_zeros(table, values)
    encoded = protobuf.encode(table, values)
    parsed = classes[table.name].FromString(encoded)
    assert _plain(parsed) == expected
    assert protobuf.decode(table, encoded) == expected
    assert protobuf.decode(table, parsed.SerializeToString()) == expected


@given(MESSAGES)
def test_messages_are_merged_as_by_google(
    classes: dict[str, Any], drawn: tuple[MessageTable, dict[str, Any], dict[str, Any]]
) -> None:
    table, first, second = drawn
    joined = protobuf.encode(table, first) + protobuf.encode(table, second)
    expected = _plain(classes[table.name].FromString(joined))
    assert _without_zeros(table, protobuf.decode(table, joined)) == expected


@st.composite
def damaged(draw: st.DrawFn) -> tuple[MessageTable, bytes]:
    """Draw bytes of a message of which some were changed, removed, repeated or added."""
    table, values, _ = draw(MESSAGES)
    data = bytearray(protobuf.encode(table, values))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        stop = min(place + draw(st.integers(0, 6)), len(data))
        data[place:stop] = draw(
            st.binary(max_size=6)
            | st.sampled_from([b"\x80\x80", b"\xff" * 9 + b"\x01", b"\x0b", b"\x0c", b"\x07"])
            | st.just(bytes(data[place:stop] * 2))
        )
    return table, bytes(data)


@given(damaged())
def test_damaged_bytes_have_the_verdict_of_google(
    classes: dict[str, Any], drawn: tuple[MessageTable, bytes]
) -> None:
    table, data = drawn
    try:
        expected = _plain(classes[table.name].FromString(data))
    except google_message.DecodeError:
        with pytest.raises(InvalidProtobuf, match=r"^[\w. ]+: .*, at byte \d+$"):
            protobuf.decode(table, data)
        return
    decoded = _without_zeros(table, protobuf.decode(table, data))
    assert repr(_sorted(decoded)) == repr(_sorted(expected))  # nan is nan


def _in_steps(table: MessageTable, data: bytes) -> tuple[dict[str, Any], int]:
    """Return a message that is read in steps, and their number."""
    count = 0
    steps = protobuf.decoded_in_steps(table, data)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@given(damaged())
def test_a_message_read_in_steps_is_the_same(drawn: tuple[MessageTable, bytes]) -> None:
    table, data = drawn
    with (
        mock.patch.object(protobuf, "SMALL_BYTES", 4),
        mock.patch.object(protobuf, "FIELDS_PER_STEP", 2),
    ):
        assert _outcome(lambda: _in_steps(table, data)[0]) == _outcome(
            lambda: protobuf.decode(table, data)
        )


def _outcome(read: Callable[[], dict[str, Any]]) -> str:
    try:
        return repr(read())
    except InvalidProtobuf as error:
        return str(error)


def test_steps_are_bounded_at_any_depth() -> None:
    entries = {"subscriptions": [{"topic": {"name": f"Topic{number}"}} for number in range(5_000)]}
    settings = {"settings": {"subscription": entries}}
    encoded = protobuf.encode(grpc_messages.TELEMETRY_COMMAND, settings)
    decoded, count = _in_steps(grpc_messages.TELEMETRY_COMMAND, encoded)
    assert decoded == settings
    assert count >= len(encoded) // (2 * protobuf.SMALL_BYTES)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((name, _sorted(item)) for name, item in value.items())
    return [_sorted(item) for item in value] if isinstance(value, list) else value


# --- single cases -----------------------------------------------------------------


def test_zeros_on_the_wire_are_present() -> None:
    assert protobuf.decode(grpc_messages.STATUS, b"\x08\x00\x12\x00") == {"code": 0, "message": ""}
    assert protobuf.encode(grpc_messages.STATUS, {"code": 0, "message": ""}) == b""


def test_zero_of_an_optional_field_is_sent() -> None:
    assert protobuf.encode(grpc_messages.SUBSCRIPTION, {"fifo": False}) == b"\x18\x00"


def test_last_member_of_a_oneof_remains() -> None:
    first = protobuf.encode(grpc_messages.SETTINGS, {"publishing": {"max_body_size": 1}})
    second = protobuf.encode(grpc_messages.SETTINGS, {"subscription": {"fifo": True}})
    decoded = protobuf.decode(grpc_messages.SETTINGS, first + second)
    assert decoded == {"subscription": {"fifo": True}}


def test_numbers_are_read_packed_and_unpacked() -> None:
    expected = {"accept_message_types": [1, 2, -1]}
    minus_one = b"\xff" * 9 + b"\x01"
    unpacked = b"\x28\x01\x28\x02\x28" + minus_one
    packed = b"\x2a\x0c\x01\x02" + minus_one
    assert protobuf.decode(grpc_messages.MESSAGE_QUEUE, unpacked) == expected
    assert protobuf.decode(grpc_messages.MESSAGE_QUEUE, packed) == expected
    assert protobuf.encode(grpc_messages.MESSAGE_QUEUE, expected) == packed


def test_encoded_message_is_taken_as_it_is() -> None:
    status = protobuf.encode(grpc_messages.STATUS, {"code": 20000})
    table = grpc_messages.HEARTBEAT_RESPONSE
    assert protobuf.encode(table, {"status": status}) == protobuf.encode(
        table, {"status": {"code": 20000}}
    )
    once = protobuf.Encoded(grpc_messages.STATUS, {"code": 20000})
    assert once == {"code": 20000}
    assert protobuf.encode(table, {"status": once}) == b"\x0a\x04\x08\xa0\x9c\x01"


def test_lone_surrogate_becomes_a_question_mark() -> None:
    encoded = protobuf.encode(grpc_messages.STATUS, {"message": "a\ud800"})
    assert protobuf.decode(grpc_messages.STATUS, encoded) == {"message": "a?"}


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"\x12\x05abc", "Status: message has 5 bytes, 3 remain, at byte 2"),
        (b"\x12\x02a\xff", "Status: message is no UTF-8: invalid start byte, at byte 3"),
        (b"\x08", "Status: code is cut off, at byte 1"),
        (b"\x08" + b"\x80" * 10, "Status: code is a number of more than 10 bytes, at byte 2"),
        (b"\x80", "Status: a tag is cut off, at byte 1"),
        (b"\x00\x00", "Status: field 0 has the number 0, at byte 1"),
        (b"\x1f", "Status: field 3 has the wire type 7; allowed: 0 to 5, at byte 1"),
        (b"\x1c", "Status: field 3 is the end of a group that has not begun, at byte 1"),
        (b"\x1b\x08\x00", "Status: field 3 is a group without an end, at byte 1"),
        (b"\xff\xff\xff\xff\xff\x01", "Status: a tag has a tag of more than 32 bits, at byte 1"),
    ],
)
def test_error_names_message_field_and_position(data: bytes, error: str) -> None:
    with pytest.raises(InvalidProtobuf) as caught:
        protobuf.decode(grpc_messages.STATUS, data)
    assert str(caught.value) == error


def test_error_in_a_nested_message_has_the_position_in_the_whole() -> None:
    with pytest.raises(
        InvalidProtobuf, match=r"^Status: message has 9 bytes, 1 remain, at byte 4$"
    ):
        protobuf.decode(grpc_messages.HEARTBEAT_RESPONSE, b"\x0a\x03\x12\x09a")


def test_groups_are_skipped_to_a_depth() -> None:
    depth = protobuf.GROUP_DEPTH_MAX
    assert protobuf.decode(grpc_messages.STATUS, b"\x1b" * depth + b"\x1c" * depth) == {}
    with pytest.raises(InvalidProtobuf, match="has groups deeper than 100"):
        protobuf.decode(grpc_messages.STATUS, b"\x1b" * (depth + 1) + b"\x1c" * (depth + 1))


MANY = limits.PROTOBUF_FIELDS.maximum


@pytest.mark.parametrize(
    ("table", "field", "field_count"),
    [
        (grpc_messages.STATUS, b"\x12\x01a", 1),  # the same text again and again
        (grpc_messages.STATUS, b"\x98\x06\x01", 1),  # unknown
        (grpc_messages.STATUS, b"\x9b\x06\x9c\x06", 2),  # an unknown group
        (grpc_messages.SEND_MESSAGE_REQUEST, b"\x0a\x02\x22\x00", 2),
        (grpc_messages.SETTINGS, b"\x4a\x03\x0a\x01a", 2),  # entries of a map
    ],
)
def test_number_of_fields_is_limited(table: MessageTable, field: bytes, field_count: int) -> None:
    protobuf.decode(table, field * (MANY // field_count))
    with pytest.raises(InvalidProtobuf, match=r"limit protobuf_fields, at byte \d+$"):
        protobuf.decode(table, field * (MANY // field_count + 1))


def test_large_bodies_are_not_counted_as_fields() -> None:
    body = b"\x12\x00" * 1_000_000
    message = {"messages": [{"body": body, "system_properties": {"tag": "a" * 100_000}}]}
    encoded = protobuf.encode(grpc_messages.SEND_MESSAGE_REQUEST, message)
    assert protobuf.decode(grpc_messages.SEND_MESSAGE_REQUEST, encoded) == message


def test_contents_of_an_unknown_group_do_not_end_the_count() -> None:
    # Outside of a group, this field would be a damaged Status.
    group = b"\x1b" + b"\x0a\x01\xff" + b"\x1c"
    with pytest.raises(InvalidProtobuf, match="limit protobuf_fields"):
        protobuf.decode(grpc_messages.HEARTBEAT_RESPONSE, group + b"\x12\x00" * (MANY + 1))


def test_packed_numbers_count_as_fields() -> None:
    numbers = b"\x2a\x90\x4e" + b"\x01" * 10_000
    decoded = protobuf.decode(grpc_messages.MESSAGE_QUEUE, numbers * 3)
    assert len(decoded["accept_message_types"]) == 30_000
    with pytest.raises(InvalidProtobuf, match="limit protobuf_fields"):
        protobuf.decode(grpc_messages.MESSAGE_QUEUE, numbers * 6)


def test_damage_in_a_large_message_is_named_by_the_reader() -> None:
    good = b"\x0a\x93\x4e" + b"\x22\x90\x4e" + bytes(10_000)
    bad = b"\x0a\x93\x4e" + b"\x22\x91\x4e" + bytes(10_000)
    with pytest.raises(InvalidProtobuf, match="Message: body has 10001 bytes, 10000 remain"):
        protobuf.decode(grpc_messages.SEND_MESSAGE_REQUEST, good * 6 + bad)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"cod": 1}, "Status has no field 'cod'; it has: code, message"),
        ({"code": 1 << 31}, "Status: code cannot be encoded: 2147483648 is not from"),
        ({"message": 1}, "Status: message cannot be encoded: "),
        ({"code": "1"}, "Status: code cannot be encoded: "),
    ],
)
def test_encoding_refuses_other_values(values: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidProtobuf) as caught:
        protobuf.encode(grpc_messages.STATUS, values)
    assert str(caught.value).startswith(error)


def test_times_are_converted() -> None:
    assert protobuf.from_ms(1_700_000_000_123) == {"seconds": 1_700_000_000, "nanos": 123_000_000}
    assert protobuf.timestamp_ms({"seconds": 1, "nanos": 999_999_999}) == 1999
    assert protobuf.timestamp_ms({}) == 0
    assert protobuf.duration_ms({"seconds": -1, "nanos": -1_500_000}) == -1001


@given(st.integers(0, protobuf.SECONDS_MAX), st.integers(0, 999_999_999), st.sampled_from([1, -1]))
def test_durations_are_those_of_google(seconds: int, nanos: int, sign: int) -> None:
    class Time:
        def __init__(self) -> None:
            self.seconds, self.nanos = sign * seconds, sign * nanos

    expected = well_known_types.Duration.ToMilliseconds(Time())
    assert protobuf.duration_ms({"seconds": sign * seconds, "nanos": sign * nanos}) == expected


@pytest.mark.parametrize(
    ("convert", "seconds", "nanos"),
    [
        (protobuf.duration_ms, 315_576_000_001, 0),
        (protobuf.duration_ms, 0, 1_000_000_000),
        (protobuf.duration_ms, 1, -1),
        (protobuf.timestamp_ms, 253_402_300_800, 0),
        (protobuf.timestamp_ms, -62_135_596_801, 0),
        (protobuf.timestamp_ms, 1, -1),
        (protobuf.timestamp_ms, 1, 1_000_000_000),
    ],
)
def test_impossible_times_are_refused(
    convert: Callable[[dict[str, int]], int], seconds: int, nanos: int
) -> None:
    with pytest.raises(InvalidProtobuf, match=rf"has {seconds} seconds and {nanos} nanoseconds"):
        convert({"seconds": seconds, "nanos": nanos})
